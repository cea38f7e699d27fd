"""Infer requests and responses over gRPC (protocol.md §10).

A request is read by protobuf and checked in Triton's order, with Triton's complaints. Most clients
send messages that differ in their id and their tensors' bytes alone: what was read from the others'
bytes is kept (`GrpcPlans`), and only the rest is read again. Responses are written by hand, from parts
that are kept likewise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError

from nbtriton.errors import InternalError, InvalidArgumentError, UnsupportedError
from nbtriton.frontends.answer import _write_shared as write_shared
from nbtriton.frontends.classification import classify
from nbtriton.frontends.codec import Call, OutputRequest
from nbtriton.frontends.grpc_messages import messages, parameter_value, set_parameters
from nbtriton.frontends.wire import WireInput, arrays_of, log_prefix, wire_bytes
from nbtriton.tensors import DATATYPES, datatype_of, format_shape, numpy_dtype, shape_of

if TYPE_CHECKING:
    from nbtriton.engine import Interface
    from nbtriton.frontends.shared_memory import Lease, SharedMemory
    from nbtriton.tensors import Array

__all__ = [
    "GrpcPlans",
    "InferCall",
    "encode_response",
    "encode_stream_error",
    "encode_stream_response",
    "parse_infer",
    "read_request",
    "read_version",
]

_LONGEST_ID = 128
_UINT64 = (1 << 64) - 1
_EMPTY_FINAL = "triton_enable_empty_final_response"
_RESERVED = (
    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
    f"starting with 'triton_' are allowed: {_EMPTY_FINAL}"
)
_STOL = re.compile(r"\s*([+-]?\d+)")
_INT64_MAX = (1 << 63) - 1

# Where typed contents of a datatype are; int_contents and uint_contents hold the narrow ones too.
_CONTENTS = {
    "bool_contents": ("BOOL",),
    "int_contents": ("INT32", "INT16", "INT8"),
    "int64_contents": ("INT64",),
    "uint_contents": ("UINT32", "UINT16", "UINT8"),
    "uint64_contents": ("UINT64",),
    "fp32_contents": ("FP32",),
    "fp64_contents": ("FP64",),
    "bytes_contents": ("BYTES",),
}


@dataclass(slots=True)
class InferCall(Call):
    """A request of a client, and how it wants its stream to end."""

    empty_final: bool = False


def read_version(text: str) -> int:
    """Return a request's model version, -1 for none (P-9).

    Raises
    ------
    InvalidArgumentError
        It is no positive number.
    """
    if not text:
        return -1
    found = _STOL.match(text)
    # Python refuses to read thousands of digits.
    if found is None or len(found[1].lstrip("+-0")) > 19 or int(found[1]) > _INT64_MAX:
        raise InvalidArgumentError(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    version = int(found[1])
    if version <= 0:
        raise InvalidArgumentError(
            f"invalid model version specified '{text}' , version should be an integral value > 0"
        )
    return version


def parse_infer(data: bytes) -> Any:
    """Return the ModelInferRequest that these bytes are.

    Raises
    ------
    InternalError
        They are none.
    """
    try:
        return messages.ModelInferRequest.FromString(data)
    except DecodeError:
        raise InternalError("the request is no ModelInferRequest") from None


# -- requests ----------------------------------------------------------------------------------------


def read_request(request: Any, interface: Interface, shared_memory: SharedMemory) -> InferCall:
    """Read a request whose model is known.

    Parameters
    ----------
    request : ModelInferRequest
    interface : Interface
        The model's signature.
    shared_memory : SharedMemory
        Where regions are looked up.

    Returns
    -------
    InferCall
        Its arrays view the message's bytes.

    Raises
    ------
    TritonError
        With Triton's text; no shared memory is held then.
    """
    call = InferCall(default=OutputRequest("binary"))
    if request.id:
        call.options["request_id"] = request.id
    try:
        _read_parameters(request.parameters, call)
        _check_names(request, call)
        _read_outputs(request, shared_memory, call)
        inputs = _read_inputs(request, interface, shared_memory, call)
        call.arrays = arrays_of(
            interface, inputs, request_id=call.request_id, outputs=tuple(call.outputs)
        )
    except BaseException:
        call.release()
        raise
    if call.outputs:
        call.options["outputs"] = tuple(call.outputs)
    return call


def _read_parameters(parameters: Any, call: InferCall) -> None:
    custom: dict[str, Any] = {}
    options = call.options
    for name, parameter in parameters.items():
        kind, value = parameter_value(parameter)
        if name == "sequence_id":
            options["correlation_id"] = _sequence_id(kind, value)
        elif name in ("sequence_start", "sequence_end"):
            options[name] = _of_kind(kind, value, name, "bool_param")
        elif name == "priority":
            if kind == "uint64_param":
                options["priority"] = value
            else:
                options["priority"] = _of_kind(kind, value, name, "int64_param")
                if value < 0:
                    raise InvalidArgumentError("invalid value for 'priority', expected value >= 0.")
        elif name == "timeout":
            options["timeout_us"] = _of_kind(kind, value, name, "int64_param") & _UINT64
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
    if options.get("correlation_id") == "":
        del options["correlation_id"]
    if custom:
        options["parameters"] = custom


def _sequence_id(kind: str, value: Any) -> int | str:
    if kind == "int64_param":
        return int(value) & _UINT64
    if kind != "string_param":
        raise InvalidArgumentError(
            "invalid value type for 'sequence_id' parameter, expected int64_param or string_param."
        )
    if len(value.encode()) > _LONGEST_ID:
        raise UnsupportedError("string correlation ID cannot be longer than 128 characters")
    return str(value)


def _of_kind(kind: str, value: Any, name: str, wanted: str) -> Any:
    if kind != wanted:
        raise InvalidArgumentError(f"invalid value type for '{name}' parameter, expected {wanted}.")
    return value


def _check_names(request: Any, call: InferCall) -> None:
    names: set[str] = set()
    for tensor in request.inputs:
        if tensor.name in names:
            raise InvalidArgumentError(
                f"{log_prefix(call.request_id)}input '{tensor.name}' already exists in request"
            )
        names.add(tensor.name)


def _read_inputs(
    request: Any, interface: Interface, shared_memory: SharedMemory, call: InferCall
) -> list[WireInput]:
    inputs: list[WireInput] = []
    raw = request.raw_input_contents
    index = 0
    model = request.model_name
    for tensor in request.inputs:
        name = tensor.name
        named = tensor.parameters and "shared_memory_region" in tensor.parameters
        if named and tensor.HasField("contents"):
            _region(tensor.parameters, name)
            raise InvalidArgumentError(
                "unexpected 'content' provided when using shared memory for input tensor "
                f"'{name}' for model '{model}'"
            )
        lease = _lease(tensor.parameters, name, shared_memory, call)
        data: bytes | memoryview | np.ndarray[Any, Any] | list[bytes]
        if lease is not None:
            data = lease.view
        elif tensor.HasField("contents"):
            if raw:
                raise InvalidArgumentError(
                    "contents field must not be specified when using raw_input_contents for "
                    f"'{name}' for model '{model}'"
                )
            data = _typed(tensor, model)
        elif index < len(raw):
            data = raw[index]
            index += 1
        else:
            raise InvalidArgumentError(
                f"unable to find data for input tensor '{name}' for model '{model}' in request."
            )
        inputs.append(WireInput(name, tensor.datatype, tuple(tensor.shape), data))
    if any(dim < 0 for tensor in inputs for dim in tensor.shape):
        _refuse_negative(inputs, interface, call)
    return inputs


def _typed(tensor: Any, model: str) -> np.ndarray[Any, Any] | list[bytes] | bytes:
    """Return the elements of ``contents``, as many as there are."""
    contents = tensor.contents
    datatype = tensor.datatype
    for field, _ in contents.ListFields():
        kinds = _CONTENTS[field.name]
        if datatype not in kinds:
            expected = datatype if datatype in DATATYPES else "<invalid>"
            raise InvalidArgumentError(
                f"unexpected explicit tensor data for input tensor '{tensor.name}' for model "
                f"'{model}' of type '{kinds[0]}', expected datatype '{expected}'"
            )
        values = getattr(contents, field.name)
        if datatype == "BYTES":
            return list(values)
        dtype = numpy_dtype(datatype)
        if dtype.kind in "iu" and dtype.itemsize < 4:  # the low bits, as C++ takes them
            wide = np.fromiter(values, np.int64, len(values))
            return wide.astype(dtype)
        return np.fromiter(values, dtype, len(values))
    return b""


def _refuse_negative(inputs: Sequence[WireInput], interface: Interface, call: InferCall) -> None:
    """Complain of the first dimension that is negative, with what Triton finds wrong with it."""
    prefix = log_prefix(call.request_id)
    model = interface.name
    batches = interface.max_batch_size > 0
    for tensor in inputs[1:] if batches else ():
        if tensor.shape[:1] != inputs[0].shape[:1]:
            raise InvalidArgumentError(
                f"{prefix}input '{tensor.name}' batch size does not match other inputs for '{model}'"
            )
    for tensor in inputs:
        negative = next((dim for dim in tensor.shape[batches:] if dim < 0), None)
        if negative is None and (not batches or not tensor.shape or tensor.shape[0] >= 0):
            continue
        if negative == -1:
            raise InvalidArgumentError(
                f"{prefix}All input dimensions should be specified for input '{tensor.name}' for "
                f"model '{model}', got {format_shape(tensor.shape)}"
            )
        # Triton keeps the batch size in 32 bits without a sign.
        shape = (tensor.shape[0] % (1 << 32), *tensor.shape[1:]) if batches else tensor.shape
        known = tensor.datatype in DATATYPES and tensor.datatype not in ("BYTES", "BF16")
        itemsize = numpy_dtype(tensor.datatype).itemsize if known else 1
        if isinstance(tensor.data, list):
            size = sum(map(len, tensor.data))
        else:
            size = memoryview(tensor.data).nbytes
        raise InvalidArgumentError(
            f"{prefix}input byte size mismatch for input '{tensor.name}' for model '{model}'. "
            f"Expected {math.prod(shape) * itemsize}, got {size}"
        )


def _lease(
    parameters: Any, name: str, shared_memory: SharedMemory, call: InferCall
) -> Lease | None:
    """Return the shared memory that a tensor's parameters name, if they do."""
    found = _region(parameters, name) if parameters else None
    if found is None:
        return None
    region, offset, size = found
    lease = shared_memory.lease(region, offset & _UINT64, size & _UINT64)
    call.leases.append(lease)
    return lease


