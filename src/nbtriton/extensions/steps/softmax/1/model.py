"""Make probabilities of scores: SciPy, on a GPU PyTorch."""

from scipy.special import softmax

from .shared.parameters import read_parameters
from .shared.tensors import device_of, give, take

PARAMETERS = {"temperature": ("1", (1e-3, 1e3), "what scores are divided by; above 1: more even")}


class TritonPythonModel:
    def initialize(self, args):
        self.temperature = read_parameters(args["model_config"], PARAMETERS)["temperature"]
        self.device = device_of(args)

    def execute(self, requests):
        scores = [take(request, "SCORES", self.device) / self.temperature for request in requests]
        if self.device is None:
            return [give(PROBABILITIES=softmax(one, axis=-1)) for one in scores]
        return [give(PROBABILITIES=one.softmax(-1)) for one in scores]
