"""Decorators of inference functions, which change their arguments and results.

A bare inference function gets a list of `Request` and returns a list of dicts, one for each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from nbtriton.model.tensors import as_bytes_array, serialize_bytes
from nbtriton.pytriton.exceptions import (
    PyTritonBadParameterError,
    PyTritonRuntimeError,
    PyTritonValidationError,
)
from nbtriton.pytriton.model_config import TritonModelConfig
from nbtriton.pytriton.request import Array, Request
from nbtriton.pytriton.stack import (
    Decorated,
    ModelConfigs,
    TritonContext,
    attach,
    convert_output,
    mapped,
)

__all__ = [
    "ConstantPadder",
    "ModelConfigs",
    "TritonContext",
    "attach",
    "batch",
    "fill_optionals",
    "first_value",
    "group_by_keys",
    "group_by_values",
    "pad_batch",
    "sample",
    "triton_context",
]

_CONTEXT = "triton_context"
Function = Callable[..., Any]
Padder = Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, Any]]]


def sample(function: Function) -> Decorated:
    """Call the function with the inputs of one request, by name; for a model without batching.

    The function returns a dict, or a list in the order of the outputs.
    """
    return Decorated(function, _sample)


def batch(function: Function) -> Decorated:
    """Call the function once with the rows of all requests, by name.

    The function returns a dict of arrays with the same number of rows, or a list in the order of the
    outputs.

    Examples
    --------
    >>> from nbtriton.pytriton import ModelConfig, Tensor, Triton, batch
    >>> @batch
    ... def negate(data):
    ...     return [-data]
    >>> triton = Triton()
    >>> tensor = Tensor(dtype=np.float32, shape=(-1,))
    >>> triton.bind("negate", negate, [Tensor((-1,), np.float32, "data")], [tensor])
    >>> triton.server.infer("negate", {"data": np.float32([[1, 2]])})["OUTPUT_1"].tolist()
    [[-1.0, -2.0]]
    >>> triton.stop()
    True
    """
    return Decorated(function, _batch)


def group_by_keys(function: Function) -> Decorated:
    """Call the function for each group of requests with the same input names; before ``@batch``."""
    return Decorated(function, _group_by_keys)


def group_by_values(*keys: str, pad_fn: Padder | None = None) -> Callable[[Function], Decorated]:
    """Call the function for each group of rows with the same values of some inputs; after ``@batch``.

    Parameters
    ----------
    *keys : str
        Names of the inputs.
    pad_fn : callable, optional
        Pads the results of the groups to one shape, such as `ConstantPadder`.
    """

    def decorate(function: Function) -> Decorated:
        return Decorated(function, partial(_group_by_values, keys, pad_fn))

    return decorate


def fill_optionals(**defaults: Array) -> Callable[[Function], Decorated]:
    """Fill inputs that a request leaves out; the outermost decorator.

    Parameters
    ----------
    **defaults : numpy.ndarray
        Values by input, without the batch dimension.
    """

    def decorate(function: Function) -> Decorated:
        return Decorated(function, partial(_fill_optionals, defaults))

    return decorate


def triton_context(function: Function) -> Decorated:
    """Call the function with the argument ``triton_context``, a `TritonContext`."""
    return Decorated(function, _with_context)


def pad_batch(function: Function) -> Decorated:
    """Repeat the last row up to the next preferred batch size, or the largest; after ``@batch``.

    Rows of the results for repeated rows are dropped.
    """
    return Decorated(function, _pad_batch)


def first_value(
    *keys: str, squeeze_single_values: bool = True, strict: bool = True
) -> Callable[[Function], Decorated]:
    """Give the function one value of an input instead of one for each row.

    Parameters
    ----------
    *keys : str
        Names of the inputs.
    squeeze_single_values : bool
        Make a value with one element a scalar.
    strict : bool
        Refuse rows with different values.

    Raises
    ------
    PyTritonBadParameterError
        `keys` names the context.
    """
    if _CONTEXT in keys:
        raise PyTritonBadParameterError(f"@first_value is for inputs; '{_CONTEXT}' is none")

    def decorate(function: Function) -> Decorated:
        return Decorated(function, partial(_first_value, keys, squeeze_single_values, strict))

    return decorate


class ConstantPadder:
    """Padding of the results of groups to the largest shape.

    Parameters
    ----------
    pad_value : number
        Value for numeric results; text is padded with empty strings.
    """

    def __init__(self, pad_value: float = 0) -> None:
        self.pad_value = pad_value

    def __call__(self, batches_list: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the batches with shapes equal but for the rows.

        Raises
        ------
        PyTritonRuntimeError
            A tensor has different dtypes in the batches.
        """
        padded: list[dict[str, Any]] = [{} for _ in batches_list]
        names = dict.fromkeys(name for one in batches_list for name in one)
        for name in names:
            arrays = {
                index: np.asarray(one[name])
                for index, one in enumerate(batches_list)
                if name in one
            }
            dtype = _common_dtype(name, arrays.values())
            shape = np.max([array.shape[1:] for array in arrays.values()], axis=0)
            fill: Any = b"" if dtype.kind in "OSU" else self.pad_value
            for index, array in arrays.items():
                result = np.full((len(array), *shape), fill, dtype)
                result[tuple(slice(size) for size in array.shape)] = array
                padded[index][name] = result
        return padded


