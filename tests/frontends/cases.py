"""Requests over HTTP and what a server must answer: the rules and the error table of Triton 2.51.

Each case is one raw request; the same cases are sent to our endpoint and to the real server.
"""

from __future__ import annotations

import gzip
import http.client
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["CASES", "Case", "Seen", "ask"]

ID = "[request id: <id_unknown>] "
ONES = np.ones(4, np.float32).tobytes()


@dataclass(frozen=True)
class Seen:
    """What a client sees of an answer."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(compare=False)
    reason: str = field(default="", compare=False)

    @property
    def error(self) -> str:
        return json.loads(self.body)["error"]

    @property
    def json(self) -> Any:
        """The JSON part of the body."""
        length = self.headers.get("inference-header-content-length")
        return json.loads(self.body[: int(length)] if length else self.body)


@dataclass(frozen=True)
class Case:
    """A request and its answer: an error text, or the outputs by name."""

    id: str
    status: int
    path: str
    body: bytes = b""
    error: str | None = None
    outputs: Mapping[str, Any] | None = None
    text: bytes | None = None
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    # The real server dies of it, or answers differently on purpose of ours.
    ours_only: bool = False


def ask(port: int, case: Case) -> Seen:
    """Send one request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(case.method, case.path, case.body, dict(case.headers))
        reply = connection.getresponse()
        body = reply.read()
        headers = {k.lower(): v for k, v in reply.getheaders()}
        return Seen(reply.status, body, headers, reply.reason)
    finally:
        connection.close()


def tensor(name: str = "IN", **changes: Any) -> dict[str, Any]:
    """One input; a change to None leaves the member out."""
    found = {"name": name, "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4], **changes}
    return {key: value for key, value in found.items() if value is not None}


def document(*inputs: Any, **more: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **more}).encode()


def infer(
    case: str, status: int, model: str, *inputs: Any, error: str | None = None, **more: Any
) -> Case:
    """A request with JSON only."""
    outputs = more.pop("expect", None)
    ours_only = more.pop("ours_only", False)
    return Case(
        case, status, f"/v2/models/{model}/infer", document(*inputs, **more), error, outputs,
        ours_only=ours_only,
    )  # fmt: skip


def binary(
    case: str,
    status: int,
    model: str,
    inputs: list[Any],
    blob: bytes,
    error: str | None = None,
    *,
    header: str | None = None,
    expect: Any = None,
    **more: Any,
) -> Case:
    """A request with bytes behind the JSON."""
    answer, ours_only = more.pop("text", None), more.pop("ours_only", False)
    text = document(*inputs, **more)
    return Case(
        case, status, f"/v2/models/{model}/infer", text + blob, error, expect, answer,
        headers={"Inference-Header-Content-Length": header or str(len(text))}, ours_only=ours_only,
    )  # fmt: skip


def sized(size: Any, name: str = "IN", **changes: Any) -> dict[str, Any]:
    return tensor(name, data=None, parameters={"binary_data_size": size}, **changes)


def raw(
    case: str, status: int, path: str, body: bytes, error: str | None = None, **more: Any
) -> Case:
    return Case(case, status, path, body, error, **more)


SHAPE_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
    "prepended to each input shape. If you want to specify the full shape including the batch dim "
    "in your input dims config, try setting max_batch_size to zero. See the model configuration "
    "docs for more info on max_batch_size."
)
PARSE = "failed to parse the request JSON buffer: "
UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
FIELDS = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But"
)
TWO = (tensor("INPUT0"), tensor("INPUT1"))
ONE_JSON = document(tensor())
SEQUENCE = "inference request to model 'sequence' must specify "


