"""The codecs by themselves, with and without templates."""

from __future__ import annotations

import json
import math
import re
import struct
import warnings
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtriton.backends import RequestOptions
from nbtriton.common.errors import InternalError, InvalidArgumentError, TritonError
from nbtriton.model.config import as_config, normalize
from nbtriton.model.tensors import serialize_bytes
from nbtriton.runtime.engine import ModelSignature, Server
from nbtriton.serving.frontends.http1.inference import best_encoding
from nbtriton.serving.frontends.kserve.call import InferCall, OutputRequest
from nbtriton.serving.frontends.kserve.json_codec import (
    JsonTemplates,
    decode_infer,
    encode_infer,
    json_elements,
    read_json_data,
)
from nbtriton.serving.frontends.kserve.jsontext import (
    MOST_LISTS,
    MOST_MEMBERS,
    dumps,
    empty,
    format_double,
    parse,
    parse_members,
    write_array,
)
from nbtriton.serving.frontends.kserve.shared_memory import SharedMemory
from nbtriton.serving.frontends.kserve.wire import MOST_STRINGS, classify, element_count, wire_bytes
from tests.frontends.models import MODELS

SERVED = tuple(MODELS)

LEASING = SharedMemory().lease
DTYPES = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32,
    "UINT64": np.uint64, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip


def request(inputs: list[tuple[str, str, Any]], **more: Any) -> tuple[bytes, int]:
    """A request with binary inputs: body and header length."""
    described, blobs = [], []
    for name, datatype, array in inputs:
        blob = serialize_bytes(array) if datatype == "BYTES" else array.tobytes()
        described.append(
            {"name": name, "datatype": datatype, "shape": list(array.shape),
             "parameters": {"binary_data_size": len(blob)}}
        )  # fmt: skip
        blobs.append(blob)
    header = json.dumps({**more, "inputs": described}).encode()
    return header + b"".join(blobs), len(header)


@pytest.mark.parametrize("datatype", DTYPES)
@pytest.mark.parametrize("padding", range(8))
def test_KS20_binary_tensors_of_every_datatype(server: Server, datatype: str, padding: int) -> None:
    array = (np.arange(5) % 2).astype(DTYPES[datatype])
    body, length = request([("IN", datatype, array)], more="x" * padding)
    call = decode_infer(
        body, length, server.engine.inspection.signature(f"all_{datatype.lower()}"), LEASING
    )
    found = call.arrays["IN"]
    assert found.flags.aligned
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    if datatype != "FP16":
        text = json_elements(found, datatype)
        assert json.loads(text) == array.tolist()


def test_KS20_bf16(server: Server) -> None:
    from nbtriton.serving.frontends.kserve.wire import WireInput, arrays_of

    bits = np.array([0x3F80, 0x4000], np.uint16)

    class ModelSignature:
        name = "m"
        inputs: dict[str, Any] = {}

    tensor = WireInput("IN", "BF16", (2,), bits.tobytes())
    array = arrays_of(ModelSignature(), [tensor])["IN"]  # type: ignore[arg-type]
    assert wire_bytes(array) == bits.tobytes()
    with pytest.raises(InvalidArgumentError, match="sending BF16 data via JSON"):
        json_elements(array, "BF16")


def test_a_tensor_behind_an_aligned_header_is_not_copied(server: Server) -> None:
    array = np.arange(4, dtype=np.int32)
    for padding in range(16):
        body, length = request([("IN", "INT32", array)], more="x" * padding)
        found = decode_infer(
            body, length, server.engine.inspection.signature("flexible"), LEASING
        ).arrays["IN"]
        if np.frombuffer(body, np.uint8).__array_interface__["data"][0] + length & 3 == 0:
            assert np.shares_memory(found, np.frombuffer(body, np.uint8))
            return
    pytest.fail("no header was aligned")


