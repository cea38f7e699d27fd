"""The model.py files of generated cases: what they do is written in their requests."""

from __future__ import annotations

__all__ = ["ADD", "CALLS", "COUNTING", "MAYBE", "SILENT", "SPLIT", "STREAM", "VERSION", "WARM"]

_STEP = """
import numpy as np
import triton_python_backend_utils as pb_utils


def value(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(self.answer(request)) for request in requests]

    def answer(self, request):
"""

ADD = (
    _STEP
    + """
        return [pb_utils.Tensor("OUT", value(request, "A") + value(request, "B"))]
"""
)

SPLIT = (
    _STEP
    + """
        given = value(request, "IN")
        return [pb_utils.Tensor("LOW", given - 1), pb_utils.Tensor("HIGH", given * 3)]
"""
)

# Without B it leaves SUM out.
MAYBE = (
    _STEP
    + """
        a, b = value(request, "A"), value(request, "B")
        outputs = [pb_utils.Tensor("OUT", a + 100)]
        if b is not None:
            outputs.append(pb_utils.Tensor("SUM", a + b))
        return outputs
"""
)

# How often it was executed, beside a copy of the input.
COUNTING = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.executed = 0

    def execute(self, requests):
        responses = []
        for request in requests:
            self.executed += 1
            given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            if given.flat[0] < 0:
                error = pb_utils.TritonError("no %d" % self.executed)
                responses.append(pb_utils.InferenceResponse(error=error))
                continue
            times = np.full((given.shape[0], 1), self.executed, np.int32)
            responses.append(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUT", given), pb_utils.Tensor("TIMES", times)]
                )
            )
        return responses
"""

# Sends PLAN's responses, one a number: 0.. a value, -1 an error, -2 a pause, -3 raises. It ends
# with a flag of its own (HOW 0), with the last response (1), or from a thread of its own (2).
STREAM = """
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def response(number):
    if number == -1:
        return pb_utils.InferenceResponse(error=pb_utils.TritonError("planned"))
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor("OUT", np.array([[number]], np.int32))]
    )


def play(sender, plan, last):
    for place, number in enumerate(plan):
        if number == -2:
            time.sleep(0.01)
        elif number == -3:
            raise ValueError("planned")
        elif last and place == len(plan) - 1:
            sender.send(response(number), flags=FINAL)
            return
        else:
            sender.send(response(number))
    sender.send(flags=FINAL)


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            plan = pb_utils.get_input_tensor_by_name(request, "PLAN").as_numpy().ravel().tolist()
            how = int(pb_utils.get_input_tensor_by_name(request, "HOW").as_numpy().flat[0])
            sender = request.get_response_sender()
            if how == 2:
                threading.Thread(target=play, args=(sender, plan, False)).start()
            else:
                play(sender, plan, how == 1)
        return None
"""

# Calls other models by SCRIPT (JSON), and reports their responses.
CALLS = """
import asyncio
import json

import numpy as np
import triton_python_backend_utils as pb_utils


def report(response):
    if response.has_error():
        return {"error": response.error().message(), "code": int(response.error().code())}
    return {
        t.name(): [str(t.as_numpy().dtype), list(t.as_numpy().shape),
                   [v.decode() if isinstance(v, bytes) else v for v in t.as_numpy().ravel().tolist()]]
        for t in response.output_tensors()
    }


def made(call):
    inputs = [
        pb_utils.Tensor(name, np.array(values, dtype=dtype))
        for name, dtype, values in call["inputs"]
    ]
    return pb_utils.InferenceRequest(
        model_name=call["model"], inputs=inputs,
        requested_output_names=call.get("outputs", []), **call.get("more", {})
    )


class TritonPythonModel:
    async def execute(self, requests):
        return [await self.answer(request) for request in requests]

    async def answer(self, request):
        script = pb_utils.get_input_tensor_by_name(request, "SCRIPT").as_numpy().ravel()[0]
        results = []
        for stage in json.loads(script):
            calls = [made(call) for call in stage["calls"]]
            if stage["how"] == "exec":
                results.append([report(call.exec()) for call in calls])
            elif stage["how"] == "async":
                answers = await asyncio.gather(*(call.async_exec() for call in calls))
                results.append([report(answer) for answer in answers])
            elif stage["how"] == "stream":
                results.append([[report(r) for r in call.exec(decoupled=True)] for call in calls])
            else:
                streams = await asyncio.gather(*(c.async_exec(decoupled=True) for c in calls))
                results.append([[report(r) for r in stream] for stream in streams])
        text = np.array([json.dumps(results, sort_keys=True)], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("REPORT", text)])
"""

# What its warmup looked like: the requests of each execution, their shapes and values.
WARM = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.seen = []

    def execute(self, requests):
        batch = []
        for request in requests:
            inputs = {}
            for tensor in request.inputs():
                array = tensor.as_numpy()
                text = str(array.tolist()) if tensor.name() != "NOISE" else "noise"
                inputs[tensor.name()] = [str(array.dtype), list(array.shape), text]
            batch.append(inputs)
        self.seen.append(batch)
        text = np.array([[json.dumps(self.seen[:-1], sort_keys=True)]], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("REPORT", text)]) for _ in requests]
"""

VERSION = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.version = np.array([int(args["model_version"])], np.int32)

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("VERSION", self.version)])
            for _ in requests
        ]
"""

# Answers nothing at all.
SILENT = """
class TritonPythonModel:
    def execute(self, requests):
        return None
"""
