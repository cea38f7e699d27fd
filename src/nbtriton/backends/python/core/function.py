"""An instance that runs a plain function on whole batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import numpy as np

from nbtriton.backends.base import BackendRequest, BatchTimer, Response
from nbtriton.backends.core.batching import (
    BatchInstance,
    gather_inputs,
    name_outputs,
    wanted_outputs,
)
from nbtriton.backends.core.place import Place, to_host, wait_for_outputs
from nbtriton.backends.python.api.sender import stop_answering_abandoned
from nbtriton.backends.python.callables import open_callable
from nbtriton.backends.python.core.instance import call_model
from nbtriton.backends.python.core.values import leaving
from nbtriton.backends.python.running import Running, any_live, enter_live, leave_live
from nbtriton.backends.read_only import check_unchanged, explained_error, versions_of
from nbtriton.common.errors import TritonError as EngineError
from nbtriton.common.errors import UnsupportedError
from nbtriton.model.config import ModelConfig, reads_only
from nbtriton.model.tensors import (
    Array,
    as_array,
    is_on_device,
    kind_of,
    read_only,
    to_kind,
    to_torch,
)

# Final: rule 13 of docs/compiled.md.
_ndarray: Final = np.ndarray
_OVER: Final = object()


class FunctionInstance(BatchInstance):
    """Calls the function once per batch, with the inputs joined along axis 0, by keyword.

    Arrays are NumPy's, or of an annotated type; on a GPU they are by default torch tensors on that device.

    Parameters
    ----------
    source : callable or object
        Returns a dict by output name, a tuple in the order of the outputs, or the one output; a
        generator function yields any number of them for each request.
    config : ModelConfig
    running : Running
    device : str, optional
        Such as ``"cuda:0"``; None on the host.
    place : Place, optional
        On a GPU. On a simulated one, inputs are by default its own arrays.
    """

    def __init__(
        self,
        source: Any,
        config: ModelConfig,
        running: Running,
        device: str | None = None,
        place: Place | None = None,
    ) -> None:
        super().__init__(config)
        self._model = model = open_callable(source, config)
        self._reads_only = reads_only(config)
        self._inputs = list(model.inputs)
        self._place = place
        default = "numpy" if device is None else "torch"
        if place is not None:
            default = "simulated" if place.device.simulated else "torch"
        # The simulated GPU accounts operations on its own arrays itself.
        self._timed = place is not None and (
            not place.device.simulated or "torch" in model.inputs.values()
        )
        # The inputs that the function does not get as NumPy arrays.
        self._kinds = {
            name: kind or default
            for name, kind in model.inputs.items()
            if (kind or default) != "numpy"
        }
        self._outputs = list(model.outputs)
        self._device = device
        self.running = self._running = running
        enter_live(running)

    def execute(
        self, requests: Sequence[BackendRequest], timer: BatchTimer
    ) -> Sequence[Response | None] | None:
        """Run one batch; see `BackendInstance.execute`."""
        if self._model.streams:
            timer.inputs_ready()
            for request in requests:
                if self._place is not None:
                    self._place.begin()
                self._stream(request)
            timer.infer_done()
            return None
        return super().execute(requests, timer)

    def finalize(self) -> None:
        """Deregister the instance."""
        leave_live(self._running)
        if self._place is not None:
            self._place.close()
        if not any_live():
            stop_answering_abandoned()

    def run(self, requests: Sequence[BackendRequest], timer: BatchTimer) -> Sequence[Response]:
        """Run one batch; without batching it has one request."""
        place = self._place
        if place is None:
            return self._run(requests, timer)
        place.begin()
        with place.stream:
            return self._run(requests, timer)

    def _run(self, requests: Sequence[BackendRequest], timer: BatchTimer) -> Sequence[Response]:
        inputs = self._gather(requests)
        versions = versions_of(inputs) if self._reads_only else {}
        timer.inputs_ready()
        requested = wanted_outputs(requests)
        call = partial(self._model.call, inputs)
        if self._timed and self._place is not None:
            with self._place.computing():
                result = self._of_user(call, requested)
        else:
            result = self._of_user(call, requested)
        outputs = self._named(result, requested)
        timer.infer_done()
        if versions:
            check_unchanged(versions, self._name)
        return self._responses(requests, outputs)

    def _stream(self, request: BackendRequest) -> None:
        """Send a response for each value that the function yields."""
        requested = request.requested_outputs
        try:
            # Not around `send`: receivers of a response use streams of their own.
            with self._current():
                inputs = self._gather([request])
                versions = versions_of(inputs) if self._reads_only else {}
                values = self._of_user(partial(self._model.call, inputs), requested)
            while not request.is_cancelled():
                response = self._yielded(values, request, requested)
                if response is None:
                    break
                request.send(response, final=False)
            else:
                with self._current():
                    self._of_user(_close, values)
            check_unchanged(versions, self._name)
        except EngineError as error:
            request.send(Response(error=error), final=True)
        else:
            request.send(None, final=True)

    def _yielded(
        self, values: Any, request: BackendRequest, requested: frozenset[str]
    ) -> Response | None:
        """Return the next response of a function that yields, None at its end."""
        with self._current():
            value = self._of_user(_next, values)
            if value is _OVER:
                return None
            return self._responses([request], self._named(value, requested))[0]

    def _current(self) -> Any:
        """Return the context in which the instance's stream is this thread's."""
        return nullcontext() if self._place is None else self._place.stream

    def _named(self, result: Any, requested: frozenset[str]) -> dict[str, Any]:
        """Return a result by output name; arrays on the device belong to its stream."""
        outputs = self._checked(result, requested)
        if self._place is None:
            return outputs
        return {name: self._place.adopted(array) for name, array in outputs.items()}

    def _responses(
        self, requests: Sequence[BackendRequest], outputs: Mapping[str, Any]
    ) -> Sequence[Response]:
        copied = requests[0].copies_outputs
        arrays = {n: array if copied else leaving(array) for n, array in outputs.items()}
        if self._place is not None:
            self._place.leave(arrays.items(), requests)
        else:
            wait_for_outputs(arrays.values())
        return self.scatter(requests, arrays)

    def _gather(self, requests: Sequence[BackendRequest]) -> dict[str, Array]:
        inputs = gather_inputs(
            requests, self._inputs, self._layout,
            copy=not self._reads_only, model=self._name, place=self._place,
        )  # fmt: skip
        for name, array in inputs.items():
            if type(array) is not _ndarray or name in self._kinds:
                kind = self._kinds.get(name, "numpy")
                if self._place is None:
                    inputs[name] = _as_kind(array, kind, self._device, f"{self._name}.{name}")
                else:
                    inputs[name] = self._place.seen_as(array, kind)
        if self._reads_only:
            return {name: read_only(array) for name, array in inputs.items()}
        return inputs

    def _of_user(self, call: Callable[[Any], Any], argument: Any) -> Any:
        """Run the user's code; its errors name the user's line."""
        try:
            return call_model(call, argument)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # The new error has no name: it would hold this frame, behind the user's, which holds it.
            raise explained_error(
                self._running.instance_name, error, reads_only=self._reads_only
            ) from error

    def _checked(self, result: Any, requested: frozenset[str]) -> dict[str, Any]:
        """Return a result by output name, as arrays of the configured datatypes."""
        if isinstance(result, list):
            # A list is a hand-written tensor; several outputs are a tuple or a dict.
            result = (result,)
        names = self._outputs
        if self._model.selective:
            names = [name for name in names if name in requested]
        named = name_outputs(result, names, model=self._name)
        for name, value in named.items():
            datatype = self._model.outputs[name]
            if type(value) is not _ndarray or datatype == "BYTES":
                try:
                    named[name] = as_array(value, datatype, name=name)
                except EngineError as error:
                    error.args = (error.message.replace(f"input '{name}'", f"output '{name}'"),)
                    raise
        return named


def _next(values: Iterator[Any]) -> Any:
    return next(values, _OVER)


def _close(values: Any) -> None:
    """Let a generator run its ``finally``."""
    close = getattr(values, "close", None)
    if close is not None:
        close()


def _as_kind(array: Array, kind: str, device: str | None, reader: str) -> Array:
    """Return an array as the function's kind of array, strings as NumPy's."""
    if kind == "numpy" and is_on_device(array):
        return to_host(array, reader)
    if kind_of(array) == "numpy" and array.dtype == object:
        return array
    if kind == "torch":
        return to_torch(array, device)
    try:
        return to_kind(array, kind)
    except UnsupportedError:
        return array  # NumPy has no BF16 without ml_dtypes: it stays a torch tensor
