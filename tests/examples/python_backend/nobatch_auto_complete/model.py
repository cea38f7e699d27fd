"""No configuration file: `auto_complete_config` says what the model takes and gives."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        known = auto_complete_model_config.as_dict()
        names = {tensor["name"] for tensor in [*known["input"], *known["output"]]}
        for index in (0, 1):
            tensor = {"data_type": "TYPE_FP32", "dims": [4]}
            if f"INPUT{index}" not in names:
                auto_complete_model_config.add_input({"name": f"INPUT{index}", **tensor})
            if f"OUTPUT{index}" not in names:
                auto_complete_model_config.add_output({"name": f"OUTPUT{index}", **tensor})
        auto_complete_model_config.set_max_batch_size(0)
        return auto_complete_model_config

    def execute(self, requests):
        responses = []
        for request in requests:
            left = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            right = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            tensors = [
                pb_utils.Tensor("OUTPUT0", left + right),
                pb_utils.Tensor("OUTPUT1", left - right),
            ]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
