"""Messages of clients: reading of requests, checked in Triton's order (GS13 to GS19).

Protobuf reads the short ones. Of a long one the elements of typed contents are taken out first, and its parts counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from nbtriton.common.errors import InternalError, InvalidArgumentError
from nbtriton.model.config._proto import is_repeated, messages
from nbtriton.model.tensors import DATATYPES, numpy_dtype
from nbtriton.runtime.engine import ModelSignature
from nbtriton.serving.frontends.kserve import wire
from nbtriton.serving.frontends.kserve.call import (
    SEQUENCE_FLAGS,
    InferCall,
    OutputRequest,
    shared_bytes,
)
from nbtriton.serving.frontends.kserve.shared_memory import Lease, Leasing
from nbtriton.serving.frontends.kserve.wire import check_strings

# Tag of the field with a request's id.
ID_TAG = 0x1A
SERVICE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"
# Text of gRPC's C++ library for bytes that cannot be parsed.
UNPARSABLE = "Unable to parse request"

# Equal on the wire: one string as field 1.
HealthCheckRequest = messages.SystemSharedMemoryStatusRequest


def parameter_value(parameter: Any) -> tuple[str, Any]:
    """Return the kind of an ``InferParameter``'s value, empty if none, and the value."""
    kind = parameter.WhichOneof("parameter_choice")
    return (kind, getattr(parameter, kind)) if kind else ("", None)


