"""Request data: generated once (PA30 to PA33), or the user's arrays cut to the batch size."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from nbtriton.common.errors import InvalidArgumentError, nearest
from nbtriton.common.packages import needed
from nbtriton.lab.perf.settings import STRING_LENGTH, Inputs
from nbtriton.model.config import ModelConfig, TensorSpec, input_specs
from nbtriton.model.tensors import Array, as_array, gather, numpy_dtype, shape_of, to_torch

InputData = Literal["random", "zero"]
Request = Mapping[str, Array]

# perf_analyzer fills integers with random bytes, too large for any embedding or label table; numbers
# below 128 fit every integer type.
INTEGER_END = 128
_ALPHABET = np.frombuffer((string.ascii_letters + string.digits).encode(), np.uint8)


def generate(
    config: ModelConfig,
    *,
    batch_size: int = 1,
    shapes: Mapping[str, Sequence[int]] | None = None,
    input_data: InputData = "random",
    seed: int = 0,
    string_length: int = STRING_LENGTH,
    string_data: str | None = None,
) -> Request:
    """Make one request for a model.

    Floats are uniform in [0, 1), integers in [0, 128), and BYTES elements have `string_length` letters and
    digits, or `string_data`; ``"zero"`` gives zeros and empty strings. An optional input is left out unless
    `shapes` names it.

    Parameters
    ----------
    config : ModelConfig
        Normalised.
    batch_size : int
        First dimension, for a model that batches.
    shapes : mapping of str to sequence of int
        Dimensions without the batch dimension; needed for each input with a variable one.

    Raises
    ------
    InvalidArgumentError
        With perf_analyzer's texts: a variable dimension without a shape (PA32), a batch for a
        model that does not batch (PA33).
    """
    specs = input_specs(config)
    shapes = shapes or {}
    for name in shapes:
        if name not in specs:
            raise InvalidArgumentError(
                f"input '{name}' is not an input of model '{config.name}'",
                hint=nearest(name, specs),
            )
    check_batch_size(config, batch_size)
    leading = (batch_size,) if config.max_batch_size > 0 else ()
    random = np.random.default_rng(seed)
    request: dict[str, Array] = {}
    for name, spec in specs.items():
        if spec.optional and name not in shapes:
            continue
        dims = tuple(int(d) for d in shapes.get(name, spec.dims))
        if any(d < 0 for d in dims):
            raise InvalidArgumentError(
                f"input {name} contains dynamic shape, "
                "provide shapes to send along with the request",
                hint=f"--shape {name}:DIMS, or shapes={{'{name}': (...)}}, for dims {list(spec.dims)}",
            )
        text = string_data if input_data == "random" else ""
        shape = dims if spec.is_shape_tensor else (*leading, *dims)
        request[name] = fill(spec, shape, input_data, random, string_length, text)
    return request


def requests_from(
    config: ModelConfig, inputs: Inputs, *, batch_size: int | None
) -> tuple[tuple[Request, ...], int]:
    """Return the user's inputs as requests, and their batch size.

    Parameters
    ----------
    inputs : mapping, or sequence of mappings
        Each as for ``server.infer``: whole tensors, the batch dimension first.
    batch_size : int or None
        None sends the requests as they are, all of one batch size. A number cuts all their rows, in a cycle,
        into requests of that number of rows.

    Returns
    -------
    requests : tuple of mapping
        Requests, to send in turn.
    batch_size : int
    """
    listed = [inputs] if isinstance(inputs, Mapping) else list(_listed(inputs))
    if not listed:
        raise InvalidArgumentError("inputs is an empty list", hint="give one mapping of arrays")
    specs = input_specs(config)
    requests: list[dict[str, Array]] = []
    for given in listed:
        unknown = next((name for name in given if name not in specs), None)
        if unknown is not None:
            raise InvalidArgumentError(
                f"input '{unknown}' is not an input of model '{config.name}'",
                hint=nearest(unknown, specs),
            )
        requests.append(
            {
                name: as_array(value, specs[name].datatype, name=name)
                for name, value in given.items()
            }
        )
    if config.max_batch_size == 0:
        check_batch_size(config, 1 if batch_size is None else batch_size)
        return tuple(requests), 1
    # The values of a shape tensor have no batch dimension (G9).
    values = {
        name: request[name].reshape(-1)[-spec.dims[0] :]
        for request in requests[:1]
        for name, spec in specs.items()
        if spec.is_shape_tensor and name in request
    }
    rows = [_rows({n: a for n, a in request.items() if n not in values}) for request in requests]
    if batch_size is None:
        if len(set(rows)) > 1:
            raise InvalidArgumentError(
                f"the given inputs have several batch sizes: {sorted(set(rows))}",
                hint="give batch_size=N to cut them into requests of N rows",
            )
        return tuple(requests), rows[0]
    check_batch_size(config, batch_size)
    if any(request.keys() != requests[0].keys() for request in requests):
        raise InvalidArgumentError(
            "the given inputs name different tensors, so their rows cannot be put together",
            hint="leave batch_size out to send them as they are",
        )
    total = sum(rows)
    pool = {
        name: gather([request[name] for request in requests])
        for name in requests[0]
        if name not in values
    }
    return tuple(
        {name: _cut(array, start, batch_size, total) for name, array in pool.items()} | values
        for start in range(0, max(1, total // batch_size) * batch_size, batch_size)
    ), batch_size


def _listed(inputs: object) -> Sequence[Mapping[str, object]]:
    if isinstance(inputs, list | tuple) and all(isinstance(each, Mapping) for each in inputs):
        return inputs
    raise InvalidArgumentError(
        f"inputs are a mapping of arrays by name, or a list of them; found a {type(inputs).__name__}",
        hint="write {'INPUT': array}",
    )


def check_batch_size(config: ModelConfig, batch_size: int) -> None:
    """Refuse a batch size that no server could serve; the server itself refuses one that is too large."""
    if batch_size < 1:
        raise InvalidArgumentError("Failed to parse -b (batch size). The value must be > 0.")
    if batch_size > 1 and config.max_batch_size == 0:
        raise InvalidArgumentError(
            "can not specify batch size > 1 as the model does not support batching"
        )


def _rows(request: Request) -> int:
    rows = {name: shape_of(array)[:1] for name, array in request.items()}
    if () in rows.values() or len(set(rows.values())) != 1:
        raise InvalidArgumentError(
            f"inputs must have the batch dimension first, and the same for all: {rows}"
        )
    return int(next(iter(rows.values()))[0])


def _cut(array: Array, start: int, count: int, total: int) -> Array:
    """Return rows ``start`` to ``start + count``, continuing with the first one after the last."""
    if start + count <= total:
        return array[start : start + count]
    return array[[(start + i) % total for i in range(count)]]


def fill(
    spec: TensorSpec,
    shape: tuple[int, ...],
    input_data: InputData,
    random: np.random.Generator,
    string_length: int,
    string_data: str | None,
) -> Array:
    """Return an array for an input as in `generate`; BYTES of `string_data`, or random."""
    if spec.datatype == "BYTES":
        return _strings(shape, string_length, string_data, random)
    # numpy has no bfloat16 of its own; torch has.
    dtype: Any = np.float32 if spec.datatype == "BF16" else numpy_dtype(spec.datatype)
    if input_data == "zero":
        array = np.zeros(shape, dtype)
    elif np.dtype(dtype).kind == "b":
        array = random.random(shape) < 0.5
    elif np.dtype(dtype).kind in "iu":
        array = random.integers(0, INTEGER_END, shape).astype(dtype)
    else:
        array = random.random(shape).astype(dtype)
    if spec.datatype == "BF16":
        with needed("a BF16 tensor"):
            import torch

        return to_torch(array).to(torch.bfloat16)
    return array


def _strings(
    shape: tuple[int, ...], length: int, text: str | None, random: np.random.Generator
) -> Array:
    array = np.empty(shape, object)
    flat = array.reshape(-1)
    for index in range(flat.size):
        if text is not None:
            flat[index] = text.encode()
        else:
            flat[index] = _ALPHABET[random.integers(0, len(_ALPHABET), length)].tobytes()
    return array
