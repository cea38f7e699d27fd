"""Messages of Triton's gRPC service and of gRPC's health service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nbtriton.model.config.protocol import messages

__all__ = [
    "HEALTH",
    "SERVICE",
    "UNPARSABLE",
    "HealthCheckRequest",
    "health_response",
    "messages",
    "parameter_value",
    "set_parameters",
    "varint",
]

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