def varint(value: int) -> bytes:
    """Return a number as a protobuf varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Larger messages are read by `read_long`, on a worker: a shorter one takes 20 ms at most.
LONG = 64 << 10
# Values that have a length even if they are not lists.
_WITH_LENGTH = (
    FieldDescriptor.TYPE_STRING,
    FieldDescriptor.TYPE_BYTES,
    FieldDescriptor.TYPE_MESSAGE,
)
# Limit of the fields of a message, including those of nested messages and the bytes of shapes.
MOST_FIELDS = 1 << 16
_CONTENTS_NAME = "inference.InferTensorContents"
_INPUT = "inference.ModelInferRequest.InferInputTensor"
_BYTES = 8
# By number of the field.
_VARINTS = {1: np.bool_, 2: np.int32, 3: np.int64, 4: np.uint32, 5: np.uint64}
_FIXED = {6: "<f4", 7: "<f8"}
# Wire types of the elements of `InferTensorContents`: packed, or one by one.
_PACKED, _ONE_BY_ONE = 2, {**dict.fromkeys(range(1, 6), 0), 6: 5, 7: 1}
_FIXED_SIZES = {1: 8, 5: 4}
# Bytes of varints that are decoded at once.
_PIECE = 1 << 20

# Elements by the number of their field in `InferTensorContents`, in order of the numbers; none without elements.
Contents = Mapping[int, "np.ndarray[Any, Any] | list[bytes]"]


def read_long(kind: Any, data: bytes) -> tuple[Any, list[Contents]]:
    """Read a message of a class of protobuf's.

    Parameters
    ----------
    kind : type
        The message's class.
    data : bytes

    Returns
    -------
    message
        Its tensors have empty contents.
    contents : list of Contents
        Of each input of a ModelInferRequest; empty for other messages.

    Raises
    ------
    InvalidArgumentError
        The message has too many fields, or strings.
    InternalError
        The bytes are not a message; `DecodeError` if only protobuf finds that.
    """
    scan = _Scan()
    message = kind.FromString(scan.reduced(data, 0, len(data), kind.DESCRIPTOR))
    return message, [_elements(found) for found in scan.inputs]


class _Scan:
    """The scan of one message.

    Attributes
    ----------
    inputs : list of dict
        The elements of each input by the number of their field, in pieces.
    """

    def __init__(self) -> None:
        self.inputs: list[dict[int, list[bytes]]] = []
        self._count = 0

    def reduced(self, data: bytes, at: int, end: int, kind: Any) -> bytes:
        """Return a message without typed contents."""
        if kind.full_name == _INPUT:
            self.inputs.append({})
        parts: list[bytes] = []
        known = _described(kind)
        done = at  # everything before is in `parts`
        for tag, begin, start, stop in _fields(data, at, end):
            self._record(1)
            nested, is_packed = known.get(tag, (None, False))
            if is_packed:
                self._record(stop - start)
            if nested is None:
                continue
            if nested.full_name == _CONTENTS_NAME:
                self._take(data, start, stop)
                inner = b""
            else:
                inner = self.reduced(data, start, stop, nested)
            parts += (data[done:begin], varint(tag), varint(len(inner)), inner)
            done = stop
        parts.append(data[done:end])
        return b"".join(parts)

    def _take(self, data: bytes, at: int, end: int) -> None:
        """Take the elements of a tensor."""
        pieces = self.inputs[-1]
        for tag, _, start, stop in _fields(data, at, end):
            number, wire = tag >> 3, tag & 7
            if number == _BYTES and wire == _PACKED:
                strings = pieces.setdefault(number, [])
                strings.append(data[start:stop])
                check_strings(len(strings))
                continue
            self._record(1)
            if number in _ONE_BY_ONE and wire in (_PACKED, _ONE_BY_ONE[number]):
                pieces.setdefault(number, []).append(data[start:stop])

    def _record(self, fields: int) -> None:
        self._count += fields
        if self._count > MOST_FIELDS:
            raise InvalidArgumentError(
                f"the message has more than {MOST_FIELDS} fields (inputs, outputs, parameters, dimensions, "
                "elements that are not packed)"
            )


@cache
def _described(kind: Any) -> dict[int, tuple[Any, bool]]:
    """Return what the fields with these tags are: nested messages, or packed numbers."""
    return {
        field.number << 3 | _PACKED: (
            field.message_type,
            is_repeated(field) and field.type not in _WITH_LENGTH,
        )
        for field in kind.fields
    }


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield tag, start, start of the value, and end of each field; raises InternalError."""
    while at < end:
        field_at = at
        tag = data[at]
        at += 1
        if tag > 0x7F:
            tag, at = read_varint(data, field_at)
        wire = tag & 7
        start = at
        if wire == _PACKED:
            size, start = read_varint(data, at)
            at = start + size
        elif wire == 0:
            _, at = read_varint(data, at)
        else:
            at += _FIXED_SIZES.get(wire, len(data))  # groups are not part of proto3
        if at > end:
            raise InternalError(UNPARSABLE)
        yield tag, field_at, start, at


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint and where it ends; raises InternalError."""
    value = shift = 0
    for byte in data[at : at + 10]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at + shift // 7
    raise InternalError(UNPARSABLE)


def _elements(pieces: Mapping[int, list[bytes]]) -> Contents:
    found: dict[int, np.ndarray[Any, Any] | list[bytes]] = {}
    for number in sorted(pieces):
        if number == _BYTES:
            found[number] = pieces[number]
            continue
        data = b"".join(pieces[number])
        if number not in _FIXED:
            elements = _varints(data, _VARINTS[number])
        elif len(data) % np.dtype(_FIXED[number]).itemsize:
            raise InternalError(UNPARSABLE)
        else:
            elements = np.frombuffer(data, _FIXED[number])
        if len(elements):
            found[number] = elements
    return found


def _varints(data: bytes, dtype: type[np.generic]) -> np.ndarray[Any, Any]:
    """Return packed varints, the low bits of them; raises InternalError."""
    found: list[np.ndarray[Any, Any]] = []
    at = 0
    while at < len(data):
        octets = np.frombuffer(data, np.uint8, min(_PIECE, len(data) - at), at)
        ends = np.flatnonzero(octets < 0x80)
        sizes = np.diff(ends, prepend=-1)
        if not len(ends) or sizes.max() > 10:
            raise InternalError(UNPARSABLE)
        at += int(ends[-1]) + 1
        values = (octets[ends] & 0x7F).astype(np.uint64)
        for place in range(1, int(sizes.max())):
            longer = np.flatnonzero(sizes > place)
            values[longer] <<= np.uint64(7)
            values[longer] |= octets[ends[longer] - place] & 0x7F
        found.append(values.astype(dtype))
    return np.concatenate(found) if found else np.empty(0, dtype)


_UINT64 = (1 << 64) - 1
_EMPTY_FINAL = "triton_enable_empty_final_response"
_RESERVED = (
    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
    f"starting with 'triton_' are allowed: {_EMPTY_FINAL}"
)

# The datatypes of each field of typed contents, by its number.
_CONTENTS = {
    1: ("BOOL",),
    2: ("INT32", "INT16", "INT8"),
    3: ("INT64",),
    4: ("UINT32", "UINT16", "UINT8"),
    5: ("UINT64",),
    6: ("FP32",),
    7: ("FP64",),
    8: ("BYTES",),
}


def parse_at_once(kind: Any, data: bytes) -> tuple[Any, Sequence[Contents]]:
    """Parse a message of a class of protobuf's that is known to be read soon.

    Raises
    ------
    InternalError
        The bytes are not such a message.
    """
    try:
        return kind.FromString(data), ()
    except DecodeError:
        raise InternalError(UNPARSABLE) from None


def parse(kind: Any, data: bytes) -> tuple[Any, Sequence[Contents]]:
    """Parse a message; one longer than `LONG` should be parsed on a worker.

    Returns
    -------
    message, contents
        As `read_long`; of a short message the tensors have their contents, and the second is empty.

    Raises
    ------
    InternalError
        The bytes are not such a message.
    InvalidArgumentError
        The message has too many fields, or strings.
    """
    if len(data) <= LONG:
        return parse_at_once(kind, data)
    try:
        return read_long(kind, data)
    except DecodeError:
        raise InternalError(UNPARSABLE) from None


def read_request_id(data: bytes) -> str:
    """Return the id of a request that may have an error; empty for none."""
    found = b""
    try:
        for tag, _, start, end in islice(_fields(data, 0, len(data)), MOST_FIELDS):
            if tag == ID_TAG:
                found = data[start:end]
        return found.decode()
    except (InternalError, UnicodeDecodeError):
        return ""


# -- requests ----------------------------------------------------------------------------------------


def read_request(
    request: Any, signature: ModelSignature, leasing: Leasing, contents: Sequence[Contents] = ()
) -> InferCall:
    """Read a request of a known model.

    Parameters
    ----------
    request : ModelInferRequest
    signature : ModelSignature
        Signature of the model.
    leasing : callable
        `SharedMemory.lease` of the registered regions, perhaps with a limit.
    contents : sequence of Contents
        Of each input, if they are not in the message.

    Returns
    -------
    InferCall
        Arrays view the message's bytes.

    Raises
    ------
    TritonError
        With Triton's text; no shared memory is held then.
    """
    call = InferCall(default=OutputRequest("binary"))
    if request.id:
        call.options.request_id = request.id
    try:
        _read_parameters(request.parameters, call)
        names: set[str] = set()
        for tensor in request.inputs:
            if tensor.name in names:
                raise wire.duplicate_input(tensor.name, call.request_id)
            names.add(tensor.name)
        inputs = _read_inputs(request, contents, signature, leasing, call)
        _read_outputs(request, leasing, call)
        call.set_inputs(signature, inputs)
    except BaseException:
        call.release()
        raise
    return call


def _read_parameters(parameters: Any, call: InferCall) -> None:
    custom: dict[str, Any] = {}
    options = call.options
    for name, parameter in parameters.items():
        kind, value = parameter_value(parameter)
        if name == "sequence_id":
            if kind == "int64_param":
                options.correlation_id = value & _UINT64
            else:
                more = "int64_param or string_param"
                call.set_sequence_id(_of_kind(kind, value, name, "string_param", expected=more))
        elif name in SEQUENCE_FLAGS:
            if _of_kind(kind, value, name, "bool_param"):
                options.flags |= SEQUENCE_FLAGS[name]
        elif name == "priority":
            if kind == "uint64_param":
                options.priority = value
            else:
                more = "int64_param or uint64_param"
                options.priority = _of_kind(kind, value, name, "int64_param", expected=more)
                if value < 0:
                    raise InvalidArgumentError("invalid value for 'priority', expected value >= 0.")
        elif name == "timeout":
            options.timeout_us = _of_kind(kind, value, name, "int64_param") & _UINT64
        elif name.startswith("triton_"):
            if name != _EMPTY_FINAL:
                raise InvalidArgumentError(_RESERVED)
            call.empty_final = _of_kind(kind, value, name, "bool_param")
        elif kind in ("bool_param", "int64_param", "string_param", "double_param"):
            custom[name] = value
        else:
            raise InvalidArgumentError(
                f"invalid value type for '{name}' parameter, expected int64_param, bool_param, or "
                "string_param."
            )
    if custom:
        options.parameters = custom


def _of_kind(
    kind: str, value: Any, name: str, wanted: str, *, expected: str = "", about: str = "parameter"
) -> Any:
    if kind != wanted:
        text = f"invalid value type for '{name}' {about}, expected {expected or wanted}."
        raise InvalidArgumentError(text)
    return value


def _read_inputs(
    request: Any,
    contents: Sequence[Contents],
    signature: ModelSignature,
    leasing: Leasing,
    call: InferCall,
) -> list[wire.WireInput]:
    inputs: list[wire.WireInput] = []
    raw = request.raw_input_contents
    index = 0
    model = request.model_name
    for position, tensor in enumerate(request.inputs):
        name = tensor.name
        named = tensor.parameters and "shared_memory_region" in tensor.parameters
        if named and tensor.HasField("contents"):
            _region(tensor.parameters, name)
            raise InvalidArgumentError(
                "unexpected 'content' provided when using shared memory for input tensor "
                f"'{name}' for model '{model}'"
            )
        lease = _lease(tensor.parameters, name, leasing, call)
        data: bytes | memoryview | np.ndarray[Any, Any] | list[bytes]
        if lease is not None:
            data = shared_bytes(lease, tensor.datatype, signature)
        elif tensor.HasField("contents"):
            if raw:
                raise InvalidArgumentError(
                    "contents field must not be specified when using raw_input_contents for "
                    f"'{name}' for model '{model}'"
                )
            data = _typed(tensor, contents[position] if contents else None, model)
        elif index < len(raw):
            data = raw[index]
            index += 1
        else:
            raise InvalidArgumentError(
                f"unable to find data for input tensor '{name}' for model '{model}' in request."
            )
        inputs.append(wire.WireInput(name, tensor.datatype, tuple(tensor.shape), data))
    return inputs


def _typed(
    tensor: Any, taken: Contents | None, model: str
) -> np.ndarray[Any, Any] | list[bytes] | bytes:
    """Return the elements of ``contents``; `taken` are those that are not in the message."""
    datatype = tensor.datatype
    given: Any = tensor.contents.ListFields() if taken is None else taken.items()
    for field, values in given:
        kinds = _CONTENTS[field.number if taken is None else field]
        if datatype not in kinds:
            expected = datatype if datatype in DATATYPES else "<invalid>"
            raise InvalidArgumentError(
                f"unexpected explicit tensor data for input tensor '{tensor.name}' for model "
                f"'{model}' of type '{kinds[0]}', expected datatype '{expected}'"
            )
        if datatype == "BYTES":
            return list(values)
        dtype = numpy_dtype(datatype)
        if isinstance(values, np.ndarray):
            return values.astype(dtype, copy=False)
        if dtype.kind in "iu" and dtype.itemsize < 4:  # keep the low bits, as C++ does
            wide = np.fromiter(values, np.int64, len(values))
            return wide.astype(dtype)
        return np.fromiter(values, dtype, len(values))
    return b""


def _lease(parameters: Any, name: str, leasing: Leasing, call: InferCall) -> Lease | None:
    """Return the lease of a tensor in shared memory; None for other tensors."""
    found = _region(parameters, name) if parameters else None
    if found is None:
        return None
    region, offset, size = found
    return call.lease(leasing, region, offset & _UINT64, size & _UINT64)


def _region(parameters: Any, name: str) -> tuple[str, int, int] | None:
    """Return region, offset and size from a tensor's parameters; None without a region."""
    region = None
    about = f"parameter for tensor '{name}'"
    if "shared_memory_region" in parameters:
        found = parameter_value(parameters["shared_memory_region"])
        region = _of_kind(*found, "shared_memory_region", "string_param", about=about)
    numbers = {"shared_memory_offset": 0, "shared_memory_byte_size": 0}
    for field in numbers:
        if field not in parameters:
            continue
        if region is None:
            raise InvalidArgumentError(
                f"'{field}' can not be specified without 'shared_memory_region' {about}"
            )
        found = parameter_value(parameters[field])
        numbers[field] = _of_kind(*found, field, "int64_param", about=about)
    if region is None:
        return None
    if "shared_memory_byte_size" not in parameters:
        raise InvalidArgumentError(
            f"'shared_memory_byte_size' must be specified along with 'shared_memory_region' {about}"
        )
    return region, numbers["shared_memory_offset"], numbers["shared_memory_byte_size"]


def _read_outputs(request: Any, leasing: Leasing, call: InferCall) -> None:
    outputs: dict[str, OutputRequest] = {}
    for tensor in request.outputs:
        wanted = OutputRequest("binary")
        if tensor.parameters:
            if "classification" in tensor.parameters:
                kind, classes = parameter_value(tensor.parameters["classification"])
                if kind != "int64_param":
                    raise InvalidArgumentError(
                        "invalid value type for 'classification' parameter, expected int64_param"
                    )
                if classes <= 0:  # the text is Triton's
                    raise InvalidArgumentError(
                        "invalid value for 'classification' parameter, expected >= 0"
                    )
                wanted.classes = classes
            lease = _lease(tensor.parameters, tensor.name, leasing, call)
            if lease is not None:
                if "classification" in tensor.parameters:
                    raise InvalidArgumentError(
                        "output can't set both 'shared_memory_region' and 'classification'"
                    )
                wanted.kind, wanted.lease = "shared", lease
        outputs.setdefault(tensor.name, wanted)
    call.outputs = outputs
