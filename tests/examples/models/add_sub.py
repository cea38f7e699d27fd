"""OUTPUT0 is the sum and OUTPUT1 the difference of INPUT0 and INPUT1; strings hold numbers."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        # Clients replace the configuration by one that says no more than a batch size.
        if not config.as_dict()["input"]:
            for index in (0, 1):
                tensor = {"data_type": "TYPE_INT32", "dims": [16]}
                config.add_input({"name": f"INPUT{index}", **tensor})
                config.add_output({"name": f"OUTPUT{index}", **tensor})
        return config

    def initialize(self, args):
        config = json.loads(args["model_config"])
        data_type = pb_utils.get_output_config_by_name(config, "OUTPUT0")["data_type"]
        self.dtype = pb_utils.triton_string_to_numpy(data_type)

    def execute(self, requests):
        responses = []
        for request in requests:
            left, right = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy().astype(np.int32)
                for name in ("INPUT0", "INPUT1")
            )
            tensors = [
                pb_utils.Tensor("OUTPUT0", self.typed(left + right)),
                pb_utils.Tensor("OUTPUT1", self.typed(left - right)),
            ]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses

    def typed(self, numbers):
        if self.dtype is not np.object_:
            return numbers.astype(self.dtype)
        texts = [str(number).encode() for number in numbers.flat]
        return np.array(texts, np.object_).reshape(numbers.shape)
