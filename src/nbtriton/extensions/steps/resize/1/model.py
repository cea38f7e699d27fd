"""Resize images to one size: Pillow, on a GPU PyTorch with antialiasing."""

import numpy as np
from PIL import Image

from .shared.parameters import read_parameters
from .shared.tensors import device_of, give, take

PARAMETERS = {
    "size": ("224,224", (1, 16384), "height and width in pixels"),
    "filter": (
        "bilinear",
        ("bilinear", "bicubic", "nearest"),
        "how pixels between pixels are made",
    ),
}


class TritonPythonModel:
    def initialize(self, args):
        values = read_parameters(args["model_config"], PARAMETERS)
        self.device = device_of(args)
        self.size, self.filter = values.values()

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
