"""Make sound of another sample rate: SciPy, on a GPU PyTorch with its filter."""

import json
import math

import numpy as np
import triton_python_backend_utils as pb_utils
from scipy import signal

PARAMETERS = {
    "rate_in": ("44100", (1, 1000000), "samples a second of what comes in"),
    "rate_out": ("16000", (1, 1000000), "samples a second of what goes out"),
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
        (rate_in,), (rate_out,) = values["rate_in"], values["rate_out"]
        common = math.gcd(rate_in, rate_out)
        self.up, self.down = rate_out // common, rate_in // common

    def execute(self, requests):
        resample = self.by_scipy if self.device is None else self.by_torch
        return [give(AUDIO=resample(take(request, "AUDIO", self.device))) for request in requests]

    def by_scipy(self, sound):
        return signal.resample_poly(sound, self.up, self.down, axis=-1)

    def by_torch(self, sound):
        if self.up == self.down:
            return sound
        half = 10 * max(self.up, self.down)  # the filter of resample_poly
        taps = signal.firwin(2 * half + 1, 1 / max(self.up, self.down), window=("kaiser", 5.0))
        taps = sound.new_tensor(taps * self.up)[None, None]
        from torch.nn.functional import conv_transpose1d

        filtered = conv_transpose1d(sound[:, None], taps, stride=self.up)[:, 0]
        return filtered[:, half :: self.down][:, : -(-sound.shape[1] * self.up // self.down)]
