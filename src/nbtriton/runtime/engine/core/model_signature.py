"""The checks of a request before any scheduler sees it (A3 to A16).

Failures here are raised to the caller at once; they never count in the model's statistics.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from operator import index
from typing import Any, Final, NoReturn

import numpy as np

from nbtriton.backends.core.request_options import RequestOptions
from nbtriton.common.errors import InternalError, InvalidArgumentError
from nbtriton.model.config import ModelConfig, TensorSpec, input_specs, output_specs, reads_only
from nbtriton.model.tensors import (
    Array,
    as_array,
    datatype_of,
    kind_of,
    numpy_dtype,
    shape_of,
    to_numpy,
)
from nbtriton.runtime.engine.core.faults import Claim, Faults
from nbtriton.runtime.engine.core.request import InferenceRequest, RequestOwner

__all__ = ["ModelSignature"]

# Final: rule 13 of docs/compiled.md.
_ndarray: Final = np.ndarray

_ANY_PRIORITY: Final = 2**64 - 1
# Of one input, cached as accepted; 1,000 lengths of text would be some 200 kB.
_MOST_SHAPES: Final = 1000
# Floats come over gRPC only.
_PARAMETER: Final = (bool, int, str, float)


class _InputRule:
    """The checks of one input, prepared for the hot path."""

    __slots__ = (
        "cached", "compared", "datatype", "dims", "dtype", "fixed", "name", "optional", "plain",
        "reshape",
    )  # fmt: skip

    def __init__(self, spec: Any) -> None:
        self.name: str = spec.name
        self.datatype: str = spec.datatype
        self.dims: tuple[int, ...] = spec.dims
        self.optional: bool = spec.optional
        self.reshape: tuple[int, ...] | None = spec.reshape
        self.fixed = -1 not in spec.dims
        self.compared = not self.fixed and not spec.allow_ragged_batch  # G1
        # The dtype that needs no `as_array`; BYTES elements and BF16 are always checked.
        self.dtype = numpy_dtype(spec.datatype) if spec.datatype not in ("BYTES", "BF16") else None
        # Nothing follows from its shape but the batch size.
        self.plain = self.reshape is None and not self.compared
        # Whole shapes that were accepted, with the shape of one item: most clients send few.
        self.cached: dict[tuple[int, ...], tuple[int, ...]] = {}

    def matches(self, shape: tuple[int, ...]) -> bool:
        """True if a shape without batch dimension fits ``dims``."""
        if self.fixed:
            return shape == self.dims
        return len(shape) == len(self.dims) and all(
            want in (-1, found) for want, found in zip(self.dims, shape, strict=True)
        )

    def reshaped(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that the model sees: each -1 takes the next variable dimension (A12)."""
        assert self.reshape is not None
        variable = iter(n for want, n in zip(self.dims, shape, strict=True) if want == -1)
        return tuple(next(variable) if want == -1 else want for want in self.reshape)


