"""Bound functions as a model: calls with requests, and checks of the results."""

from __future__ import annotations

import asyncio
import inspect
import json
import warnings
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nbtriton.backends.python.api.requests import ReceivedRequest
from nbtriton.backends.python.core.responses import InferenceResponse
from nbtriton.backends.python.core.tensor import Tensor
from nbtriton.model.tensors import as_bytes_array, numpy_dtype
from nbtriton.pytriton.exceptions import (
    PyTritonBadParameterError,
    PyTritonUnrecoverableError,
    PyTritonValidationError,
)
from nbtriton.pytriton.model_config import ModelWarmup, TritonModelConfig, WarmupInput
from nbtriton.pytriton.request import Array, Request

__all__ = ["Binding"]

# Flag of a request's last response (TRITONSERVER_RESPONSE_COMPLETE_FINAL).
_FINAL = 1
# Bound of random integers in warmup requests, for any integer type.
_WARMUP_END = 100


class Binding:
    """Inference functions bound as a model.

    Parameters
    ----------
    config : TritonModelConfig
    functions : sequence of callable
        One for each instance.
    strict : bool
        Compare the outputs with their declared names, dtypes and shapes.
    on_unrecoverable : callable
        Called when a function raises `PyTritonUnrecoverableError`.
    """

    def __init__(
        self,
        config: TritonModelConfig,
        functions: Sequence[Callable[..., Any]],
        *,
        strict: bool,
        on_unrecoverable: Callable[[], object],
    ) -> None:
        self.config = config
        self.functions = tuple(functions)
        self.on_unrecoverable = on_unrecoverable
        self._strict = strict
        self._dtypes = {tensor.name: numpy_dtype(tensor.datatype) for tensor in config.outputs}
        self._specs = {tensor.name: tensor for tensor in config.outputs}

    def model(self) -> type:
        """Return the class that the server loads."""
        binding = self

        class TritonPythonModel:
            def initialize(self, args: Mapping[str, str]) -> None:
                number = int(args["model_instance_name"].rpartition("_")[2])
                self._function = binding.functions[number % len(binding.functions)]

            def execute(self, requests: list[ReceivedRequest]) -> Any:
                return binding.execute(self._function, requests)

        return TritonPythonModel

    def execute(self, function: Callable[..., Any], received: list[ReceivedRequest]) -> Any:
        """Run a batch; return a coroutine for asynchronous functions."""
        requests = [
            Request(
                {tensor.name(): tensor.as_numpy() for tensor in one.inputs()},
                json.loads(one.parameters()),
                one.requested_output_names(),
            )
            for one in received
        ]
        try:
            result = function(requests)
        except PyTritonUnrecoverableError:
            self.on_unrecoverable()
            raise
        if self.config.decoupled:
            return self._stream(received, result)
        if inspect.isawaitable(result) or inspect.isasyncgen(result):
            return self._wait(received, result)
        if inspect.isgenerator(result):
            result = self._only([*self._guarded(result)])
        return self.responses(received, result)

    def responses(self, received: list[ReceivedRequest], result: object) -> list[InferenceResponse]:
        """Return the responses of a batch.

        Raises
        ------
        PyTritonValidationError
            The result is not a list of dicts of arrays, one for each request.
        """
        name = self.config.model_name
        if not isinstance(result, list):
            raise PyTritonValidationError(
                f"model '{name}': the function returned {type(result).__name__}",
                hint="a list with a dict of arrays for each request; @batch and @sample make one",
            )
        if len(result) != len(received):
            raise PyTritonValidationError(
                f"model '{name}': the function returned {len(result)} responses to {len(received)} "
                "requests"
            )
        return [
            self._response(outputs, one.requested_output_names())
            for one, outputs in zip(received, result, strict=True)
        ]

    def warm_up(self, warmups: Sequence[ModelWarmup]) -> None:
        """Call each function with warmup requests; warn of a function that raises."""
        for warmup in warmups:
            for function in self.functions:
                for _ in range(warmup.count):
                    inputs = {
                        name: _warmup_array(one, name, warmup.batch_size)
                        for name, one in warmup.inputs.items()
                    }
                    try:
                        _exhaust(function([Request(inputs)]))
                    except Exception as error:
                        warnings.warn(
                            f"model '{self.config.model_name}': warmup '{warmup.name}': "
                            f"{type(error).__name__}: {error}",
                            stacklevel=4,
                        )

    def _response(self, outputs: object, requested: set[str]) -> InferenceResponse:
        if not isinstance(outputs, Mapping):
            raise PyTritonValidationError(
                f"model '{self.config.model_name}': a response is {type(outputs).__name__} instead "
                "of a dict of arrays"
            )
        tensors = []
        for name, value in outputs.items():
            self._check(name, value)
            if name in requested and name in self._dtypes:
                tensors.append(Tensor(name, self._cast(name, value)))
        return InferenceResponse(tensors)

    def _cast(self, name: str, value: Array) -> Array:
        dtype = self._dtypes[name]
        return as_bytes_array(value) if dtype.kind == "O" else value.astype(dtype, copy=False)

    def _check(self, name: object, value: object) -> None:
        what = f"model '{self.config.model_name}': output {name!r}"
        if not isinstance(name, str):
            raise PyTritonValidationError(f"{what} has a name that is no text")
        if not isinstance(value, np.ndarray):
            raise PyTritonValidationError(f"{what} is {type(value).__name__}, no NumPy array")
        kind = value.dtype.kind
        if kind not in "biufOSU":
            raise PyTritonValidationError(f"{what} has the dtype {value.dtype}, which Triton lacks")
        if kind == "O" and value.size and not isinstance(value.flat[0], bytes):
            raise PyTritonValidationError(
                f"{what} holds objects of the type {type(value.flat[0]).__name__}",
                hint="bytes, or an array of numpy.bytes_ or numpy.str_",
            )
        if self._strict:
            self._check_declared(what, name, value)

    def _check_declared(self, what: str, name: str, value: Array) -> None:
        spec = self._specs.get(name)
        if spec is None:
            known = ", ".join(self._specs)
            raise PyTritonValidationError(f"{what} is not declared; the model has {known}")
        text = value.dtype.kind in "OSU"
        if text != (spec.datatype == "BYTES") or not (text or value.dtype == self._dtypes[name]):
            raise PyTritonValidationError(
                f"{what} has the dtype {value.dtype}; it is declared as {spec.datatype}"
            )
        shape = value.shape[1:] if self.config.batching else value.shape
        fits = len(shape) == len(spec.shape) and all(
            size in (-1, have) for have, size in zip(shape, spec.shape, strict=True)
        )
        if not fits:
            raise PyTritonValidationError(
                f"{what} has the shape {shape}; it is declared as {tuple(spec.shape)}"
            )

    async def _wait(self, received: list[ReceivedRequest], result: Any) -> list[InferenceResponse]:
        return self.responses(received, self._only([one async for one in self._items(result)]))

    async def _stream(self, received: list[ReceivedRequest], result: Any) -> None:
        """Send each item of the result; the server responds with its errors."""
        senders = [one.get_response_sender() for one in received]
        items = self._items(result)
        async for item in items:
            if all(one.is_cancelled() for one in received):
                await items.aclose()
                break
            for sender, response in zip(senders, self.responses(received, item), strict=True):
                sender.send(response)
            # Let the streams of other requests run.
            await asyncio.sleep(0)
        for sender in senders:
            sender.send(flags=_FINAL)

    async def _items(self, result: Any) -> AsyncGenerator[Any, None]:
        """Yield the items of a function's result."""
        try:
            if inspect.isasyncgen(result):
                async for item in result:
                    yield item
            elif inspect.isgenerator(result):
                for item in result:
                    yield item
            else:
                yield await result if inspect.isawaitable(result) else result
        except PyTritonUnrecoverableError:
            self.on_unrecoverable()
            raise

    def _guarded(self, result: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from result
        except PyTritonUnrecoverableError:
            self.on_unrecoverable()
            raise

    def _only(self, items: list[Any]) -> Any:
        if len(items) != 1:
            raise PyTritonValidationError(
                f"model '{self.config.model_name}': a generator gave {len(items)} items",
                hint="one; or ModelConfig(decoupled=True)",
            )
        return items[0]


def _exhaust(result: Any) -> None:
    """Run a function's result to its end."""

    async def wait() -> None:
        if inspect.isasyncgen(result):
            async for _ in result:
                pass
        else:
            await result

    if inspect.isasyncgen(result) or inspect.isawaitable(result):
        asyncio.run(wait())
    elif inspect.isgenerator(result):
        for _ in result:
            pass


def _warmup_array(given: WarmupInput, name: str, rows: int) -> Array:
    """Return one input of a warmup request with `rows` rows."""
    text = np.dtype(given.dtype).kind in "OSU"
    shape = (rows, *given.shape)
    if given.input_data_file:
        values = np.load(given.input_data_file)
        if values.ndim == len(given.shape):  # one row
            values = values[np.newaxis]
        return np.resize(values, (rows, *values.shape[1:])).astype(given.dtype)
    if given.zero_data:
        return np.full(shape, b"", object) if text else np.zeros(shape, given.dtype)
    if given.random_data:
        numbers = np.random.default_rng(0).random(shape)
        if text:
            return numbers.astype("S").astype(object)
        kind = np.dtype(given.dtype).kind
        return (numbers if kind == "f" else numbers * _WARMUP_END).astype(given.dtype)
    raise PyTritonBadParameterError(
        f"the warmup input '{name}' has no data",
        hint="zero_data=True, random_data=True or input_data_file=…",
    )
