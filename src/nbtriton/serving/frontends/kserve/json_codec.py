"""Infer requests over HTTP, read in Triton's order with Triton's errors.

KServe v2 JSON with the binary tensor data extension (KS20 to KS39). Bytes and a model's signature in,
an `InferCall` out.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from nbtriton.common.errors import InternalError, InvalidArgumentError, TritonError
from nbtriton.model.tensors import DATATYPES, datatype_of, shape_of, to_numpy
from nbtriton.serving.frontends.buffers import LONG, TemplateCache, buffers
from nbtriton.serving.frontends.kserve import jsontext, wire
from nbtriton.serving.frontends.kserve.call import (
    SEQUENCE_FLAGS,
    InferCall,
    InferTemplate,
    OutputRequest,
    shared_bytes,
)
from nbtriton.serving.frontends.kserve.wire import WireInput, duplicate_input

if TYPE_CHECKING:
    from nbtriton.model.config import TensorSpec
    from nbtriton.model.tensors import Array
    from nbtriton.runtime.engine import ModelSignature
    from nbtriton.serving.frontends.kserve.shared_memory import Lease, Leasing
    from nbtriton.serving.frontends.kserve.wire import Labels

_NO_JSON = ("FP16", "BF16")  # KS24
_INT64 = range(-(1 << 63), 1 << 63)
_UINT64 = range(1 << 64)
# Elements that are handled at once, in a millisecond in which no other thread runs.
_AT_ONCE = 1 << 16
# Triton counts the elements of JSON data in 32 bits, and crashes on more.
_MOST_ELEMENTS = (1 << 31) - 1
_RESERVED = "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."  # fmt: skip
_FIELDS = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But"
)
_SHAPE = "Unable to parse 'data': Shape does not match true shape of 'data' field"


def decode_infer(
    data: bytes | memoryview,
    header_length: int,
    signature: ModelSignature,
    leasing: Leasing,
    templates: JsonTemplates | None = None,
    start: int = 0,
) -> InferCall:
    """Read the body of an infer request.

    Parameters
    ----------
    data : bytes-like
        Padding and the decompressed body; the arrays of the result view it.
    header_length : int
        Length of the JSON text in bytes; 0 for a raw request.
    signature : ModelSignature
    leasing : callable
        `SharedMemory.lease` of the registered regions, perhaps with a limit.
    templates : JsonTemplates, optional
        Templates of earlier requests.
    start : int
        Offset of the body in `data`.

    Raises
    ------
    TritonError
        With Triton's text; no shared memory is held then.
    """
    tensors_start = start + header_length
    text = bytes(data[start:tensors_start])
    # No templates without tensors after the text: all data would be part of the text.
    if templates is not None and (not text or tensors_start == len(data)):
        templates = None
    if templates is not None:
        cached = templates.read(text, data, tensors_start)
        if cached is not None:
            return cached
    body = memoryview(data)[tensors_start:]
    call = InferCall()
    if not text:
        call.default = OutputRequest("binary")
        call.set_inputs(signature, [wire.raw_input(signature, body)])
        return call
    # FP32 does not need the last bit of a double.
    document = jsontext.parse(text, exact=b"FP64" in text)
    try:
        if type(document) is dict:
            if "id" in document:
                call.options.request_id = jsontext.as_string(document["id"], "id")
            if "parameters" in document:
                _read_parameters(document["parameters"], call)
        inputs = _read_inputs(document, body, signature, leasing, call)
        if type(document) is dict and "outputs" in document:
            _read_outputs(document, leasing, call)
        call.set_inputs(signature, inputs)
    except BaseException:
        call.release()
        raise
    finally:
        if len(text) >= jsontext.LONG_TEXT:
            jsontext.empty(document)
    if templates is not None:
        templates.remember(text, inputs, call)
    return call


# -- parameters --------------------------------------------------------------------------------------


def _read_parameters(parameters: Any, call: InferCall) -> None:
    if type(parameters) is not dict:
        raise InternalError("failed to get request params.: attempt to get members for non-object")
    custom: dict[str, Any] = {}
    options = call.options
    for name, value in parameters.items():
        if name == "binary_data_output":
            if jsontext.as_bool(value, "binary_data_output"):
                call.default = OutputRequest("binary")
            else:
                call.default = OutputRequest()
        elif name == "sequence_id":
            if type(value) is int and value in _UINT64:
                options.correlation_id = value
            else:
                call.set_sequence_id(jsontext.as_string(value, "sequence_id"))
        elif name in SEQUENCE_FLAGS:
            if jsontext.as_bool(value, name):
                options.flags |= SEQUENCE_FLAGS[name]
        elif name == "priority":
            options.priority = jsontext.as_uint(value, "priority")
        elif name == "timeout":
            options.timeout_us = jsontext.as_uint(value, "timeout")
        elif name.startswith("triton_"):
            raise InvalidArgumentError(_RESERVED)
        else:
            custom[name] = read_parameter(name, value)
    if custom:
        options.parameters = custom


def read_parameter(name: str, value: Any) -> bool | int | float | str:
    """Return the value of a custom parameter; integers beyond 63 bits become doubles.

    Raises
    ------
    InvalidArgumentError
        The value is null, a list or an object.
    """
    if isinstance(value, int) and type(value) is not bool and value not in _INT64:
        return float(value)
    if isinstance(value, str | int | float):
        return value
    raise InvalidArgumentError(
        f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'."
    )


# -- inputs ------------------------------------------------------------------------------------------


def _read_inputs(
    document: Any, blobs: memoryview, signature: ModelSignature, leasing: Leasing, call: InferCall
) -> list[wire.WireInput]:
    inputs: list[wire.WireInput] = []
    model = signature.name
    names: set[str] = set()
    offset = 0
    for item in jsontext.member_as(jsontext.as_array, document, "inputs"):
        parameters = _parameters_of(item)
        _check_one_source(item, parameters)
        name = jsontext.member_as(jsontext.as_string, item, "name")
        datatype = jsontext.member_as(jsontext.as_string, item, "datatype")
        shape = tuple(
            jsontext.as_uint(dim, "shape")
            for dim in jsontext.member_as(jsontext.as_array, item, "shape")
        )
        if name in names:
            raise wire.duplicate_input(name, call.request_id)
        names.add(name)
        data: bytes | memoryview | np.ndarray[Any, Any] | list[bytes]
        if "binary_data_size" in parameters:
            size = jsontext.as_uint(parameters["binary_data_size"], "binary_data_size")
            if size > len(blobs) - offset:
                raise InvalidArgumentError(
                    f"unexpected size for input '{name}', expecting "
                    f"{size - (len(blobs) - offset)} additional bytes for model '{model}'"
                )
            data = blobs[offset : offset + size]
            offset += size
        elif parameters and (lease := _lease(parameters, leasing, call)) is not None:
            data = shared_bytes(lease, datatype, signature)
        else:
            data = _json_tensor(item["data"], name, datatype, shape, model, call.request_id)
        inputs.append(wire.WireInput(name, datatype, shape, data))
    if offset != len(blobs):
        raise InvalidArgumentError(f"unexpected additional input data for model '{model}'")
    return inputs


def _parameters_of(item: Any) -> dict[str, Any]:
    found = item.get("parameters") if type(item) is dict else None
    return found if type(found) is dict else {}


def _check_one_source(item: Any, parameters: Mapping[str, Any]) -> None:
    found = []
    if type(item) is dict and "data" in item:
        found.append("'data'")
    found += [
        f"'{name}'" for name in ("binary_data_size", "shared_memory_region") if name in parameters
    ]
    if len(found) != 1:
        says = " set " + " ".join(found) if found else " no field is set"
        raise InvalidArgumentError(_FIELDS + says)


def _lease(parameters: Mapping[str, Any], leasing: Leasing, call: InferCall) -> Lease | None:
    """Return the lease of a tensor in shared memory; None for other tensors."""
    region = parameters.get("shared_memory_region", "")
    region = jsontext.as_string(region, "shared_memory_region")
    offset, size = (
        jsontext.as_uint(parameters.get(name, 0), name)
        for name in ("shared_memory_offset", "shared_memory_byte_size")
    )
    if "shared_memory_region" not in parameters:
        return None
    return call.lease(leasing, region, offset, size)


def _json_tensor(
    data: Any, name: str, datatype: str, shape: tuple[int, ...], model: str, request_id: str
) -> bytes | np.ndarray[Any, Any] | list[bytes]:
    count = wire.element_count(shape)
    if count == 0:
        return b"" if datatype != "BYTES" else []
    if count > _MOST_ELEMENTS:
        size = count * (wire.DTYPES[datatype].itemsize if datatype in wire.DTYPES else 1)
        raise InvalidArgumentError(
            f"{wire.log_prefix(request_id)}input byte size mismatch for input '{name}' for model "
            f"'{model}'. Expected {size}, got no more than a request can hold"
        )
    if type(data) is not list:
        raise InternalError("Unable to parse 'data': attempt to access JSON non-array as array")
    return read_json_data(data, name, datatype, count)


def read_json_data(
    data: list[Any], name: str, datatype: str, count: int
) -> np.ndarray[Any, Any] | list[bytes]:
    """Return the elements of a tensor in JSON, nested or flat (KS21, KS22).

    Parameters
    ----------
    data : list
        Nested to any depth; not to be used afterwards.
    name, datatype : str
        Of the input.
    count : int
        Number of elements of its shape.

    Returns
    -------
    numpy.ndarray or list of bytes
        One-dimensional. The number of strings is not checked here: the engine has another text for it.
    """
    flat, kinds = _flatten(data)
    try:
        return _elements(flat, kinds, name, datatype, count)
    finally:
        _clear(flat)


def _elements(
    flat: list[Any], kinds: set[type], name: str, datatype: str, count: int
) -> np.ndarray[Any, Any] | list[bytes]:
    if datatype == "BYTES":
        if kinds <= {str}:
            return [item.encode("utf-8", "surrogateescape") for item in flat]
        raise InternalError(
            "Unable to parse JSON bytes array: attempt to access JSON non-string as string"
        )
    if datatype in _NO_JSON:
        raise InvalidArgumentError(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data "
            f"format for input {name}"
        )
    if datatype not in DATATYPES:
        raise InvalidArgumentError(f"invalid datatype for input {name}")
    dtype = wire.DTYPES[datatype]
    wanted, message = _KINDS[dtype.kind]
    if len(flat) != count or not kinds <= wanted:
        _refuse_elements(flat, wanted, message, count)
    try:
        return _cast(flat, dtype)
    except OverflowError:
        if dtype.kind != "f":
            raise InternalError(f"Unable to parse 'data': {message}") from None
        raise InternalError(
            "failed to parse the request JSON buffer: Number too big to be stored in double. at 0"
        ) from None


_KINDS = {
    "f": (frozenset({int, float}), "attempt to access JSON non-number as double"),
    "i": (frozenset({int}), "attempt to access JSON non-signed-integer as signed-integer"),
    "u": (frozenset({int}), "attempt to access JSON non-unsigned-integer as unsigned-integer"),
    "b": (frozenset({bool}), "attempt to access JSON non-boolean as boolean"),
}


def _cast(flat: list[Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if len(flat) > _AT_ONCE:
        return np.concatenate([_cast(part, dtype) for part in _parts(flat)])
    if not flat:
        return np.empty(0, dtype)
    # `array` casts as C does. numpy would warn, and suppressing the warning costs 4 us.
    kind = "f" if dtype == np.float32 else {"f": "d", "i": "q", "u": "Q", "b": "b"}[dtype.kind]
    # Narrow types keep the low bits, as in C.
    return np.frombuffer(array(kind, flat), kind).astype(dtype, copy=False)


def _parts(data: list[Any]) -> Iterator[list[Any]]:
    for at in range(0, len(data), _AT_ONCE):
        yield data[at : at + _AT_ONCE]


def _flatten(data: list[Any]) -> tuple[list[Any], set[type]]:
    """Return the leaves in order, and the set of their types; long lists are emptied for it."""
    kinds = _kinds(data)
    while list in kinds:
        if len(data) == 1:
            data = data[0]
        else:
            rows, data = data, []
            for row in rows:
                if type(row) is not list:  # beside lists
                    data.append(row)
                    continue
                data += row
                if len(row) > _AT_ONCE:
                    row.clear()
        kinds = _kinds(data)
    return data, kinds


def _kinds(data: list[Any]) -> set[type]:
    if len(data) <= _AT_ONCE:
        return set(map(type, data))
    return set().union(*(set(map(type, part)) for part in _parts(data)))


def _clear(flat: list[Any]) -> None:
    """Free the elements part by part."""
    while len(flat) > _AT_ONCE:
        del flat[-_AT_ONCE:]


def _refuse_elements(flat: list[Any], wanted: frozenset[type], message: str, count: int) -> None:
    """Raise Triton's first error: a wrong element, or one too many."""
    unsigned = message == _KINDS["u"][1]
    read = islice(flat, count)
    if any(type(item) not in wanted or (unsigned and item < 0) for item in read):
        raise InternalError(f"Unable to parse 'data': {message}")
    raise InternalError(_SHAPE)