def _region(parameters: Any, name: str) -> tuple[str, int, int] | None:
    """Return region, offset and size that a tensor's parameters say; None for none."""
    region = ""
    offset = size = 0
    about = f"parameter for tensor '{name}'"
    if "shared_memory_region" in parameters:
        kind, region = parameter_value(parameters["shared_memory_region"])
        if kind != "string_param":
            raise InvalidArgumentError(
                f"invalid value type for 'shared_memory_region' {about}, expected string_param."
            )
    if "shared_memory_offset" in parameters:
        kind, offset = parameter_value(parameters["shared_memory_offset"])
        if kind != "int64_param":
            raise InvalidArgumentError(
                f"invalid value type for 'shared_memory_offset' {about}, expected int64_param."
            )
    if "shared_memory_byte_size" in parameters:
        kind, size = parameter_value(parameters["shared_memory_byte_size"])
        if kind != "int64_param":
            raise InvalidArgumentError(
                f"invalid value type for 'shared_memory_byte_size' {about}, expected int64_param."
            )
    if size and not region:
        raise InvalidArgumentError(
            f"'shared_memory_byte_size' can not be specified without 'shared_memory_region' {about}"
        )
    if not region:
        return None
    if not size:
        raise InvalidArgumentError(
            f"'shared_memory_byte_size' must be specified along with 'shared_memory_region' {about}"
        )
    return region, offset, size


