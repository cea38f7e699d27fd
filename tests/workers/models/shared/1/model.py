"""A model whose object two instances share; its requests say what it does."""

import gc
import json
import os
import signal
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

from nbtriton.runtime.workers.worker.core.worker import Worker

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def call(request, model):
    tensor = pb_utils.get_input_tensor_by_name(request, "IN")
    asked = pb_utils.InferenceRequest(
        model_name=model, requested_output_names=["OUT"], inputs=[tensor]
    )
    response = asked.exec()
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy()


class TritonPythonModel:
    def initialize(self, args):
        self.executions = 0
        (self.worker,) = (one for one in gc.get_objects() if isinstance(one, Worker))

    def execute(self, requests):
        (request,) = requests
        self.executions += 1
        told = json.loads(request.parameters() or "{}")
        response = getattr(self, told.get("program", "double"))(request)
        return [response]

    def finalize(self):
        pb_utils.Logger.log_warn(f"finalized after {self.executions}")

    def answer(self, request, array=None):
        if array is None:
            array = 2 * pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        about = np.array([os.getpid(), self.executions], np.int64)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUT", array), pb_utils.Tensor("ABOUT", about)]
        )

    def double(self, request):
        return self.answer(request)

    def until(self, happened):
        while not any(happened(turn) for turn in [*self.worker._waiting.values()]):
            time.sleep(0.001)

    def hold(self, request):
        """Stand at the gate once another request has come, which thus waits for its turn."""
        call(request, "started")
        self.until(lambda turn: True)
        call(request, "queued")
        call(request, "gate")
        return self.answer(request)

    def hold_until_cancelled(self, request):
        call(request, "started")
        self.until(lambda turn: True)
        call(request, "queued")
        self.until(lambda turn: turn.cancelled)
        return self.answer(request)

    def tell_cancelled(self, request):
        if request.is_cancelled():
            call(request, "gate")
        return self.answer(request)

    def bls(self, request):
        return self.answer(request, call(request, "target"))

    def itself(self, request):
        return self.answer(request, call(request, "m"))

    def spin(self, request):
        call(request, "started")
        while True:
            pass

    def killed(self, request):
        call(request, "started")
        self.until(lambda turn: True)
        os.kill(os.getpid(), signal.SIGKILL)

    def fork(self, request):
        """Answer with the process that returns from here a second time."""
        return self.answer(request, np.array([os.fork()], np.float32))

    def later(self, request):
        """Answer from a thread, once another request waits, is executed, or has been."""
        sender, response, count = (
            request.get_response_sender(),
            self.answer(request),
            self.executions,
        )

        def run():
            while self.executions == count:
                time.sleep(0.001)
            sender.send(response, flags=FINAL)

        threading.Thread(target=run).start()
