"""Adds one, adds up a sequence, streams, or calls another model; ends its process on request."""

import ctypes
import json
import os
import signal
import threading

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.calls = config["parameters"]["calls"]["string_value"]
        self.sequential = "sequence_batching" in config
        self.decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
        self.totals = {}

    def execute(self, requests):
        if self.decoupled:
            for request in requests:
                threading.Thread(target=self.stream, args=(request,)).start()
            return None
        return [self.answer(request) for request in requests]

    def answer(self, request):
        how = json.loads(request.parameters() or "{}").get("how", "")
        value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        if how == "pid":
            out = np.full_like(value, os.getpid())
        else:
            end(how)
            out = self.calculated(request, value)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)])

    def calculated(self, request, value):
        if self.sequential:
            name = request.correlation_id()
            start = request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
            before = 0 if start else self.totals[name]
            self.totals[name] = total = before + value
            return total
        if not self.calls:
            return value + 1
        answer = pb_utils.InferenceRequest(
            model_name=self.calls,
            inputs=[pb_utils.Tensor("IN", value)],
            requested_output_names=["OUT"],
        ).exec()
        if answer.has_error():
            raise pb_utils.TritonModelException(answer.error().message())
        return pb_utils.get_output_tensor_by_name(answer, "OUT").as_numpy() + 1

    def stream(self, request):
        sender = request.get_response_sender()
        for number in range(5):
            if number == 3:
                end(json.loads(request.parameters() or "{}").get("how", ""))
            out = pb_utils.Tensor("OUT", np.full((1, 1), number, np.float32))
            sender.send(pb_utils.InferenceResponse([out]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def end(how):
    if how == "leave":
        os._exit(3)
    if how == "fault":
        ctypes.string_at(0)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
