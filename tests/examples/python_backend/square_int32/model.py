"""Sends IN as often as IN says, from a thread for each request: none at all for 0."""

import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.threads = []

    def execute(self, requests):
        for request in requests:
            value = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            sender = request.get_response_sender()
            thread = threading.Thread(target=self.respond, args=(sender, value))
            self.threads = [each for each in self.threads if each.is_alive()] + [thread]
            thread.start()

    def respond(self, sender, value):
        for _ in range(value):
            tensor = pb_utils.Tensor("OUT", np.array([value], np.int32))
            sender.send(pb_utils.InferenceResponse([tensor]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        for thread in self.threads:
            thread.join()
