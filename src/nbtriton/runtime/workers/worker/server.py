"""The server, for the model in a worker (`nbtriton.backends.base.ServerHandle`)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from nbtriton.backends.base import RequestOptions, Response
from nbtriton.backends.python.api.metrics import Family, MetricKind, Sample
from nbtriton.common.errors import TritonError
from nbtriton.model.tensors import Array
from nbtriton.runtime.workers import protocol
from nbtriton.runtime.workers.core.codec import encode_tensors
from nbtriton.runtime.workers.core.packing import Packer
from nbtriton.runtime.workers.protocol import plain
from nbtriton.runtime.workers.worker.core.worker import Worker


def main(execute: socket.socket, calls: socket.socket, name: str, *more: socket.socket) -> None:  # noqa: ARG001
    """Run a worker to its end: the entry point of its process; with more lanes where instances share it."""
    Worker([execute, *more], calls, RemoteServer, RemoteTrace).run()


@dataclass(frozen=True, slots=True)
class RemoteTrace:
    """The trace of a request, identified by the request; the engine's process has the trace itself."""

    batch: int
    index: int
    context: str | None = None

    def child(self) -> RemoteTrace:
        """Return a marker for a child trace, opened at its submission."""
        return self


class RemoteResult(dict[str, Array]):
    """The outputs of a request by name.

    Attributes
    ----------
    parameters : mapping
        Of the response.
    """

    parameters: Mapping[str, bool | int | str]


class RemoteFuture(Future[RemoteResult]):
    """The future of a request by the model's code, with the interface of the engine's future."""

    def __init__(
        self, worker: Worker, number: int, on_response: Callable[[Response, bool], None] | None
    ) -> None:
        super().__init__()
        self._worker = worker
        self.number = number
        self._on_response = on_response

    def _ask_to_end(self) -> None:
        """Ask the target to end; further responses are still delivered."""
        self._worker.post((protocol.CANCEL, self.number))

    def _wait_for(self, wait: Callable[[float], bool]) -> None:
        """Call ``wait(seconds)`` until it returns True."""
        while not wait(threading.TIMEOUT_MAX):
            pass

    def receive(self, response: Response, final: bool) -> None:
        """Handle one of several responses."""
        if self._on_response is not None:
            self._on_response(response, final)

    def resolve(self, response: Response | None, error: TritonError | None) -> None:
        """Handle the final response."""
        if error is not None:
            self.set_exception(error)
            return
        result = RemoteResult({} if response is None else response.outputs)
        result.parameters = {} if response is None else response.parameters
        self.set_result(result)


