"""A decoupled model whose requests say what it does."""

import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def respond(array):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.ascontiguousarray(array))])


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            parameters = json.loads(request.parameters())
            getattr(self, parameters["program"])(request, request.get_response_sender())
        return

    def three(self, request, sender):
        array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        for times in range(3):
            sender.send(respond(array * times))
        sender.send(flags=FINAL)

    def from_a_thread(self, request, sender):
        threading.Thread(target=self.three, args=(request, sender)).start()

    def with_errors(self, request, sender):
        sender.send(respond(np.ones(1, np.float32)))
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("in between")))
        sender.send(flags=FINAL)

    def abandoned(self, request, sender):
        pass

    def raising(self, request, sender):
        sender.send(respond(np.ones(1, np.float32)))
        raise ValueError("halfway")

    def until_cancelled(self, request, sender):
        def run():
            while not sender.is_cancelled():
                sender.send(respond(np.zeros(20000, np.float32)))
                time.sleep(0.001)
            sender.send(flags=FINAL)

        threading.Thread(target=run).start()