# -- outputs -----------------------------------------------------------------------------------------


def _read_outputs(document: Any, leasing: Leasing, call: InferCall) -> None:
    outputs: dict[str, OutputRequest] = {}
    for item in jsontext.member_as(jsontext.as_array, document, "outputs"):
        parameters = _parameters_of(item)
        if "shared_memory_region" in parameters:
            _check_shared_output(parameters)
        name = jsontext.member_as(jsontext.as_string, item, "name")
        wanted = OutputRequest()
        if parameters:
            wanted.classes = jsontext.as_uint(
                parameters.get("classification", 0), "classification", "set"
            )
            wanted.lease = _lease(parameters, leasing, call)
            if wanted.lease is not None:
                wanted.kind = "shared"
            elif jsontext.as_bool(parameters.get("binary_data", False), "binary_data"):
                wanted.kind = "binary"
        outputs.setdefault(name, wanted)  # KS27
    call.outputs = outputs


def _check_shared_output(parameters: Mapping[str, Any]) -> None:
    if "classification" in parameters:
        raise InvalidArgumentError(
            "Output can't set both 'shared_memory_region' and 'classification'"
        )
    if jsontext.as_bool(parameters.get("binary_data", False), "binary_data", "set"):
        raise InvalidArgumentError("Output can't set both 'shared_memory_region' and 'binary_data'")


