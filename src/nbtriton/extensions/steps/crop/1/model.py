"""Cut one rectangle out of images, by default their middle: NumPy, on a GPU PyTorch."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

PARAMETERS = {
    "size": ("224,224", (1, 16384), "height and width in pixels"),
    "top": ("-1", (-1, 16384), "first row; -1: the middle"),
    "left": ("-1", (-1, 16384), "first column; -1: the middle"),
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
        self.size, self.corner = values["size"], values["top"] + values["left"]

    def execute(self, requests):
        return [self.respond(take(request, "IMAGE", self.device)) for request in requests]

    def respond(self, images):
        found = images.shape[1:3]
        corner = [
            round((whole - part) / 2) if first == -1 else first
            for first, whole, part in zip(self.corner, found, self.size)
        ]
        if any(a < 0 or a + part > whole for a, part, whole in zip(corner, self.size, found)):
            text = (
                f"IMAGE has {found[0]} x {found[1]} pixels, too few for {self.size} from {corner}"
            )
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(text))
        (top, left), (height, width) = corner, self.size
        return give(IMAGE=images[:, top : top + height, left : left + width])
