"""Decode JPEG, PNG and WebP, upright by EXIF's orientation: Pillow."""

import io

import numpy as np
from PIL import Image, ImageOps

from .shared.parameters import read_parameters
from .shared.tensors import give, refuse, take

PARAMETERS = {
    "max_pixels": ("50000000", (1, 178956970), "the most pixels of an image that is decoded")
}


class TritonPythonModel:
    def initialize(self, args):
        self.most = read_parameters(args["model_config"], PARAMETERS)["max_pixels"]

    def execute(self, requests):
        return [self.respond(take(one, "DATA", None)) for one in requests]

    def respond(self, files):
        try:
            images = [self.decode(data) for data in files.reshape(-1)]
            sizes = {image.shape for image in images}
            if len(sizes) > 1:
                raise ValueError(f"images of one request must have one size, found {sorted(sizes)}")
        except Exception as error:
            return refuse(f"DATA: {error}")
        return give(IMAGE=np.stack(images))

    def decode(self, data):
        try:
            image = Image.open(io.BytesIO(data), formats=("JPEG", "PNG", "WEBP"))
        except OSError:
            raise ValueError("not an image in JPEG, PNG or WebP") from None
        if image.width * image.height > self.most:
            raise ValueError(f"{image.width} x {image.height} pixels, max_pixels is {self.most}")
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
