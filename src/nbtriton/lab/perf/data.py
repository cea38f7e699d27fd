"""Request data: generated once (PA30 to PA33), the user's arrays cut to the batch size, or perf_analyzer's input data (PA34)."""

from __future__ import annotations

import base64
import json
import math
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nbtriton.common.errors import InvalidArgumentError, NotFoundError, TritonError, nearest
from nbtriton.common.packages import needed
from nbtriton.lab.perf.settings import STRING_LENGTH, Inputs
from nbtriton.model.config import ModelConfig, TensorSpec, input_specs
from nbtriton.model.tensors import (
    Array,
    as_array,
    deserialize_bytes,
    gather,
    numpy_dtype,
    shape_of,
    to_torch,
)

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
    _check_names(shapes, specs, config)
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
        _check_names(given, specs, config)
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


def _check_names(
    names: Iterable[str], specs: Mapping[str, TensorSpec], config: ModelConfig
) -> None:
    for name in names:
        if name not in specs:
            raise InvalidArgumentError(
                f"input '{name}' is not an input of model '{config.name}'",
                hint=nearest(name, specs),
            )


def _listed(inputs: object) -> Sequence[Mapping[str, object]]:
    if isinstance(inputs, list | tuple) and all(isinstance(each, Mapping) for each in inputs):
        return inputs
    raise InvalidArgumentError(
        f"inputs are a mapping of arrays by name, or a list of them; found a {type(inputs).__name__}",
        hint="write {'INPUT': array}",
    )


def check_batch_size(config: ModelConfig, batch_size: int) -> None:
    """Refuse a batch size that no server could serve; the server itself refuses one that is too large."""
    if batch_size > 1 and config.max_batch_size == 0:
        raise InvalidArgumentError(
            "can not specify batch size > 1 as the model does not support batching"
        )


def _rows(request: Request) -> int:
    rows = {name: shape_of(array)[:1] for name, array in request.items()}
    if () in rows.values() or len(set(rows.values())) != 1 or (0,) in rows.values():
        raise InvalidArgumentError(
            f"inputs must have the batch dimension first, not 0 and the same for all: {rows}"
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


@dataclass(frozen=True, slots=True)
class InputFile:
    """perf_analyzer's input data: streams of steps, each a request without the batch dimension.

    Attributes
    ----------
    streams : sequence of sequences of mappings
    notes : tuple of str
        Unused parts of the file.
    """

    streams: Sequence[Sequence[Request]]
    notes: tuple[str, ...] = ()

    def requests(self, *, batches: bool, batch_size: int) -> tuple[Request, ...]:
        """Return the steps of all streams in turn, as requests of `batch_size` rows.

        As in perf_analyzer a batch consists of consecutive steps, continuing with the first one after the
        last.
        """
        steps = [step for stream in self.streams for step in stream]
        if not batches:
            return tuple(steps)
        total = len(steps)
        rounds = total // math.gcd(total, batch_size)
        return tuple(
            _batch([steps[(start * batch_size + i) % total] for i in range(batch_size)])
            for start in range(rounds)
        )

    def sequences(self, *, batches: bool) -> Sequence[Sequence[Request]]:
        """Return the streams with the batch dimension, which is 1 for a sequence."""
        if not batches:
            return self.streams
        return [[_batch([step]) for step in stream] for stream in self.streams]


def read_input_file(
    path: str | Path, config: ModelConfig, shapes: Mapping[str, Sequence[int]] | None = None
) -> InputFile:
    """Read a JSON file, or a directory with a file for each input.

    Parameters
    ----------
    path : path
        JSON: ``{"data": [{"IN": [1.0, 2.0]}, …]}``; a step is a mapping of inputs to flat lists,
        ``{"b64": …}``, or ``{"content": …, "shape": […]}``, and a list of steps is a stream.
        A directory: little-endian bytes, or lines of text for BYTES, for one request.
    config : ModelConfig
        Normalised.
    shapes : mapping, optional
        Dimensions of inputs with variable ones.

    Raises
    ------
    InvalidArgumentError
        With perf_analyzer's text where it has one.
    NotFoundError
        The file does not exist.
    """
    file = Path(path).expanduser()
    specs = input_specs(config)
    dims = {
        name: tuple(int(d) for d in (shapes or {}).get(name, spec.dims))
        for name, spec in specs.items()
    }
    if file.is_dir():
        return InputFile([[_from_directory(file, specs, dims)]])
    try:
        document = json.loads(file.read_bytes())
    except OSError as error:
        raise NotFoundError(
            f"no input data '{path}': {error.strerror}",
            hint="give 'random', 'zero', a JSON file, or a directory with a file for each input",
        ) from None
    except ValueError as error:
        raise InvalidArgumentError(
            f"failed to parse the specified json file for reading provided data: {error}"
        ) from None
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, list) or not data:
        raise InvalidArgumentError(
            "The json file doesn't contain data field",
            hint='write {"data": [{"INPUT": [1.0, 2.0]}]}',
        )
    streams = data if all(isinstance(each, list) for each in data) else [data]
    read = [
        [_step(step, specs, dims, stream, number) for number, step in enumerate(steps)]
        for stream, steps in enumerate(streams)
    ]
    if not all(read):
        raise InvalidArgumentError(f"stream {[bool(s) for s in read].index(False)} has no steps")
    unused = sorted(document.keys() - {"data"})
    return InputFile(read, tuple(f"'{key}' of {file.name} is not used" for key in unused))


