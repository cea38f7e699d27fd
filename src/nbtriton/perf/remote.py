"""A server far off as `nbtriton.perf` sees one: configurations, statistics and requests, by URL.

The rest of the package cannot tell it from the server in the kernel. Requests are encoded once and
sent again and again, so a measurement is about the server and the way to it.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Literal, Protocol, Self, get_args

from nbtriton.clients.grpc import GrpcClient
from nbtriton.clients.http import HttpClient, encode_infer, error_of, infer_path
from nbtriton.config import ModelConfig, from_dict
from nbtriton.errors import (
    CancelledError,
    InvalidArgumentError,
    TritonError,
    UnavailableError,
    UnsupportedError,
    nearest,
)
from nbtriton.perf.data import Request

__all__ = ["Pending", "RemoteProtocol", "RemoteServer", "Target", "remote_server"]

RemoteProtocol = Literal["http", "grpc"]
_DEFAULT_PORTS = {"http": 8000, "grpc": 8001}
_TIMEOUT_S = 120.0
NO_STREAMS = "Streaming is only allowed with gRPC protocol and in the process."


class Pending(Protocol):
    """A request that was sent: what a load needs of `nbtriton.engine.InferenceFuture`."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...
    def exception(self) -> TritonError | None: ...
    def cancel(self) -> bool: ...


class Target(Protocol):
    """What can be measured: a `nbtriton.Server`, or a `RemoteServer`."""

    def config(self, name: str, version: int = -1) -> ModelConfig: ...
    def statistics(self, name: str = "", version: int = -1) -> dict[str, Any]: ...
    def infer(
        self,
        name: str,
        inputs: Request,
        /,
        *,
        correlation_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
    ) -> Any: ...
    def submit(
        self,
        name: str,
        inputs: Request,
        /,
        *,
        on_response: Callable[[Any, bool], None] | None = None,
        correlation_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
    ) -> Pending: ...


def remote_server(url: str, protocol: RemoteProtocol | None = None) -> RemoteServer:
    """Return the server at a URL.

    Parameters
    ----------
    url : str
        ``host``, ``host:port``, ``http://host:port`` or ``grpc://host:port``.
    protocol : {"http", "grpc"}, optional
        By default what the URL says, or HTTP.

    Raises
    ------
    InvalidArgumentError
        There is no such protocol, or the URL says another one.
    """
    scheme, mark, rest = url.rpartition("://")
    told = scheme if mark else protocol or "http"
    if told not in get_args(RemoteProtocol):
        raise InvalidArgumentError(
            f"unknown protocol '{told}'", hint=nearest(told, get_args(RemoteProtocol))
        )
    if protocol not in (None, told):
        raise InvalidArgumentError(f"'{url}' is not to be reached over {protocol}")
    address = rest.rstrip("/")
    if "/" in address or not address:
        raise InvalidArgumentError(
            f"'{url}' is not the address of a server", hint="give it as host:port"
        )
    if ":" not in address:
        address = f"{address}:{_DEFAULT_PORTS[told]}"
    return _Grpc(address) if told == "grpc" else _Http(address)


def _parameters(correlation_id: int | str, *flags: bool) -> dict[str, bool | int | str]:
    """Return the request parameters by which a client says which sequence a request belongs to."""
    start, end = flags
    return {"sequence_id": correlation_id, "sequence_start": start, "sequence_end": end}