class RemoteServer:
    """Passes all calls on to the engine's process."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._noted: set[tuple[str, str]] = set()

    def note_call(self, caller: str, callee: str) -> None:
        """Record that the code of a model calls another model."""
        if (caller, callee) not in self._noted:
            self._noted.add((caller, callee))
            self._worker.note("call", (caller, callee))

    def submit(
        self,
        model_name: str,
        version: int,
        inputs: Mapping[str, Array],
        options: RequestOptions,
        on_response: Callable[[Response, bool], None] | None = None,
        trace: Any = None,
    ) -> RemoteFuture:
        """Send a request; see `ServerHandle.submit`."""
        worker = self._worker
        packer = Packer()
        tensors = encode_tensors(inputs, packer)
        place, behind = packer.finish(worker.heap)
        traced = (trace.batch, trace.index) if isinstance(trace, RemoteTrace) else None
        number = next(worker.numbers)
        future = worker.futures[number] = RemoteFuture(worker, number, on_response)
        try:
            worker.request(
                number,
                (
                    protocol.SUBMIT, number, model_name, version, tensors, _plain(options),
                    on_response is not None, traced, place,
                ),
                behind,
            )  # fmt: skip
        except BaseException:
            worker.futures.pop(number, None)
            raise
        return future

    def call(
        self, model_name: str, version: int, inputs: Mapping[str, Array], options: RequestOptions
    ) -> Response:
        """Send a request and wait for its response; see `ServerHandle.call`."""
        worker = self._worker
        if worker.inside:
            packer = Packer()
            tensors = encode_tensors(inputs, packer)
            place, behind = packer.finish(worker.heap)
            number = next(worker.numbers)
            asked = (protocol.CALL, number, model_name, version, tensors, _plain(options), place)
            response: Response = worker.request(number, asked, behind)
            return response
        future = self.submit(model_name, version, inputs, options)
        error = future.exception()
        if isinstance(error, TritonError):
            return Response(error=error)
        result = future.result()
        return Response(result, None, result.parameters)

    def awaits(self, future: RemoteFuture) -> None:
        """Record that a coroutine of the model may await this future."""
        self._worker.post((protocol.AWAITS, future.number, self._worker.dialogue))

    def wait_for_coroutine(self, wait: Callable[[float], bool]) -> None:
        """Wait for a coroutine; meanwhile, the engine's process detects deadlocks."""
        if self._worker.inside:
            self._worker.post((protocol.WAIT,))
        while not wait(threading.TIMEOUT_MAX):
            pass

    def family_of(self, name: str, description: str, kind: MetricKind) -> RemoteFamily:
        """Return a family of metrics; see `nbtriton.backends.python.api.metrics`."""
        return RemoteFamily(self._worker, name, description, kind)

    def is_model_ready(self, name: str, version: int = -1) -> bool:
        """Return True if the model accepts requests; False for an unknown one as well."""
        return bool(self._worker.ask("is_model_ready", (name, version)))

    def is_decoupled(self, name: str, version: int = -1) -> bool:
        """Return True if the model answers with any number of responses."""
        return bool(self._worker.ask("is_decoupled", (name, version)))

    def max_unread_responses(self, _name: str, _version: int = -1) -> int:
        """Return 0: one thread takes the responses of all calls, and may not wait for one reader."""
        return 0

    def load_model(
        self, name: str, config: str = "", files: Mapping[str, bytes] | None = None
    ) -> None:
        """Load a model; see `ServerHandle.load_model`."""
        self._worker.ask("load_model", (name, config, dict(files) if files else None))

    def unload_model(self, name: str, unload_dependents: bool = False) -> None:
        """Unload a model; an unknown one is ignored."""
        self._worker.ask("unload_model", (name, unload_dependents))


def _plain(options: RequestOptions) -> Any:
    return plain((
        tuple(options.outputs), options.request_id, options.priority, options.timeout_us,
        options.correlation_id, options.flags, dict(options.parameters) if options.parameters else None,
    ))  # fmt: skip


class RemoteFamily(Family):
    """A family, by its number in the engine's process."""

    def __init__(self, worker: Worker, name: str, description: str, kind: MetricKind) -> None:
        number, found = worker.ask("family", (name, description, int(kind)))
        super().__init__(name, description, MetricKind(found))
        self._worker = worker
        self._number = number

    def sample(self, labels: tuple[tuple[str, str], ...], bounds: tuple[float, ...]) -> Sample:
        """Return the value with these labels."""
        number = self._worker.ask("sample", (self._number, labels, bounds))
        return _RemoteSample(self._worker, number)

    def __del__(self) -> None:
        # Not a message: a finalizer may run anywhere, also while one is being sent.
        self._worker.dropped_metrics[0].append(self._number)


class _RemoteSample(Sample):
    def __init__(self, worker: Worker, number: int) -> None:
        super().__init__(())
        self._worker = worker
        self._number = number

    def read(self) -> float:
        return float(self._worker.ask("value", (self._number,)))

    def add(self, value: float) -> None:
        self._worker.note("metric", (self._number, "add", float(value)))

    def assign(self, value: float) -> None:
        self._worker.note("metric", (self._number, "assign", float(value)))

    def observe(self, value: float) -> None:
        self._worker.note("metric", (self._number, "observe", float(value)))

    def __del__(self) -> None:
        self._worker.dropped_metrics[1].append(self._number)
