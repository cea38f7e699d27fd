"""The generate extension: flat JSON in, flat JSON out (KS50 to KS53)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nbtriton.common.errors import InternalError, InvalidArgumentError, TritonError
from nbtriton.model.tensors import datatype_of, shape_of
from nbtriton.serving.frontends.kserve import jsontext
from nbtriton.serving.frontends.kserve.call import InferCall
from nbtriton.serving.frontends.kserve.json_codec import (
    json_elements,
    read_json_data,
    read_parameter,
)
from nbtriton.serving.frontends.kserve.wire import WireInput, duplicate_input

if TYPE_CHECKING:
    from nbtriton.model.config import TensorSpec
    from nbtriton.model.tensors import Array
    from nbtriton.runtime.engine import ModelSignature

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
        call.options.request_id = jsontext.as_string(given["id"], "Unable to parse 'id': ")
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
    for name, array in outputs.items():
        text = json_elements(array, datatype_of(array))
        single = math.prod(shape_of(array)) == 1
        found.setdefault(name, text[1:-1] if single else text)
    members = [
        b"%s:%s" % (jsontext.dumps(name), found[name]) for name in sorted(found, key=_bytes_of)
    ]  # fmt: skip
    return b"{" + b",".join(members) + b"}"


def _bytes_of(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
