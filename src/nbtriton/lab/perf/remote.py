"""Targets of a measurement: the server in this process, or one at an address.

Requests to a remote server are encoded once and sent repeatedly, so that the measurement covers the server
and the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, Unpack

from nbtriton.common.closing import Closing
from nbtriton.lab.perf.data import Request
from nbtriton.model.config import ModelConfig, TensorSpec, output_specs
from nbtriton.model.tensors import numpy_dtype
from nbtriton.options.blocks import CallOptions
from nbtriton.serving.clients.address import address_of
from nbtriton.serving.clients.base import Client, SharedTensor
from nbtriton.serving.clients.base import Protocol as RemoteProtocol
from nbtriton.serving.clients.shared_memory import ALIGNED, SharedMemoryPool, byte_size_of


class Pending(Protocol):
    """A request in flight: the part of `nbtriton.runtime.engine.InferenceFuture` that a load needs."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...
    def exception(self) -> BaseException | None: ...
    def cancel(self) -> bool: ...


class Target(Protocol):
    """The interface of a measured server: a `nbtriton.Server`, or a `RemoteServer`."""

    def config(self, name: str, version: int = -1) -> ModelConfig: ...
    def statistics(self, name: str = "", version: int = -1) -> dict[str, Any]: ...
    def infer(self, name: str, inputs: Request, /, **options: Unpack[CallOptions]) -> object: ...
    def submit(
        self,
        name: str,
        inputs: Request,
        /,
        *,
        on_response: Callable[[Any, bool], None] | None = None,
        **options: Unpack[CallOptions],
    ) -> Pending: ...


def _output_size(spec: TensorSpec, rows: int, output_bytes: int) -> int:
    if spec.datatype == "BYTES" or min(spec.dims, default=0) < 0:
        return output_bytes * rows
    width = 2 if spec.datatype == "BF16" else numpy_dtype(spec.datatype).itemsize
    return math.prod(spec.dims) * width * rows


class RemoteServer(Closing):
    """A server at an address, as the target of a load; a context manager that closes the connections.

    Parameters
    ----------
    client : Client
    """

    def __init__(self, client: Client[Any]) -> None:
        self.url = client.url
        self.protocol = client.protocol
        self.config = client.config
        self.statistics = client.statistics
        self.describe = client.describe
        self._client = client
        # A load sends few objects repeatedly; each is cached with its encoded form.
        self._pool: SharedMemoryPool | None = None
        self._shared: dict[int, tuple[Request, Mapping[str, SharedTensor]]] = {}
        self._outputs: dict[str, SharedTensor] = {}
        self._encoded: dict[tuple[str, int, tuple[str, ...], int], tuple[Request, Any]] = {}

    def close(self) -> None:
        """Unregister and free shared memory, and close the connections."""
        try:
            if self._pool is not None:
                self._pool.close()
        finally:
            self._client.close()

    def share(
        self, config: ModelConfig, requests: Iterable[Request], *, rows: int, output_bytes: int
    ) -> None:
        """Put the tensors of these requests and of their responses into shared memory.

        Parameters
        ----------
        config : ModelConfig
        requests : iterable of mapping
            All requests of the measurement.
        rows : int
            Rows of the largest request.
        output_bytes : int
            Bytes per row for an output of unknown size.

        Raises
        ------
        UnsupportedError
            This machine has no shared memory in files.
        TritonError
            The server refuses it, as one on another machine does.
        """
        # By its identity, which is kept alive with it.
        distinct = {id(request): request for request in requests}
        rooms = {
            name: _output_size(spec, max(1, rows), output_bytes)
            for name, spec in output_specs(config).items()
        }
        sizes = [byte_size_of(value) for request in distinct.values() for value in request.values()]
        total = sum(size + ALIGNED for size in (*sizes, *rooms.values()))
        pool = self._pool = SharedMemoryPool("perf", bytes=max(1, total))
        self._shared = {
            key: (request, {name: pool.put(value).tensor for name, value in request.items()})
            for key, request in distinct.items()
        }
        self._outputs = {name: pool.allocate(size).tensor for name, size in rooms.items()}
        pool.register(self._client)

    def infer(self, name: str, inputs: Request, /, **options: Unpack[CallOptions]) -> None:
        """Send one request and wait for its response; raise its error."""
        self._client.send(self._request(name, inputs, options))

    def ask(
        self, name: str, inputs: Request, /, **options: Unpack[CallOptions]
    ) -> Mapping[str, Any]:
        """Send one request, wait for its response, and return the outputs; raise its error."""
        version = options.get("version", -1)
        request = self._client.encode(name, inputs, version, tuple(options.get("outputs", ())))
        request_id = options.get("request_id", "")
        request = self._client.with_parameters(request, _parameters(options), request_id)
        return self._client.decode(self._client.send(request)).outputs

    def submit(
        self,
        name: str,
        inputs: Request,
        /,
        *,
        on_response: Callable[[Any, bool], None] | None = None,
        **options: Unpack[CallOptions],
    ) -> Pending:
        """Send one request and return at once; `on_response` gets each of its responses."""
        request = self._request(name, inputs, options)
        if on_response is None:
            return self._client.submit(request)
        return self._client.submit_streaming(request, on_response)

    def _request(self, name: str, inputs: Request, options: CallOptions) -> Any:
        version, outputs = options.get("version", -1), tuple(options.get("outputs", ()))
        key = (name, version, outputs, id(inputs))
        cached = self._encoded.get(key)
        if cached is None:
            encoded = (
                self._client.encode(name, inputs, version, outputs)
                if self._pool is None
                else self._client.encode(name, self._shared[id(inputs)][1], version, self._outputs)
            )
            cached = self._encoded[key] = (inputs, encoded)
        request = cached[1]
        if not options:
            return request
        request_id = options.get("request_id", "")
        return self._client.with_parameters(request, _parameters(options), request_id)


def remote_server(url: str, protocol: RemoteProtocol | None = None) -> RemoteServer:
    """Return the server at a URL.

    Parameters
    ----------
    url, protocol
        As `nbtriton.serving.clients.address.address_of`.

    Raises
    ------
    InvalidArgumentError
        The URL is none.
    UnsupportedError
        gRPC without the package ``grpcio``.
    """
    return RemoteServer(address_of(url, protocol).client())


# The options of a request that the protocols take as its parameters.
_PARAMETERS = ("priority", "timeout_us", "sequence_id", "sequence_start", "sequence_end")


def _parameters(options: CallOptions) -> Mapping[str, Any]:
    parameters = {name: value for name, value in options.items() if name in _PARAMETERS}
    if "timeout_us" in parameters:
        parameters["timeout"] = parameters.pop("timeout_us")
    return {**options.get("parameters", {}), **parameters}
