"""OUTPUT is INPUT, plus 1 at the start of a sequence and plus its correlation id at the end."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            found = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            total = found["INPUT"] + found["START"]
            if "END" in found:
                total = total + found["END"] * found["CORRID"].astype(np.int32)
            output = pb_utils.Tensor("OUTPUT", (total * found["READY"]).astype(np.int32))
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
