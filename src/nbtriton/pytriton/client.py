"""PyTriton's clients of one model, for any Triton server."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np

from nbtriton.common.checks import NAME, Kind, check, is_number
from nbtriton.common.closing import Closing
from nbtriton.common.errors import (
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnavailableError,
)
from nbtriton.model.config import ModelConfig
from nbtriton.pytriton.request import Array
from nbtriton.serving.clients.base import Client, Parameters
from nbtriton.serving.clients.grpc import GrpcClient
from nbtriton.serving.clients.http import HttpClient

__all__ = [
    "AsyncioModelClient",
    "DecoupledModelClient",
    "FuturesModelClient",
    "ModelClient",
    "PyTritonClientClosedError",
    "PyTritonClientError",
    "PyTritonClientInferenceServerError",
    "PyTritonClientInvalidUrlError",
    "PyTritonClientModelDoesntSupportBatchingError",
    "PyTritonClientModelUnavailableError",
    "PyTritonClientTimeoutError",
    "PyTritonClientValueError",
]

_HIGHEST_PORT = 65535
_SECONDS = Kind(lambda value: is_number(value) and value >= 0, "a number of seconds from 0 on")
_PORTS = {"http": 8000, "grpc": 8001}
_INIT_TIMEOUT_S = 300.0
_INFERENCE_TIMEOUT_S = 60.0
_POLL_S = 0.05


class PyTritonClientError(TritonError):
    """Base of client errors."""


class PyTritonClientValueError(PyTritonClientError):
    """An argument is wrong."""

    status = "INVALID_ARG"


class PyTritonClientInvalidUrlError(PyTritonClientValueError):
    """The URL is not an address for HTTP or gRPC."""


class PyTritonClientTimeoutError(PyTritonClientError):
    """The server or the model was not ready in time."""

    status = "UNAVAILABLE"


class PyTritonClientModelUnavailableError(PyTritonClientError):
    """The server has no such model or version."""

    status = "NOT_FOUND"


class PyTritonClientClosedError(PyTritonClientError):
    """The client was closed."""

    status = "UNAVAILABLE"


class PyTritonClientModelDoesntSupportBatchingError(PyTritonClientError):
    """The model does not batch; use `infer_sample`."""

    status = "INVALID_ARG"


class PyTritonClientInferenceServerError(PyTritonClientError):
    """The server answered with an error."""

    status = "INTERNAL"


class ModelClient(Closing):
    """Client of one model, over HTTP or gRPC; a context manager that closes its connections.

    Parameters
    ----------
    url : str
        ``host``, ``http://host:8000`` or ``grpc://host:8001``; gRPC needs the package ``grpcio``.
    model_name : str
    model_version : str or int, optional
        By default the server chooses.
    lazy_init : bool
        Get the model's configuration at the first request.
    init_timeout_s : float
        Timeout for the model to be ready, 300 s by default.
    inference_timeout_s : float
        Timeout of one request, 60 s by default.

    Raises
    ------
    PyTritonClientInvalidUrlError
        The URL is wrong.
    """

    def __init__(
        self,
        url: str,
        model_name: str,
        model_version: str | int | None = None,
        *,
        lazy_init: bool = True,
        init_timeout_s: float | None = None,
        inference_timeout_s: float | None = None,
    ) -> None:
        self.model_name = _checked("model_name", model_name, NAME)
        given = "-1" if model_version in (None, "") else str(model_version)
        if not re.fullmatch("-1|[0-9]{1,18}", given):
            raise PyTritonClientValueError(
                f"model_version must be a whole number; found {model_version!r}"
            )
        self._version = int(given)
        if init_timeout_s is None:
            init_timeout_s = _INIT_TIMEOUT_S
        if inference_timeout_s is None:
            inference_timeout_s = _INFERENCE_TIMEOUT_S
        self._init_timeout_s = _checked("init_timeout_s", init_timeout_s, _SECONDS)
        timeout_s = _checked("inference_timeout_s", inference_timeout_s, _SECONDS)
        self._client: Client[Any] | None = _open(url, timeout_s)
        self._config: ModelConfig | None = None
        if not lazy_init:
            self.wait_for_model(self._init_timeout_s)

    def close(self) -> None:
        """Close the connections; harmless when repeated."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def wait_for_model(self, timeout_s: float) -> None:
        """Wait until the model is ready.

        Raises
        ------
        PyTritonClientModelUnavailableError
            The server has no such model.
        PyTritonClientTimeoutError
            The server does not respond in time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            client = self._connected
            try:
                self._config = client.config(self.model_name, self._version)
            except UnavailableError as error:
                if time.monotonic() > deadline:
                    raise PyTritonClientTimeoutError(
                        f"model '{self.model_name}' was not ready within {timeout_s:g} s: "
                        f"{error.message}"
                    ) from None
                time.sleep(_POLL_S)
            except TritonError as error:
                raise self._unavailable(error) from None
            else:
                return

    @property
    def model_config(self) -> ModelConfig:
        """Completed configuration of the model."""
        if self._config is None:
            self.wait_for_model(self._init_timeout_s)
        assert self._config is not None
        return self._config

    @property
    def is_batching_supported(self) -> bool:
        """Whether tensors have a batch dimension."""
        return bool(self.model_config.max_batch_size > 0)

    def infer_sample(
        self, *inputs: Array, parameters: Parameters | None = None, **named_inputs: Array
    ) -> Any:
        """Send one sample: arrays without a batch dimension, by name or in the model's order.

        Returns
        -------
        dict of str to numpy.ndarray
            The outputs, without a batch dimension.

        Raises
        ------
        PyTritonClientValueError
            Positional and named inputs are mixed, or their number is wrong.
        PyTritonClientInferenceServerError
            The model or the server failed.
        """
        arrays = self._named(inputs, named_inputs)
        if not self.is_batching_supported:
            return self._infer(arrays, parameters, sample=False)
        rows = {name: np.asarray(array)[np.newaxis] for name, array in arrays.items()}
        return self._infer(rows, parameters, sample=True)

    def infer_batch(
        self, *inputs: Array, parameters: Parameters | None = None, **named_inputs: Array
    ) -> Any:
        """Send a batch: arrays with a batch dimension, by name or in the model's order.

        Raises
        ------
        PyTritonClientModelDoesntSupportBatchingError
            The model does not batch.
        PyTritonClientValueError, PyTritonClientInferenceServerError
            As `infer_sample`.
        """
        if not self.is_batching_supported:
            raise PyTritonClientModelDoesntSupportBatchingError(
                f"model '{self.model_name}' has no batches", hint="infer_sample"
            )
        return self._infer(self._named(inputs, named_inputs), parameters, sample=False)

    @property
    def _connected(self) -> Client[Any]:
        if self._client is None:
            raise PyTritonClientClosedError("the client is closed")
        return self._client

    def _named(
        self, inputs: tuple[Array, ...], named_inputs: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        if bool(inputs) == bool(named_inputs):
            raise PyTritonClientValueError(
                "inputs are given by position or by name"
                + (", not both" if inputs else "; none was given")
            )
        if not inputs:
            return named_inputs
        names = [tensor.name for tensor in self.model_config.input]
        if len(inputs) != len(names):
            raise PyTritonClientValueError(
                f"model '{self.model_name}' has {len(names)} inputs, {len(inputs)} were given",
                hint=", ".join(names),
            )
        return dict(zip(names, map(np.asarray, inputs), strict=True))

    def _infer(
        self, inputs: Mapping[str, Array], parameters: Parameters | None, *, sample: bool
    ) -> Any:
        try:
            response = self._connected.infer(
                self.model_name, inputs, version=self._version, parameters=parameters
            )
        except TritonError as error:
            raise self._failed(error) from None
        return _without_batch(response.outputs) if sample else dict(response.outputs)

    def _failed(self, error: TritonError) -> PyTritonClientError:
        if isinstance(error, UnavailableError) and "timed out" in error.message:
            return PyTritonClientTimeoutError(error.message)
        return PyTritonClientInferenceServerError(error.message)

    def _unavailable(self, error: TritonError) -> PyTritonClientError:
        text = f"model '{self.model_name}' is not available: {error.message}"
        # Over HTTP Triton's status for an unknown model is 400.
        if isinstance(error, NotFoundError) or "unknown model" in error.message.lower():
            return PyTritonClientModelUnavailableError(text)
        return PyTritonClientInferenceServerError(text)


class DecoupledModelClient(ModelClient):
    """Client of a decoupled model: `infer_sample` and `infer_batch` return iterators of responses.

    Over gRPC only: Triton has no streams over HTTP.
    """

    def _infer(
        self, inputs: Mapping[str, Array], parameters: Parameters | None, *, sample: bool
    ) -> Iterator[dict[str, Array]]:
        client = self._connected
        if not isinstance(client, GrpcClient):
            raise PyTritonClientValueError(
                "a decoupled model is asked over gRPC", hint=f"grpc://{client.url.split(':')[0]}"
            )
        return self._responses(client, inputs, parameters, sample)

    def _responses(
        self,
        client: GrpcClient,
        inputs: Mapping[str, Array],
        parameters: Parameters | None,
        sample: bool,
    ) -> Iterator[dict[str, Array]]:
        try:
            for response in client.stream(
                self.model_name, inputs, parameters, version=self._version
            ):
                if response.error is not None:
                    raise response.error
                if response.outputs or not response.final:
                    outputs = response.outputs
                    yield _without_batch(outputs) if sample else dict(outputs)
        except TritonError as error:
            raise self._failed(error) from None


class FuturesModelClient(Closing):
    """As `ModelClient`, with results as `concurrent.futures.Future`.

    Parameters
    ----------
    url, model_name, model_version, **options
        As of `ModelClient`.
    max_workers : int, optional
        Limit of concurrent requests.
    """

    def __init__(
        self,
        url: str,
        model_name: str,
        model_version: str | int | None = None,
        *,
        max_workers: int | None = 128,
        **options: Any,
    ) -> None:
        self._client = ModelClient(url, model_name, model_version, **options)
        self._threads = ThreadPoolExecutor(max_workers, "nbtriton-pytriton-client")

    def close(self, wait: bool = True) -> None:
        """Close the client, after all requests have ended.

        Without `wait` those that no thread has begun are cancelled, and those in flight fail with a
        `PyTritonClientError`, since their connections are closed.
        """
        self._threads.shutdown(wait, cancel_futures=not wait)
        self._client.close()
        self._threads.shutdown()

    def wait_for_model(self, timeout_s: float) -> Future[None]:
        """As `ModelClient.wait_for_model`."""
        return self._threads.submit(self._client.wait_for_model, timeout_s)

    def model_config(self) -> Future[ModelConfig]:
        """As `ModelClient.model_config`."""
        return self._threads.submit(lambda: self._client.model_config)

    def infer_sample(self, *inputs: Array, **named_inputs: Any) -> Future[dict[str, Array]]:
        """As `ModelClient.infer_sample`."""
        return self._threads.submit(self._client.infer_sample, *inputs, **named_inputs)

    def infer_batch(self, *inputs: Array, **named_inputs: Any) -> Future[dict[str, Array]]:
        """As `ModelClient.infer_batch`."""
        return self._threads.submit(self._client.infer_batch, *inputs, **named_inputs)


class AsyncioModelClient:
    """As `ModelClient`, with coroutines.

    Parameters
    ----------
    url, model_name, model_version, **options
        As of `FuturesModelClient`.
    """

    def __init__(
        self, url: str, model_name: str, model_version: str | int | None = None, **options: Any
    ) -> None:
        self._client = FuturesModelClient(url, model_name, model_version, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the client."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, partial(self._client.close))

    async def wait_for_model(self, timeout_s: float) -> None:
        """As `ModelClient.wait_for_model`."""
        await asyncio.wrap_future(self._client.wait_for_model(timeout_s))

    @property
    async def model_config(self) -> ModelConfig:
        """As `ModelClient.model_config`, to be awaited."""
        return await asyncio.wrap_future(self._client.model_config())

    async def infer_sample(self, *inputs: Array, **named_inputs: Any) -> dict[str, Array]:
        """As `ModelClient.infer_sample`."""
        return await asyncio.wrap_future(self._client.infer_sample(*inputs, **named_inputs))

    async def infer_batch(self, *inputs: Array, **named_inputs: Any) -> dict[str, Array]:
        """As `ModelClient.infer_batch`."""
        return await asyncio.wrap_future(self._client.infer_batch(*inputs, **named_inputs))


def _checked(name: str, value: Any, kind: Kind) -> Any:
    """Return an argument that is of its kind."""
    try:
        check({name: value}, {name: kind})
    except InvalidArgumentError as error:
        raise PyTritonClientValueError(error.message) from None
    return value


def _open(url: str, timeout_s: float) -> Client[Any]:
    text = url if isinstance(url, str) else ""
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "http", text
    port = _PORTS.get(scheme)
    # An IPv6 address is in brackets, and has colons of its own.
    address = re.fullmatch(r"(\[[^\]]+\]|[^:]+)(?::([0-9]{0,5}))?", rest.rstrip("/"))
    host, given = address.groups() if address else ("", "")
    if port is None or not host or int(given or 0) > _HIGHEST_PORT:
        raise PyTritonClientInvalidUrlError(
            f"'{url}' is no address of a Triton",
            hint="localhost, http://host:8000, grpc://host:8001",
        )
    client = HttpClient if scheme == "http" else GrpcClient
    return client(f"{host}:{given or port}", timeout_s)


def _without_batch(outputs: Mapping[str, Array]) -> dict[str, Array]:
    return {name: array[0] for name, array in outputs.items()}
