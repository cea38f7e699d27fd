"""Model warmup: sample requests that run before a version is ready (W1 to W6)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nbtriton.backends.base import BackendInstance, InstanceContext, Response
from nbtriton.backends.core.executing import running_as
from nbtriton.backends.core.messages import RequestOptions
from nbtriton.common.errors import InternalError, InvalidArgumentError
from nbtriton.model.config import ModelConfig, enum_name, plan_instances
from nbtriton.model.tensors import Array, deserialize_bytes, numpy_dtype, to_protocol
from nbtriton.runtime.engine.core.execution import Execution
from nbtriton.runtime.engine.core.request import InferenceRequest
from nbtriton.runtime.engine.core.runtime import ModelSignature, Runtime
from nbtriton.runtime.engine.core.sequence_tensors import check_file

_log = logging.getLogger("nbtriton.warmup")


class _Sample(InferenceRequest):
    """A warmup request: its responses are checked for errors and dropped."""

    __slots__ = ("ended", "errors")

    def __init__(self, admitted: InferenceRequest, inputs: dict[str, Array]) -> None:
        super().__init__(
            admitted.runtime, inputs, admitted.requested_outputs, admitted.batch_size, admitted.kind
        )
        self.errors: list[str] = []
        self.ended = threading.Event()

    def send(self, response: Response | None, *, final: bool) -> None:
        self.start_response(final=final)
        if response is not None and response.error is not None:
            self.errors.append(str(response.error))
        if final:
            self.ended.set()


def check_samples(config: ModelConfig, directory: Path | None) -> None:
    """Check the warmup samples of a configuration, as far as possible without the model.

    Raises
    ------
    TritonError
        As `warm_up`.
    """
    signature = ModelSignature(config)
    for sample, values in _samples(config, directory, signature):
        _admit(signature, values)
        for plan in plan_instances(config, gpus=None)[:1]:
            try:
                _check_size(sample.batch_size, plan.name, signature.max_batch_size)
            except InternalError as error:
                raise _failed(sample, [str(error)] * sample.batch_size) from error


def warm_up(runtime: Runtime, context: InstanceContext, model: BackendInstance) -> None:
    """Run every warmup sample of the configuration on one instance, bypassing the scheduler (W1).

    A sample of batch size n makes n requests of one item each in one execution (W2); the
    executions count in the statistics (W5). A decoupled model has answered when it has sent its
    final flag.

    Raises
    ------
    InvalidArgumentError
        A sample failed: the load fails with Triton's text (W4). All of them are read first.
    """
    samples = _samples(context.model.config, context.model.model_directory, runtime.signature)
    for _, values in samples:
        _admit(runtime.signature, values)
    for sample, values in samples:
        which = (runtime.name, context.name, sample.name)
        for iteration in range(1, max(1, sample.count) + 1):
            # Triton's lines, in a verbose log.
            _log.debug(
                "model '%s' instance %s is running warmup sample '%s' for iteration %d",
                *which, iteration,
            )  # fmt: skip
            try:
                _run(runtime, context.name, model, sample, values)
            except InvalidArgumentError:
                _log.debug("model '%s' instance %s failed to run warmup sample '%s'", *which)
                raise


def _samples(
    config: ModelConfig, directory: Path | None, signature: ModelSignature
) -> list[tuple[Any, dict[str, Array]]]:
    """Read the samples that make requests, each with its inputs."""
    return [
        (
            sample,
            {name: _data(signature, directory, name, spec) for name, spec in sample.inputs.items()},
        )
        for sample in config.model_warmup
        if sample.batch_size > 0
    ]


def _admit(signature: ModelSignature, inputs: dict[str, Array]) -> _Sample:
    """Make a request of the model's inputs; the other inputs are added unchecked.

    The others are control inputs of sequences, which clients do not send.
    """
    known = {name: value for name, value in inputs.items() if name in signature.inputs}
    admitted = signature.build_request(known, RequestOptions())
    return _Sample(admitted, {**inputs, **admitted.inputs})


def _run(
    runtime: Runtime, instance: str, model: BackendInstance, sample: Any, inputs: dict[str, Array]
) -> None:
    requests = [_admit(runtime.signature, inputs) for _ in range(sample.batch_size)]
    execution = Execution(len(requests), instance, requests[0].number, len(requests), "warmup")
    for request in requests:
        request.execution = execution
    errors: list[str] = []
    try:
        _check_size(len(requests), instance, runtime.signature.max_batch_size)
        with running_as(model.running):
            responses = model.execute(requests, execution)
        execution.end()
        errors = _errors(requests, responses)
    except Exception as error:
        errors = [str(error)] * len(requests)  # Triton answers each of them with it
    if errors:
        raise _failed(sample, errors)
    execution.inferences = len(requests)
    execution.total_ns = len(requests) * (execution.end_ns - execution.start_ns)
    runtime.statistics.record_warmup(execution)


def _failed(sample: Any, errors: list[str]) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"failed to run warmup sample '{sample.name}': " + "".join(f"{e}; " for e in errors)
    )


def _errors(requests: list[_Sample], responses: Sequence[Response | None] | None) -> list[str]:
    """Wait for the responses that the model itself sends, and return the errors among all responses."""
    errors: list[str] = []
    for request, response in zip(requests, responses or [None] * len(requests), strict=True):
        if response is None:
            request.ended.wait()
        elif response.error is not None:
            errors.append(str(response.error))
        errors += request.errors
    return errors


def _check_size(size: int, instance: str, limit: int) -> None:
    """Refuse what a backend refuses: the configuration's own check lets it pass (W4b)."""
    if size > max(1, limit):
        raise InternalError(f"batch size {size} for '{instance}', max allowed is {limit}")


def _data(signature: ModelSignature, directory: Path | None, name: str, spec: Any) -> Array:
    shape = tuple(spec.dims)
    if -1 in shape:
        raise InvalidArgumentError(
            f"warmup setting expects all variable-size dimensions are specified for input '{name}'"
        )
    known = signature.inputs.get(name)
    if signature.max_batch_size > 0 and (known is None or not known.is_shape_tensor):
        shape = (1, *shape)
    datatype = to_protocol(enum_name(spec, "data_type"))
    source = spec.WhichOneof("input_data_type")
    if source is None:
        raise InvalidArgumentError(
            "[request id: <id_unknown>] warmup setting expects input "
            f"'{name}' to have input_data_type set"
        )
    if source == "input_data_file":
        return _from_file(directory, spec.input_data_file, datatype, shape)
    if datatype == "BYTES":  # both zero and random data are empty strings (W3)
        return np.full(shape, b"", dtype=object)
    dtype = numpy_dtype(datatype)
    if source == "zero_data":
        return np.zeros(shape, dtype)
    random = np.random.default_rng(0).bytes(int(np.prod(shape)) * dtype.itemsize)
    return np.frombuffer(random, np.uint8).copy().view(dtype).reshape(shape)


def _from_file(
    directory: Path | None, filename: str, datatype: str, shape: tuple[int, ...]
) -> Array:
    content = check_file(directory, f"warmup/{filename}").read_bytes()
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
