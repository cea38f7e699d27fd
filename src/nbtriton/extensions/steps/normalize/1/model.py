"""Make pixels to numbers, (IMAGE / divisor - mean) / std: NumPy, on a GPU PyTorch."""

import numpy as np

from .shared.parameters import read_parameters
from .shared.tensors import device_of, give, take

PARAMETERS = {
    "divisor": ("255", (1e-6, 1e6), "what pixels are divided by first"),
    "mean": ("0.485,0.456,0.406", (-1e6, 1e6), "of red, green and blue; by default ImageNet's"),
    "std": ("0.229,0.224,0.225", (1e-6, 1e6), "of red, green and blue; by default ImageNet's"),
}


class TritonPythonModel:
    def initialize(self, args):
        values = read_parameters(args["model_config"], PARAMETERS)
        self.device = device_of(args)
        # A number alone, without a dimension, would be less than FP32 to NumPy 1.
        self.numbers = [np.array(one, np.float32, ndmin=1) for one in values.values()]
        if self.device is not None:
            import torch

            self.numbers = [torch.from_numpy(one).to(self.device) for one in self.numbers]

    def execute(self, requests):
        divisor, mean, std = self.numbers
        images = [take(request, "IMAGE", self.device) for request in requests]
        return [give(IMAGE=(image / divisor - mean) / std) for image in images]
