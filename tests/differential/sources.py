"""The model.py files of the differential tests: plain Triton style, no nbtriton in them."""

from __future__ import annotations

__all__ = [
    "ADD_SUB",
    "ANSWERS",
    "API",
    "ARGUMENTS",
    "AUTO_COMPLETE",
    "BATCHES",
    "DOUBLE",
    "FAILURES",
    "IDENTITY",
    "NOTHING",
    "REQUEST",
    "SENDER",
]

ADD_SUB = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            responses.append(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)]
                )
            )
        return responses
"""

# Every input X comes back as OUT_X.
IDENTITY = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT_" + t.name(), t.as_numpy()) for t in request.inputs()]
            )
            for request in requests
        ]
"""

DOUBLE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy() * 2)]
            )
            for r in requests
        ]
"""

# Reports in SEEN which execution of which instance a request was in and at which place. A request
# with the parameter `gate` keeps its execution busy until the file of that name exists; with
# `pace_ms` an execution takes that long, so that the scheduler decides between two of them.
BATCHES = """
import json
import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_instance_name"]
        self.executions = 0

    def execute(self, requests):
        self.executions += 1
        responses = []
        for position, request in enumerate(requests):
            parameters = json.loads(request.parameters() or "{}")
            if position == 0:
                time.sleep(parameters.get("pace_ms", 0) / 1000)
            gate = parameters.get("gate")
            if gate:
                open(gate + ".entered", "w").close()
                deadline = time.monotonic() + 30
                while not os.path.exists(gate + ".open") and time.monotonic() < deadline:
                    time.sleep(0.002)
            count = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().shape[0]
            seen = "%s %d %d" % (self.name, self.executions, position)
            names = ",".join(sorted(t.name() for t in request.inputs()))
            responses.append(
                pb_utils.InferenceResponse(
                    [
                        pb_utils.Tensor("SEEN", np.array([[seen]] * count, dtype=object)),
                        pb_utils.Tensor("INPUTS", np.array([[names]] * count, dtype=object)),
                    ]
                )
            )
        return responses
"""

# Fails the whole batch in the way that the first value of IN names.
FAILURES = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        values = [pb_utils.get_input_tensor_by_name(r, "IN").as_numpy() for r in requests]
        good = [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", v)]) for v in values]
        how = int(values[0].flat[0])
        if how == 1:
            raise ValueError("kaboom")
        if how == 2:
            raise pb_utils.TritonModelException("on purpose")
        if how == 3:
            return good + good
        if how == 4:
            return []
        if how == 5:
            return tuple(good)
        if how == 6:
            return 7
        if how == 7:
            return ["no response"] + good[1:]
        if how == 8:
            return self.helper()
        if how == 9:
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values[0].astype(complex))])]
        if how == 10:
            raise KeyError("a key")
        return good

    def helper(self):
        raise RuntimeError("two\\nlines, from a helper")
"""

# Answers each request on its own: an error with the code that the value names, or odd outputs.
ANSWERS = """
import numpy as np
import triton_python_backend_utils as pb_utils

NAMES = [
    "UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED",
    "ALREADY_EXISTS", "CANCELLED",
]


def answer(value):
    how = int(value.flat[0])
    out = pb_utils.Tensor("OUT", value)
    if 10 <= how < 18:
        code = getattr(pb_utils.TritonError, NAMES[how - 10])
        return pb_utils.InferenceResponse(error=pb_utils.TritonError("code %d" % how, code))
    if how == 18:
        return pb_utils.InferenceResponse(error=pb_utils.TritonError("no code"))
    if how == 19:
        return pb_utils.InferenceResponse([out], error=pb_utils.TritonError("with outputs"))
    if how == 20:
        return pb_utils.InferenceResponse([])
    if how == 21:
        return pb_utils.InferenceResponse([out, pb_utils.Tensor("EXTRA", value)])
    if how == 22:
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value.astype(np.float64))])
    if how == 23:
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((2, 3), np.float32))])
    if how == 24:
        wide = np.arange(12, dtype=np.float32).reshape(3, 4).T[::2]
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", wide)])
    if how == 25:
        mixed = np.array([1, "two", b"three", None, 4.5], dtype=object)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", mixed)])
    if how == 26:
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(5, np.float32))])
    if how == 27:
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((0, 4), np.float32))])
    if how == 28:
        fixed = np.array([b"ab", b"c"], dtype="S3")
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", fixed)])
    return pb_utils.InferenceResponse([out])


class TritonPythonModel:
    def execute(self, requests):
        return [answer(pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()) for r in requests]
"""

# Reports the contents of a request.
REQUEST = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN")
            report = {
                "request_id": request.request_id(),
                "correlation_id": request.correlation_id(),
                "flags": request.flags(),
                "timeout": request.timeout(),
                "parameters": json.loads(request.parameters() or "{}"),
                "requested": sorted(request.requested_output_names()),
                "cancelled": request.is_cancelled(),
                "inputs": sorted(t.name() for t in request.inputs()),
                "shape": list(value.shape()),
                "dtype": str(value.as_numpy().dtype),
                "cpu": value.is_cpu(),
                "writeable": bool(value.as_numpy().flags.writeable),
            }
            text = np.array([json.dumps(report, sort_keys=True)], dtype=object)
            responses.append(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("REPORT", text), pb_utils.Tensor("OUT", value.as_numpy())]
                )
            )
        return responses