def test_a_template_reads_requests_as_the_codec_does(server: Server) -> None:
    templates = JsonTemplates()
    signature = server.engine.inspection.signature("two")
    for number in range(6):
        arrays = [np.full((1, 4), number + i, np.float32) for i in range(2)]
        body, length = request(
            [("INPUT0", "FP32", arrays[0]), ("INPUT1", "FP32", arrays[1])],
            id=f"request {number}",
            outputs=[{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
        )
        found = decode_infer(body, length, signature, LEASING, templates)
        alone = decode_infer(body, length, signature, LEASING)
        assert repr(found.options) == repr(alone.options)
        assert found.options.request_id == f"request {number}"
        assert found.outputs == alone.outputs
        for name, array in zip(("INPUT0", "INPUT1"), arrays, strict=True):
            np.testing.assert_array_equal(found.arrays[name], array)


def test_a_template_with_another_size_of_tensors_does_not_apply(server: Server) -> None:
    templates = JsonTemplates()
    signature = server.engine.inspection.signature("one")
    body, length = request([("IN", "FP32", np.ones((1, 4), np.float32))])
    decode_infer(body, length, signature, LEASING, templates)
    for wrong in (body + b"!", body[:-1]):
        with pytest.raises(InvalidArgumentError) as caught:
            decode_infer(wrong, length, signature, LEASING, templates)
        with pytest.raises(InvalidArgumentError) as alone:
            decode_infer(wrong, length, signature, LEASING)
        assert caught.value.message == alone.value.message


@pytest.mark.parametrize(
    "head", ['{"id": "a", "id": "b", ', '{"id": "a\\n", ', '{"ID": "a", ', "{"]
)
def test_the_last_id_counts_also_with_a_template(server: Server, head: str) -> None:
    templates = JsonTemplates()
    body, length = request([("IN", "FP32", np.ones((1, 4), np.float32))])
    body = head.encode() + body[1:]
    length += len(head) - 1
    expected = decode_infer(
        body, length, server.engine.inspection.signature("one"), LEASING
    ).options
    for _ in range(3):
        found = decode_infer(
            body, length, server.engine.inspection.signature("one"), LEASING, templates
        )
        assert repr(found.options) == repr(expected)


@pytest.mark.medium
@pytest.mark.parametrize(("datatype", "width"), [("FP64", 64), ("FP32", 32)])
def test_numbers_in_json_are_the_nearest_ones(datatype: str, width: Literal[32, 64]) -> None:
    config = as_config(
        f"""input {{ name: "IN" data_type: TYPE_{datatype} dims: -1 }}
        output {{ name: "OUT" data_type: TYPE_{datatype} dims: -1 }}"""
    )
    signature = ModelSignature(normalize(config, name="numbers"))

    @given(st.lists(st.floats(width=width, allow_nan=False), min_size=1))
    def come_back(values: list[float]) -> None:
        tensor = {"name": "IN", "datatype": datatype, "shape": [len(values)], "data": values}
        body = json.dumps({"inputs": [tensor]}).encode()
        found = decode_infer(body, len(body), signature, LEASING).arrays["IN"]
        assert found.tolist() == values

    come_back()


@pytest.mark.medium
@given(st.floats(width=64))
def test_KS23_doubles_come_back(value: float) -> None:
    text = format_double(value)
    assert text in ("NaN", "Infinity", "-Infinity") or "." in text or "e" in text
    back = float(text)
    assert back == value or (math.isnan(back) and math.isnan(value))
    assert math.copysign(1, back) == math.copysign(1, value) or math.isnan(value)


@given(st.lists(st.floats(width=32)))
def test_KS23_lists_are_written_as_their_elements(values: list[float]) -> None:
    text = write_array(np.array(values, np.float32)).decode()
    assert text == "[" + ",".join(map(format_double, values)) + "]"


def test_KS23_a_signalling_nan_is_written_without_a_warning() -> None:
    signalling = np.array([0x7F800001, 0xFFBFFFFF], np.uint32).view(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert write_array(signalling) == b"[NaN,NaN]"


@pytest.mark.medium
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text() | st.integers(-(1 << 63), (1 << 64) - 1), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12))  # fmt: skip
def test_json_comes_back(value: Any) -> None:
    back = parse(dumps(value))
    assert repr(back) == repr(value)


@pytest.mark.parametrize("text", [b'"\xff"', b'{"\xff\xfe":"\x80"}'])
def test_bytes_that_are_not_utf8_come_back(text: bytes) -> None:
    assert dumps(parse(text)) == text


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 60_000, b"[" * 100_000 + b"\xff"])
def test_deep_texts_are_refused(text: bytes) -> None:
    with pytest.raises(TritonError, match="failed to parse the request JSON buffer"):
        parse(text)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=9), st.integers(1, 12))
