"""ModelInfer and ModelStreamInfer (protocol.md §10, S-1 to S-9)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from nbtriton.engine import InferenceFuture, Interface
from nbtriton.engine.request import BARE_FINAL
from nbtriton.errors import InternalError, TritonError, UnsupportedError
from nbtriton.frontends.grpc_answers import (
    encode_response,
    encode_stream_error,
    encode_stream_response,
)
from nbtriton.frontends.grpc_codec import InferCall, parse_infer, read_request, read_version
from nbtriton.frontends.grpc_plans import GrpcPlans
from nbtriton.frontends.tracing import watched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbtriton.backends.base import Response
    from nbtriton.engine.tracing import Trace
    from nbtriton.frontends.grpc_transport import Rpc, StreamRpc
    from nbtriton.frontends.service import Service

__all__ = ["GrpcInference", "InferStream"]

_log = logging.getLogger("nbtriton.frontends")

_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"  # Y5


class GrpcInference:
    """Answers requests for inference.

    Parameters
    ----------
    service : Service
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.server = service.server
        self._plans = GrpcPlans()

    def infer(self, data: bytes, rpc: Rpc) -> None:
        """Answer one unary call."""
        try:
            interface, version, call = self.read(data, rpc.metadata, unary=True)
            trace = self.sample(interface, call)
            future = self.submit(interface, version, call)
        except TritonError as error:
            rpc.fail(error)
            return
        rpc.on_gone = future.cancel
        if rpc.is_gone:  # the endpoint was closed in between, by another thread
            future.cancel()
        answer = partial(self._answered, rpc, call, interface)
        future.add_done_callback(answer if trace is None else watched(answer, trace, "GRPC"))

    def read(
        self, data: bytes, metadata: Sequence[tuple[str, Any]], *, unary: bool = False
    ) -> tuple[Interface, int, InferCall]:
        """Read a request; raises TritonError with Triton's text."""
        like = self._plans.read(data)
        if like is not None:
            name, version, call = like
            interface = self.server.interface(name, version)
        else:
            request = parse_infer(data)
            version = read_version(request.model_version)
            interface = self.server.interface(request.model_name, version)
            if unary and interface.decoupled:  # Triton looks no further
                raise UnsupportedError(_DECOUPLED)
            call = read_request(request, interface, self.service.shared_memory)
            self._plans.learn(data, request, version, call)
        pattern = self.service.header_forward
        if pattern is not None:
            parameters = call.options.setdefault("parameters", {})
            for header, value in metadata:
                if pattern.search(header) and isinstance(value, str):
                    parameters[header] = value
        return interface, version, call

    def submit(
        self,
        interface: Interface,
        version: int,
        call: InferCall,
        on_response: Callable[[Response, bool], None] | None = None,
    ) -> InferenceFuture:
        """Hand a request to the engine; its shared memory is given back if it is refused."""
        try:
            return self.server.submit(
                interface.name, call.arrays, version=version, on_response=on_response,
                **call.options,
            )  # fmt: skip
        except BaseException:
            call.release()
            if "trace" in call.options:
                call.options["trace"].sample.let_go()
            raise

    def sample(self, interface: Interface, call: InferCall) -> Trace | None:
        """Return the trace of a request that is to be traced."""
        tracing = self.service.trace
        trace = tracing.sample(interface.name) if tracing.on else None
        if trace is not None:
            trace.received("GRPC_WAITREAD_START", "GRPC_WAITREAD_END")
            call.options["trace"] = trace
        return trace

    def encode(
        self, call: InferCall, interface: Interface, outputs: Mapping[str, Any],
        parameters: Mapping[str, Any], version: int,
    ) -> bytes:  # fmt: skip
        """Return a serialized response; raises TritonError where it cannot travel."""
        try:
            return encode_response(
                call,
                outputs,
                parameters,
                model_name=interface.name,
                model_version=version,
                batches=interface.max_batch_size > 0,
                labels=self.service.labels,
            )
        except TritonError:
            raise
        except Exception as error:
            _log.exception("a response of %s could not be written", interface.name)
            raise InternalError(f"{type(error).__name__}: {error}") from error

    def encode_future(
        self, call: InferCall, interface: Interface, future: InferenceFuture
    ) -> bytes:
        """Return the serialized answer of a request that is done; raises what went wrong."""
        result = future.result()
        outputs = {name: result.raw(name) for name in result}
        return self.encode(call, interface, outputs, result.parameters, result.model_version)

    def _answered(
        self, rpc: Rpc, call: InferCall, interface: Interface, future: InferenceFuture
    ) -> None:
        """Write the answer, on the thread that made it: the model may reuse its memory after."""
        data, error = b"", None
        try:
            data = self.encode_future(call, interface, future)
        except TritonError as raised:
            error = raised
        # First: who has the answer may unregister the memory.
        call.release()
        if error is None:
            rpc.reply(data)
        else:
            rpc.fail(error)


