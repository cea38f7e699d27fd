"""perf_analyzer's input data: a JSON file with steps and streams, or a directory with a file per input."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nbtriton.common.errors import InvalidArgumentError, NotFoundError, TritonError, nearest
from nbtriton.common.packages import needed
from nbtriton.lab.perf.data import Request
from nbtriton.model.config import ModelConfig, TensorSpec, input_specs
from nbtriton.model.tensors import as_array, deserialize_bytes, numpy_dtype


class InputFile:
    """The contents of a file: streams of steps, each a request without the batch dimension.

    Attributes
    ----------
    streams : sequence of sequences of mappings
    notes : tuple of str
        Unused parts of the file.
    """

    def __init__(self, streams: Sequence[Sequence[Request]], notes: tuple[str, ...] = ()) -> None:
        self.streams = streams
        self.notes = notes

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
        content: Any = file.read_bytes()
        if spec.datatype == "BYTES":
            value: Any = np.array([*content.splitlines()], object)
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
    flat: list[Any] = []
    for item in content:
        if isinstance(item, list):
            flat += _flat(item)
        else:
            flat.append(item)
    return flat


def _decoded(text: object, place: str) -> bytes:
    try:
        return base64.b64decode(str(text), validate=True)
    except (binascii.Error, ValueError):
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
    first = steps[0]
    for step in steps[1:]:
        if {n: tuple(a.shape) for n, a in step.items()} != {
            n: tuple(a.shape) for n, a in first.items()
        }:
            raise InvalidArgumentError(
                "steps of the input data have different shapes, so they cannot be one batch",
                hint="measure with batch size 1",
            )
    return {name: _stack([step[name] for step in steps]) for name in first}


def _stack(arrays: Sequence[Any]) -> Any:
    if isinstance(arrays[0], np.ndarray):
        return np.stack(arrays)
    import torch

    return torch.stack(list(arrays))