def words(*items: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


_INFER = [
    infer("A1 unknown model", 404, "nope", tensor(), error="Request for unknown model: 'nope' is not found"),
    infer("A1 unknown version", 404, "one/versions/9", tensor(), error="Request for unknown model: 'one' version 9 is not found"),
    infer("A7 unknown input", 400, "one", tensor("WRONG"), error="unexpected inference input 'WRONG' for model 'one'"),
    infer("A4 missing input", 400, "two", tensor("INPUT0"), error=ID + "expected 2 inputs but got 1 inputs for model 'two'. Got input(s) ['INPUT0'], but missing required input(s) ['INPUT1']. Please provide all required input(s)."),
    infer("missing input with id", 400, "two", tensor("INPUT0"), id="7", error="[request id: 7] expected 2 inputs but got 1 inputs for model 'two'. Got input(s) ['INPUT0'], but missing required input(s) ['INPUT1']. Please provide all required input(s)."),
    infer("unknown input among too many", 400, "two", tensor("INPUT0"), tensor("X"), tensor("INPUT1"), error=ID + "expected 2 inputs but got 3 inputs for model 'two'. Got input(s) ['INPUT1','X','INPUT0'], but missing required input(s) ]. Please provide all required input(s)."),
    infer("unknown input beside an optional one", 400, "optional", tensor("WRONG"), error="unexpected inference input 'WRONG' for model 'optional'"),
    infer("a wrong optional one in the place of a required one", 400, "optional", tensor("INPUT1", datatype="INT32"), error=ID + "inference input 'INPUT1' data-type is 'INT32', but model 'optional' expects 'FP32'"),
    infer("optional in the place of a required one", 400, "optional", tensor("INPUT1"), ours_only=True, error=ID + "expected all required inputs for model 'optional'. Got input(s) ['INPUT1'], but missing required input(s) ['INPUT0']. Please provide all required input(s)."),
    infer("a name with a zero byte", 400, "one", tensor("IN\0"), ours_only=True, error="unexpected inference input 'IN\0' for model 'one'"),
    infer("an unknown input and one without a shape", 400, "two", tensor("INPUT1", shape=[], data=[]), tensor("X"), error="unexpected inference input 'X' for model 'two'"),
    infer("an input without a shape and an unknown one", 400, "two", tensor("X"), tensor("INPUT1", shape=[], data=[]), error=ID + "input 'INPUT1' has no shape but model requires batch dimension for 'two'"),
    infer("duplicate input", 400, "two", tensor("INPUT0"), tensor("INPUT0"), error=ID + "input 'INPUT0' already exists in request"),
    infer("A3 unknown output", 400, "one", tensor(), outputs=[{"name": "WRONG"}], error="unexpected inference output 'WRONG' for model 'one'"),
    infer("A11 wrong dims, batched", 400, "one", tensor(shape=[1, 5], data=[1, 2, 3, 4, 5]), error=ID + "unexpected shape for input 'IN' for model 'one'. Expected [-1,4], got [1,5]. " + SHAPE_NOTE),
    infer("A11 wrong dims, unbatched", 400, "plain", tensor(shape=[5], data=[1, 2, 3, 4, 5]), error=ID + "unexpected shape for input 'IN' for model 'plain'. Expected [4], got [5]. "),
    infer("A8 batch differs", 400, "two", tensor("INPUT0"), tensor("INPUT1", shape=[2, 4], data=[1] * 8), error=ID + "input 'INPUT0' batch size does not match other inputs for 'two'"),
    infer("two shapes are wrong", 400, "two", tensor("INPUT0", shape=[1, 5], data=[1] * 5), tensor("INPUT1", shape=[1, 3], data=[1] * 3), error=ID + "unexpected shape for input 'INPUT1' for model 'two'. Expected [-1,4], got [1,3]. " + SHAPE_NOTE),
    infer("batch sizes before datatypes", 400, "two", tensor("INPUT0", datatype="INT32"), tensor("INPUT1", shape=[2, 4], data=[1] * 8), error=ID + "input 'INPUT0' batch size does not match other inputs for 'two'"),
    infer("batch too large before the datatype", 400, "one", tensor(shape=[9, 4], datatype="INT32", data=[1] * 36), error=ID + "inference request batch-size must be <= 8 for 'one'"),
    infer("A9 batch too large", 400, "one", tensor(shape=[9, 4], data=[1] * 36), error=ID + "inference request batch-size must be <= 8 for 'one'"),
    infer("A14 batch 0", 400, "one", tensor(shape=[0, 4], data=[]), error=ID + "input byte size mismatch for input 'IN' for model 'one'. Expected 16, got 0"),
    infer("A8 no shape, batched", 400, "one", tensor(shape=[], data=[1]), error=ID + "input 'IN' has no shape but model requires batch dimension for 'one'"),
    infer("A10 wrong datatype", 400, "one", tensor(datatype="INT32"), error=ID + "inference input 'IN' data-type is 'INT32', but model 'one' expects 'FP32'"),
    *(
        infer(f"KS20 invalid datatype {name}", 400, "one", tensor(datatype=name), error="invalid datatype for input IN")
        for name in ("TYPE_FP32", "STRING", "FP8", "float32", "")
    ),
    *(
        infer(f"KS37 dimension {dim!r}", 500, "one", tensor(shape=[1, dim]), error="Unable to parse 'shape': " + UNSIGNED)
        for dim in (-4, 4.0, "4", None, True)
    ),
    infer("too few elements", 500, "one", tensor(data=[1, 2, 3]), error="Unable to parse 'data': Shape does not match true shape of 'data' field"),
    infer("too many elements", 500, "one", tensor(data=[1, 2, 3, 4, 5]), error="Unable to parse 'data': Shape does not match true shape of 'data' field"),
    *(
        infer(f"KS22 {value!r} in float data", 500, "one", tensor(data=[1, value, 3, 4]), error="Unable to parse 'data': attempt to access JSON non-number as double")
        for value in ("2", None, True, {})
    ),
    infer("KS22 1.0 in int data", 500, "flexible", tensor(shape=[2], datatype="INT32", data=[1, 1.0]), error="Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
    infer("KS22 true in int data", 500, "flexible", tensor(shape=[2], datatype="INT32", data=[1, True]), error="Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
    infer("KS22 -1 in unsigned data", 500, "all_uint8", tensor(shape=[1], datatype="UINT8", data=[-1]), error="Unable to parse 'data': " + UNSIGNED),
    infer("KS22 -1 in unsigned data of another size", 500, "all_uint8", tensor(shape=[2], datatype="UINT8", data=[-1]), error="Unable to parse 'data': " + UNSIGNED),
    infer("KS22 2^63 in INT64", 500, "all_int64", tensor(shape=[1], datatype="INT64", data=[1 << 63]), error="Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
    infer("KS22 1 in BOOL", 500, "all_bool", tensor(shape=[1], datatype="BOOL", data=[1]), error="Unable to parse 'data': attempt to access JSON non-boolean as boolean"),
    infer("KS22 number in BYTES", 500, "text", tensor(shape=[1], datatype="BYTES", data=[1]), error="Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
    infer("A15 BYTES, too few", 400, "text", tensor(shape=[2], datatype="BYTES", data=["a"]), error=ID + "expected 2 string elements for inference input 'IN' for model 'text', got 1"),
    infer("A15 BYTES, too many", 400, "text", tensor(shape=[1], datatype="BYTES", data=["a", "b"]), error=ID + "unexpected number of string elements 2 for inference input 'IN' for model 'text', expecting 1"),
    infer("KS24 FP16 JSON in", 400, "half", tensor(shape=[1, 2], datatype="FP16", data=[1, 2]), error="receiving FP16 data via JSON is not supported. Please use the binary data format for input IN"),
    binary("KS24 FP16 JSON out", 400, "half", [sized(4, shape=[1, 2], datatype="FP16")], b"\0" * 4, "sending FP16 data via JSON is not supported. Please use the binary data format for output"),
    raw("no inputs", 500, "/v2/models/one/infer", b"{}", "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    raw("KS6 a list", 500, "/v2/models/one/infer", b"[]", "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    raw("KS37 inputs no array", 500, "/v2/models/one/infer", b'{"inputs":{}}', "Unable to parse 'inputs': attempt to access JSON non-array as array"),
    infer("KS37 no name", 500, "one", tensor(name=None), error="Unable to parse 'name': attempt to access non-existing object member 'name'"),
    infer("KS37 no shape", 500, "one", tensor(shape=None), error="Unable to parse 'shape': attempt to access non-existing object member 'shape'"),
    infer("KS37 no datatype", 500, "one", tensor(datatype=None), error="Unable to parse 'datatype': attempt to access non-existing object member 'datatype'"),
    infer("KS38 an input is a number", 400, "one", 5, error=FIELDS + " no field is set"),
    infer("KS38 no data", 400, "one", tensor(data=None), error=FIELDS + " no field is set"),
    infer("KS38 data and binary", 400, "one", tensor(parameters={"binary_data_size": 16}), error=FIELDS + " set 'data' 'binary_data_size'"),
    infer("KS38 all three", 400, "one", tensor(parameters={"binary_data_size": 16, "shared_memory_region": "r"}), error=FIELDS + " set 'data' 'binary_data_size' 'shared_memory_region'"),
    raw("KS6 open brace", 500, "/v2/models/one/infer", b"{", PARSE + "Missing a name for object member. at 1"),
    raw("KS6 no JSON", 500, "/v2/models/one/infer", b"hello", PARSE + "Invalid value. at 0"),
    raw("KS6 garbage behind", 500, "/v2/models/one/infer", ONE_JSON + b" x", PARSE + f"The document root must not be followed by other values. at {len(ONE_JSON) + 1}"),
    raw("KS6 open string", 500, "/v2/models/one/infer", b'{"a', PARSE + "Missing a closing quotation mark in string. at 3"),
    raw("KS6 comma missing", 500, "/v2/models/one/infer", b'{"a":1 "b":2}', PARSE + "Missing a comma or '}' after an object member. at 7"),
    raw("KS6 control character", 500, "/v2/models/one/infer", b'{"id":"a\nb"}', PARSE + "Invalid escape character in string. at 8"),
    raw("KS6 control character and no UTF-8", 500, "/v2/models/one/infer", b'{"id":"\xff\x1f"}', PARSE + "Invalid escape character in string. at 8"),
    raw("the first of equal members counts", 200, "/v2/models/one/infer", b'{"id":"a","id":"b",' + ONE_JSON[1:-1] + b',"inputs":5}', text=b'{"id":"a","model_name":"one","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32","shape":[1,4],"data":[1.0,2.0,3.0,4.0]}]}'),
    raw("the first of equal members counts, no UTF-8", 200, "/v2/models/text/infer", b'{"inputs":[{"name":"IN","shape":[1],"datatype":"BYTES","data":["\xff"],"data":["b"]}]}', text=b'{"model_name":"text","model_version":"1","outputs":[{"name":"OUT","datatype":"BYTES","shape":[1],"data":["\xff"]}]}'),
    raw("KS34 the first of equal parameters counts", 200, "/v2/models/one/infer", ONE_JSON[:-1] + b',"parameters":{"priority":0,"priority":"x"}}', outputs={"OUT": [1.0, 2.0, 3.0, 4.0]}),
    raw("whitespace behind", 200, "/v2/models/one/infer", ONE_JSON + b" \n\t ", outputs={"OUT": [1.0, 2.0, 3.0, 4.0]}),
    raw("KS31 empty body, two inputs", 400, "/v2/models/two/infer", b"", ID + "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'two' model configuration"),
    infer("KS37 id is a number", 500, "one", tensor(), id=5, error="Unable to parse 'id': attempt to access JSON non-string as string"),
    binary("KS39 header length too large", 400, "one", [sized(16)], ONES, f"inference header size should be in range (0, {len(document(sized(16))) + 16}), got: 100000", header="100000"),
    binary("KS39 header length negative", 400, "one", [sized(16)], ONES, f"inference header size should be in range (0, {len(document(sized(16))) + 16}), got: -3", header="-3"),
    binary("KS39 header length too small", 500, "one", [sized(16)], ONES, PARSE + "Missing a name for object member. at 1", header="1"),
    binary("KS39 blob too short", 400, "one", [sized(16)], ONES[:8], "unexpected size for input 'IN', expecting 8 additional bytes for model 'one'"),
    binary("KS39 bytes left over", 400, "one", [sized(16)], ONES + b"!", "unexpected additional input data for model 'one'"),
    binary("KS39 declared size is not the shape's", 400, "one", [sized(12)], ONES[:12], ID + "input byte size mismatch for input 'IN' for model 'one'. Expected 16, got 12"),
    binary("KS39 two sizes are wrong", 400, "two", [sized(12, "INPUT0"), sized(12, "INPUT1")], ONES[:12] * 2, ID + "input byte size mismatch for input 'INPUT1' for model 'two'. Expected 16, got 12"),
    binary("wrong datatype and size", 400, "one", [sized(12, datatype="INT64")], ONES[:12], ID + "inference input 'IN' data-type is 'INT64', but model 'one' expects 'FP32'"),
    binary("wrong shape and size", 400, "one", [sized(12, shape=[1, 5])], ONES[:12], ID + "unexpected shape for input 'IN' for model 'one'. Expected [-1,4], got [1,5]. " + SHAPE_NOTE),
    binary("invalid datatype and shape, binary", 400, "plain", [sized(3, shape=[1, 1], datatype="")], b"123", ID + "inference input 'IN' data-type is '<invalid>', but model 'plain' expects 'FP32'"),
    binary("BYTES where there are none, wrong shape", 400, "half", [sized(5, shape=[1, 4, 1], datatype="BYTES")], words(b"a"), ID + "inference input 'IN' data-type is 'BYTES', but model 'half' expects 'FP16'"),
    binary("BF16 where there is none, wrong shape", 400, "all_fp64", [sized(3, shape=[1, 2], datatype="BF16")], b"123", ID + "inference input 'IN' data-type is 'BF16', but model 'all_fp64' expects 'FP64'"),
    binary("invalid datatype, binary", 400, "one", [sized(16, datatype="FP8")], ONES, ID + "inference input 'IN' data-type is '<invalid>', but model 'one' expects 'FP32'"),
    *(
        binary(f"KS39 binary_data_size {size!r}", 500, "one", [sized(size)], ONES, "Unable to parse 'binary_data_size': " + UNSIGNED)
        for size in ("16", -1)
    ),
    binary("BYTES overrun", 400, "text", [sized(6, shape=[1], datatype="BYTES")], struct.pack("<I", 100) + b"ab", "incomplete string data for inference input 'IN', expecting string of length 100 but only 2 bytes available"),
    binary("A15 BYTES cut length", 400, "text", [sized(2, shape=[1], datatype="BYTES")], b"\1\0", ID + "incomplete string length indicator for inference input 'IN' for model 'text', expecting 4 bytes but only 2 bytes available. Please make sure the string length indicator is in one buffer."),
    binary("A15 BYTES binary, too few", 400, "text", [sized(5, shape=[2], datatype="BYTES")], words(b"a"), ID + "expected 2 string elements for inference input 'IN' for model 'text', got 1"),
    binary("A15 BYTES cut, and too few", 400, "text", [sized(4, shape=[2], datatype="BYTES")], b"abcd", ID + "expected 2 string elements for inference input 'IN' for model 'text', got 1"),
    binary("A15 BYTES binary, too many", 400, "text", [sized(10, shape=[1], datatype="BYTES")], words(b"a", b"b"), ID + "unexpected number of string elements 2 for inference input 'IN' for model 'text', expecting 1"),
    raw("KS31 raw, wrong multiple", 400, "/v2/models/plain/infer", b"123456", ID + "input byte size mismatch for input 'raw_input' for model 'plain'. Expected 16, got 6", headers={"Inference-Header-Content-Length": "0"}),
    raw("KS31 raw, two variable dims", 400, "/v2/models/wide/infer", b"1234", ID + "The shape of the raw input 'IN' can not be deduced because there are more than one variable-sized dimension", headers={"Inference-Header-Content-Length": "0"}),
    raw("KS31 raw BYTES, shape not [1]", 400, "/v2/models/text/infer", b"1234", ID + "For BYTE datatype raw input 'IN', the model must have input shape [1]", headers={"Inference-Header-Content-Length": "0"}),
    raw("KS32 Content-Encoding br", 501, "/v2/models/one/infer", ONE_JSON, "Unsupported compression type", headers={"Content-Encoding": "br"}),
    raw("KS32 Content-Encoding list", 501, "/v2/models/one/infer", ONE_JSON, "Unsupported compression type", headers={"Content-Encoding": "gzip, deflate"}),
    raw("KS32 Content-Encoding empty", 501, "/v2/models/one/infer", ONE_JSON, "Unsupported compression type", headers={"Content-Encoding": ""}),
    raw("KS32 gzip that is none", 400, "/v2/models/two/infer", b"no gzip", "the compressed request cannot be read: Error -3 while decompressing data: incorrect header check", headers={"Content-Encoding": "gzip"}, ours_only=True),
    *(
        infer(f"KS33 classification {value!r}", 500, "labelled", tensor(shape=[1, 3], data=[1, 2, 3]), outputs=[{"name": "OUT", "parameters": {"classification": value}}], error="Unable to set 'classification': " + UNSIGNED)
        for value in ("2", -1, 1.5)
    ),
    infer("KS33 classification on BOOL", 400, "all_bool", tensor(shape=[2], datatype="BOOL", data=[True, False]), outputs=[{"name": "OUT", "parameters": {"classification": 1}}], error="class result not available for output due to unsupported type 'BOOL'"),
    infer("KS48 classification on BYTES", 400, "text", tensor(shape=[2], datatype="BYTES", data=["a", "b"]), outputs=[{"name": "OUT", "parameters": {"classification": 1}}], error="class result not available for output due to unsupported type 'BYTES'", ours_only=True),
    infer("KS48 shape of 2^40", 400, "flexible", tensor(shape=[1 << 40], datatype="INT32", data=[1]), ours_only=True),
    infer("KS48 shape of 2^40, twice", 400, "wide", tensor(shape=[1 << 40, 1 << 40], data=[1]), ours_only=True),
    *(
        infer(f"KS34 parameter {value!r}", 400, "one", tensor(), parameters={"mine": value}, error="parameter 'mine' has invalid type. It should be either 'int', 'bool', or 'string'.")
        for value in (None, [1], {"a": 1})
    ),
    infer("KS34 parameters no object", 500, "one", tensor(), parameters=5, error="failed to get request params.: attempt to get members for non-object"),
    infer("KS34 triton_ parameter", 400, "one", tensor(), parameters={"triton_x": 1}, error="parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."),
    *(
        infer(f"KS34 {name} {value!r}", 500, "one", tensor(), parameters={name: value}, error=f"Unable to parse '{name}': " + UNSIGNED)
        for name in ("priority", "timeout")
        for value in (-1, "1")
    ),
    infer("binary_data_output 1", 500, "one", tensor(), parameters={"binary_data_output": 1}, error="Unable to parse 'binary_data_output': attempt to access JSON non-boolean as boolean"),
    infer("KS36 sequence_id 1.5", 500, "one", tensor(), parameters={"sequence_id": 1.5}, error="Unable to parse 'sequence_id': attempt to access JSON non-string as string"),
    infer("sequence_start 1", 500, "one", tensor(), parameters={"sequence_start": 1}, error="Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean"),
    infer("Y5 decoupled", 501, "stream", tensor(shape=[1], datatype="INT32", data=[1]), error="HTTP end point doesn't support models with decoupled transaction policy"),
    infer("SQ2 sequence, no id", 400, "sequence", tensor(), error=SEQUENCE + "a non-zero or non-empty correlation ID"),
    infer("SQ3 sequence not started", 400, "sequence", tensor(), parameters={"sequence_id": 9}, error="inference request for sequence 9 to model 'sequence' must specify the START flag on the first request of the sequence"),
    infer("SQ1 sequence, batch 2", 400, "sequence", tensor(shape=[2, 4], data=[1] * 8), parameters={"sequence_id": 9, "sequence_start": True}, error=SEQUENCE + "batch-size 1 due to requirements of sequence batcher"),
    infer("KS36 string id too long", 501, "sequence", tensor(), parameters={"sequence_id": "x" * 129}, error="string correlation ID cannot be longer than 128 characters"),
    infer("model error", 500, "failing", tensor(), error="not today"),
    infer("KS37 outputs no array", 500, "one", tensor(), outputs={}, error="Unable to parse 'outputs': attempt to access JSON non-array as array"),
    infer("KS37 output without name", 500, "one", tensor(), outputs=[{}], error="Unable to parse 'name': attempt to access non-existing object member 'name'"),
    infer("KS30 binary_data 1", 500, "one", tensor(), outputs=[{"name": "OUT", "parameters": {"binary_data": 1}}], error="Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean"),
    infer("KS45 shm region unknown", 404, "one", tensor(data=None, parameters={"shared_memory_region": "nowhere", "shared_memory_byte_size": 16}), error="Unable to find shared memory region: 'nowhere'"),
    infer("KS45 shm offset negative", 500, "one", tensor(data=None, parameters={"shared_memory_region": "nowhere", "shared_memory_offset": -1}), error="Unable to parse 'shared_memory_offset': " + UNSIGNED),
    *(
        infer(f"KS45 shm {name} {value!r} and no region, {kind}", 500, "one", tensor(**({"parameters": {name: value}} if kind == "input" else {})), outputs=[{"name": "OUT", **({"parameters": {name: value}} if kind == "output" else {})}], error=f"Unable to parse '{name}': " + UNSIGNED)
        for name, value in (("shared_memory_offset", "x"), ("shared_memory_offset", None), ("shared_memory_byte_size", -1))
        for kind in ("input", "output")
    ),
    infer("KS45 shm offset and no region", 200, "one", tensor(parameters={"shared_memory_offset": 5}), expect={"OUT": [1.0, 2.0, 3.0, 4.0]}),
    binary("KS45 shm offset of binary data", 200, "one", [tensor(data=None, parameters={"binary_data_size": 16, "shared_memory_offset": "x"})], ONES, expect={"OUT": [1.0, 1.0, 1.0, 1.0]}),
    *(
        infer(f"KS45 shm offset and {name}", 500, "one", tensor(), outputs=[{"name": "OUT", "parameters": {"shared_memory_offset": "x", name: value}}], error=error)
        for name, value, error in (
            ("classification", "x", "Unable to set 'classification': " + UNSIGNED),
            ("binary_data", 1, "Unable to parse 'shared_memory_offset': " + UNSIGNED),
        )
    ),
    *(
        infer(f"KS45 shm output and {name}", 400, "one", tensor(), outputs=[{"name": "OUT", "parameters": {"shared_memory_region": "r", name: value}}], error=f"Output can't set both 'shared_memory_region' and '{name}'")
        for name, value in (("classification", 1), ("binary_data", True))
    ),
    # -- what is fine ----------------------------------------------------------------------------
    infer("KS8 echo", 200, "one", tensor(), id="a1", expect={"OUT": [1.0, 2.0, 3.0, 4.0]}),
    infer("KS21 nested", 200, "one", tensor(data=[[[1, 2], [3]], 4]), expect={"OUT": [1.0, 2.0, 3.0, 4.0]}),
    infer("KS22 UINT8 wraps", 200, "all_uint8", tensor(shape=[2], datatype="UINT8", data=[257, 255]), expect={"OUT": [1, 255]}),
    infer("KS22 INT8 wraps", 200, "all_int8", tensor(shape=[2], datatype="INT8", data=[300, -129]), expect={"OUT": [44, 127]}),
    infer("KS22 UINT64 full range", 200, "all_uint64", tensor(shape=[1], datatype="UINT64", data=[(1 << 64) - 1]), expect={"OUT": [(1 << 64) - 1]}),
    infer("KS26 zero elements", 200, "flexible", tensor(shape=[0], datatype="INT32", data=[]), expect={"OUT": []}),
    infer("KS27 duplicate outputs", 200, "two", *TWO, outputs=[{"name": "OUTPUT1"}, {"name": "OUTPUT0"}, {"name": "OUTPUT1"}]),
    infer("KS27 no outputs is all", 200, "two", *TWO, outputs=[]),
    infer("KS28 optional left out", 200, "optional", tensor("INPUT0"), expect={"OUTPUT0": [1.0, 2.0, 3.0, 4.0]}),
    infer("KS28 too many", 400, "optional", tensor("INPUT0"), tensor("INPUT1"), tensor("INPUT2"), error=ID + "expected number of inputs between 1 and 2 but got 3 inputs for model 'optional'. Got input(s) ['INPUT2','INPUT1','INPUT0'], but missing required input(s) ]. Please provide all required input(s)."),
    infer("KS29 reshape", 200, "reshaped", tensor(), expect={"OUT": [1.0, 2.0, 3.0, 4.0]}),
    infer("unknown members ignored", 200, "one", tensor(more=1), more={"a": 1}, expect={"OUT": [1.0, 2.0, 3.0, 4.0]}),
    infer("empty input parameters", 200, "one", tensor(parameters={"x": "y"}), expect={"OUT": [1.0, 2.0, 3.0, 4.0]}),
    infer("KS34 custom parameters", 200, "parameters", tensor(shape=[1], data=[1]), parameters={"s": "x", "i": 3, "b": True, "headers": "h", "priority": 0, "timeout": 5}),
    raw("KS23 NaN and Infinity", 200, "/v2/models/one/infer", b'{"inputs":[{"name":"IN","shape":[1,4],"datatype":"FP32","data":[NaN,Infinity,-Infinity,1]}]}', text=b'{"model_name":"one","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32","shape":[1,4],"data":[NaN,Infinity,-Infinity,1.0]}]}'),
    raw("KS23 numbers", 200, "/v2/models/one/infer", document(tensor(data=[0.1, 1e30, 1e-7, 16777216.0])), text=b'{"model_name":"one","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32","shape":[1,4],"data":[0.10000000149011612,1.0000000150474662e30,1.0000000116860974e-7,16777216.0]}]}'),
    raw("KS23 doubles", 200, "/v2/models/all_fp64/infer", document(tensor(shape=[8], datatype="FP64", data=[1e21, 1e22, 1.5e-5, 123456789012345680.0, 1e16, -0.0, 5e-324, 1e-5])), text=b'{"model_name":"all_fp64","model_version":"1","outputs":[{"name":"OUT","datatype":"FP64","shape":[8],"data":[1e21,1e22,0.000015,123456789012345680.0,10000000000000000.0,-0.0,5e-324,0.00001]}]}'),
    raw("KS25 NUL", 200, "/v2/models/text/infer", document(tensor(shape=[1], datatype="BYTES", data=["a\0b"])), text=b'{"model_name":"text","model_version":"1","outputs":[{"name":"OUT","datatype":"BYTES","shape":[1],"data":["a\\u0000b"]}]}'),
    binary("KS25 not UTF-8", 200, "text", [sized(6, shape=[1], datatype="BYTES")], words(b"\xff\xfe")),
    binary("KS30 binary in, JSON out", 200, "one", [sized(16)], ONES, expect={"OUT": [1.0] * 4}),
    binary("KS30 JSON and binary inputs", 200, "two", [tensor("INPUT0"), sized(16, "INPUT1")], ONES, expect={"OUTPUT0": [1.0, 2.0, 3.0, 4.0], "OUTPUT1": [1.0] * 4}),
    binary("KS30 binary_data_output", 200, "two", [sized(16, "INPUT0"), sized(16, "INPUT1")], ONES * 2, parameters={"binary_data_output": True}),
    binary("KS30 listed outputs are JSON", 200, "two", [sized(16, "INPUT0"), sized(16, "INPUT1")], ONES * 2, parameters={"binary_data_output": True}, outputs=[{"name": "OUTPUT0"}, {"name": "OUTPUT1", "parameters": {"binary_data": True}}]),
    binary("KS30 BOOL bytes", 200, "all_bool", [sized(3, shape=[3], datatype="BOOL")], b"\0\1\2", expect={"OUT": [False, True, True]}),
    binary("BOOL bytes that are neither", 200, "all_bool", [sized(2, shape=[2], datatype="BOOL")], b"\xff\2", parameters={"binary_data_output": True}, ours_only=True, text=b'{"model_name":"all_bool","model_version":"1","outputs":[{"name":"OUT","datatype":"BOOL","shape":[2],"parameters":{"binary_data_size":2}}]}\1\1'),
    binary("KS30 empty binary output", 200, "flexible", [sized(0, shape=[0], datatype="INT32")], b"", outputs=[{"name": "OUT", "parameters": {"binary_data": True}}]),
    raw("KS31 raw", 200, "/v2/models/one/infer", ONES, headers={"Inference-Header-Content-Length": "0"}),
    raw("KS31 raw, header no number", 200, "/v2/models/flexible/infer", b"12345678", headers={"Inference-Header-Content-Length": "x"}),
    raw("KS31 raw BYTES", 200, "/v2/models/single_word/infer", b"hello", headers={"Inference-Header-Content-Length": "0"}),
    raw("KS32 gzip", 200, "/v2/models/one/infer", gzip.compress(ONE_JSON, mtime=0), headers={"Content-Encoding": "gzip"}, outputs={"OUT": [1.0, 2.0, 3.0, 4.0]}),
    raw("KS32 deflate", 200, "/v2/models/one/infer", zlib.compress(ONE_JSON), headers={"Content-Encoding": "deflate"}, outputs={"OUT": [1.0, 2.0, 3.0, 4.0]}),
    raw("KS32 gzip called deflate", 200, "/v2/models/one/infer", gzip.compress(ONE_JSON, mtime=0), headers={"Content-Encoding": "deflate"}, outputs={"OUT": [1.0, 2.0, 3.0, 4.0]}),
    raw("KS32 deflate called gzip", 200, "/v2/models/one/infer", zlib.compress(ONE_JSON), headers={"Content-Encoding": "gzip"}, outputs={"OUT": [1.0, 2.0, 3.0, 4.0]}),
    raw("KS32 identity", 200, "/v2/models/one/infer", ONE_JSON, headers={"Content-Encoding": "identity"}, outputs={"OUT": [1.0, 2.0, 3.0, 4.0]}),
    infer("KS33 classification with labels", 200, "labelled", tensor(shape=[2, 3], data=[1, 9, 5, 7, 2, 3]), outputs=[{"name": "OUT", "parameters": {"classification": 2}}], expect={"OUT": ["9.000000:1:one", "5.000000:2:two", "7.000000:0:zero", "3.000000:2:two"]}),
    infer("KS33 classification of more than there are", 200, "flexible", tensor(shape=[2], datatype="INT32", data=[3, 9]), outputs=[{"name": "OUT", "parameters": {"classification": 5}}], expect={"OUT": ["9:1", "3:0"]}),
    infer("KS33 classification of nothing", 200, "flexible", tensor(shape=[0], datatype="INT32", data=[]), outputs=[{"name": "OUT", "parameters": {"classification": 5}}], expect={"OUT": []}, ours_only=True),
    infer("KS33 classification 0 is off", 200, "one", tensor(), outputs=[{"name": "OUT", "parameters": {"classification": 0}}], expect={"OUT": [1.0, 2.0, 3.0, 4.0]}),
    infer("KS45 shm and binary_data false", 404, "one", tensor(), outputs=[{"name": "OUT", "parameters": {"shared_memory_region": "nowhere", "binary_data": False}}], error="Unable to find shared memory region: 'nowhere'"),
]  # fmt: skip

_ROUTES = [
    Case("KS1 unknown path", 404, "/v3", method="GET", error="Not Found"),
    Case("KS1 trailing slash", 404, "/v2/", method="GET", error="Not Found"),
    Case("KS1 health", 404, "/v2/health", method="GET", error="Not Found"),
    Case("KS1 no decoding", 404, "/v2/models/o%6ee", method="GET", error="Request for unknown model: 'o%6ee' is not found"),
    Case("KS1 query ignored", 200, "/v2/health/live?a=b", method="GET", text=b""),
    Case("KS1 deeper", 404, "/v2/models/one/infer/x", method="GET", error="Not Found"),
    Case("KS2 GET infer", 405, "/v2/models/one/infer", method="GET", error="Method Not Allowed"),
    Case("KS2 POST metadata", 405, "/v2/models/one", error="Method Not Allowed"),
    *(
        Case(f"KS2 DELETE {path}", 405, path, method="DELETE", error="Method Not Allowed")
        for path in (
            "/v2", "/v2/health/live", "/v2/models/one", "/v2/models/one/ready", "/v2/models/one/infer",
            "/v2/models/one/generate", "/v2/models/nope/config", "/v2/models/stats", "/v2/logging",
            "/v2/trace/setting", "/v2/repository/index", "/v2/repository/models/one/load",
            "/v2/systemsharedmemory/status", "/v2/cudasharedmemory/region/r/register",
        )
    ),
    Case("KS1 no fragment", 404, "/v2/models/one#f", method="GET", error="Request for unknown model: 'one#f' is not found"),
    Case("KS9 version no number", 404, "/v2/models/one/versions/x", method="GET", error="Not Found"),
    Case("KS9 version too long", 400, "/v2/models/one/versions/99999999999999999999", method="GET", error="failed to get model version from specified version string '99999999999999999999' (details: stol), version should be an integral value > 0"),
    Case("KS9 ready, version too long", 400, "/v2/models/one/versions/99999999999999999999/ready", method="GET", error="failed to get model version from specified version string '99999999999999999999' (details: stol), version should be an integral value > 0"),
    Case("KS11 live", 200, "/v2/health/live", method="GET", text=b""),
    Case("KS13 metadata", 200, "/v2/models/two", method="GET", text=b'{"name":"two","versions":["1"],"platform":"python","inputs":[{"name":"INPUT0","datatype":"FP32","shape":[-1,4]},{"name":"INPUT1","datatype":"FP32","shape":[-1,4]}],"outputs":[{"name":"OUTPUT0","datatype":"FP32","shape":[-1,4]},{"name":"OUTPUT1","datatype":"FP32","shape":[-1,4]}]}'),
    Case("KS13 metadata of a version", 200, "/v2/models/one/versions/1", method="GET"),
    Case("KS13 metadata of a sequence model", 200, "/v2/models/sequence", method="GET"),
    Case("metadata unknown", 404, "/v2/models/nope", method="GET", error="Request for unknown model: 'nope' is not found"),
    Case("KS10 config", 200, "/v2/models/two/config", method="GET"),
    Case("KS10 config of a sequence model", 200, "/v2/models/sequence/config", method="GET"),
    Case("KS10 config unknown version", 404, "/v2/models/one/versions/7/config", method="GET", error="Request for unknown model: 'one' version 7 is not found"),
    Case("KS14 ready", 200, "/v2/models/one/ready", method="GET", text=b""),
    Case("KS14 ready, unknown", 400, "/v2/models/nope/ready", method="GET", error="Model version not ready"),
    Case("KS14 ready, unknown version", 400, "/v2/models/one/versions/7/ready", method="GET", error="Model version not ready"),
    Case("KS15 stats unknown", 400, "/v2/models/nope/stats", method="GET", error="requested model 'nope' is not available"),
    Case("KS15 stats unknown version", 400, "/v2/models/one/versions/7/stats", method="GET", error="requested model version is not available for model 'one'"),
    Case("trace of a version", 404, "/v2/models/one/versions/1/trace/setting", method="GET", error="Not Found"),
    Case("KS16 index, bad kind", 500, "/v2/repository/index", b'{"ready":1}', "attempt to access JSON non-boolean as boolean"),
    Case("KS16 repository segment", 501, "/v2/repository/x/models/one/load", b"", "'repository_name' specification is not supported"),
]  # fmt: skip

_GENERATE = [
    Case("KS50 list", 200, "/v2/models/one/generate", b'{"IN":[1,2,3,4],"id":"x"}', text=b'{"OUT":[1.0,2.0,3.0,4.0],"id":"x","model_name":"one","model_version":"1"}'),
    Case("KS50 batch of two", 200, "/v2/models/one/generate", b'{"IN":[1,2,3,4,5,6,7,8]}', text=b'{"OUT":[1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0],"model_name":"one","model_version":"1"}'),
    Case("KS51 scalar", 200, "/v2/models/words/generate", b'{"IN":"hello"}', text=b'{"OUT":"hello","model_name":"words","model_version":"1"}'),
    Case("KS50 nested keys", 200, "/v2/models/words/generate", b'{"parameters":{"IN":"hello","x":1}}', text=b'{"OUT":"hello","model_name":"words","model_version":"1"}'),
    Case("KS50 parameters", 200, "/v2/models/parameters/generate", b'{"IN":1,"id":"q","s":"x","n":3,"parameters":{"b":true}}'),
    Case("KS50 does not fit", 400, "/v2/models/one/generate", b'{"IN":[1,2,3]}', "The schema can not convert input 'IN' to tensor with proper shape"),
    Case("KS50 nested list", 400, "/v2/models/one/generate", b'{"IN":[[1,2,3,4]]}', "The schema can not convert input 'IN' to tensor with proper shape"),
    Case("KS52 none", 200, "/v2/models/stream/generate", b'{"IN":0}', "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of responses"),
    Case("KS52 one", 200, "/v2/models/stream/generate", b'{"IN":1}', text=b'{"OUT":0,"model_name":"stream","model_version":"1"}'),
    Case("KS52 two", 200, "/v2/models/stream/generate", b'{"IN":2}', "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of responses"),
    Case("KS51 stream", 200, "/v2/models/stream/generate_stream", b'{"IN":2}', text=b'data: {"OUT":0,"model_name":"stream","model_version":"1"}\n\ndata: {"OUT":1,"model_name":"stream","model_version":"1"}\n\n'),
    Case("KS52 empty stream", 200, "/v2/models/stream/generate_stream", b'{"IN":0}', text=b""),
    Case("KS53 stream error", 400, "/v2/models/stream/generate_stream", b'{"IN":-1}', text=b'data: {"error":"bad count"}\n\n'),
    Case("KS53 error", 400, "/v2/models/failing/generate", b'{"IN":[1,2,3,4]}', "not today"),
    Case("KS53 stream of a model that is not decoupled", 200, "/v2/models/words/generate_stream", b'{"IN":"a"}', text=b'data: {"OUT":"a","model_name":"words","model_version":"1"}\n\n'),
    Case("KS53 empty object", 400, "/v2/models/one/generate", b"{}", ID + "expected 1 inputs but got 0 inputs for model 'one'. Got input(s) [], but missing required input(s) ['IN']. Please provide all required input(s)."),
    Case("KS53 bad JSON", 500, "/v2/models/one/generate", b"{", PARSE + "Missing a name for object member. at 1"),
    Case("KS53 no body", 500, "/v2/models/one/generate", b"", PARSE + "The document is empty. at 0"),
    Case("KS53 encoding", 400, "/v2/models/one/generate", gzip.compress(b"{}"), "Unsupported content-encoding, only 'identity' is supported.", headers={"Content-Encoding": "gzip"}),
    Case("KS53 parameters no object", 500, "/v2/models/one/generate", b'{"parameters":5}', "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object"),
    Case("an input twice", 400, "/v2/models/one/generate", b'{"IN":[1,2,3,4],"IN":[1,2,3,4]}', ID + "input 'IN' already exists in request"),
    Case("an input beside and inside parameters", 400, "/v2/models/one/generate", b'{"IN":[1,2,3,4],"parameters":{"IN":[1,2,3,4]}}', f"Converting keyword: 'parameters': {ID}input 'IN' already exists in request"),
    Case("the first of equal ids counts", 200, "/v2/models/one/generate", b'{"IN":[1,2,3,4],"id":"x","id":5}', text=b'{"OUT":[1.0,2.0,3.0,4.0],"id":"x","model_name":"one","model_version":"1"}'),
    Case("KS50 the first of equal parameters counts", 200, "/v2/models/parameters/generate", b'{"IN":1,"a":1,"a":2}'),
    *(
        Case(f"sequence model, {kind}", 400, f"/v2/models/sequence/{kind}", b'{"IN":[1,2,3,4]}', SEQUENCE + "a non-zero or non-empty correlation ID")
        for kind in ("generate", "generate_stream")
    ),
    Case("generate, Content-Encoding empty", 400, "/v2/models/one/generate", b'{"IN":[1,2,3,4]}', "Unsupported content-encoding, only 'identity' is supported.", headers={"Content-Encoding": ""}),
    Case("generate unknown", 404, "/v2/models/nope/generate", b"{}", "Request for unknown model: 'nope' is not found"),
]  # fmt: skip


def _trace(case: str, status: int, body: bytes, error: str | None = None, **more: Any) -> Case:
    return Case(f"KS70 trace {case}", status, "/v2/trace/setting", body, error, **more)


def _log(case: str, status: int, body: bytes, error: str | None = None, **more: Any) -> Case:
    return Case(f"KS71 log {case}", status, "/v2/logging", body, error, **more)


TRACE = b'{"trace_level":["OFF"],"trace_rate":"1000","trace_count":"-1","log_frequency":"0","trace_file":"","trace_mode":"triton"}'  # fmt: skip
_SETTINGS = [
    Case("trace get", 200, "/v2/trace/setting", method="GET", text=TRACE),
    Case("trace get of a model", 200, "/v2/models/one/trace/setting", method="GET", text=TRACE),
    _trace("nothing", 200, b"{}", text=TRACE),
    _trace("unknown keys and levels", 200, b'{"what":1,"trace_level":["NONSENSE"]}', text=TRACE),
    _trace("no file", 400, b'{"trace_level":["TIMESTAMPS"]}', "Attempting to set invalid trace setting :trace file name is not given"),
    _trace("number", 500, b'{"trace_rate":5}', "attempt to access JSON non-string as string"),
    _trace("rate abc", 400, b'{"trace_rate":"abc"}', "Unable to parse 'trace_rate', got: abc"),
    _trace("rate too large", 400, b'{"trace_rate":"99999999999"}', "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 99999999999"),
    _trace("count -2", 400, b'{"trace_count":"-2"}', "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
    _trace("file", 501, b'{"trace_file":"x"}', "trace file location can not be updated through network protocol"),
    _trace("OFF and more", 400, b'{"trace_level":["OFF","TENSORS"]}', "Expect only one trace level 'OFF' is specified"),
    _trace("level no array", 500, b'{"trace_level":"OFF"}', "attempt to access JSON non-array as array"),
    _trace("empty body", 500, b"", PARSE + "The document is empty. at 0"),
    Case("trace unknown model", 400, "/v2/models/nope/trace/setting", method="GET", error="Request for unknown model : nope"),
    _log("nothing", 200, b"{}", text=b'{"log_file":"","log_info":true,"log_warning":true,"log_error":true,"log_verbose_level":0,"log_format":"default"}'),
    _log("format", 503, b'{"log_format":"zzz"}', "invalid argument for --log_format, got: zzz"),
    _log("file", 501, b'{"log_file":"x"}', "log file location can not be updated through network protocol"),
    _log("level beyond 31 bits", 200, b'{"log_verbose_level":4294967295}', text=b'{"log_file":"","log_info":true,"log_warning":true,"log_error":true,"log_verbose_level":0,"log_format":"default"}'),
    _log("kind of a flag", 500, b'{"log_info":1}', "attempt to access JSON non-boolean as boolean"),
    _log("kind of the level", 500, b'{"log_verbose_level":"1"}', UNSIGNED),
    _log("empty body", 500, b"", PARSE + "The document is empty. at 0"),
]  # fmt: skip


def _memory(
    case: str, status: int, path: str, body: bytes = b"", error: str | None = None, **more: Any
) -> Case:
    rule = "KS44" if case.startswith("cuda") else "KS40 KS41 KS42"
    return Case(f"{rule} {case}", status, f"/v2/{path}", body, error, **more)


_HANDLE = json.dumps(
    {"raw_handle": {"b64": "A" * 86 + "=="}, "device_id": 0, "byte_size": 8}
).encode()
_MEMORY = [
    _memory("status empty", 200, "systemsharedmemory/status", method="GET", text=b"[]"),
    _memory("cuda status empty", 200, "cudasharedmemory/status", method="GET", text=b"[]"),
    _memory("status unknown", 404, "systemsharedmemory/region/r/status", method="GET", error="Unable to find system shared memory region: 'r'"),
    _memory("cuda status unknown", 404, "cudasharedmemory/region/r/status", method="GET", error="Unable to find cuda shared memory region: 'r'"),
    _memory("unregister unknown", 200, "systemsharedmemory/region/r/unregister", text=b""),
    _memory("cuda unregister unknown", 200, "cudasharedmemory/region/r/unregister", text=b""),
    _memory("unregister all", 200, "systemsharedmemory/unregister", text=b""),
    _memory("cuda unregister all", 200, "cudasharedmemory/unregister", text=b""),
    _memory("no key", 400, "systemsharedmemory/region/r/register", b'{"byte_size":4}', "Shared memory register request has no 'key' field"),
    _memory("no size", 400, "systemsharedmemory/region/r/register", b'{"key":"k"}', "Shared memory register request has no 'byte_size' field"),
    _memory("no object", 500, "systemsharedmemory/region/r/register", b'{"key":"/nbtriton-none","byte_size":4}', "Unable to open shared memory region: '/nbtriton-none'"),
    _memory("no region", 400, "systemsharedmemory/register", b"{}", "'region name' is necessary to register system shared memory region"),
    _memory("key is a path", 500, "systemsharedmemory/region/r/register", b'{"key":"../../etc/passwd","byte_size":4}', "Unable to open shared memory region: '../../etc/passwd'"),
    _memory("cuda no handle", 400, "cudasharedmemory/region/r/register", b"{}", "Shared memory register request has no 'raw_handle' field"),
    _memory("cuda no b64", 500, "cudasharedmemory/region/r/register", b'{"raw_handle":{}}', "attempt to access non-existing object member 'b64'"),
    _memory("cuda no size", 500, "cudasharedmemory/region/r/register", b'{"raw_handle":{"b64":""}}', "attempt to access non-existing object member 'byte_size'"),
    _memory("cuda no device", 500, "cudasharedmemory/region/r/register", b'{"raw_handle":{"b64":""},"byte_size":1}', "attempt to access non-existing object member 'device_id'"),
    _memory("cuda short handle", 400, "cudasharedmemory/region/r/register", b'{"raw_handle":{"b64":"AAAA"},"byte_size":1,"device_id":0}', "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"),
    _memory("cuda not to be opened", 400, "cudasharedmemory/region/r/register", _HANDLE, "failed to register shared memory region: invalid args"),
]  # fmt: skip

CASES = [*_INFER, *_ROUTES, *_GENERATE, *_SETTINGS, *_MEMORY]