class InferStream:
    """One ModelStreamInfer call: any number of requests, each answered as it is done."""

    def __init__(self, inference: GrpcInference, rpc: StreamRpc) -> None:
        self._inference = inference
        self._rpc = rpc
        self._lock = threading.Lock()
        self._running: set[_StreamRequest] = set()
        self._ended = False

    def message(self, data: bytes) -> None:
        """Take one request."""
        try:
            interface, version, call = self._inference.read(data, self._rpc.metadata)
        except TritonError as error:
            self._rpc.send(encode_stream_error(error.message, _request_id(data)))
            self._rpc.done()
            return
        request = _StreamRequest(self._inference, self, self._rpc, call, interface, version)
        with self._lock:
            self._running.add(request)
        try:
            request.start()
        except TritonError as error:
            self._rpc.send(encode_stream_error(error.message, call.request_id))
            self.over(request)
            return
        if self._rpc.is_gone:
            request.cancel()

    def half_closed(self) -> None:
        """No more requests: the call ends with the last answer."""
        with self._lock:
            self._ended = True
            over = not self._running
        if over:
            self._rpc.finish()

    def cancelled(self) -> None:
        """Nobody waits any more (S-8)."""
        with self._lock:
            running = list(self._running)
        for request in running:
            request.cancel()

    def over(self, request: _StreamRequest) -> None:
        """A request got its last response."""
        with self._lock:
            if request not in self._running:
                return
            self._running.discard(request)
            over = self._ended and not self._running
        request.call.release()
        self._rpc.done()
        if over:
            self._rpc.finish()


class _StreamRequest:
    """One request of a stream, until its last response."""

    __slots__ = (
        "_inference",
        "_interface",
        "_rpc",
        "_stream",
        "_trace",
        "_version",
        "call",
        "future",
    )

    def __init__(
        self,
        inference: GrpcInference,
        stream: InferStream,
        rpc: StreamRpc,
        call: InferCall,
        interface: Interface,
        version: int,
    ) -> None:
        self._inference = inference
        self._stream = stream
        self._rpc = rpc
        self.call = call
        self._interface = interface
        self._version = version
        self._trace: Trace | None = None
        self.future: InferenceFuture | None = None

    def start(self) -> None:
        take = self._take if self._interface.decoupled else None
        self._trace = trace = self._inference.sample(self._interface, self.call)
        self.future = self._inference.submit(self._interface, self._version, self.call, take)
        if take is None:
            answer = self._answered
            self.future.add_done_callback(
                answer if trace is None else watched(answer, trace, "GRPC")
            )

    def cancel(self) -> None:
        if self.future is not None:
            self.future.cancel()
            self._stream.over(self)

    def _answered(self, future: InferenceFuture) -> None:
        """Send the one response of a model that is not decoupled (S-3)."""
        try:
            response = self._inference.encode_future(self.call, self._interface, future)
            data = encode_stream_response(response, final=True)
        except TritonError as error:
            data = self._error(error, final=True)
        self.call.release()
        self._rpc.send(data)
        self._stream.over(self)

    def _take(self, response: Response, final: bool) -> None:
        """Send one response of a decoupled model, on the thread that made it (S-2 to S-6)."""
        data = None
        if response.error is not None:
            data = self._error(response.error, final=final)
        elif response is not BARE_FINAL:
            version = self._interface.version
            data = self._written(response.outputs, response.parameters, version, final=final)
        elif self.call.empty_final:
            data = self._written({}, {}, self._version, final=True)
        if final:
            self.call.release()
        if data is not None:
            self._tell("INFER_RESPONSE_COMPLETE")
            self._tell("GRPC_SEND_START")
            self._rpc.send(data)
            self._tell("GRPC_SEND_END")
        if final:
            if self._trace is not None:
                self._trace.sample.let_go()
            self._stream.over(self)

    def _tell(self, activity: str) -> None:
        if self._trace is not None:
            self._trace.answered(activity)

    def _written(
        self,
        outputs: Mapping[str, Any],
        parameters: Mapping[str, Any],
        version: int,
        *,
        final: bool,
    ) -> bytes:
        try:
            data = self._inference.encode(self.call, self._interface, outputs, parameters, version)
        except TritonError as error:
            return self._error(error, final=final)
        return encode_stream_response(data, final=final)

    def _error(self, error: TritonError, *, final: bool) -> bytes:
        return encode_stream_error(
            error.message,
            self.call.request_id,
            model=self._interface.name,
            version=self._version,
            final=final,
        )


def _request_id(data: bytes) -> str:
    try:
        return str(parse_infer(data).id)
    except TritonError:
        return ""
