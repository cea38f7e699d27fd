"""The model that every bench against the real server measures: the same file on both sides."""

__all__ = ["CONFIG", "MODEL"]

MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x * 2)]))
        return responses
"""

CONFIG = """
name: "double"
backend: "python"
max_batch_size: 32
input { name: "IN" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 16 ] }
instance_group { count: 1 kind: KIND_CPU }
dynamic_batching { }
"""