def test_classification_is_a_stable_sort(values: list[int], count: int) -> None:
    for dtype in (np.int8, np.float64, np.uint16):
        array = np.array(values).astype(dtype)
        found = [item.split(b":") for item in classify(array, count, False, ()).tolist()]
        order = sorted(range(len(values)), key=lambda i: (-float(array[i]), i))[:count]
        assert [int(index) for _, index in found] == order


def test_classification_labels_end_where_the_file_ends() -> None:
    array = np.array([[3, 1, 2]], np.int32)
    found = classify(array, 3, True, ("zero", ""))
    assert found.tolist() == [[b"3:0:zero", b"2:2", b"1:1"]]


@pytest.mark.parametrize(
    ("accepted", "best"),
    [
        ("gzip", "gzip"), ("deflate, gzip", "deflate"), ("gzip;q=0.5, deflate;q=0.4", "gzip"),
        ("*", "identity"), ("br", "identity"), ("identity;q=0.5,gzip;q=0.6", "gzip"),
        ("gzip;q=0", "identity"), ("gzip;q=x", "identity"), ("", "identity"), ("  gzip", "gzip"),
    ],
)  # fmt: skip
def test_accept_encoding(accepted: str, best: str) -> None:
    assert best_encoding(accepted) == best


def test_the_head_of_a_binary_answer() -> None:
    call = InferCall(default=OutputRequest("binary"), options=RequestOptions(request_id='a"b'))
    outputs = {
        "A": np.ones((1, 2), np.float32),
        "EMPTY": np.ones((0,), np.int8),
        "B": np.array([b"x"], dtype=object),
    }
    parts, header_length = encode_infer(
        call, outputs, {"p": True}, model_name="m", model_version=3, batches=False,
        labels=lambda *_: (),
    )  # fmt: skip
    text = (
        b'{"id":"a\\"b","model_name":"m","model_version":"3","parameters":{"p":true},"outputs":['
        b'{"name":"A","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}},'
        b'{"name":"EMPTY","datatype":"INT8","shape":[0],"parameters":{"binary_data_size":0}},'
        b'{"name":"B","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":5}}]}'
    )
    assert parts == [text, struct.pack("<2f", 1, 1), b"\1\0\0\0x"]
    assert header_length == len(text)


def test_the_order_of_outputs_is_the_models(port: int) -> None:
    from tests.frontends.cases import CASES, ask

    (case,) = (case for case in CASES if case.id == "KS27 duplicate outputs")
    assert [output["name"] for output in ask(port, case).json["outputs"]] == ["OUTPUT0", "OUTPUT1"]


JSON_TEXTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
).map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


@pytest.mark.slow
@given(JSON_TEXTS, st.binary(max_size=3), st.integers(0, 200))
def test_long_texts_are_read_as_short_ones(text: bytes, junk: bytes, place: int) -> None:
    place %= len(text) + 1
    text = text[:place] + junk + text[place:]

    def read(source: bytes) -> str:
        try:
            return repr(parse(source))
        except TritonError as error:
            return error.message

    lead = 256 << 10
    found = re.sub(
        r"at (\d+)$", lambda end: f"at {max(int(end[1]) - lead, 0)}", read(b" " * lead + text)
    )
    # Strings that are not UTF-8 are read in short texts only.
    assert found == read(text) or (found == NOT_UTF_8 and not is_utf_8(text))