"""

# Reports the arguments of initialize.
ARGUMENTS = """
import json
import os

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.report = {key: value for key, value in args.items() if key != "model_config"}
        self.report["model_repository"] = os.path.basename(args["model_repository"])
        self.report["types"] = sorted({type(value).__name__ for value in args.values()})
        self.report["config"] = config
        self.report["by_name"] = [
            pb_utils.get_input_config_by_name(config, "IN"),
            pb_utils.get_output_config_by_name(config, "REPORT"),
            pb_utils.get_input_config_by_name(config, "NOPE"),
        ]
        self.report["decoupled"] = pb_utils.using_decoupled_model_transaction_policy(config)

    def execute(self, requests):
        text = np.array([json.dumps(self.report, sort_keys=True)], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("REPORT", text)]) for _ in requests]
"""

# Calls the helpers of the module and reports what they returned or raised.
API = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


def attempt(call):
    try:
        return str(call())
    except Exception as error:
        return "%s: %s" % (type(error).__name__, error)


DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
          "float16", "float32", "float64", "object", "complex64", "S4"]
NAMES = ["TYPE_BOOL", "TYPE_INT8", "TYPE_UINT64", "TYPE_FP16", "TYPE_FP32", "TYPE_STRING"]


class TritonPythonModel:
    def execute(self, requests):
        strings = np.array([b"a", b"", b"c\\x00d"], dtype=object)
        tensor = pb_utils.Tensor("T", np.arange(6, dtype=np.int16).reshape(2, 3))
        error = pb_utils.TritonError("words", pb_utils.TritonError.NOT_FOUND)
        response = pb_utils.InferenceResponse([tensor])
        failed = pb_utils.InferenceResponse([], error)
        report = {
            "numbers": {name: attempt(lambda: pb_utils.numpy_to_triton_type(np.dtype(name).type))
                        for name in DTYPES},
            "dtypes": {str(i): attempt(lambda: np.dtype(pb_utils.triton_to_numpy_type(i)))
                       for i in range(1, 14)},
            "strings": {name: attempt(lambda: np.dtype(pb_utils.triton_string_to_numpy(name)))
                        for name in [*NAMES, "TYPE_NOPE"]},
            "serialized": pb_utils.serialize_byte_tensor(strings).hex(),
            "deserialized": [s.decode() for s in pb_utils.deserialize_bytes_tensor(
                bytes.fromhex("01000000610000000002000000" + "6364"))],
            "tensor": [tensor.name(), list(tensor.shape()), tensor.is_cpu(),
                       list(tensor.__dlpack_device__())],
            "round": pb_utils.Tensor.from_dlpack("D", tensor.to_dlpack()).as_numpy().tolist(),
            "dlpack_strings": attempt(lambda: pb_utils.Tensor("S", strings).to_dlpack()),
            "error": [error.message(), int(error.code())],
            "default_code": int(pb_utils.TritonError("x").code()),
            "response": [response.has_error(), len(response.output_tensors()),
                         failed.has_error(), failed.error().message()],
            "missing": pb_utils.get_output_tensor_by_name(response, "NOPE") is None,
            "is_exception": isinstance(error, Exception),
            "flags": [pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
                      pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END,
                      pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL],
        }
        pb_utils.Logger.log_info("info")
        pb_utils.Logger.log_warn("warning")
        pb_utils.Logger.log_error("error")
        pb_utils.Logger.log_verbose("verbose")
        text = np.array([json.dumps(report, sort_keys=True)], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("REPORT", text)]) for _ in requests]
"""

# Answers through a response sender, from execute and from another thread.
SENDER = """
import threading

import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().copy()
            sender = request.get_response_sender()
            response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value + 1)])
            how = int(value.flat[0])
            if how == 0:
                sender.send(response, flags=FINAL)
            elif how == 1:
                sender.send(response)
                sender.send(flags=FINAL)
            else:
                threading.Thread(target=sender.send, args=(response, FINAL)).start()
        return None
"""

# Answers once and then again, in one way or another, though it is not decoupled.
TWICE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().copy()
            response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value + 1)])
            how = int(value.flat[0])
            sender = request.get_response_sender()
            if how == 3:
                sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            else:
                sender.send(response)
            if how == 0:
                sender.send(response)
            if how == 1:
                raise ValueError("after its response")
            responses.append(response)
        return responses
"""

NOTHING = """
class TritonPythonModel:
    pass
"""

AUTO_COMPLETE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]})
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        return config

    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy() * 2)]
            )
            for r in requests
        ]
"""

# Sends a buffer that it keeps, as a transposed view.
TRANSPOSED = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.buffer = np.zeros((1, 2, 2), np.float32)

    def execute(self, requests):
        responses = []
        for request in requests:
            x = request.inputs()[0].as_numpy()
            self.buffer += x
            x += 1000
            out = pb_utils.Tensor("OUT", self.buffer.transpose(0, 2, 1))
            responses.append(pb_utils.InferenceResponse([out]))
        return responses
"""

# Uses memory in one piece, and writes to it.
IN_PLACE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = request.inputs()[0]
            x = tensor.as_numpy()
            again = pb_utils.Tensor.from_dlpack("D", tensor.to_dlpack()).as_numpy()
            flags = [x.flags.c_contiguous, x.flags.aligned, x.flags.writeable, (again == x).all()]
            report = pb_utils.Tensor("FLAGS", np.array([flags]))
            bits = x.view(np.uint8).view(np.float32)
            bits *= 10
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x), report]))
            x -= 1
        return responses
"""

# Writes to the array of an input, and sends the input.
SENT_ON = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "SAME")
            x = tensor.as_numpy()
            x += 1
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
"""
