"""Decode JPEG, PNG and WebP, upright by EXIF's orientation: Pillow."""

import io
import json

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image, ImageOps

PARAMETERS = {
    "max_pixels": ("50000000", (1, 178956970), "the most pixels of an image that is decoded")
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


class TritonPythonModel:
    def initialize(self, args):
        values = read_parameters(args["model_config"])
        (self.most,) = values["max_pixels"]

    def execute(self, requests):
        return [self.respond(pb_utils.get_input_tensor_by_name(one, "DATA")) for one in requests]

    def respond(self, tensor):
        try:
            images = [self.decode(data) for data in tensor.as_numpy().reshape(-1)]
            sizes = {image.shape for image in images}
            if len(sizes) > 1:
                raise ValueError(f"images of one request must have one size, found {sorted(sizes)}")
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"DATA: {error}"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("IMAGE", np.stack(images))])

    def decode(self, data):
        try:
            image = Image.open(io.BytesIO(data), formats=("JPEG", "PNG", "WEBP"))
        except OSError:
            raise ValueError("not an image in JPEG, PNG or WebP") from None
        if image.width * image.height > self.most:
            raise ValueError(f"{image.width} x {image.height} pixels, max_pixels is {self.most}")
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