# An id that is the first member and has no escapes.
_ID = re.compile(rb'\{"id": ?"([^"\\\x00-\x1f\x80-\xff]*)"')


class JsonTemplates:
    """Templates by text."""

    def __init__(self) -> None:
        self._cache = TemplateCache[InferTemplate]()

    def read(self, text: bytes, data: bytes | memoryview, start: int) -> InferCall | None:
        """Return the request of a text, with tensors from `start` on; None without a template."""
        request_id = ""
        template = self._cache.find(text)
        if template is None:
            rest, request_id = _split(text)
            template = self._cache.find(rest)
        if template is None or template.size != len(data) - start:
            return None
        return template.call(data, start, request_id)

    def remember(self, text: bytes, inputs: Sequence[wire.WireInput], call: InferCall) -> None:
        """Store the template of a text, if other requests can use it."""
        rest, request_id = _split(text)
        # A second id counts, not the first.
        if call.request_id != request_id:
            return
        tensors = [
            (tensor.name, tensor.datatype, tensor.shape, b"", tensor.data.nbytes)
            for tensor in inputs
            if isinstance(tensor.data, memoryview)
        ]
        template = InferTemplate.of(call, tensors) if len(tensors) == len(inputs) else None
        if template is not None:
            self._cache.remember(rest, template)