def _read_outputs(request: Any, shared_memory: SharedMemory, call: InferCall) -> None:
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
                if classes < 0:
                    raise InvalidArgumentError(
                        "invalid value for 'classification' parameter, expected >= 0"
                    )
                wanted.classes = classes
            lease = _lease(tensor.parameters, tensor.name, shared_memory, call)
            if lease is not None:
                if "classification" in tensor.parameters:
                    raise InvalidArgumentError(
                        "output can't set both 'shared_memory_region' and 'classification'"
                    )
                wanted.kind, wanted.lease = "shared", lease
        outputs.setdefault(tensor.name, wanted)
    call.outputs = outputs


# -- requests that look alike ------------------------------------------------------------------------

_ID, _RAW = 0x1A, 0x3A
# model_name, model_version, id, parameters, inputs and outputs: what may stand before the tensors.
_BEFORE_RAW = frozenset({0x0A, 0x12, _ID, 0x22, 0x2A, 0x32})
_VIEWED = {
    name: np.dtype(kind)
    for name, kind in (
        ("UINT8", "u1"), ("UINT16", "<u2"), ("UINT32", "<u4"), ("UINT64", "<u8"), ("INT8", "i1"),
        ("INT16", "<i2"), ("INT32", "<i4"), ("INT64", "<i8"), ("FP16", "<f2"), ("FP32", "<f4"),
        ("FP64", "<f8"),
    )
}  # fmt: skip
# What may be said in a text that is kept: nothing that differs from request to request.
_KEPT_OPTIONS = frozenset({"request_id", "outputs", "priority", "timeout_us"})
_LONGEST_KEY = 4096
_MOST_PLANS = 256