class ModelSignature:
    """The signature of one model version: it checks and builds every request.

    Parameters
    ----------
    config : ModelConfig
        Normalised and completed.
    version : int
    runtime : RequestOwner, optional
        The version that the requests are for.
    """

    def __init__(
        self, config: ModelConfig, version: int = 1, runtime: RequestOwner | None = None
    ) -> None:
        self.name: str = config.name
        self.version = version
        self._runtime = runtime
        self.max_batch_size: int = config.max_batch_size
        self.decoupled: bool = config.model_transaction_policy.decoupled
        self.reads_only = reads_only(config)
        self.inputs = input_specs(config)
        self.outputs = output_specs(config)
        self._rules = {name: _InputRule(spec) for name, spec in self.inputs.items()}
        # Outputs that leave with another shape than the model made them with.
        self.reshaped_outputs = {
            name: (spec.reshape, spec.dims)
            for name, spec in self.outputs.items()
            if spec.reshape is not None
        }
        self._required = [rule.name for rule in self._rules.values() if not rule.optional]
        self._any_optional = len(self._required) < len(self._rules)
        # With a batch dimension every backend takes the size of its batch from some input.
        self.may_lack_inputs = self.max_batch_size > 0 and not self._required
        self._all_outputs = frozenset(self.outputs)
        self.faults = Faults(self.name, self.max_batch_size, self.inputs, self._all_outputs)
        batcher = config.dynamic_batching
        self._priority_levels: int = batcher.priority_levels
        self._default_priority: int = batcher.default_priority_level
        self._shape_tensors = {name: s for name, s in self.inputs.items() if s.is_shape_tensor}
        # Checks the other inputs, which have a batch dimension.
        self._others: ModelSignature | None = None
        if self._shape_tensors:
            others = ModelConfig()
            others.CopyFrom(config)
            del others.input[:]
            others.input.extend(one for one in config.input if not one.is_shape_tensor)
            self._others = ModelSignature(others, version, runtime)
        if config.HasField("ensemble_scheduling"):
            # Its steps have levels, or have not: any priority passes through (E5).
            self._priority_levels = _ANY_PRIORITY
            self._default_priority = 0

    def build_request(
        self,
        inputs: Mapping[str, Any],
        options: RequestOptions,
        parent: InferenceRequest | None = None,
    ) -> InferenceRequest:
        """Check a request and make it.

        Parameters
        ----------
        inputs : mapping of str to array_like
            Whole tensors, batch dimension first if the model batches. Python values become arrays
            of the input's datatype; arrays must have it already.
        options : RequestOptions
        parent : InferenceRequest, optional
            The request of the ensemble that it is a step of; then the inputs, if a dict, are its own.

        Raises
        ------
        InvalidArgumentError
            With Triton's text; the order of the checks is Triton's.
        """
        if self._others is not None:
            return self._with_shape_tensors(self._others, inputs, options, parent)
        requested = self._all_outputs
        outputs = options.outputs
        request_id = options.request_id
        parameters = options.parameters
        if type(outputs) is not tuple or outputs:
            requested = _names(outputs) or requested
            if not requested <= self._all_outputs:
                if not isinstance(outputs, str):
                    outputs = list(outputs) or sorted(requested)  # an iterator has ended
                self.faults.check({}, outputs)
        rules = self._rules
        # The dict that an ensemble makes for its step is the step's own.
        arrays: dict[Any, Any] = (  # names are checked below
            _copied(inputs)
            if not isinstance(inputs, dict)
            else inputs.copy()
            if parent is None
            else inputs
        )
        # As many as the model has, each of which is found below, are all of them.
        if len(arrays) != len(rules) and not self._has_required(arrays):
            self._refuse(arrays, request_id)
        kind = "numpy"
        batching = self.max_batch_size > 0
        batch_size = 0
        first = True
        key: list[Hashable] = []
        changed: dict[str, Any] | None = None  # not yet replaced: an error describes what came
        for name, given in arrays.items():
            rule = rules.get(name)
            if rule is None:
                self._refuse(arrays, request_id)
            value: Array = given
            if type(given) is not _ndarray or given.dtype != rule.dtype:
                value = as_array(given, rule.datatype, name=name)
                if datatype_of(value) != rule.datatype:
                    self._refuse(arrays, request_id)
                if kind == "numpy":
                    kind = kind_of(value)
            shape: tuple[int, ...] = value.shape
            if batching and (not shape or (not first and shape[0] != batch_size)):
                self._refuse(arrays, request_id)
            first = False
            item = rule.cached.get(shape)
            if item is None:
                item = self._checked(rule, shape)
                if item is None:
                    self._refuse(arrays, request_id)
            if batching:
                batch_size = shape[0]
            if not rule.plain:
                if rule.compared:
                    key.append((name, item))
                if rule.reshape is not None:
                    value = value.reshape((*shape[: len(shape) - len(item)], *rule.reshaped(item)))
            if value is not given:
                changed = changed or {}
                changed[name] = value
        if batching and not 0 < batch_size <= self.max_batch_size and arrays:
            self._refuse(arrays, request_id)
        if changed:
            arrays.update(changed)
        if parameters and parent is None:
            _check_parameters(parameters)
        if self._any_optional:  # G5
            key.append(frozenset(arrays))
        priority = options.priority
        timeout_us = options.timeout_us
        sequence_id = options.correlation_id
        if (timeout_us or sequence_id) and parent is None:
            _check_numbers(timeout_us, sequence_id)
        return InferenceRequest(
            self._runtime,
            arrays,
            requested,
            batch_size,
            kind,
            tuple(sorted(key, key=str)) if key else None,
            self._priority(priority if isinstance(priority, int) else _whole("priority", priority))
            if self._priority_levels
            else 0,
            timeout_us if isinstance(timeout_us, int) else _whole("timeout_us", timeout_us),
            request_id,
            sequence_id
            if isinstance(sequence_id, (int, str))
            else _whole("sequence_id", sequence_id),
            options.flags,
            parameters,
            parent,
        )

    def _with_shape_tensors(
        self,
        others: ModelSignature,
        inputs: Mapping[str, Any],
        options: RequestOptions,
        parent: InferenceRequest | None,
    ) -> InferenceRequest:
        """Make a request of a model with shape tensors, which share a batch if they are equal (G9)."""
        arrays = {
            name: as_array(value, self.inputs[name].datatype, name=name)
            if name in self.inputs
            else value
            for name, value in _copied(inputs).items()
        }
        self.faults.check(_claims(arrays, self.inputs), options.outputs, options.request_id)
        rest = {name: array for name, array in arrays.items() if name not in self._shape_tensors}
        request = others.build_request(rest, options, parent)
        shapes = []
        for name, spec in self._shape_tensors.items():
            if name in arrays:
                request.inputs[name] = arrays[name]
                values = to_numpy(arrays[name]).reshape(-1).tolist()
                batching = self.max_batch_size > 0
                if batching and len(values) > spec.dims[0] and values[0] != request.batch_size:
                    raise InvalidArgumentError(
                        f"shape tensor '{name}' for model '{self.name}' begins with {values[0]}, the "
                        f"batch size of the request is {request.batch_size}",
                        hint=f"give {spec.dims[0]} values without it, or the batch size first",
                    )
                shapes.append((name, tuple(values[-spec.dims[0] :])))
        request.shape_key = (request.shape_key, *shapes)
        return request

    def reshape_outputs(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return outputs as their clients see them: ``dims`` instead of ``reshape``.

        Each -1 of ``dims`` takes the next variable dimension of what the model made. An output
        whose number of elements does not fit is left as it is.
        """
        shaped = dict(outputs)
        for name in self.reshaped_outputs.keys() & outputs.keys():
            made, dims = self.reshaped_outputs[name]
            array = outputs[name]
            batch = tuple(array.shape[:1]) if self.max_batch_size > 0 else ()
            item = array.shape[len(batch) :]
            if len(item) < len(made):
                continue
            variable = iter(n for want, n in zip(made, item, strict=False) if want == -1)
            shape = (*batch, *(next(variable) if want == -1 else want for want in dims))
            if math.prod(shape) == math.prod(array.shape):
                shaped[name] = array.reshape(shape)
        return shaped

    def _priority(self, priority: int) -> int:
        return priority if 0 < priority <= self._priority_levels else self._default_priority  # A16

    def _has_required(self, inputs: Mapping[Any, Any]) -> bool:
        """True if no input is missing that the model needs."""
        return all(name in inputs for name in self._required)

    def _checked(self, rule: _InputRule, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Check a shape that is new, and return that of one item; None if it does not fit."""
        item = tuple(shape[1:] if self.max_batch_size > 0 else shape)
        if not rule.matches(item):
            return None
        if len(rule.cached) >= _MOST_SHAPES:
            rule.cached.clear()
        rule.cached[tuple(shape)] = item
        return item

    def _refuse(self, inputs: Mapping[Any, Any], request_id: str) -> NoReturn:
        """Raise the error of inputs that are wrong."""
        self.faults.check(_claims(inputs, self.inputs), (), request_id)
        raise InternalError(f"a request to '{self.name}' was refused without a reason")


def _copied(inputs: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the inputs that a caller gives as a dict of our own."""
    try:
        return dict(inputs)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            "the inputs of a request are a mapping of arrays by name, found type "
            f"{type(inputs).__name__}"
        ) from None


def _claims(inputs: Mapping[Any, Any], specs: Mapping[str, TensorSpec]) -> dict[str, Claim]:
    claims: dict[str, Claim] = {}
    for name, value in inputs.items():
        if not isinstance(name, str):
            raise InvalidArgumentError(f"the name of an input is a text, found {name!r}")
        spec = specs.get(name)
        if spec is None:
            claims[name] = ("", tuple(getattr(value, "shape", ())))
        else:
            array = as_array(value, spec.datatype, name=name)
            claims[name] = (datatype_of(array), shape_of(array))
    return claims


def _names(outputs: Any) -> frozenset[str]:
    """Return the requested outputs, none for None; a name that is a text may be no output."""
    if outputs is None:
        return frozenset()
    names: frozenset[Any] = frozenset()
    try:
        names = frozenset(outputs)
    except TypeError:  # no list, or one of lists
        wrong = True
    else:
        wrong = False
        for name in names:
            wrong = wrong or not isinstance(name, str)
    if wrong:
        raise InvalidArgumentError(f"outputs are a list of names, found {outputs!r}")
    return names


def _whole(name: str, value: Any) -> int:
    """Return a whole number, of Python's or NumPy's."""
    try:
        return index(value)
    except TypeError:
        words = "a whole number or a text" if name == "sequence_id" else "a whole number"
        raise InvalidArgumentError(f"{name} must be {words}, found {value!r}") from None


def _check_numbers(timeout_us: object, sequence_id: object) -> None:
    """Refuse what has no place in Triton's 64 bits without a sign."""
    for name, value in (("timeout_us", timeout_us), ("sequence_id", sequence_id)):
        if name == "sequence_id" and isinstance(value, str):
            continue
        if not 0 <= _whole(name, value) < 1 << 64:
            raise InvalidArgumentError(f"{name} must be from 0 to 2^64 - 1, found {value}")


def _check_parameters(parameters: Any) -> None:
    """Refuse what no client could send; the endpoints check theirs themselves."""
    if not isinstance(parameters, Mapping):
        raise InvalidArgumentError(
            f"the parameters of a request are a mapping, found type {type(parameters).__name__}"
        )
    for name, value in parameters.items():
        if not isinstance(name, str) or not isinstance(value, _PARAMETER):
            what = (
                f"parameter '{name}'" if isinstance(name, str) else f"the parameter name {name!r}"
            )
            kind = type(value if isinstance(name, str) else name).__name__
            raise InvalidArgumentError(
                f"{what} has invalid type. It should be either 'int', 'bool', or 'string'.",
                hint=f"found type {kind}",
            )
