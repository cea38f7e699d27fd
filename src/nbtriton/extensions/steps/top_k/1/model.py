"""Find the largest scores, with their labels: NumPy, on a GPU PyTorch."""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

PARAMETERS = {
    "k": ("5", (1, 100000), "how many; of fewer scores all"),
    "labels": ("", None, "a file with a line a score; without it labels are the indices"),
}


def read_parameters(config):
    """Return the values of each of PARAMETERS: what the configuration says, checked, or the default."""
    given = {key: one["string_value"] for key, one in json.loads(config)["parameters"].items()}
    if unknown := {key for key in given if key.islower()} - PARAMETERS.keys():
        raise ValueError(f"unknown parameter '{min(unknown)}', known are {', '.join(PARAMETERS)}")
    values = {}
    for name, (default, allowed, _) in PARAMETERS.items():
        text = given.get(name, default)
        try:
            found = [type(allowed[0])(word) for word in text.split(",")] if allowed else [text]
        except ValueError:
            found = []
        words = not allowed or isinstance(allowed[0], str)
        valid = [x in (allowed or found) if words else allowed[0] <= x <= allowed[1] for x in found]
        if not all(valid) or len(valid) != len(default.split(",")):
            raise ValueError(f"{name} is '{text}', allowed is {allowed}, as in '{default}'")
        values[name] = found
    return values


def device_of(args):
    """Return torch's device of an instance on a GPU; None for one on the CPU."""
    if args["model_instance_kind"] != "GPU":
        return None
    import torch

    return f"cuda:{args['model_instance_device_id']}" if torch.cuda.is_available() else "cpu"


def take(request, name, device):
    """Return an input: NumPy's array, or torch's tensor on a device."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if device is None and tensor.is_cpu():
        return tensor.as_numpy()
    import torch

    found = torch.from_dlpack(tensor.to_dlpack()).to(device or "cpu")
    return found if device else found.numpy()


def give(**outputs):
    """Return a response with these arrays or tensors."""
    pack, share = pb_utils.Tensor, pb_utils.Tensor.from_dlpack
    pairs = outputs.items()
    made = [pack(k, v) if isinstance(v, np.ndarray) else share(k, v.contiguous()) for k, v in pairs]
    return pb_utils.InferenceResponse(made)


class TritonPythonModel:
    def initialize(self, args):
        values = read_parameters(args["model_config"])
        self.device = device_of(args)
        (self.k,), (name,) = values["k"], values["labels"]
        file = Path(__file__).parent / name
        self.labels = file.read_text("utf-8").splitlines() if name else None

    def execute(self, requests):
        return [self.respond(take(request, "SCORES", self.device)) for request in requests]

    def respond(self, scores):
        if self.device is None:
            indices = np.argsort(-scores, axis=-1, kind="stable")[:, : self.k]
            best, rows = np.take_along_axis(scores, indices, -1), indices
        else:
            best, indices = scores.sort(dim=-1, descending=True, stable=True)
            best, indices = best[:, : self.k], indices[:, : self.k]
            rows = indices.cpu().numpy()
        if self.labels is not None and scores.shape[1] != len(self.labels):
            text = f"SCORES has {scores.shape[1]} scores for {len(self.labels)} labels"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(text))
        names = rows if self.labels is None else np.array(self.labels, object)[rows]
        labels = np.array([str(one).encode() for one in names.reshape(-1)], object)
        return give(SCORES=best, INDICES=indices, LABELS=labels.reshape(rows.shape))
