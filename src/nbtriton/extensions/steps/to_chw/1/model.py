"""Make planes of pixels, height x width x channels to channels x height x width: NumPy, on a GPU PyTorch."""

import numpy as np

from .shared.parameters import read_parameters
from .shared.tensors import device_of, give, take

PARAMETERS = {}


class TritonPythonModel:
    def initialize(self, args):
        read_parameters(args["model_config"], PARAMETERS)
        self.device = device_of(args)

    def execute(self, requests):
        images = [take(request, "IMAGE", self.device) for request in requests]
        if self.device is None:
            return [give(IMAGE=np.ascontiguousarray(one.transpose(0, 3, 1, 2))) for one in images]
        return [give(IMAGE=one.permute(0, 3, 1, 2)) for one in images]
