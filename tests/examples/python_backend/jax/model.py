"""As add_sub, computed by JAX."""

import jax
import numpy as np
import triton_python_backend_utils as pb_utils


@jax.jit
def add_sub(left, right):
    return left + right, left - right


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            inputs = [
                pb_utils.get_input_tensor_by_name(request, name).as_numpy()
                for name in ("INPUT0", "INPUT1")
            ]
            tensors = [
                pb_utils.Tensor(f"OUTPUT{index}", np.asarray(output))
                for index, output in enumerate(add_sub(*inputs))
            ]
            responses.append(pb_utils.InferenceResponse(tensors))
        return responses
