"""Sends each element of IN in a response of its own, after as many milliseconds as DELAY says.

The responses come from a thread; `execute` returns after WAIT milliseconds, before or after them.
"""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.threads = []

    def execute(self, requests):
        for request in requests:
            values, delays, wait = (
                pb_utils.get_input_tensor_by_name(request, name).as_numpy().tolist()
                for name in ("IN", "DELAY", "WAIT")
            )
            if len(values) != len(delays):
                raise pb_utils.TritonModelException(
                    f"{len(values)} elements in IN, {len(delays)} in DELAY"
                )
            sender = request.get_response_sender()
            thread = threading.Thread(target=self.respond, args=(sender, values, delays))
            self.threads = [each for each in self.threads if each.is_alive()] + [thread]
            thread.start()
            time.sleep(wait[0] / 1000)

    def respond(self, sender, values, delays):
        for index, (value, delay) in enumerate(zip(values, delays)):  # noqa: B905 - Python 3.9
            time.sleep(delay / 1000)
            tensors = [
                pb_utils.Tensor("IDX", np.array([index], np.uint32)),
                pb_utils.Tensor("OUT", np.array([value], np.int32)),
            ]
            sender.send(pb_utils.InferenceResponse(tensors))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        for thread in self.threads:
            thread.join()
