"""Messages to clients: responses, written field by field, as most of their parts are like earlier ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.extensions.grpc.requests import varint
from nbtriton.model.config._proto import messages
from nbtriton.model.tensors import Array, datatype_of, shape_of
from nbtriton.serving.frontends.kserve import wire
from nbtriton.serving.frontends.kserve.call import InferCall
from nbtriton.serving.frontends.kserve.wire import Labels

_FINAL = "triton_final_response"
_LIMIT = (1 << 31) - 1


def health_response(serving: bool) -> bytes:
    """Return the response of ``grpc.health.v1.Health/Check``: an enum as field 1."""
    return b"\x08\x01" if serving else b"\x08\x02"


def encode_response(
    call: InferCall,
    outputs: Mapping[str, Array],
    parameters: Mapping[str, Any],
    model_name: str,
    model_version: int,
    batches: bool,
    labels: Labels,
) -> bytes:
    """Return a serialized ModelInferResponse.

    Parameters
    ----------
    call : InferCall
        Requested form of each output; outputs in shared memory are written there.
    outputs : mapping of str to array
        In the model's order, which the response keeps.
    parameters : mapping
        Response parameters.
    batches : bool
        Whether the first dimension is the batch, for classification.
    labels : callable
        ``labels(model_name, model_version, output)`` returns the class labels of an output.

    Raises
    ------
    TritonError
        An output cannot be sent in the requested form, or the response is too large for gRPC.
    """
    parts: list[Any] = [_model_fields(model_name, model_version)]
    request_id = call.request_id
    if request_id:
        encoded = request_id.encode()
        parts += (b"\x1a", varint(len(encoded)), encoded)
    if parameters:
        parts.append(_parameters(parameters))
    raw: list[Any] = []
    for name, array in outputs.items():
        wanted = call.wanted(name)
        if wanted.classes:
            classes = labels(model_name, model_version, name)
            array = wire.classify(array, wanted.classes, batches, classes)  # noqa: PLW2901
        elif wanted.lease is None and type(array) is np.ndarray and array.flags.c_contiguous:
            fields = _plain_fields(name, array.dtype, array.shape)
            if fields is not None:
                parts.append(fields[0])
                raw += (fields[1], array)  # copied only once, when joined
                continue
        parts.append(_output_field(name, datatype_of(array), shape_of(array)))
        if wanted.lease is not None:
            wire.write_shared(wanted.lease, array, name)
            raw.append(b"\x32\x00")
            continue
        blob = wire.wire_bytes(array)
        raw += (b"\x32", varint(len(blob)), blob)
    if call.leases:
        call.check_leases()
    data = b"".join([*parts, *raw])
    if len(data) > _LIMIT:
        raise InvalidArgumentError(
            f"Response has byte size {len(data)} which exceeds gRPC's byte size limit {_LIMIT}."
        )
    return data


# Cached, as most responses share these parts.
@lru_cache(maxsize=256)
def _model_fields(name: str, version: int) -> bytes:
    fields: bytes = messages.ModelInferResponse(
        model_name=name, model_version="" if version == -1 else str(version)
    ).SerializeToString()
    return fields


@lru_cache(maxsize=1024)
def _output_field(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    message = messages.ModelInferResponse()
    message.outputs.add(name=name, datatype=datatype, shape=shape)
    field: bytes = message.SerializeToString()
    return field


@lru_cache(maxsize=1024)
def _plain_fields(
    name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> tuple[bytes, bytes] | None:
    """Return an output's field and the head of its raw bytes, for an array sent as it is."""
    if dtype.kind not in "fiub":
        return None
    size = math.prod(shape) * dtype.itemsize
    field = _output_field(name, datatype_of(np.empty(0, dtype)), shape)
    return field, b"\x32" + varint(size)


def _parameters(parameters: Mapping[str, Any]) -> bytes:
    message = messages.ModelInferResponse()
    for name, value in parameters.items():
        if isinstance(value, bool):
            message.parameters[name].bool_param = value
        elif isinstance(value, int):
            message.parameters[name].int64_param = value
        elif isinstance(value, float):
            message.parameters[name].double_param = value
        else:
            message.parameters[name].string_param = str(value)
    field: bytes = message.SerializeToString()
    return field


_IS_FINAL = {final: _parameters({_FINAL: final}) for final in (False, True)}


def encode_stream_response(response: bytes, *, final: bool) -> bytes:
    """Return the ModelStreamInferResponse that carries a serialized response (GS2)."""
    flag = _IS_FINAL[final]
    return b"".join((b"\x12", varint(len(response) + len(flag)), response, flag))


def encode_stream_error(
    message: str, request_id: str, *, model: str = "", version: int = -1, final: bool | None = None
) -> bytes:
    """Return the ModelStreamInferResponse of a request that failed (GS1, GS6).

    Parameters
    ----------
    message, request_id : str
    model, version
        Of a request that reached its model; -1 for no version.
    final : bool, optional
        The final flag of such a request.
    """
    text = message.encode(errors="replace").decode()  # it may hold half of a surrogate pair
    answer = messages.ModelStreamInferResponse(error_message=text)
    answer.infer_response.id = request_id
    if model:
        answer.infer_response.model_name = model
        answer.infer_response.model_version = "" if version == -1 else str(version)
    if final is not None:
        answer.infer_response.parameters[_FINAL].bool_param = final
    data: bytes = answer.SerializeToString()
    return data
