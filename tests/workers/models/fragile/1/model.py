"""Doubles its input, and ends its process in every way that a request names."""

import ctypes
import json
import os
import signal
import sys
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


def marker(request):
    return json.loads(request.parameters()).get("marker", "/")


def leave_when(path, status):
    while not os.path.exists(path):  # noqa: PTH110
        time.sleep(0.005)
    os._exit(status)


class TritonPythonModel:
    def initialize(self, args):
        self.hangs = False

    def execute(self, requests):
        responses = []
        for request in requests:
            parameters = json.loads(request.parameters())
            getattr(self, parameters.get("how", "live"))(request)
            if parameters.get("how") == "answer_later":
                responses.append(None)
                continue
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            pid = np.array([os.getpid()], np.int64)
            responses.append(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUT", value * 2), pb_utils.Tensor("PID", pid)]
                )
            )
        return responses

    def finalize(self):
        while self.hangs:
            time.sleep(0.01)

    def hang_at_the_end(self, request):
        self.hangs = True

    def live(self, request):
        pass

    def leave(self, request):
        os._exit(3)

    def fault(self, request):
        ctypes.string_at(0)

    def killed(self, request):
        os.kill(os.getpid(), signal.SIGKILL)

    def loop(self, request):
        print("loops", flush=True)
        while True:
            pass

    def deaf(self, request):
        print("loops", flush=True)
        while True:
            try:
                while True:
                    time.sleep(0.01)
            except KeyboardInterrupt:
                print("goes on", flush=True)

    def later(self, request):
        """Answers, and leaves when the test says so."""
        threading.Thread(target=leave_when, args=(marker(request), 4)).start()

    def answer_later(self, request):
        self.sender = request.get_response_sender()
        threading.Timer(0.02, os._exit, (5,)).start()

    def bls(self, request):
        value = pb_utils.get_input_tensor_by_name(request, "IN")
        call = pb_utils.InferenceRequest(
            model_name="slow", inputs=[value], requested_output_names=["OUT"]
        )
        threading.Thread(target=leave_when, args=(marker(request), 6)).start()
        call.exec()

    def allocate(self, request):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))
        np.ones(1 << 33, np.uint8)

    def print_for_ever(self, request):
        while True:
            sys.stdout.write("x" * 1000 + "\n")

    def fork(self, request):
        os.fork()

    def sleep(self, request):
        print("sleeps", flush=True)
        time.sleep(1000)
