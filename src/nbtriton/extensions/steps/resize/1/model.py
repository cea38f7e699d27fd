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


def read_parameters(given):
    """Return the values of PARAMETERS: the texts that are given, read and checked, or the defaults."""
    if unknown := given.keys() - PARAMETERS.keys():
        raise ValueError(f"unknown parameter '{min(unknown)}', known are {', '.join(PARAMETERS)}")
    values = {}
    for name, (default, allowed, _) in PARAMETERS.items():
        value = text = given.get(name, default)
        valid = allowed is None or text in allowed  # None: the name of a file beside this one
        if allowed and not isinstance(allowed[0], str):
            try:
                value = [type(allowed[0])(word) for word in text.split(",")]
            except ValueError:
                value = []
            valid = len(value) == len(default.split(","))
            valid = valid and all(allowed[0] <= one <= allowed[1] for one in value)
        if not valid:
            raise ValueError(
                f"parameter '{name}' is '{text}', allowed is {allowed}, as in {default}"
            )
        values[name] = value
    return values


class TritonPythonModel:
    def initialize(self, args):
        given = json.loads(args["model_config"])["parameters"].items()
        values = read_parameters({k: v["string_value"] for k, v in given if k.islower()})
        self.size, self.filter = values["size"], values["filter"]
        self.device = None
        if args["model_instance_kind"] == "GPU":
            import torch

            found = torch.cuda.is_available()
            self.device = f"cuda:{args['model_instance_device_id']}" if found else "cpu"

    def execute(self, requests):
        images = [pb_utils.get_input_tensor_by_name(one, "IMAGE") for one in requests]
        resize = self.by_pillow if self.device is None else self.by_torch
        return [pb_utils.InferenceResponse([resize(image)]) for image in images]

    def by_pillow(self, tensor):
        height, width = self.size
        how = Image.Resampling[self.filter.upper()]
        images = [Image.fromarray(one).resize((width, height), how) for one in tensor.as_numpy()]
        return pb_utils.Tensor("IMAGE", np.stack([np.asarray(one) for one in images]))

    def by_torch(self, tensor):
        import torch

        planes = torch.from_dlpack(tensor.to_dlpack()).to(self.device).permute(0, 3, 1, 2).float()
        smooth = self.filter != "nearest"
        mode = self.filter if smooth else "nearest-exact"
        planes = torch.nn.functional.interpolate(planes, self.size, mode=mode, antialias=smooth)
        pixels = planes.round().clamp(0, 255).byte().permute(0, 2, 3, 1).contiguous()
        return pb_utils.Tensor.from_dlpack("IMAGE", torch.utils.dlpack.to_dlpack(pixels))