@dataclass(slots=True)
class _Plan:
    model: str
    version: int
    # Name, dtype, shape, and the field's tag and length as they stand before the bytes.
    inputs: tuple[tuple[str, np.dtype[Any], tuple[int, ...], int, bytes], ...]
    outputs: Mapping[str, OutputRequest]
    default: OutputRequest
    options: Mapping[str, Any]
    empty_final: bool
    size: int


class GrpcPlans:
    """How the requests that were seen last are read; used by one thread."""

    def __init__(self) -> None:
        self._plans: dict[bytes, _Plan] = {}

    def read(self, data: bytes) -> tuple[str, int, InferCall] | None:
        """Return model, version and call of a request like one before; None if it is like none."""
        found = _split(data)
        if found is None:
            return None
        key, id_at, id_end, at = found
        plan = self._plans.get(key)
        if plan is None or len(data) - at != plan.size:
            return None
        arrays: dict[str, Array] = {}
        for name, dtype, shape, size, head in plan.inputs:
            end = at + len(head)
            if data[at:end] != head:
                return None
            array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, data, end)
            arrays[name] = array if array.flags.aligned else array.copy()
            at = end + size
        options = dict(plan.options)
        if id_end > id_at:
            try:
                options["request_id"] = data[id_at:id_end].decode()
            except UnicodeDecodeError:
                return None
        call = InferCall(arrays, plan.outputs, plan.default, options, [], plan.empty_final)
        return plan.model, plan.version, call

    def learn(self, data: bytes, request: Any, version: int, call: InferCall) -> None:
        """Remember how a request was read, if another like it can be read the same way."""
        found = _split(data)
        inputs = request.inputs
        raw = request.raw_input_contents
        if (
            found is None
            or len(found[0]) > _LONGEST_KEY
            or call.leases
            or len(raw) != len(inputs)
            or not call.options.keys() <= _KEPT_OPTIONS
            or not all(t.datatype in _VIEWED and not t.HasField("contents") for t in inputs)
        ):
            return
        described = []
        total = 0
        for tensor, content in zip(inputs, raw, strict=True):
            head = bytes((_RAW,)) + _varint(len(content))
            shape = tuple(tensor.shape)
            described.append((tensor.name, _VIEWED[tensor.datatype], shape, len(content), head))
            total += len(head) + len(content)
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        options = {key: value for key, value in call.options.items() if key != "request_id"}
        self._plans[found[0]] = _Plan(
            request.model_name, version, tuple(described), call.outputs, call.default, options,
            call.empty_final, total,
        )  # fmt: skip


