"""Templates of infer requests over gRPC: most requests differ only in their ids and tensors.

The parsed form of all other bytes is cached. Protobuf reads unusual messages.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from nbtriton.serving.frontends.buffers import LONGEST, TemplateCache
from nbtriton.serving.frontends.kserve.call import InferCall, InferTemplate
from nbtriton.serving.frontends.kserve.messages import varint

__all__ = ["ProtoTemplates", "is_plain"]

_ID, _RAW = 0x1A, 0x3A
# Where the tensors of a message with a template begin at the latest, behind a long id.
_FARTHEST = 2 * LONGEST
# Most tensors of a long message that is read on the loop.
_FEW = 64
# Fields before the tensors: model_name, model_version, id, parameters, inputs and outputs.
_BEFORE_RAW = frozenset({0x0A, 0x12, _ID, 0x22, 0x2A, 0x32})


class _ProtoTemplate(NamedTuple):
    model: str
    version: int
    tensors: InferTemplate


class ProtoTemplates:
    """Templates by the bytes of requests; used by one thread."""

    def __init__(self) -> None:
        self._cache = TemplateCache[_ProtoTemplate]()

    def read(self, data: bytes) -> tuple[str, int, InferCall] | None:
        """Return model, version and call of a request with a template; None without one."""
        found = _split(data)
        if found is None:
            return None
        key, id_at, id_end, position = found
        template = self._cache.find(key)
        if template is None or len(data) - position != template.tensors.size:
            return None
        model, version, tensors = template
        for head, offset in tensors.heads:
            if not data.startswith(head, position + offset):
                return None
        try:
            request_id = data[id_at:id_end].decode() if id_end else ""
        except UnicodeDecodeError:
            return None
        return model, version, tensors.call(data, position, request_id)

    def remember(self, data: bytes, request: Any, version: int, call: InferCall) -> None:
        """Store the template of a request, if other requests can use it."""
        found = _split(data)
        inputs, raw = request.inputs, request.raw_input_contents
        if (
            found is None
            or len(raw) != len(inputs)
            or any(tensor.HasField("contents") for tensor in inputs)
        ):
            return
        tensors = [
            (
                tensor.name,
                tensor.datatype,
                tuple(tensor.shape),
                bytes((_RAW,)) + varint(len(content)),
                len(content),
            )
            for tensor, content in zip(inputs, raw, strict=True)
        ]
        template = InferTemplate.of(call, tensors)
        if template is not None:
            self._cache.remember(found[0], _ProtoTemplate(request.model_name, version, template))


def is_plain(data: bytes) -> bool:
    """Return whether a message is short but for a few tensors, which need not be looked at to read it."""
    found = _split(data)
    if found is None or b"BYTES" in found[0]:
        return False
    position, end = found[-1], len(data)
    try:
        for _ in range(_FEW):
            if position >= end:
                return True
            if data[position] != _RAW:
                return False
            length, position = _read_varint(data, position + 1)
            position += length
    except IndexError:
        pass
    return False


def _split(data: bytes) -> tuple[bytes, int, int, int] | None:
    """Find the request id and the start of the tensors.

    Returns
    -------
    key, id_at, id_end, raw_at
        The key is everything before the tensors without the id; `id_end` is 0 without an id.
        None for a message that protobuf has to read, or that is long even without its tensors.
    """
    position = field_at = id_at = id_end = id_field = 0
    end = min(len(data), _FARTHEST)
    try:
        while position < end:
            tag = data[position]
            if tag == _RAW:
                break
            if tag not in _BEFORE_RAW:
                return None
            field_at = position
            length = data[position + 1]
            position += 2
            if length > 0x7F:
                length, position = _read_varint(data, position - 1)
            if tag == _ID:
                if id_end:  # a second one counts, not the first
                    return None
                id_field, id_at, id_end = field_at, position, position + length
            position += length
    except IndexError:
        return None
    if position > end:
        return None
    if id_end:
        return data[:id_field] + data[id_end:position], id_at, id_end, position
    return data[:position], 0, 0, position


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:  # longer than any message
            raise IndexError
