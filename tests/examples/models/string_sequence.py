"""OUTPUT is the sum of a sequence so far, plus its correlation id, a decimal text, at the end."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.totals = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            found = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            name = found["CORRID"].flat[0].decode()
            before = 0 if found["START"].any() else self.totals[name]
            total = self.totals[name] = before + int(found["INPUT"].flat[0])
            if found["END"].any():
                total = self.totals.pop(name) + int(name)
            output = pb_utils.Tensor("OUTPUT", np.array([[total]], np.int32))
            responses.append(pb_utils.InferenceResponse([output]))
        return responses
