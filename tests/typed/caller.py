"""A decoupled ``model.py`` that calls another model, with types throughout."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [1, 4]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [1, 4]})
        config.set_max_batch_size(0)
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def initialize(self, args: dict[str, str]) -> None:
        config: dict[str, Any] = json.loads(args["model_config"])
        output = pb_utils.get_output_config_by_name(config, "OUT")
        assert output is not None
        assert pb_utils.using_decoupled_model_transaction_policy(config)
        self.dtype: Any = pb_utils.triton_string_to_numpy(output["data_type"])

    async def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            called = pb_utils.InferenceRequest(
                model_name="model",
                inputs=request.inputs(),
                requested_output_names=["OUT"],
                preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU),
                trace=request.trace(),
            )
            for answer in (called.exec(), await called.async_exec()):
                if answer.has_error():
                    error = answer.error() or pb_utils.TritonError("none")
                    sender.send(pb_utils.InferenceResponse(error=error))
                    continue
                found = pb_utils.get_output_tensor_by_name(answer, "OUT")
                assert found is not None
                tensor = pb_utils.Tensor.from_dlpack("OUT", found.to_dlpack())
                array = tensor.as_numpy().astype(self.dtype)
                tensors = [pb_utils.Tensor("OUT", array + np.float32(1))]
                sender.send(pb_utils.InferenceResponse(output_tensors=tensors))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            pb_utils.Logger.log_verbose(f"{request.request_id()}: {request.parameters()}")
