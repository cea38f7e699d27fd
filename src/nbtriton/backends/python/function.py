"""An instance that runs a plain function on whole batches."""

# ruff: noqa: SLF001 - the public names of these classes are Triton's own, the others are ours
from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from nbtriton.backends.base import BackendInstance, BackendRequest, BatchTimer, Response
from nbtriton.backends.batching import gather_inputs, name_outputs, scatter_outputs
from nbtriton.backends.python.borrowing import function_borrows
from nbtriton.backends.python.loopless import without_running_loop
from nbtriton.backends.python.ownership import own_outputs
from nbtriton.backends.python.running import Running, enter_live, leave_live
from nbtriton.backends.python.tensor import Tensor, is_plain, wire_array
from nbtriton.backends.ragged import layout
from nbtriton.backends.tracebacks import execute_error
from nbtriton.config import ModelConfig, input_specs, output_specs
from nbtriton.errors import TritonError as EngineError
from nbtriton.errors import UnsupportedError
from nbtriton.tensors import Array, as_array

__all__ = ["FunctionInstance"]


class FunctionInstance(BackendInstance):
    """Calls the function once per batch, with the inputs joined along axis 0, by keyword.

    Parameters
    ----------
    function : callable
        Returns a dict by output name, a tuple in the order of the outputs, or the one output.
    config : ModelConfig
    running : Running
    """

    def __init__(self, function: FunctionType, config: ModelConfig, running: Running) -> None:
        if inspect.iscoroutinefunction(function):
            raise UnsupportedError(
                f"'{function.__name__}' is a coroutine function",
                hint="write a class TritonPythonModel with `async def execute`",
            )
        self._function: Callable[..., Any] = function
        # Why its inputs are copied where they are read-only; empty if it gets them as they are.
        self.copies_because = function_borrows(function)
        self._inputs = list(input_specs(config))
        self._outputs = {name: spec.datatype for name, spec in output_specs(config).items()}
        self._batches = config.max_batch_size > 0
        self._layout = layout(config)
        self.running = self._running = running
        enter_live(running)

    def execute(self, requests: Sequence[BackendRequest], timer: BatchTimer) -> Sequence[Response]:
        """Run one batch; see `BackendInstance.execute`."""
        if not self._batches and len(requests) > 1:
            return [self._run([request], timer)[0] for request in requests]
        return self._run(requests, timer)

    def finalize(self) -> None:
        """Forget that this instance runs."""
        leave_live(self._running)

    def _run(self, requests: Sequence[BackendRequest], timer: BatchTimer) -> Sequence[Response]:
        inputs = gather_inputs(
            requests, self._inputs, self._layout, writable=bool(self.copies_because)
        )
        if not self.copies_because:
            for name, array in inputs.items():
                if type(array) is np.ndarray and not (array.flags.writeable or is_plain(array)):
                    inputs[name] = array.copy()
        timer.inputs_ready()
        outputs = self._call(inputs)
        timer.infer_done()
        del inputs
        tensors = []
        while outputs:
            tensors.append(Tensor._wrap(*outputs.popitem()))
        own_outputs(tensors, (), requests)
        arrays = {tensor._name: wire_array(tensor._array) for tensor in reversed(tensors)}
        return scatter_outputs(
            requests,
            arrays,
            batches=self._batches,
            model=self._running.model_name,
            layout=self._layout,
        )

    def _call(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        try:
            result = without_running_loop(self._apply, inputs)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            raise execute_error(self._running.instance_name, error) from error
        if isinstance(result, list):
            # A list is a tensor written by hand; several outputs are a tuple or a dict.
            result = (result,)
        named = name_outputs(result, list(self._outputs), model=self._running.model_name)
        for name, value in named.items():
            datatype = self._outputs[name]
            if type(value) is not np.ndarray or datatype == "BYTES":
                try:
                    named[name] = as_array(value, datatype, name=name)
                except EngineError as error:
                    error.args = (error.message.replace(f"input '{name}'", f"output '{name}'"),)
                    raise
        return named

    def _apply(self, inputs: Mapping[str, Array]) -> Any:
        return self._function(**inputs)
