"""KServe v2 over gRPC: the endpoint that `nbtriton.serving.frontends.serve` opens on ``grpc_port``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from nbtriton.common.errors import InternalError, TritonError, UnavailableError
from nbtriton.serving.frontends.grpc.calls import CallListener, Handler, StreamCall, UnaryCall
from nbtriton.serving.frontends.grpc.connection import ChannelArguments, GrpcListener
from nbtriton.serving.frontends.grpc.inference import GrpcInference, InferStream
from nbtriton.serving.frontends.grpc.methods import Method, grpc_methods
from nbtriton.serving.frontends.kserve.messages import LONG, SERVICE
from nbtriton.serving.frontends.loop import LoopThread

if TYPE_CHECKING:
    from nbtriton.serving.frontends.listener import Tls
    from nbtriton.serving.frontends.service import Service

_log = logging.getLogger("nbtriton.serving.frontends")

# Prefix of the header field that opens a restricted protocol.
_RESTRICTED = "triton-grpc-protocol-"


class GrpcEndpoint:
    """gRPC port of a server.

    Parameters
    ----------
    service : Service
        The server and its settings, limits included.
    host : str
        The address to listen on.
    port : int
        0 for any free port.
    thread : LoopThread
        Its event loop; several endpoints may share one.
    options : sequence of (name, value)
        gRPC's channel arguments, such as ``("grpc.keepalive_time_ms", 7200000)``.
    restricted : mapping, optional
        Triton's ``--grpc-restricted-protocol``: category to header field and value.
    tls : Tls, optional
        Enables TLS.

    Raises
    ------
    UnavailableError
        The port is in use, or the address is not this machine's.
    """

    def __init__(
        self,
        service: Service,
        host: str,
        port: int,
        thread: LoopThread,
        *,
        options: Sequence[tuple[str, int | str]] = (),
        restricted: Mapping[str, tuple[str, str]] | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._restricted = {
            category: (_RESTRICTED + header, value)
            for category, (header, value) in (restricted or {}).items()
        }
        self._thread = thread
        inference = GrpcInference(service, thread.join_batch)
        handlers: dict[bytes, Handler] = {
            name: partial(UnaryCall, self._unary(method))
            for name, method in grpc_methods(service).items()
        }
        handlers[f"/{SERVICE}/ModelInfer".encode()] = partial(
            UnaryCall, self._guarded("inference", inference.infer)
        )

        def open_stream(rpc: StreamCall) -> CallListener:
            refusal = self._refusal("inference", rpc.metadata)
            if not refusal:
                return InferStream(inference, rpc)
            rpc.fail(UnavailableError(refusal))  # before the first message, as in Triton
            return _Refused()

        handlers[f"/{SERVICE}/ModelStreamInfer".encode()] = partial(StreamCall, open_stream)
        self.listener = GrpcListener(
            host,
            port,
            handlers,
            service.limits,
            service.trace,
            thread,
            options=ChannelArguments.parse(options),
            after_messages=inference.submit,
            tls=tls,
        )

    def _unary(
        self, method: Method | Callable[[bytes], bytes]
    ) -> Callable[[bytes, UnaryCall], None]:
        def answer(data: bytes, rpc: UnaryCall) -> None:
            if len(data) > LONG or (isinstance(method, Method) and method.slow()):
                self._thread.run_on_worker(partial(_answer, method, data, rpc))
            else:
                _answer(method, data, rpc)

        return self._guarded(method.category, answer) if isinstance(method, Method) else answer

    def _guarded(
        self, category: str, answer: Callable[[bytes, UnaryCall], None]
    ) -> Callable[[bytes, UnaryCall], None]:
        if category not in self._restricted:
            return answer

        def guarded(data: bytes, rpc: UnaryCall) -> None:
            refusal = self._refusal(category, rpc.metadata)
            if refusal:
                rpc.fail(UnavailableError(refusal))
            else:
                answer(data, rpc)

        return guarded

    def _refusal(self, category: str, metadata: Sequence[tuple[str, object]]) -> str:
        if category not in self._restricted:
            return ""
        header, value = self._restricted[category]
        # Field names of HTTP/2 are lower case.
        if (header.lower(), value) in {tuple(field) for field in metadata}:
            return ""
        return f"This protocol is restricted, expecting header '{header}'"


class _Refused:
    """Receiver of a stream that its client may not open, until the stream has ended."""

    def on_message(self, data: bytes) -> None:
        pass

    def on_half_close(self) -> None:
        pass

    def on_cancel(self) -> None:
        pass


def _answer(method: Callable[[bytes], bytes], data: bytes, rpc: UnaryCall) -> None:
    try:
        rpc.reply(method(data))
    except TritonError as error:
        rpc.fail(error)
    except Exception as error:
        _log.exception("a gRPC call failed")
        rpc.fail(InternalError(f"{type(error).__name__}: {error}"))