def _from_directory(
    directory: Path, specs: Mapping[str, TensorSpec], dims: Mapping[str, tuple[int, ...]]
) -> Request:
    inputs: dict[str, Any] = {}
    for name, spec in specs.items():
        file = directory / name
        if not file.is_file():
            if spec.optional:
                continue
            raise NotFoundError(f"the directory '{directory}' has no file '{name}'")
        content = file.read_bytes()
        if spec.datatype == "BYTES":
            value: Any = np.array(content.splitlines(), object)
        else:
            value = _from_bytes(name, spec, content, dims[name])
        inputs[name] = _shaped(name, spec, value, dims[name])
    return inputs


def _step(
    step: object,
    specs: Mapping[str, TensorSpec],
    dims: Mapping[str, tuple[int, ...]],
    stream: int,
    number: int,
) -> Request:
    place = f"( Location stream id: {stream}, step id: {number})"
    if not isinstance(step, dict):
        raise InvalidArgumentError(f"a step is a mapping of inputs to data {place}")
    for name in step:
        if name not in specs:
            raise InvalidArgumentError(
                f"'{name}' is not an input of the model {place}", hint=nearest(name, specs)
            )
    inputs: dict[str, Any] = {}
    for name, spec in specs.items():
        if name not in step:
            if spec.optional:
                continue
            raise InvalidArgumentError(f"missing tensor {name} {place}")
        content, shape = step[name], dims[name]
        if isinstance(content, dict) and "b64" not in content:
            if "content" not in content:
                raise InvalidArgumentError(f"missing content field. {place}")
            if "shape" in content:
                shape = tuple(int(d) for d in content["shape"])
            content = content["content"]
        if isinstance(content, dict):
            value = _from_bytes(name, spec, _decoded(content.get("b64"), place), shape)
        else:
            value = _from_list(name, spec, content, place)
        inputs[name] = _shaped(name, spec, value, shape)
    return inputs


def _from_list(name: str, spec: TensorSpec, content: object, place: str) -> Any:
    """Return a flat array; a list may be nested, unlike in perf_analyzer."""
    values = _flat(content if isinstance(content, list) else [content])
    if spec.datatype == "BYTES":
        values = [_decoded(v["b64"], place) if isinstance(v, dict) else v for v in values]
    try:
        return as_array(values, spec.datatype, name=name)
    except TritonError as error:
        raise InvalidArgumentError(f"{error.message} {place}", hint=error.hint) from None


def _flat(content: list[Any]) -> list[Any]:
    return [
        value for item in content for value in (_flat(item) if isinstance(item, list) else [item])
    ]


def _decoded(text: object, place: str) -> bytes:
    try:
        return base64.b64decode(str(text), validate=True)
    except ValueError:
        raise InvalidArgumentError(f"the b64 data cannot be decoded {place}") from None


def _from_bytes(name: str, spec: TensorSpec, content: bytes, shape: tuple[int, ...]) -> Any:
    if spec.datatype == "BYTES":
        try:
            return deserialize_bytes(content)
        except TritonError:
            # A single element, without the protocol's length prefix.
            return np.array([content], object)
    # numpy has no bfloat16; any two-byte type holds its bytes.
    dtype = np.dtype(np.uint16 if spec.datatype == "BF16" else numpy_dtype(spec.datatype))
    if len(content) % dtype.itemsize:
        _mismatch(name, math.prod(shape) * dtype.itemsize, len(content))
    array = np.frombuffer(content, dtype.newbyteorder("<")).astype(dtype)
    if spec.datatype == "BF16":
        with needed("a BF16 tensor"):
            import torch

        return torch.from_numpy(array).view(torch.bfloat16)
    return array


def _shaped(name: str, spec: TensorSpec, value: Any, shape: tuple[int, ...]) -> Any:
    if any(d < 0 for d in shape):
        raise InvalidArgumentError(
            f"input {name} contains dynamic shape, provide shapes to send along with the request",
            hint=f'"{name}": {{"content": […], "shape": […]}} in the file, or a shape option',
        )
    expected, found = math.prod(shape), math.prod(value.shape)
    if expected != found:
        if spec.datatype == "BYTES":
            raise InvalidArgumentError(
                f"mismatch in the data provided for {name}. Expected: {expected} strings, "
                f"Got: {found} strings"
            )
        size = value.dtype.itemsize
        _mismatch(name, expected * size, found * size)
    return value.reshape(shape)


def _mismatch(name: str, expected: int, found: int) -> None:
    raise InvalidArgumentError(
        f"mismatch in the data provided for {name}. Expected: {expected} bytes, Got: {found} bytes"
    )


def _batch(steps: Sequence[Request]) -> Request:
    """Return steps as the rows of one request."""
    shapes = [{name: shape_of(array) for name, array in step.items()} for step in steps]
    if any(each != shapes[0] for each in shapes):
        raise InvalidArgumentError(
            "steps of the input data have different shapes, so they cannot be one batch",
            hint="measure with batch size 1",
        )
    return {name: gather([step[name][None] for step in steps]) for name in steps[0]}