def _sample(self: Decorated, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    requests, *rest = args
    result = self.function(*rest, **{**kwargs, **requests[0]})
    return mapped(result, lambda outputs: [convert_output(outputs, self.config)])


def _batch(self: Decorated, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    requests, *rest = args
    names = requests[0].keys()
    for request in requests:
        if request.keys() != names:
            raise PyTritonValidationError(
                f"requests with {_listed(names)} and with {_listed(request)} are no batch",
                hint="@group_by_keys before @batch",
            )
    inputs = {
        name: np.concatenate([request[name] for request in requests])
        if len(requests) > 1
        else requests[0][name]
        for name in names
    }
    result = self.function(*rest, **{**kwargs, **inputs})
    ends = np.cumsum([_rows(request) for request in requests]).tolist()
    return mapped(result, lambda outputs: _split(convert_output(outputs, self.config), ends))


def _split(outputs: Mapping[str, Array], ends: Sequence[int]) -> list[dict[str, Array]]:
    for name, array in outputs.items():
        if not isinstance(array, np.ndarray):
            raise PyTritonValidationError(
                f"output '{name}' is {type(array).__name__}, no NumPy array"
            )
        if array.ndim == 0 or len(array) != ends[-1]:
            raise PyTritonValidationError(
                f"output '{name}' has the shape {array.shape}; the batch has {ends[-1]} rows"
            )
    starts = [0, *ends[:-1]]
    return [
        {name: array[start:end] for name, array in outputs.items()}
        for start, end in zip(starts, ends, strict=True)
    ]


def _group_by_keys(self: Decorated, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    requests, *rest = args
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, request in enumerate(requests):
        groups.setdefault(tuple(sorted(request)), []).append(index)
    if len(groups) == 1:
        return self.function(requests, *rest, **kwargs)
    results: list[Any] = [None] * len(requests)
    for _, group in sorted(groups.items()):
        found = self.function([requests[index] for index in group], *rest, **kwargs)
        if not isinstance(found, list):
            raise PyTritonRuntimeError(
                f"@group_by_keys: a group of requests got {type(found).__name__} instead of a list"
            )
        for index, result in zip(group, found, strict=True):
            results[index] = result
    return results


def _group_by_values(
    keys: Sequence[str],
    pad_fn: Padder | None,
    self: Decorated,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    if _batch in self.handlers:
        raise PyTritonRuntimeError("@group_by_values stands below @batch")
    inputs, others = _inputs(kwargs)
    missing = [key for key in keys if key not in inputs]
    if missing:
        raise PyTritonValidationError(
            f"@group_by_values({_listed(keys)}): no input {_listed(missing)} among {_listed(inputs)}"
        )
    groups: dict[tuple[bytes, ...], list[int]] = {}
    count = _rows(inputs)
    for row in range(count):
        groups.setdefault(tuple(_comparable(inputs[key][row]) for key in keys), []).append(row)
    ordered = [rows for _, rows in sorted(groups.items())]
    found: Sequence[Mapping[str, Any]] = [
        convert_output(
            self.function(*args, **{name: value[rows] for name, value in inputs.items()}, **others),
            self.config,
        )
        for rows in ordered
    ]
    if pad_fn is not None:
        found = pad_fn(found)
    merged = {
        name: np.zeros(
            (count, *array.shape[1:]), _common_dtype(name, [outputs[name] for outputs in found])
        )
        for name, array in found[0].items()
    }
    for rows, outputs in zip(ordered, found, strict=True):
        for name, array in outputs.items():
            merged[name][rows] = array
    return merged


def _fill_optionals(
    defaults: Mapping[str, Array], self: Decorated, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    _check_defaults(defaults, self.config)
    requests, *rest = args
    for request in requests:
        for name, value in defaults.items():
            if name not in request:
                rows = (_rows(request),) if self.config.batching else ()
                request[name] = np.broadcast_to(value, (*rows, *value.shape)).copy()
    return self.function(requests, *rest, **kwargs)


def _check_defaults(defaults: Mapping[str, Any], config: TritonModelConfig) -> None:
    specs = {tensor.name: tensor for tensor in config.inputs}
    for name, value in defaults.items():
        spec = specs.get(name)
        if spec is None:
            reason = f"the model has {_listed(specs)}"
        elif not isinstance(value, np.ndarray):
            reason = f"its default is {type(value).__name__}, no NumPy array"
        elif (value.dtype.kind in "OSU") != (spec.datatype == "BYTES") or (
            spec.datatype != "BYTES" and value.dtype != np.dtype(spec.dtype)
        ):
            reason = f"its default has the dtype {value.dtype}, it has {spec.datatype}"
        elif not _fits(value.shape, spec.shape):
            reason = f"its default has the shape {value.shape}, it has {spec.shape}"
        else:
            continue
        raise PyTritonBadParameterError(f"@fill_optionals: input '{name}': {reason}")


def _with_context(self: Decorated, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return self.function(*args, **{**kwargs, _CONTEXT: self.context})


def _pad_batch(self: Decorated, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    inputs, others = _inputs(kwargs)
    config = self.config
    preferred = config.batcher.preferred_batch_size if config.batcher is not None else ()
    sizes = [*sorted(preferred or ()), config.max_batch_size]
    rows = _rows(inputs)
    size = sizes[bisect_left(sizes, rows)]
    padded = {
        name: np.concatenate([value, np.repeat(value[-1:], size - rows, axis=0)])
        for name, value in inputs.items()
    }

    def cut(outputs: Any) -> dict[str, Any]:
        found = convert_output(outputs, config)
        return {
            name: value[:rows] if len(value) == size else value for name, value in found.items()
        }

    return mapped(self.function(*args, **padded, **others), cut)


def _first_value(
    keys: Sequence[str],
    squeeze: bool,
    strict: bool,
    self: Decorated,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    if not self.config.batching:
        raise PyTritonRuntimeError(
            f"@first_value: model '{self.config.model_name}' has no batches",
            hint="ModelConfig(batching=True)",
        )

    def changed(inputs: Mapping[str, Any]) -> dict[str, Any]:
        firsts = {key: _first(key, inputs[key], squeeze, strict) for key in keys if key in inputs}
        return {**inputs, **firsts}

    inputs, others = _inputs(kwargs)
    if inputs:  # below @batch
        return self.function(*args, **changed(inputs), **others)
    requests, *rest = args
    found = [Request(changed(one), one.parameters, one.requested_output_names) for one in requests]
    return self.function(found, *rest, **others)


def _first(name: str, values: Array, squeeze: bool, strict: bool) -> Any:
    value = values[0]
    if strict and not all(np.array_equal(value, other) for other in values[1:]):
        raise PyTritonRuntimeError(
            f"@first_value: the rows of '{name}' have different values: {values.tolist()}",
            hint=f'@group_by_values("{name}") before it, or strict=False',
        )
    if squeeze and isinstance(value, np.ndarray) and value.size == 1:
        return value.reshape(-1)[0]
    return value


def _inputs(kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split named arguments into inputs and others."""
    others = {name: value for name, value in kwargs.items() if name == _CONTEXT}
    return {name: value for name, value in kwargs.items() if name not in others}, others


def _comparable(value: Any) -> bytes:
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        return bytes(serialize_bytes(as_bytes_array(array)))
    return array.tobytes()


def _common_dtype(name: str, arrays: Iterable[Array]) -> np.dtype[Any]:
    dtypes = [array.dtype for array in arrays]
    same = len(set(dtypes)) == 1 or (dtypes[0].kind in "SU" and len({d.kind for d in dtypes}) == 1)
    if not same:
        raise PyTritonRuntimeError(
            f"groups with different dtypes of '{name}' are no batch: {_listed(map(str, dtypes))}"
        )
    return max(dtypes, key=lambda dtype: dtype.itemsize)


def _fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    return len(shape) == len(dims) and all(
        size in (-1, have) for have, size in zip(shape, dims, strict=True)
    )


def _rows(inputs: Mapping[str, Any]) -> int:
    return len(next(iter(inputs.values())))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
