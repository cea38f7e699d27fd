"""A ``model.py`` with types throughout."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]})
        config.set_max_batch_size(8)
        return config

    def initialize(self, args: dict[str, str]) -> None:
        self.logger = pb_utils.Logger
        self.family = pb_utils.MetricFamily(
            name="rows", description="rows seen", kind=pb_utils.MetricFamily.COUNTER
        )
        self.rows = self.family.Metric(labels={"model": args["model_name"]})

    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        responses: list[pb_utils.InferenceResponse] = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "IN")
            if tensor is None:
                raise pb_utils.TritonModelException("IN is missing")
            array: np.ndarray[Any, Any] = tensor.as_numpy()
            self.rows.increment(array.shape[0])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array * 2)]))
        return responses
