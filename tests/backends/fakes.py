"""Stand-ins for the engine: requests, a timer and a server that fulfil the protocols."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from nbtriton.backends import BatchTimer, Response
from nbtriton.common.errors import InternalError, NotFoundError, TritonError, UnsupportedError


@dataclass(eq=False)
class Request:
    """A `BackendRequest` that keeps what was sent."""

    inputs: dict
    requested_outputs: frozenset = frozenset({"OUT"})
    owned_inputs: frozenset = frozenset()
    request_id: str = ""
    correlation_id: int | str = 0
    flags: int = 0
    timeout_us: int = 0
    priority: int = 0
    parameters: dict = field(default_factory=dict)
    trace: object = None
    copies_outputs: bool = False
    cancelled: bool = False
    sent: list = field(default_factory=list)
    answered: threading.Event = field(default_factory=threading.Event)

    @property
    def batch_size(self):
        return next(iter(self.inputs.values())).shape[0]

    def is_cancelled(self):
        return self.cancelled

    def send(self, response, *, final):
        if self.answered.is_set():
            raise InternalError("the request is answered already")
        self.sent.append((response, final))
        if final:
            self.answered.set()

    def is_answered(self):
        return self.answered.is_set()


class Timer(BatchTimer):
    def __init__(self):
        self.marks = []

    def inputs_ready(self):
        self.marks.append("inputs_ready")

    def infer_done(self):
        self.marks.append("infer_done")


class Result(dict):
    def __init__(self, outputs, parameters=MappingProxyType({})):
        super().__init__(outputs)
        self.parameters = parameters


class Future:
    def __init__(self):
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._callbacks = []
        self._result = self._error = None

    def finish(self, result=None, error=None):
        self._result, self._error = result, error
        with self._lock:
            self._done.set()
        for callback in self._callbacks:
            callback(self)

    def result(self, timeout_s=None):
        assert self._done.wait(timeout_s or 60)
        if self._error is not None:
            raise self._error
        return self._result

    def exception(self, timeout_s=None):
        assert self._done.wait(timeout_s or 60)
        return self._error

    def add_done_callback(self, callback):
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def _ask_to_end(self):
        self.cancelled = True

    def _wait_for(self, wait):
        return wait(60)


class Server:
    """A `ServerHandle` whose models are functions from inputs to a dict, or to a list of dicts."""

    def __init__(self, models, decoupled=()):
        self.models = models
        self.decoupled = decoupled
        self.calls = []
        self.loaded = []

    def submit(self, model_name, version, inputs, options, on_response=None, trace=None):
        if model_name not in self.models:
            raise NotFoundError(f"Request for unknown model: '{model_name}' is not found")
        if model_name in self.decoupled and on_response is None:
            raise UnsupportedError("ModelInfer RPC doesn't support decoupled models")
        assert options.priority == 0, "a model's request has no priority"
        self.calls.append((model_name, version, options))
        future = Future()
        threading.Thread(
            target=self._run, args=(model_name, inputs, options.outputs, on_response, future)
        ).start()
        return future

    def max_unread_responses(self, name, version=-1):
        return 0

    def call(self, model_name, version, inputs, options):
        future = self.submit(model_name, version, inputs, options)
        try:
            result = future.result()
        except TritonError as error:
            return Response(error=error)
        return Response(result, None, result.parameters)

    def _run(self, name, inputs, outputs, on_response, future):
        try:
            found = self.models[name](**inputs)
        except Exception as error:
            if on_response is not None:
                on_response(Response(error=error), True)
            future.finish(error=error)
            return
        if on_response is None:
            future.finish(Result({k: v for k, v in found.items() if not outputs or k in outputs}))
            return
        responses = found if name in self.decoupled else [found]
        for index, part in enumerate(responses):
            last = name not in self.decoupled and index == len(responses) - 1
            on_response(Response(part), last)
        if name in self.decoupled:
            on_response(Response(), True)
        future.finish(Result({}))

    def awaits(self, future):
        pass

    def wait_for_coroutine(self, wait):
        while not wait(1.0):
            continue

    def note_call(self, caller, callee):
        pass

    def is_model_ready(self, name, version=-1):
        return name in self.models

    def is_decoupled(self, name, version=-1):
        return name in self.decoupled

    def load_model(self, name, config="", files=None):
        if name not in self.models:
            raise InternalError(f"failed to load '{name}', failed to poll from model repository")
        self.loaded.append((name, config, files))

    def unload_model(self, name, unload_dependents=False):
        self.loaded.append((name, None, unload_dependents))


DEFAULT = """
max_batch_size: 8
input [{ name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }]
"""


def ones(batch=1, value=1.0):
    return np.full((batch, 4), value, np.float32)
