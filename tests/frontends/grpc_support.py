"""Requests over gRPC for the tests: built from the stubs that Triton's clients are generated from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb

__all__ = [
    "ONES", "Seen", "ask", "infer", "open_call", "open_stream", "set_values", "stream", "tensor",
]  # fmt: skip

ONES = np.ones(4, np.float32).tobytes()
SERVICE = "/inference.GRPCInferenceService/"
UNSET = object()
TIMEOUT_S = 60


@dataclass(frozen=True)
class UInt:
    value: int


def set_values(target: Any, values: Mapping[str, Any]) -> None:
    """Fill a map of parameters; `UNSET` makes one without a value, `UInt` an unsigned one."""
    for name, value in values.items():
        entry = target[name]
        if value is UNSET:
            continue
        if isinstance(value, UInt):
            entry.uint64_param = value.value
        elif isinstance(value, bool):
            entry.bool_param = value
        elif isinstance(value, int):
            entry.int64_param = value
        elif isinstance(value, float):
            entry.double_param = value
        elif isinstance(value, bytes):
            entry.bytes_param = value
        else:
            entry.string_param = value


def tensor(
    name: str = "IN",
    datatype: str = "FP32",
    shape: Sequence[int] = (1, 4),
    parameters: Mapping[str, Any] | None = None,
    **contents: Any,
) -> Any:
    """One input; ``fp32_contents=[…]`` and its like give it typed contents."""
    made = pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    set_values(made.parameters, parameters or {})
    if contents:
        made.contents.SetInParent()
        for field_name, values in contents.items():
            getattr(made.contents, field_name).extend(values)
    return made


def infer(
    model: str,
    inputs: Iterable[Any] | None = None,
    raw: Iterable[bytes] = (ONES,),
    outputs: Mapping[str, Mapping[str, Any]] | None = None,
    parameters: Mapping[str, Any] | None = None,
    request_id: str = "",
    version: str = "",
) -> Any:
    """Build a ModelInferRequest; by default one that the model ``one`` takes."""
    made = pb.ModelInferRequest(model_name=model, model_version=version, id=request_id)
    made.inputs.extend([tensor()] if inputs is None else inputs)
    made.raw_input_contents.extend(raw)
    set_values(made.parameters, parameters or {})
    for name, values in (outputs or {}).items():
        output = made.outputs.add(name=name)
        set_values(output.parameters, values)
    return made


@dataclass(frozen=True)
class Seen:
    """What a client sees of a call."""

    code: str
    details: str
    response: Any = field(default=None, compare=False)


def open_call(channel: grpc.Channel, method: str = "ModelInfer") -> grpc.UnaryUnaryMultiCallable:
    """Return what makes unary calls."""
    return channel.unary_unary(
        SERVICE + method,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=getattr(pb, f"{method}Response").FromString,
    )


def open_stream(channel: grpc.Channel) -> grpc.StreamStreamMultiCallable:
    """Return what opens streams of requests for inference."""
    return channel.stream_stream(
        SERVICE + "ModelStreamInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelStreamInferResponse.FromString,
    )


def ask(
    channel: grpc.Channel, method: str, request: Any, *, metadata: Sequence[tuple[str, str]] = (),
    timeout_s: float = TIMEOUT_S, compression: grpc.Compression | None = None,
) -> Seen:  # fmt: skip
    """Make one unary call."""
    call = open_call(channel, method)
    try:
        response = call(request, timeout=timeout_s, metadata=metadata, compression=compression)
    except grpc.RpcError as error:
        return Seen(error.code().name, error.details())
    return Seen("OK", "", response)


def stream(
    channel: grpc.Channel,
    requests: Iterable[Any],
    *,
    metadata: Sequence[tuple[str, str]] = (),
    timeout_s: float = TIMEOUT_S,
) -> list[Any]:
    """Send requests on one stream, close it, and return all answers."""
    return list(open_stream(channel)(iter(requests), timeout=timeout_s, metadata=metadata))