def _split(text: bytes) -> tuple[bytes, str]:
    """Return a text without the request id at its beginning, and the id; empty for none."""
    found = _ID.match(text)
    return (text, "") if found is None else (text[found.end() :], found[1].decode("ascii"))


def encode_infer(
    call: InferCall,
    outputs: Mapping[str, Array],
    parameters: Mapping[str, Any],
    model_name: str,
    model_version: int,
    batches: bool,
    labels: Labels,
) -> tuple[list[bytes | memoryview], int]:
    """Return the parts of a body in order, and the length of the JSON; 0 if nothing follows it.

    Parameters
    ----------
    call : InferCall
        Requested form of each output; outputs in shared memory are written there.
    outputs : mapping of str to array
        In the model's order, which the response keeps (KS27).
    parameters : mapping
        Response parameters.
    batches : bool
        Whether the first dimension is the batch, for classification.
    labels : callable
        ``labels(model_name, model_version, output)`` returns the class labels of an output.

    Raises
    ------
    TritonError
        An output cannot be sent in the requested form.
    """
    members: list[bytes] = []
    blobs: list[bytes | memoryview] = []
    for name, made in outputs.items():
        wanted = call.wanted(name)
        array = made
        if wanted.classes:
            classes = labels(model_name, model_version, name)
            array = wire.classify(made, wanted.classes, batches, classes)
        datatype = datatype_of(array)
        shape = shape_of(array)
        if wanted.kind == "binary":
            blob = _copied(array)
            members.append(_binary_output(name, datatype, shape, len(blob)))
            if blob:
                blobs.append(blob)
        elif wanted.kind == "json":
            data = json_elements(array, datatype)
            members.append(b'%s,"data":%s}' % (_output(name, datatype, shape), data))
        else:
            assert wanted.lease is not None
            wire.write_shared(wanted.lease, array, name)
            members.append(_output(name, datatype, shape) + b"}")
    if call.leases:
        call.check_leases()
    request_id = call.request_id
    text = b'%s%s%s,"outputs":[%s]}' % (
        b'{"id":%s,' % jsontext.dumps(request_id) if request_id else b"{",
        _model(model_name, model_version),
        b',"parameters":' + jsontext.dumps(dict(parameters)) if parameters else b"",
        b",".join(members),
    )
    return [text, *blobs], len(text) if blobs else 0


