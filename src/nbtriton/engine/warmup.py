"""Model warmup: sample requests that run before a version is ready (scheduling.md §15)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nbtriton.backends.base import BackendInstance, InstanceContext
from nbtriton.backends.executing import running_as
from nbtriton.engine.execution import Execution
from nbtriton.engine.sequences import enum_name
from nbtriton.errors import InternalError, InvalidArgumentError
from nbtriton.tensors import Array, deserialize_bytes, numpy_dtype, to_protocol

if TYPE_CHECKING:
    from nbtriton.engine.runtime import Runtime

__all__ = ["warm_up"]


def warm_up(runtime: Runtime, context: InstanceContext, model: BackendInstance) -> None:
    """Run every warmup sample of the configuration on one instance, bypassing the scheduler (W1).

    A sample of batch size n makes n requests of one item each in one execution (W2); the
    executions count in the statistics (W5).

    Raises
    ------
    InvalidArgumentError
        A sample failed: the load fails with Triton's text (W4).
    """
    for sample in context.model.config.model_warmup:
        if sample.batch_size == 0:
            continue
        inputs = {name: _data(runtime, context, name, spec) for name, spec in sample.inputs.items()}
        for _ in range(max(1, sample.count)):
            _run(runtime, context.name, model, sample, inputs)


def _run(
    runtime: Runtime, instance: str, model: BackendInstance, sample: Any, inputs: dict[str, Array]
) -> None:
    requests = [runtime.interface.admit(inputs) for _ in range(sample.batch_size)]
    numbers = tuple([request.number for request in requests])
    execution = Execution(len(requests), instance, numbers, "warmup")
    errors: list[str] = []
    try:
        _check_size(len(requests), instance, runtime.interface.max_batch_size)
        with running_as(model.running):
            responses = model.execute(requests, execution) or []
        errors = [str(r.error) for r in responses if r is not None and r.error is not None]
    except Exception as error:
        errors = [str(error)] * len(requests)  # Triton answers each of them with it
    execution.end()
    if errors:
        raise InvalidArgumentError(
            f"failed to run warmup sample '{sample.name}': " + "".join(f"{e}; " for e in errors)
        )
    execution.inferences = len(requests)
    execution.total_ns = len(requests) * (execution.end_ns - execution.start_ns)
    runtime.statistics.warmed(execution)


def _check_size(size: int, instance: str, limit: int) -> None:
    """Refuse what a backend refuses: the configuration's own check lets it pass (W4b)."""
    if size > max(1, limit):
        raise InternalError(f"batch size {size} for '{instance}', max allowed is {limit}")


def _data(runtime: Runtime, context: InstanceContext, name: str, spec: Any) -> Array:
    shape = tuple(spec.dims)
    if -1 in shape:
        raise InvalidArgumentError(
            f"warmup setting expects all variable-size dimensions are specified for input '{name}'"
        )
    if runtime.interface.max_batch_size > 0:
        shape = (1, *shape)
    datatype = to_protocol(enum_name(spec, "data_type"))
    source = spec.WhichOneof("input_data_type")
    if source is None:
        raise InvalidArgumentError(
            "[request id: <id_unknown>] warmup setting expects input "
            f"'{name}' to have input_data_type set"
        )
    if source == "input_data_file":
        return _from_file(context, spec.input_data_file, datatype, shape)
    if datatype == "BYTES":  # zero and random data alike are empty strings (W3)
        return np.full(shape, b"", dtype=object)
    dtype = numpy_dtype(datatype)
    if source == "zero_data":
        return np.zeros(shape, dtype)
    random = np.random.default_rng(0).bytes(int(np.prod(shape)) * dtype.itemsize)
    return np.frombuffer(random, np.uint8).copy().view(dtype).reshape(shape)


def _from_file(
    context: InstanceContext, filename: str, datatype: str, shape: tuple[int, ...]
) -> Array:
    directory = context.model.model_directory
    path = Path(directory or "") / "warmup" / filename
    if directory is None or not path.is_file():
        raise InternalError(f"failed to open text file for read {path}: No such file or directory")
    content = path.read_bytes()
    if datatype == "BYTES":
        return deserialize_bytes(content).reshape(shape)
    dtype = numpy_dtype(datatype)
    expected = int(np.prod(shape)) * dtype.itemsize
    if len(content) < expected:
        raise InvalidArgumentError(
            f"[request id: <id_unknown>] warmup setting expects {expected} bytes, "
            f"but the data provided from {filename}only has {len(content)} bytes"
        )
    return np.frombuffer(content[:expected], dtype).reshape(shape).copy()
