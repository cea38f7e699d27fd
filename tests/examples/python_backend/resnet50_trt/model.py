"""A stand-in for a TensorRT engine: its first three classes are the colours red, green and blue."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            images = pb_utils.get_input_tensor_by_name(request, "input").as_numpy()
            scores = np.full((len(images), 1000), -1e9, np.float32)
            scores[:, :3] = images.mean(axis=(2, 3))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("output", scores)]))
        return responses
