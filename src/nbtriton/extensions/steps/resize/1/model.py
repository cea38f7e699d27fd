"""Resize images to one size: Pillow, on a GPU PyTorch with antialiasing."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image

PARAMETERS = {
    "size": ("224,224", (1, 16384), "height and width in pixels"),
    "filter": (
        "bilinear",
        ("bilinear", "bicubic", "nearest"),
        "how pixels between pixels are made",
    ),
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
        self.size, (self.filter,) = values["size"], values["filter"]

    def execute(self, requests):
        resize = self.by_pillow if self.device is None else self.by_torch
        return [give(IMAGE=resize(take(request, "IMAGE", self.device))) for request in requests]

    def by_pillow(self, images):
        height, width = self.size
        how = Image.Resampling[self.filter.upper()]
        return np.stack([Image.fromarray(one).resize((width, height), how) for one in images])

    def by_torch(self, images):
        from torch.nn.functional import interpolate

        planes = images.permute(0, 3, 1, 2).float()
        smooth = self.filter != "nearest"
        mode = self.filter if smooth else "nearest-exact"
        planes = interpolate(planes, self.size, mode=mode, antialias=smooth)
        return planes.round().clamp(0, 255).byte().permute(0, 2, 3, 1)
