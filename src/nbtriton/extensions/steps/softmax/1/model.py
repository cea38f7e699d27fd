"""Make probabilities of scores: SciPy, on a GPU PyTorch."""

from scipy.special import softmax

from .shared.parameters import read_parameters
from .shared.tensors import answer, device_of, give, take

PARAMETERS = {"temperature": ("1", (1e-3, 1e3), "what scores are divided by; above 1: more even")}


class TritonPythonModel:
    def initialize(self, args):
        self.temperature = read_parameters(args["model_config"], PARAMETERS)["temperature"]
        self.device = device_of(args)

    def execute(self, requests):
        return answer(requests, self.respond)

    def respond(self, request):
        scores = take(request, "SCORES", self.device) / self.temperature
        found = softmax(scores, axis=-1) if self.device is None else scores.softmax(-1)
        return give(PROBABILITIES=found)
