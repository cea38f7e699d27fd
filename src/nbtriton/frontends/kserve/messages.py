"""The messages of Triton's gRPC service, as `tritonclient` ships them, and of gRPC's health service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tritonclient.grpc import service_pb2  # type: ignore[import-untyped]

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
# What gRPC's own C++ library says of bytes that are not the message of a method.
UNPARSABLE = "Unable to parse request"

# Generated code: its classes are made at run time.
messages: Any = service_pb2

_SERVING, _NOT_SERVING = 1, 2


def parameter_value(parameter: Any) -> tuple[str, Any]:
    """Return which kind of value an ``InferParameter`` holds, empty if none, and the value."""
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
    """Return a length as protobuf writes it."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def health_response(serving: bool) -> bytes:
    """Return the answer of ``grpc.health.v1.Health/Check``."""
    return cast(
        "bytes",
        _HealthCheckResponse(status=_SERVING if serving else _NOT_SERVING).SerializeToString(),
    )


def _health_classes() -> tuple[Any, Any]:
    """Make the two messages that we need of grpcio-health-checking; in a pool of our own."""
    file = descriptor_pb2.FileDescriptorProto(
        name="nbtriton_health.proto", package="grpc.health.v1", syntax="proto3"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, field, kind in (
        ("HealthCheckRequest", "service", kinds.TYPE_STRING),
        # The enum goes over the wire as its number.
        ("HealthCheckResponse", "status", kinds.TYPE_INT32),
    ):
        file.message_type.add(name=message).field.add(
            name=field, number=1, type=kind, label=kinds.LABEL_OPTIONAL
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    request, response = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"grpc.health.v1.{each.name}"))
        for each in file.message_type
    )
    return request, response


HealthCheckRequest, _HealthCheckResponse = _health_classes()
