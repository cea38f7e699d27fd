"""Client over HTTP, with the standard library."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from selectors import EVENT_WRITE, DefaultSelector
from typing import Any
from urllib.parse import quote

import numpy as np

from nbtriton.common.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    RequestTimeoutError,
    TritonError,
    UnavailableError,
    UnsupportedError,
)
from nbtriton.model.config import ModelConfig, from_dict
from nbtriton.model.tensors import datatype_of, numpy_dtype, shape_of
from nbtriton.serving.clients import base

_BY_STATUS: dict[int, type[TritonError]] = {
    400: InvalidArgumentError,
    404: NotFoundError,
    500: InternalError,
    501: UnsupportedError,
    503: UnavailableError,
}
_HEADER_LENGTH = "Inference-Header-Content-Length"
# Limit of requests in flight, each with its own connection and thread. Threads start on demand; a load of
# `nbtriton.perf` needs fewer.
_MAX_SENDERS = 8192


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """An inference request with binary tensors both ways: `document` is the JSON before them."""

    path: str
    document: Mapping[str, Any]
    body: bytes
    json_size: int

    @classmethod
    def of(cls, path: str, document: Mapping[str, Any], tensors: bytes) -> EncodedRequest:
        """Return a request of a JSON document and the tensors after it."""
        text = json.dumps(document).encode()
        return cls(path, document, text + tensors, len(text))


class HttpClient(base.Client[EncodedRequest]):
    """A client over HTTP: one persistent connection for each request in flight."""

    protocol = "http"

    def __init__(self, url: str, timeout_s: float = base.TIMEOUT_S) -> None:
        super().__init__(url, timeout_s)
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._connections: list[_Connection] = []
        self._closed = False
        self._senders = ThreadPoolExecutor(_MAX_SENDERS, "nbtriton-client")

    def close(self) -> None:
        """Close the connections and join the sending threads."""
        with self._lock:
            self._closed = True  # a sender may not have begun: it is to open no connection
            connections = list(self._connections)
        for connection in connections:  # a server may never answer
            connection.abort(for_good=True)
        self._senders.shutdown()
        for connection in connections:
            connection.close()

    def encode(
        self, name: str, inputs: Mapping[str, Any], version: int = -1, outputs: base.Outputs = ()
    ) -> EncodedRequest:
        """Return a request with binary tensors both ways."""
        tensors: list[bytes] = []
        described = []
        for tensor, value in inputs.items():
            if isinstance(value, base.SharedTensor):
                datatype, shape, parameters = value.datatype, value.shape, value.parameters
            else:
                datatype, shape = datatype_of(value), shape_of(value)
                tensors.append(base.tensor_bytes(value))
                parameters = {"binary_data_size": len(tensors[-1])}
            described.append(
                {"name": tensor, "datatype": datatype, "shape": [*shape], "parameters": parameters}
            )
        document: dict[str, Any] = {"inputs": described, "parameters": {"binary_data_output": True}}
        if isinstance(outputs, Mapping):
            document["outputs"] = [
                {"name": output, "parameters": place.parameters}
                for output, place in outputs.items()
            ]
        elif outputs:
            # `binary_data_output` is for requests that name none.
            document["outputs"] = [
                {"name": output, "parameters": {"binary_data": True}} for output in outputs
            ]
        path = _model_path(name, version) + "/infer"
        return EncodedRequest.of(path, document, b"".join(tensors))

    def with_parameters(
        self, request: EncodedRequest, parameters: base.Parameters, request_id: str = ""
    ) -> EncodedRequest:
        """Return an encoded request with further parameters."""
        document = {
            **request.document,
            "parameters": {**request.document["parameters"], **parameters},
        }
        if request_id:
            document["id"] = request_id
        return EncodedRequest.of(request.path, document, request.body[request.json_size :])

    def send(self, request: EncodedRequest) -> tuple[bytes, int]:
        """Send an encoded request; return the response's body and the length of its JSON."""
        with self._connection() as connection:
            return connection.infer(request)

    def decode(self, response: tuple[bytes, int]) -> base.InferResponse:
        """Read a response: JSON, and binary tensors after it."""
        content, end = response
        document = json.loads(content[:end])
        return base.InferResponse(
            _outputs(document.get("outputs", []), memoryview(content)[end:]),
            int(document.get("model_version", -1)),
            document.get("parameters", {}),
        )

    def submit(self, request: EncodedRequest) -> base.PendingRequest:
        """Send an encoded request on another thread."""
        pending = base.PendingRequest()
        self._senders.submit(self._send, pending, request)
        return pending

    def load(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Load a model (explicit control)."""
        document = {"parameters": dict(parameters)} if parameters else {}
        self._call(f"/v2/repository/models/{_quoted(name)}/load", document)

    def unload(self, name: str) -> None:
        """Unload a model (explicit control)."""
        self._call(f"/v2/repository/models/{_quoted(name)}/unload", {})

    def is_model_ready(self, name: str, version: int = -1) -> bool:
        """Return whether a model answers requests now; False also without an answer."""
        try:
            self._call(_model_path(name, version) + "/ready")
        except TritonError:
            return False
        return True

    def config(self, name: str, version: int = -1) -> ModelConfig:
        """Return a model's completed configuration, without fields unknown to this release."""
        document = self._call(_model_path(name, version) + "/config")
        fields = {field.name for field in ModelConfig.DESCRIPTOR.fields}
        return from_dict({key: value for key, value in document.items() if key in fields})

    def index(self) -> list[dict[str, str]]:
        """Return the repository index."""
        index: list[dict[str, str]] = self._call("/v2/repository/index", {})
        return index

    def statistics(self, name: str = "", version: int = -1) -> dict[str, Any]:
        """Return the statistics of one model or of all."""
        path = _model_path(name, version) if name else "/v2/models"
        statistics: dict[str, Any] = self._call(f"{path}/stats")
        return statistics

    def register_memory(self, region: str, key: str, byte_size: int) -> None:
        """Register POSIX shared memory with the server, which is on this machine."""
        document = {"key": key, "offset": 0, "byte_size": byte_size}
        self._call(f"/v2/systemsharedmemory/region/{region}/register", document)

    def unregister_memory(self, region: str) -> None:
        """Unregister a region."""
        self._call(f"/v2/systemsharedmemory/region/{region}/unregister", {})

    def describe(self) -> str:
        """Return the server's name and version."""
        metadata = self._call("/v2")
        return f"{metadata['name']} {metadata['version']}"

    def _call(self, path: str, document: Mapping[str, Any] | None = None) -> Any:
        """GET a path, or POST a document to it, on a new connection; return the JSON."""
        connection = _Connection(self.url, self.timeout_s)
        try:
            if document is None:
                content, _ = connection.request("GET", path)
            else:
                content, _ = connection.request("POST", path, json.dumps(document).encode())
        finally:
            connection.close()
        return json.loads(content) if content else None

    @contextlib.contextmanager
    def _connection(self, is_over: Callable[[], bool] = bool) -> Iterator[_Connection]:
        with self._lock:
            if self._closed:
                raise UnavailableError(f"the client of the server at {self.url} is closed")
            if self._idle:
                connection = self._idle.pop()
            else:
                connection = _Connection(self.url, self.timeout_s)
                self._connections.append(connection)
        try:
            yield connection
        finally:
            with self._lock:
                if is_over():  # its abort may still come, which must not meet another request
                    self._connections.remove(connection)
                    connection.close()
                else:
                    self._idle.append(connection)

    def _send(self, pending: base.PendingRequest, request: EncodedRequest) -> None:
        if pending.done():  # cancelled before its turn
            return
        error: Exception | None = None
        response: object = None
        try:
            with self._connection(pending.done) as connection:
                pending.abort = connection.abort
                try:
                    response = connection.infer(request, pending.done)
                finally:
                    pending.abort = None
        except Exception as raised:
            error = raised
        # Last: a callback may submit the next request at once, on the free connection.
        pending.finish(error, response)


class _Connection:
    """One persistent connection."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._url = url
        self._connection = http.client.HTTPConnection(url, timeout=timeout_s)
        self._closed = False

    def infer(
        self, request: EncodedRequest, is_over: Callable[[], bool] = bool
    ) -> tuple[bytes, int]:
        """Send an inference request; return the response's body and the length of its JSON.

        One that is over before it can be aborted, for want of a socket, is not sent.
        """
        headers = {_HEADER_LENGTH: str(request.json_size)}
        content, length = self.request("POST", request.path, request.body, headers, is_over)
        return content, int(length) if length else len(content)

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        is_over: Callable[[], bool] = bool,
    ) -> tuple[bytes, str]:
        """Send a request; return the response's body and the header field with the JSON's length.

        Raises
        ------
        TritonError
            For a status other than 200.
        """
        try:
            if self._has_ended():
                self._connection.close()
                self._connect()
            if self._closed or is_over():  # while connecting, before there was a socket
                raise ConnectionAbortedError("the connection was closed here")
            self._connection.request(method, path, body, dict(headers or {}))
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()  # the next request opens it again
            kind = RequestTimeoutError if isinstance(error, TimeoutError) else UnavailableError
            raise kind(f"the server at {self._url} does not answer: {error}") from None
        if response.status != 200:
            raise _BY_STATUS.get(response.status, InternalError)(_message(content))
        return content, response.headers.get(_HEADER_LENGTH, "")

    def _connect(self) -> None:
        """Connect as `http.client` does, with a socket that `abort` finds from the beginning."""
        known, failure = self._connection, OSError("it has no address")
        for *kind, _, address in socket.getaddrinfo(known.host, known.port, 0, socket.SOCK_STREAM):
            opened = socket.socket(*kind)
            opened.setblocking(False)
            try:
                with contextlib.suppress(BlockingIOError):
                    opened.connect(address)
                known.sock = opened
                with DefaultSelector() as ready:  # once it is connected, refused or aborted
                    ready.register(opened, EVENT_WRITE)
                    if not self._closed and not ready.select(known.timeout):
                        raise TimeoutError("timed out")
                if number := opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    raise OSError(number, os.strerror(number))
                opened.settimeout(known.timeout)
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                opened.close()
                failure = error
            else:
                return
        raise failure

    def _has_ended(self) -> bool:
        """Return True for a connection that was not opened, or that its server has closed since: it was restarted."""
        opened = self._connection.sock
        if opened is None:
            return True
        try:
            opened.setblocking(False)
            opened.recv(1, socket.MSG_PEEK)
        except OSError as error:
            return not isinstance(error, BlockingIOError)
        finally:
            opened.settimeout(self._connection.timeout)
        return True

    def abort(self, *, for_good: bool = False) -> None:
        """End the request in flight, from another thread; the sender closes the connection.

        The next request opens the connection again, except after `for_good`.
        """
        self._closed = self._closed or for_good
        opened = self._connection.sock
        if opened is not None:
            with contextlib.suppress(OSError):  # the request has just ended
                # The sender stops to read, and closes the socket: as a reset, on which a server cancels the request. A mere
                # end of the connection, which a shutdown of both sides would send first, says that no more will be asked.
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                opened.shutdown(socket.SHUT_RDWR if for_good else socket.SHUT_RD)

    def close(self) -> None:
        """Close the connection, without a request in flight."""
        self._connection.close()


def _quoted(name: str) -> str:
    # All characters of a path (RFC 3986, 3.3) stay: servers compare the raw path.
    return quote(name, safe="/!$&'()*+,;=:@")


def _model_path(name: str, version: int) -> str:
    return f"/v2/models/{_quoted(name)}" + (f"/versions/{version}" if version != -1 else "")


def _message(body: bytes) -> str:
    try:
        document = json.loads(body)
    except ValueError:
        return body.decode(errors="replace")
    return str(document.get("error", document) if isinstance(document, dict) else document)


def _outputs(described: list[dict[str, Any]], rest: memoryview) -> dict[str, Any]:
    outputs: dict[str, Any] = {}
    for output in described:
        datatype, shape = output["datatype"], output["shape"]
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            dtype = object if datatype == "BYTES" else numpy_dtype(datatype)
            outputs[output["name"]] = np.array(output.get("data", []), dtype).reshape(shape)
        else:
            outputs[output["name"]] = base.tensor_of(datatype, shape, rest[:size])
            rest = rest[size:]
    return outputs