class _Sent:
    """One request under way."""

    __slots__ = ("_callbacks", "_claim", "_done", "_error", "stop")

    def __init__(self) -> None:
        self._error: TritonError | None = None
        self._done = False
        # Popping is atomic with and without a GIL: who gets the item may tell the end.
        self._claim = [None]
        self._callbacks: list[Callable[[Any], object]] = []
        self.stop: Callable[[], object] | None = None

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None:
        self._callbacks.append(callback)
        if self._done:
            self._call_back()

    def exception(self) -> TritonError | None:
        return self._error

    def cancel(self) -> bool:
        ended = self.end(CancelledError("the request was cancelled by the caller"))
        if ended and self.stop is not None:
            self.stop()
        return ended

    def end(self, error: TritonError | None) -> bool:
        """Note the end; False if there was one before."""
        try:
            self._claim.pop()
        except IndexError:
            return False
        self._error = error
        self._done = True
        self._call_back()
        return True

    def _call_back(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:
                return
            callback(self)


class RemoteServer(ABC):
    """One server by its address; a context manager that closes the connections."""

    protocol: RemoteProtocol

    def __init__(self, url: str) -> None:
        self.url = url
        # Requests are few objects, sent over and over; each stays with its encoded form.
        self._encoded: dict[tuple[str, int], tuple[Request, Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def config(self, name: str, version: int = -1) -> ModelConfig:
        """Return a model's completed configuration."""

    @abstractmethod
    def statistics(self, name: str = "", version: int = -1) -> dict[str, Any]:
        """Return the server's statistics as the HTTP endpoint's JSON."""

    @abstractmethod
    def describe(self) -> str:
        """Return the server's name and version."""

    @abstractmethod
    def infer(
        self,
        name: str,
        inputs: Request,
        /,
        *,
        correlation_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
    ) -> None:
        """Send one request and wait for its answer; raises what went wrong.

        The options say which sequence it belongs to, as those of `nbtriton.Server.infer`.
        """

    @abstractmethod
    def submit(
        self,
        name: str,
        inputs: Request,
        /,
        *,
        on_response: Callable[[Any, bool], None] | None = None,
        correlation_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
    ) -> Pending:
        """Send one request and return at once; `on_response` hears of each of its responses."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""

    def _bytes(self, name: str, inputs: Request) -> Any:
        key = (name, id(inputs))
        known = self._encoded.get(key)
        if known is None:
            known = self._encoded[key] = (inputs, self._encode(name, inputs))
        return known[1]

    @abstractmethod
    def _encode(self, name: str, inputs: Request) -> Any: ...


class _Grpc(RemoteServer):
    protocol = "grpc"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._client = GrpcClient(url, _TIMEOUT_S)
        self._wants_final = self._client.encode_parameters(
            {"triton_enable_empty_final_response": True}
        )
        self._streams: list[_Stream] = []
        # Those on which no request is under way: two on one would wait for each other's answers.
        self._free_streams: list[_Stream] = []

    def config(self, name: str, version: int = -1) -> ModelConfig:
        return self._client.config(name, version)

    def statistics(self, name: str = "", version: int = -1) -> dict[str, Any]:
        return self._client.statistics(name, version)

    def describe(self) -> str:
        return self._client.describe()

    def infer(
        self,
        name: str,
        inputs: Request,
        /,
        *,
        correlation_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
    ) -> None:
        self._client.send(self._request(name, inputs, correlation_id, sequence_start, sequence_end))

    def submit(
        self,
        name: str,
        inputs: Request,
        /,
        *,
        on_response: Callable[[Any, bool], None] | None = None,
        correlation_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
    ) -> Pending:
        sent = _Sent()
        request = self._request(name, inputs, correlation_id, sequence_start, sequence_end)
        if on_response is None:
            sent.stop = self._client.begin(request, sent.end)
            return sent
        line = self._stream()
        sent.stop = line.stop
        line.send(request + self._wants_final, on_response)
        return sent

    def _stream(self) -> _Stream:
        while True:
            try:
                line = self._free_streams.pop()
            except IndexError:
                line = _Stream(self._client, self._free_streams.append)
                self._streams.append(line)
                return line
            if line.is_open:
                return line

    def close(self) -> None:
        for line in self._streams:
            line.close()
        self._client.close()

    def _request(self, name: str, inputs: Request, *sequence: Any) -> bytes:
        request: bytes = self._bytes(name, inputs)
        if not sequence[0]:
            return request
        return request + self._client.encode_parameters(_parameters(*sequence))

    def _encode(self, name: str, inputs: Request) -> bytes:
        return self._client.encode(name, inputs)


class _Heard:
    """A response as a load hears of it: `nbtriton.backends.base.Response` without tensors."""

    __slots__ = ("error", "outputs")

    def __init__(self, error: TritonError | None, *, outputs: bool) -> None:
        self.error = error
        self.outputs = outputs


class _Stream:
    """A stream with one request at a time; `free` is called when it may take the next one."""

    def __init__(self, client: GrpcClient, free: Callable[[_Stream], object]) -> None:
        self._free = free
        # Who hears of the request under way; popping is atomic, as in `_Sent`.
        self._waiting: list[Callable[[Any, bool], None]] = []
        self._over: TritonError | None = None
        self._live = client.open_stream(self._heard, self._ended)

    def send(self, request: bytes, hear: Callable[[Any, bool], None]) -> None:
        self._waiting.append(hear)
        self._live.send(request)
        if self._over is not None:  # before it came here
            self._ended(self._over)

    @property
    def is_open(self) -> bool:
        return self._over is None

    def stop(self) -> None:
        """Cancel: the stream ends, and with it the request."""
        self._live.call.cancel()

    def close(self) -> None:
        self._live.close()

    def _heard(self, error: TritonError | None, outputs: bool, final: bool) -> None:
        try:
            hear = self._waiting.pop() if final else self._waiting[-1]
        except IndexError:
            return
        if final:
            self._free(self)
        hear(_Heard(error, outputs=outputs), final)

    def _ended(self, error: TritonError) -> None:
        self._over = error
        with contextlib.suppress(IndexError):
            self._waiting.pop()(_Heard(error, outputs=False), True)


class _Http(RemoteServer):
    """A connection for each request that is under way at a time, each with a thread that waits."""

    protocol = "http"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._client = HttpClient(url, _TIMEOUT_S)
        self._local = threading.local()
        self._jobs: SimpleQueue[tuple[_Sent, Any] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._free = 0  # senders that wait for a job, less the jobs that wait for a sender
        self._senders: list[threading.Thread] = []
        self._lines: list[_Line] = []

    def config(self, name: str, version: int = -1) -> ModelConfig:
        known = {field.name for field in ModelConfig.DESCRIPTOR.fields}
        told = self._client.config(name, version)
        return from_dict({key: value for key, value in told.items() if key in known})

    def statistics(self, name: str = "", version: int = -1) -> dict[str, Any]:
        return self._client.statistics(name, version)

    def describe(self) -> str:
        return self._client.describe()

    def infer(
        self,
        name: str,
        inputs: Request,
        /,
        *,
        correlation_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
    ) -> None:
        line = getattr(self._local, "line", None)
        if line is None:
            line = self._local.line = self._line()
        line.send(self._message(name, inputs, correlation_id, sequence_start, sequence_end))

    def submit(
        self,
        name: str,
        inputs: Request,
        /,
        *,
        on_response: Callable[[Any, bool], None] | None = None,
        correlation_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
    ) -> Pending:
        if on_response is not None:
            raise UnsupportedError(NO_STREAMS)
        sent = _Sent()
        job = (sent, self._message(name, inputs, correlation_id, sequence_start, sequence_end))
        with self._lock:
            self._free -= 1
            if self._free < 0:
                self._free += 1
                sender = threading.Thread(
                    target=self._send_all, name="nbtriton-perf-http", daemon=True
                )
                self._senders.append(sender)
                sender.start()
        self._jobs.put(job)
        return sent

    def close(self) -> None:
        for _ in self._senders:
            self._jobs.put(None)
        for line in self._lines:  # a server may never answer
            line.end()
        for sender in self._senders:
            sender.join()
        self._senders.clear()
        self._lines.clear()

    def _message(self, name: str, inputs: Request, *sequence: Any) -> _Message:
        if not sequence[0]:
            message: _Message = self._bytes(name, inputs)
            return message
        return self._encode(name, inputs, _parameters(*sequence))

    def _encode(
        self, name: str, inputs: Request, parameters: Mapping[str, Any] | None = None
    ) -> _Message:
        body, size = encode_infer(inputs, parameters)
        return _Message(infer_path(name), body, {"Inference-Header-Content-Length": str(size)})

    def _line(self) -> _Line:
        line = _Line(self.url)
        self._lines.append(line)
        return line

    def _send_all(self) -> None:
        line = self._line()
        while (job := self._jobs.get()) is not None:
            sent, message = job
            sent.stop = line.abort
            error: TritonError | None = None
            try:
                line.send(message)
            except TritonError as raised:
                error = raised
            # First: the one who hears of the end may send the next request at once.
            with self._lock:
                self._free += 1
            sent.stop = None
            sent.end(error)


class _Message:
    __slots__ = ("body", "headers", "path")

    def __init__(self, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        self.path = path
        self.body = body
        self.headers = headers


class _Line:
    """One connection that is kept open."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = http.client.HTTPConnection(url, timeout=_TIMEOUT_S)
        self._ended = False

    def send(self, message: _Message) -> None:
        """Send a request and read its answer; raises what it says if it is none of 200."""
        try:
            if self._connection.sock is None:
                self._connection.connect()
            if self._ended:  # while it connected: there was nothing to be ended yet
                raise ConnectionAbortedError("the connection was closed here")
            self._connection.request("POST", message.path, message.body, dict(message.headers))
            response = self._connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()  # the next request opens it anew
            raise UnavailableError(f"the server at {self._url} does not answer: {error}") from None
        if response.status != 200:
            raise error_of(response.status, body)

    def end(self) -> None:
        """Close the connection for good."""
        self._ended = True
        self.abort()

    def abort(self) -> None:
        """Close the connection, whoever waits for an answer on it; the next request opens it anew."""
        found = self._connection.sock
        if found is not None:
            with contextlib.suppress(OSError):  # it has just ended by itself
                found.shutdown(socket.SHUT_RDWR)
        self._connection.close()
