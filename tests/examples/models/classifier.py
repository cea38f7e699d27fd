"""A stand-in for an image network: the mean colour of an image times the weights beside it."""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        (self.input,), (self.output,) = config["input"], config["output"]
        self.width, self.height = (3, 2) if self.input["format"] == "FORMAT_NCHW" else (2, 1)
        self.weights = np.load(Path(__file__).with_name("weights.npy"))
        self.softmax = "Softmax" in self.output["name"]
        self.shape = self.output.get("reshape", {"shape": [-1, *self.output["dims"]]})["shape"]

    def execute(self, requests):
        responses = []
        for request in requests:
            image = pb_utils.get_input_tensor_by_name(request, self.input["name"]).as_numpy()
            scores = image.mean(axis=self.width).mean(axis=self.height) @ self.weights
            if self.softmax:
                raised = np.exp(scores - scores.max(axis=1, keepdims=True))
                scores = raised / raised.sum(axis=1, keepdims=True)
            output = scores.astype(np.float32).reshape([int(size) for size in self.shape])
            tensor = pb_utils.Tensor(self.output["name"], output)
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
