"""Counts a request down by being executed again, once a step; answers with how often that was."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.left = {}
        self.turns = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            key = request.correlation_id()
            start = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().flat[0])
            left = self.left.get(key, start)
            self.turns[key] = self.turns.get(key, 0) + 1
            if left > 0:
                self.left[key] = left - 1
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                responses.append(None)
                continue
            turns = np.array([[self.turns.pop(key)]], np.float32)
            self.left.pop(key, None)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", turns)]))
        return responses
