"""Cells that several tests run."""

from __future__ import annotations

DOUBLE = """\
def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    return {"OUT": IN * 2}
"""

STREAM = """\
%%triton_model count
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "N", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "I", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_model_transaction_policy({"decoupled": True})
        return config
    def execute(self, requests):
        for request in requests:
            n = int(pb_utils.get_input_tensor_by_name(request, "N").as_numpy()[0])
            sender = request.get_response_sender()
            for i in range(abs(n)):
                tensors = [
                    pb_utils.Tensor("I", np.array([i], np.int32)),
                    pb_utils.Tensor("TEXT", np.array([f"word {i}".encode()], object)),
                ]
                sender.send(pb_utils.InferenceResponse(tensors))
            if n < 0:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("no more")))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

ADD_UP = """\
%%triton_model add_up --max-batch-size 2 --config "sequence_batching { max_sequence_idle_microseconds: 60000000 }"
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_INT32", "dims": [1]})
        config.add_output({"name": "SUM", "data_type": "TYPE_INT32", "dims": [1]})
        return config
    def initialize(self, args):
        self.sums = {}
    def execute(self, requests):
        found = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            key = request.correlation_id()
            start = request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
            self.sums[key] = x + (0 if start else self.sums[key])
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("SUM", self.sums[key])]))
        return found
"""