NOT_UTF_8 = "the JSON of a long request must be UTF-8"


def is_utf_8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


STRING = json.dumps(
    '{"a": [[[[[[[[[[[[[[[[[1, \\', ensure_ascii=False
).encode()  # marks, quotes and backslashes
MANY = {
    "members of objects": (b"{" + b'"a":1,' * MOST_MEMBERS, b'"a":1}'),
    "objects": (b"[" + b"{}," * MOST_MEMBERS, b"{}]"),
    "lists": (b"[" + b"[]," * (MOST_LISTS - 1), b"[]]"),
    "strings": (b"[" + b'"",' * (MOST_STRINGS + 100), b'""]'),
}


@pytest.mark.medium
@pytest.mark.parametrize("read", [parse, parse_members])
@pytest.mark.parametrize("what", MANY)
def test_a_text_with_too_many_parts_is_refused_before_it_is_built(what: str, read: Any) -> None:
    beginning, end = MANY[what]
    with pytest.raises(InvalidArgumentError, match=f"more than [0-9]+ {what}$"):
        read(b" " * (256 << 10) + beginning + end)
    with pytest.raises(InvalidArgumentError, match=f"more than [0-9]+ {what}$"):
        read(b"[" + (STRING + b",") * 40_000 + beginning + end + b"]")


def test_lists_are_emptied_part_by_part() -> None:
    """Freed at once, ten million elements would hold other threads for a second."""
    left: set[int] = set()

    class Element:
        def __del__(self) -> None:
            left.add(len(many))

    many = [Element() for _ in range(200_000)]
    rows = [[1], many, [[many]]]
    empty({"a": ((1, {"b": rows}),)})
    assert (rows, many) == ([], [])
    assert len(left) == 4


@pytest.mark.parametrize("lead", range(9))
def test_what_strings_contain_is_not_counted(lead: int) -> None:
    text = b" " * lead + b"[" + (STRING + b",") * (MOST_MEMBERS + 1) + b"1]"
    assert len(parse(text)) == MOST_MEMBERS + 2


@pytest.mark.medium
@pytest.mark.parametrize("shape", [(200_000,), (1, 200_000), (2, 100_000), (70_000, 3), (1, 1, 70_000, 1)])  # fmt: skip
def test_long_lists_are_read_as_short_ones(shape: tuple[int, ...]) -> None:
    values = np.arange(math.prod(shape)).reshape(shape)
    for datatype in ("BOOL", "INT8", "UINT64", "FP32"):
        elements = values % 2 == 1 if datatype == "BOOL" else values.astype(DTYPES[datatype])
        found = read_json_data(elements.astype(object).tolist(), "IN", datatype, values.size)
        np.testing.assert_array_equal(found, elements.reshape(-1))


@pytest.mark.medium
def test_a_wrong_element_of_a_long_list_is_found() -> None:
    good = [1.0] * 200_000
    for data, count, text in [
        ([*good, True], 200_001, "non-number as double"),
        ([*good, True], 200_000, "does not match true shape"),
        ([good, [good[:7], "x"]], 200_008, "non-number as double"),
        ([*good, 1e300 * 1e300], 199_999, "does not match true shape"),
    ]:
        with pytest.raises(InternalError, match=text):
            read_json_data(data, "IN", "FP32", count)


@pytest.mark.medium
def test_the_elements_of_a_million_dimensions_are_counted_at_once() -> None:
    assert element_count([2] * 1_000_000) == 1 << 64
    assert element_count([2] * 1_000_000 + [0]) == 0
    assert element_count([1] * 100 + [3, 4]) == 12
    assert element_count([]) == 0
