"""Resize images into one size with their aspect kept, and fill the rest: Pillow, on a GPU PyTorch."""

import numpy as np
from PIL import Image

from .shared.parameters import read_parameters
from .shared.tensors import answer, device_of, give, take

PARAMETERS = {
    "size": ("640,640", (1, 16384), "height and width in pixels"),
    "colour": ("114,114,114", (0, 255), "red, green and blue of the rest"),
}


class TritonPythonModel:
    def initialize(self, args):
        values = read_parameters(args["model_config"], PARAMETERS)
        self.device = device_of(args)
        self.size, self.colour = values.values()

    def execute(self, requests):
        return answer(requests, lambda one: self.fit(take(one, "IMAGE", self.device)))

    def fit(self, images):
        count, height, width, _ = images.shape
        scale = min(self.size[0] / height, self.size[1] / width)
        inner = max(round(height * scale), 1), max(round(width * scale), 1)
        resize = self.by_pillow if self.device is None else self.by_torch
        top, left = (self.size[0] - inner[0]) // 2, (self.size[1] - inner[1]) // 2
        rest = np.full((count, *self.size, 3), self.colour, np.uint8)
        if self.device is not None:
            rest = images.new_tensor(rest)
        rest[:, top : top + inner[0], left : left + inner[1]] = resize(images, inner)
        # Of x and y: a place in IMAGE is one in the image, times SCALE, plus OFFSET.
        scales = np.array([[inner[1] / width, inner[0] / height]] * count, np.float32)
        return give(IMAGE=rest, SCALE=scales, OFFSET=np.array([[left, top]] * count, np.float32))

    def by_pillow(self, images, size):
        how = Image.Resampling.BILINEAR
        return np.stack([Image.fromarray(one).resize(size[::-1], how) for one in images])

    def by_torch(self, images, size):
        from torch.nn.functional import interpolate

        planes = images.permute(0, 3, 1, 2).float()
        planes = interpolate(planes, size, mode="bilinear", antialias=True)
        return planes.round().clamp(0, 255).byte().permute(0, 2, 3, 1)
