"""Messages of the gRPC endpoint: what is written by hand, and read by its likeness, against protobuf."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tritonclient.grpc", reason="Triton's stubs need grpcio")

import numpy as np
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from nbtriton.backends import RequestOptions
from nbtriton.common.errors import InvalidArgumentError, TritonError
from nbtriton.extensions.grpc.inference import ProtoTemplates
from nbtriton.extensions.grpc.requests import (
    MOST_FIELDS,
    messages,
    parse,
    parse_at_once,
    read_long,
    read_request,
    read_request_id,
    varint,
)
from nbtriton.extensions.grpc.responses import (
    encode_response,
    encode_stream_error,
    encode_stream_response,
)
from nbtriton.model.config import parse_pbtxt
from nbtriton.model.tensors import DATATYPES
from nbtriton.runtime.engine import ModelSignature
from nbtriton.serving.frontends.kserve.call import InferCall, OutputRequest
from nbtriton.serving.frontends.kserve.shared_memory import SharedMemory
from nbtriton.serving.frontends.kserve.wire import MOST_STRINGS, read_version
from tests.frontends.grpc_support import infer, tensor

SIGNATURE = ModelSignature(
    parse_pbtxt(
        """
        name: "m" backend: "python" max_batch_size: 8
        input { name: "A" data_type: TYPE_FP32 dims: [ 2 ] }
        input { name: "B" data_type: TYPE_INT8 dims: [ -1 ] optional: true }
        output { name: "X" data_type: TYPE_FP32 dims: [ 2 ] }
        output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }
        """
    )
)
LEASING = SharedMemory().lease


def _slow(data: bytes) -> Any:
    """What protobuf and the checks say of a request."""
    request, _ = parse_at_once(messages.ModelInferRequest, data)
    version = read_version(request.model_version)
    return request, version, read_request(request, SIGNATURE, LEASING)


def _contents(call: Any) -> Any:
    arrays = {
        name: (
            array.dtype,
            array.shape,
            array.tolist() if array.dtype == object else array.tobytes(),
        )
        for name, array in call.arrays.items()
    }
    outputs = {name: (wanted.kind, wanted.classes) for name, wanted in call.outputs.items()}
    return arrays, outputs, repr(call.options), call.default.kind, call.empty_final


def _read(templates: ProtoTemplates, data: bytes) -> Any:
    """Read as the endpoint does: like one before, or anew."""
    like = templates.read(data)
    if like is not None:
        name, version, call = like
        return name, version, _contents(call), True
    try:
        request, version, call = _slow(data)
    except TritonError as error:
        return type(error).__name__, error.message
    templates.remember(data, request, version, call)
    return request.model_name, version, _contents(call), False


ids = st.one_of(st.just(""), st.text(max_size=200), st.sampled_from(["a", "b"]))
small = st.one_of(st.booleans(), st.integers(-5, 5), st.text(max_size=3))


@st.composite
def requests(draw: Any) -> Any:
    batch = draw(st.integers(0, 3))
    inputs = [tensor("A", shape=[batch, 2])]
    raw = [draw(st.binary(min_size=batch * 8, max_size=batch * 8 + draw(st.integers(0, 1))))]
    if draw(st.booleans()):
        length = draw(st.sampled_from([0, 1, 130]))
        inputs.append(tensor("B", "INT8", [batch, length]))
        raw.append(draw(st.binary(min_size=batch * length, max_size=batch * length)))
    if draw(st.booleans()):
        inputs.reverse()
        raw.reverse()
    names = ("p", "priority", "timeout", "sequence_id", "triton_enable_empty_final_response")
    parameters = draw(st.dictionaries(st.sampled_from(names), small, max_size=2))
    outputs = draw(
        st.dictionaries(st.sampled_from(["X", "Y"]), st.sampled_from([{}, {"classification": 2}]))
    )
    return infer(
        "m", inputs, raw, outputs, parameters, draw(ids), draw(st.sampled_from(["", "1", "x"]))
    )


@pytest.mark.medium
@given(st.lists(requests(), min_size=1, max_size=4), st.lists(ids, min_size=1, max_size=3))
def test_templates_read_requests_as_protobuf_does(wanted: list[Any], names: list[str]) -> None:
    templates = ProtoTemplates()
    for message in wanted:
        for name in ["", *names]:
            message.id = name
            data = message.SerializeToString()
            first, again = _read(templates, data), _read(templates, data)
            assert first[:3] == again[:3] == _read(ProtoTemplates(), data)[:3]


@given(requests(), st.data())
@pytest.mark.medium
def test_fields_in_any_order_and_any_bytes(message: Any, data: Any) -> None:
    """Concatenation is merging in protobuf: a message may come in pieces, and broken."""
    templates = ProtoTemplates()
    whole = message.SerializeToString()
    _read(templates, whole)
    other = data.draw(requests()).SerializeToString()
    at = data.draw(st.integers(0, len(whole)))
    cut = whole[:at] + data.draw(st.binary(max_size=3)) + whole[at:]
    for variant in (whole + other, other + whole, cut, whole[:at]):
        assert _read(templates, variant)[:3] == _read(ProtoTemplates(), variant)[:3]


typed = st.one_of(
    st.tuples(st.just("FP32"), st.just("fp32_contents"), st.lists(st.floats(width=32))),
    st.tuples(st.just("INT8"), st.just("int_contents"), st.lists(st.integers(-(1 << 31), (1 << 31) - 1))),
    st.tuples(st.just("INT64"), st.just("int64_contents"), st.lists(st.integers(-(1 << 63), (1 << 63) - 1))),
    st.tuples(st.just("UINT64"), st.just("uint64_contents"), st.lists(st.integers(0, (1 << 64) - 1))),
    st.tuples(st.just("BOOL"), st.just("bool_contents"), st.lists(st.booleans())),
    st.tuples(st.just("BYTES"), st.just("bytes_contents"), st.lists(st.binary(max_size=5))),
)  # fmt: skip
ANY = {
    datatype: ModelSignature(parse_pbtxt(
        f'name: "m" backend: "python" input {{ name: "A" data_type: TYPE_{kind} dims: -1 }} '
        'output { name: "X" data_type: TYPE_FP32 dims: 1 }'
    ))
    for datatype, kind in {**{n: n for n in DATATYPES}, "BYTES": "STRING"}.items()
}  # fmt: skip


def _whole(data: bytes, signature: ModelSignature, parsed_by: Any) -> Any:
    try:
        request, *contents = parsed_by(messages.ModelInferRequest, data)
        return _contents(read_request(request, signature, LEASING, *contents))
    except (TritonError, DecodeError):
        return "refused"


@given(requests(), requests(), st.integers(0, 500))
@pytest.mark.medium
def test_a_long_message_is_read_as_a_short_one(message: Any, other: Any, at: int) -> None:
    data = message.SerializeToString()
    for variant in (data, data + other.SerializeToString(), data[:at]):
        found = _whole(variant, SIGNATURE, read_long)
        assert found == _whole(variant, SIGNATURE, parse_at_once)


@given(typed, typed)
def test_typed_contents_of_a_long_message_are_read_as_those_of_a_short_one(
    first: Any, second: Any
) -> None:
    datatype, field, values = first
    one = tensor("A", datatype, [len(values)], **{field: values})
    getattr(one.contents, second[1]).extend(second[2])  # perhaps of another datatype
    data = infer("m", [one], []).SerializeToString()
    found = _whole(data, ANY[datatype], read_long)
    assert found == _whole(data, ANY[datatype], parse_at_once)
    assert _whole(data[:-1], ANY[datatype], read_long) == "refused"


def _field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def test_elements_that_are_not_packed_and_those_of_several_messages_are_one_tensor() -> None:
    about = _field(1, b"A") + _field(2, b"FP32") + _field(3, b"\x03")
    values = [np.float32(n).tobytes() for n in (1, 2, 3)]
    contents = _field(5, _field(6, values[0])) + _field(
        5, b"\x35" + values[1] + b"\x35" + values[2]
    )
    data = _field(1, b"m") + _field(5, about + contents)
    assert _whole(data, ANY["FP32"], read_long) == _whole(data, ANY["FP32"], parse_at_once)


INPUT = _field(1, b"A") + _field(2, b"FP32") + _field(3, b"\x01")
TOO_MANY = MOST_FIELDS + 1


@pytest.mark.parametrize(
    "data",
    [
        b"\x2a\x00" * TOO_MANY,
        b"\x32\x00" * TOO_MANY,
        b"\x3a\x00" * TOO_MANY,
        b"\x22\x00" * TOO_MANY,
        b"\x78\x01" * TOO_MANY,
        _field(5, b"\x0a\x00" * TOO_MANY),
        _field(5, b"\x22\x00" * TOO_MANY),
        _field(5, _field(4, b"\x0a\x00" * TOO_MANY)),
        _field(5, _field(3, b"\x02" * TOO_MANY)),
        _field(5, INPUT + _field(5, b"\x10\x01" * TOO_MANY)),
        _field(5, INPUT + _field(5, b"\x78\x01" * TOO_MANY)),
    ],
    ids=[
        "inputs", "outputs", "raw", "parameters", "unknown", "names", "input parameters", "keys", "dimensions",
        "not packed", "unknown in contents",
    ],
)  # fmt: skip
def test_a_message_with_too_many_fields_is_refused_before_it_is_built(data: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match=f"more than {MOST_FIELDS} fields"):
        parse(messages.ModelInferRequest, data)


def test_every_method_counts_the_fields_of_its_request() -> None:
    data = _field(3, _field(1, b"k") + _field(2, _field(1, b"v") * TOO_MANY))
    for kind in (messages.RepositoryModelLoadRequest, messages.TraceSettingRequest):
        with pytest.raises(InvalidArgumentError, match="more than"):
            parse(kind, data.replace(b"\x1a", b"\x0a", 1) if "Trace" in kind.__name__ else data)


def test_a_tensor_with_too_many_strings_is_refused() -> None:
    about = _field(1, b"A") + _field(2, b"BYTES") + _field(3, varint(MOST_STRINGS + 1))
    data = _field(5, about) + _field(7, bytes(4))
    with pytest.raises(InvalidArgumentError, match=f"more than {MOST_STRINGS} elements"):
        read_request(*parse_at_once(messages.ModelInferRequest, data)[:1], ANY["BYTES"], LEASING)


@pytest.mark.medium
def test_tensors_of_any_size_are_read() -> None:
    values = np.arange(3_000_000, dtype=np.float32)
    numbers = np.arange(-(1 << 20), 1 << 20, dtype=np.int64) * 1_000_003
    for datatype, field, given_ in (
        ("FP32", "fp32_contents", values),
        ("INT64", "int64_contents", numbers),
    ):
        data = infer(
            "m", [tensor("A", datatype, [len(given_)], **{field: given_})], []
        ).SerializeToString()
        request, contents = parse(messages.ModelInferRequest, data)
        read = read_request(request, ANY[datatype], LEASING, contents)
        np.testing.assert_array_equal(read.arrays["A"], given_)


def test_the_id_of_a_request_with_an_error_is_found() -> None:
    data = infer("m", request_id="i").SerializeToString()
    assert read_request_id(data + b"\x2a\x00" * TOO_MANY) == "i"
    assert read_request_id(data + b"\x2a") == read_request_id(b"\x1a\x01\xff") == ""


def test_the_second_request_is_read_by_its_template() -> None:
    templates = ProtoTemplates()
    read = [
        _read(templates, infer("m", [tensor("A", shape=[1, 2])], [bytes([n] * 8)], request_id=f"i{n}")
              .SerializeToString())
        for n in range(3)
    ]  # fmt: skip
    assert [found[3] for found in read] == [False, True, True]
    assert read[2][2][2] == repr(RequestOptions(request_id="i2"))


@pytest.mark.parametrize(
    "request_",
    [
        infer("m", [tensor("A", shape=[1, 2])], [b"\0" * 8], parameters={"sequence_id": 5}),
        infer("m", [tensor("A", shape=[1, 2])], [b"\0" * 8], parameters={"custom": 5}),
        infer("m", [tensor("A", shape=[1, 2], fp32_contents=[1, 2])], []),
        infer("m", [tensor("A", shape=[1, 2])], [b"\0" * 8, b"more"]),
    ],
    ids=["sequences", "custom parameters", "typed contents", "too many contents"],
)
def test_what_differs_between_requests_is_not_part_of_a_template(request_: Any) -> None:
    templates = ProtoTemplates()
    assert not any(_read(templates, request_.SerializeToString())[3] for _ in range(3))


def test_the_templates_are_bounded() -> None:
    templates = ProtoTemplates()
    for n in range(2000):
        message = infer("m", [tensor("A", shape=[1, 2])], [b"\0" * 8], parameters={"priority": n})
        _read(templates, message.SerializeToString())
    assert len(templates._cache._templates) <= 256


# -- responses ---------------------------------------------------------------------------------------

dtypes = st.sampled_from(["f2", "f4", "f8", "i1", "i4", "u8", "?"])
NAMES = {
    "f2": "FP16",
    "f4": "FP32",
    "f8": "FP64",
    "i1": "INT8",
    "i4": "INT32",
    "u8": "UINT64",
    "?": "BOOL",
}


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.tuples(dtypes, st.lists(st.integers(0, 12), max_size=3), st.booleans()),
        max_size=3,
    ),
    st.dictionaries(st.text(max_size=4), st.one_of(small, st.floats(allow_nan=False))),
    ids,
    st.booleans(),
)
@example({"O": ("f4", [200], False)}, {}, "x" * 300, True)
@pytest.mark.medium
def test_responses_are_what_protobuf_writes(
    outputs: Any, parameters: Any, name: str, final: bool
) -> None:
    arrays = {
        key: np.arange(int(np.prod(shape)), dtype="i8").astype(kind).reshape(shape)[..., ::-1 if flip and shape else 1]
        if shape else np.array(1, kind)
        for key, (kind, shape, flip) in outputs.items()
    }  # fmt: skip
    call = InferCall(options=RequestOptions(request_id=name), default=OutputRequest("binary"))
    data = encode_response(
        call,
        arrays,
        parameters,
        model_name="m",
        model_version=3,
        batches=False,
        labels=lambda *_: (),
    )
    found = pb.ModelInferResponse.FromString(data)
    assert (found.model_name, found.model_version, found.id) == ("m", "3", name)
    assert {
        key: getattr(value, value.WhichOneof("parameter_choice"))
        for key, value in found.parameters.items()
    } == parameters
    for (key, array), output, raw in zip(
        arrays.items(), found.outputs, found.raw_output_contents, strict=True
    ):
        assert (output.name, tuple(output.shape)) == (key, array.shape)
        assert (output.datatype, raw) == (NAMES[outputs[key][0]], array.tobytes())
    streamed = pb.ModelStreamInferResponse.FromString(encode_stream_response(data, final=final))
    assert streamed.infer_response.parameters.pop("triton_final_response").bool_param is final
    assert streamed.infer_response == found
    assert not streamed.error_message


def test_strings_and_bfloat16_travel_too() -> None:
    torch = pytest.importorskip("torch")
    words = np.array([b"a", "é"], dtype=object)
    data = encode_response(
        InferCall(default=OutputRequest("binary")), {"S": words, "T": torch.ones(2, dtype=torch.bfloat16)},
        {}, model_name="m", model_version=1, batches=False, labels=lambda *_: (),
    )  # fmt: skip
    found = pb.ModelInferResponse.FromString(data)
    assert [output.datatype for output in found.outputs] == ["BYTES", "BF16"]
    assert list(found.raw_output_contents) == [b"\1\0\0\0a\2\0\0\0\xc3\xa9", b"\x80?\x80?"]


def test_GS1_GS6_errors() -> None:
    refused = pb.ModelStreamInferResponse.FromString(encode_stream_error("no", "i"))
    assert refused == pb.ModelStreamInferResponse(error_message="no", infer_response={"id": "i"})
    failed = pb.ModelStreamInferResponse.FromString(
        encode_stream_error("no", "i", model="m", version=2, final=True)
    )
    assert (failed.infer_response.model_name, failed.infer_response.model_version) == ("m", "2")
    assert failed.infer_response.parameters["triton_final_response"].bool_param is True


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_an_error(data: bytes) -> None:
    templates = ProtoTemplates()
    assert templates.read(data) is None
    try:
        _slow(data)
    except TritonError as error:
        assert error.message  # noqa: PT017
