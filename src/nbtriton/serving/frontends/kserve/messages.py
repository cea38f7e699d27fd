"""Messages of Triton's gRPC service and of gRPC's health service."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

from nbtriton.common.errors import InternalError, InvalidArgumentError
from nbtriton.model.config._proto import is_repeated, messages
from nbtriton.serving.frontends.kserve.wire import check_strings

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


def set_parameters(field: Any, values: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
    """Fill a map of ``InferParameter``."""
    for name, value in values.items() if isinstance(values, Mapping) else values:
        if isinstance(value, bool):
            field[name].bool_param = value
        elif isinstance(value, int):
            field[name].int64_param = value
        elif isinstance(value, float):
            field[name].double_param = value
        else:
            field[name].string_param = str(value)


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


def health_response(serving: bool) -> bytes:
    """Return the response of ``grpc.health.v1.Health/Check``: an enum as field 1."""
    return b"\x08\x01" if serving else b"\x08\x02"


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
_CONTENTS = "inference.InferTensorContents"
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


def top_fields(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of the value of each length-delimited field, nested ones not included.

    Raises
    ------
    InternalError
        The bytes are not a message.
    """
    for tag, _, start, end in _fields(data, 0, len(data)):
        if tag & 7 == _PACKED:
            yield tag >> 3, start, end


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
            if nested.full_name == _CONTENTS:
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
            tag, at = _varint(data, field_at)
        wire = tag & 7
        start = at
        if wire == _PACKED:
            size, start = _varint(data, at)
            at = start + size
        elif wire == 0:
            _, at = _varint(data, at)
        else:
            at += _FIXED_SIZES.get(wire, len(data))  # groups are not part of proto3
        if at > end:
            raise InternalError(UNPARSABLE)
        yield tag, field_at, start, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
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