def _split(data: bytes) -> tuple[bytes, int, int, int] | None:
    """Find the request id and where the tensors begin.

    Returns
    -------
    key, id_at, id_end, raw_at
        The key is what stands before the tensors, without the id; None if there is anything that
        protobuf had better read.
    """
    at = field_at = id_at = id_end = id_field = 0
    end = len(data)
    try:
        while at < end:
            tag = data[at]
            if tag == _RAW:
                break
            if tag not in _BEFORE_RAW:
                return None
            field_at = at
            length = data[at + 1]
            at += 2
            if length > 0x7F:
                length, at = _read_varint(data, at - 1)
            if tag == _ID:
                if id_end:  # a second one counts, not the first
                    return None
                id_field, id_at, id_end = field_at, at, at + length
            at += length
    except IndexError:
        return None
    if at > end:
        return None
    if id_end:
        return data[:id_field] + data[id_end:at], id_at, id_end, at
    return data[:at], 0, 0, at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 28:  # no message is that long
            raise IndexError


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# -- responses ---------------------------------------------------------------------------------------

Labels = Callable[[str], Sequence[str]]
_FINAL = "triton_final_response"
_LIMIT = (1 << 31) - 1


def encode_response(
    call: Call,
    outputs: Mapping[str, Array],
    parameters: Mapping[str, Any],
    *,
    model_name: str,
    model_version: int,
    batches: bool,
    labels: Labels,
) -> bytes:
    """Return a serialized ModelInferResponse.

    Parameters
    ----------
    call : Call
        Says how each output is wanted; those in shared memory are written there.
    outputs : mapping of str to array
        In the order in which the model made them, which the answer keeps.
    parameters : mapping
        Response parameters.
    batches : bool
        Whether the first dimension is the batch, for classification.
    labels : callable
        ``labels(output)`` gives the class labels of an output.

    Raises
    ------
    TritonError
        An output cannot travel the way it was asked for, or the answer is too large for gRPC.
    """
    parts: list[Any] = [_model_fields(model_name, model_version)]
    request_id = call.request_id
    if request_id:
        encoded = request_id.encode()
        parts += (b"\x1a", _varint(len(encoded)), encoded)
    if parameters:
        parts.append(_parameters(parameters))
    raw: list[Any] = []
    for name, array in outputs.items():
        wanted = call.wanted(name)
        if wanted.classes:
            array = classify(array, wanted.classes, batches, labels(name))  # noqa: PLW2901
        parts.append(_output_field(name, datatype_of(array), shape_of(array)))
        if wanted.lease is not None:
            write_shared(wanted.lease.view, array, name)
            raw.append(b"\x32\x00")
            continue
        if type(array) is np.ndarray and array.dtype.kind in "fiub" and array.flags.c_contiguous:
            raw += (b"\x32", _varint(array.nbytes), array)  # joined without a copy in between
        else:
            blob = wire_bytes(array)
            raw += (b"\x32", _varint(len(blob)), blob)
    data = b"".join([*parts, *raw])
    if len(data) > _LIMIT:
        raise InvalidArgumentError(
            f"Response has byte size {len(data)} which exceeds gRPC's byte size limit {_LIMIT}."
        )
    return data


# The beginnings of answers, which are few.
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


def _parameters(parameters: Mapping[str, Any]) -> bytes:
    message = messages.ModelInferResponse()
    set_parameters(message.parameters, parameters)
    field: bytes = message.SerializeToString()
    return field


_IS_FINAL = {final: _parameters({_FINAL: final}) for final in (False, True)}


def encode_stream_response(response: bytes, *, final: bool) -> bytes:
    """Return the ModelStreamInferResponse that carries a serialized response (S-2)."""
    flag = _IS_FINAL[final]
    return b"".join((b"\x12", _varint(len(response) + len(flag)), response, flag))


def encode_stream_error(
    message: str, request_id: str, *, model: str = "", version: int = -1, final: bool | None = None
) -> bytes:
    """Return the ModelStreamInferResponse of a request that failed (S-1, S-6).

    Parameters
    ----------
    message, request_id : str
    model, version
        As a request that reached its model has them; -1 for no version.
    final : bool, optional
        The flag of such a request.
    """
    answer = messages.ModelStreamInferResponse(error_message=message)
    answer.infer_response.id = request_id
    if model:
        answer.infer_response.model_name = model
        answer.infer_response.model_version = "" if version == -1 else str(version)
    if final is not None:
        answer.infer_response.parameters[_FINAL].bool_param = final
    data: bytes = answer.SerializeToString()
    return data