# Cached, as most responses share these parts.
@lru_cache(maxsize=256)
def _model(name: str, version: int) -> bytes:
    return b'"model_name":%s,"model_version":"%d"' % (jsontext.dumps(name), version)


@lru_cache(maxsize=1024)
def _output(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    dims = ",".join(map(str, shape))
    return b'{"name":%s,"datatype":"%s","shape":[%s]' % (
        jsontext.dumps(name), datatype.encode(), dims.encode(),
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _binary_output(name: str, datatype: str, shape: tuple[int, ...], size: int) -> bytes:
    parameters = b',"parameters":{"binary_data_size":%d}}' % size
    return _output(name, datatype, shape) + parameters


def _copied(array: Array) -> bytes | memoryview:
    """Return a copy of an output's bytes: the model may reuse its memory."""
    if type(array) is not np.ndarray or array.nbytes < LONG or array.dtype.kind in "OSU":
        return wire.wire_bytes(array)
    data = buffers.acquire(array.nbytes)
    np.copyto(np.ndarray(array.shape, array.dtype, data), array)
    return data


def json_elements(array: Array, datatype: str) -> bytes:
    """Write the elements of an output as one flat JSON list.

    Raises
    ------
    InvalidArgumentError
        FP16 and BF16 (KS24).
    """
    if datatype in ("FP16", "BF16"):
        raise InvalidArgumentError(
            f"sending {datatype} data via JSON is not supported. Please use the binary data "
            "format for output"
        )
    host = to_numpy(array)
    if datatype != "BYTES":
        return jsontext.write_array(host)
    return jsontext.dumps(
        [
            item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else str(item)
            for item in host.reshape(-1).tolist()
        ]
    )


_NESTED = "parameters"


def decode_generate(body: bytes | memoryview, signature: ModelSignature) -> InferCall:
    """Read the body of a generate request (KS50).

    Raises
    ------
    TritonError
        With Triton's text.
    """
    document = jsontext.parse_members(body)
    try:
        return _call_of(document, signature)
    finally:
        if len(body) >= jsontext.LONG_TEXT:
            jsontext.empty(document)


def _call_of(document: jsontext.Members, signature: ModelSignature) -> InferCall:
    call = InferCall()
    if type(document) is not tuple:
        raise InternalError("attempt to get members for non-object")
    given = _by_name(document)
    if "id" in given:
        call.options.request_id = jsontext.as_string(given["id"], "id")
    inputs: dict[str, WireInput] = {}
    parameters: dict[str, Any] = {}
    for name, _ in document:
        value = given[name]
        if name != _NESTED:
            _map(name, value, signature, call.request_id, inputs, parameters)
            continue
        if name in signature.inputs:
            raise InvalidArgumentError(
                f"Keyword '{name}' for nested schema also given as input tensor name"
            )
        if type(value) is not tuple:
            raise InternalError(
                f"Expected JSON object for keyword: '{name}': attempt to access JSON non-object "
                "as object"
            )
        try:
            nested = _by_name(value)
            for inner, _ in value:
                _map(inner, nested[inner], signature, call.request_id, inputs, parameters)
        except TritonError as error:
            raise type(error)(f"Converting keyword: '{name}': {error.message}") from None
    call.set_inputs(signature, list(inputs.values()))
    if parameters:
        call.options.parameters = parameters
    return call


def _by_name(members: jsontext.Members) -> dict[str, Any]:
    """Return the values by name: Triton visits every member, but uses the first value of its name."""
    return dict(reversed(members))


def _map(
    name: str,
    value: Any,
    signature: ModelSignature,
    request_id: str,
    inputs: dict[str, WireInput],
    parameters: dict[str, Any],
) -> None:
    spec = signature.inputs.get(name)
    if spec is None:
        parameters[name] = read_parameter(name, value)
        return
    elements = value if type(value) is list else [value]
    count = len(elements)
    # Triton reads the strings of a BYTES input before it checks the shape, but numbers after it.
    strings = spec.datatype == "BYTES"
    data: Any = read_json_data(elements, name, "BYTES", 0) if strings else None
    shape = _deduced(spec, signature.max_batch_size > 0, count)
    if not strings:
        data = read_json_data(elements, name, spec.datatype, count)
    if name in inputs:
        raise duplicate_input(name, request_id)
    inputs[name] = WireInput(name, spec.datatype, shape, data)


def _deduced(spec: TensorSpec, batches: bool, count: int) -> tuple[int, ...]:
    """Return the shape of `count` elements: the innermost variable dimension is deduced."""
    shape = [-1, *spec.dims] if batches else list(spec.dims)
    fixed = math.prod(dim for dim in shape if dim != -1)
    rest, remainder = divmod(count, fixed) if fixed else (0, 1)
    if not remainder:
        for index in reversed(range(len(shape))):
            if shape[index] == -1:
                shape[index], rest = rest, 1
    if remainder or rest != 1:
        raise InvalidArgumentError(
            f"The schema can not convert input '{spec.name}' to tensor with proper shape"
        )
    return tuple(shape)


def encode_generate(
    call: InferCall,
    outputs: Mapping[str, Array],
    parameters: Mapping[str, Any],
    model_name: str,
    model_version: int,
) -> bytes:
    """Write one response, keys in byte order; a single element is not a list (KS51).

    Raises
    ------
    TritonError
        An output cannot be written as JSON.
    """
    found: dict[str, bytes] = {"id": jsontext.dumps(call.request_id)} if call.request_id else {}
    found["model_name"] = jsontext.dumps(model_name)
    found["model_version"] = jsontext.dumps(str(model_version))
    for name, value in parameters.items():
        found.setdefault(name, jsontext.dumps(value))
    for name, made in outputs.items():
        text = json_elements(made, datatype_of(made))
        single = math.prod(shape_of(made)) == 1
        found.setdefault(name, text[1:-1] if single else text)
    members = [
        b"%s:%s" % (jsontext.dumps(name), found[name]) for name in sorted(found, key=_bytes_of)
    ]  # fmt: skip
    return b"{" + b",".join(members) + b"}"


def _bytes_of(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
