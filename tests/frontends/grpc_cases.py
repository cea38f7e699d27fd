"""Calls over gRPC and what a server must answer (GS10 to GS20): the error table of Triton 2.51.

The same cases are sent to our endpoint and to the real server.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from tests.frontends.grpc_support import ONES, UNSET, UInt, infer, set_values, tensor

__all__ = ["CASES", "Case"]

ID = "[request id: <id_unknown>] "
FP32 = np.float32


@dataclass(frozen=True)
class Case:
    """A call and its answer: an error, or the outputs by name."""

    id: str
    request: Any
    code: str = "OK"
    details: str = ""
    outputs: Mapping[str, Any] | None = None
    method: str = "ModelInfer"
    # The real server dies of it, or answers differently on purpose of ours.
    ours_only: bool = False


class _Garbage:
    """What is no message of any method."""

    def SerializeToString(self) -> bytes:
        return b"\xff\xff\xff"


def _string(*items: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


def _load(model: str, parameters: dict[str, Any]) -> Any:
    request = pb.RepositoryModelLoadRequest(model_name=model)
    set_values(request.parameters, parameters)
    return request


def _unload(model: str, parameters: dict[str, Any]) -> Any:
    request = pb.RepositoryModelUnloadRequest(model_name=model)
    set_values(request.parameters, parameters)
    return request


def _trace(model: str = "", **settings: list[str]) -> Any:
    request = pb.TraceSettingRequest(model_name=model)
    for name, values in settings.items():
        request.settings[name].value.extend(values)
    return request


def _log(**settings: Any) -> Any:
    request = pb.LogSettingsRequest()
    for name, value in settings.items():
        if isinstance(value, bool):
            request.settings[name].bool_param = value
        elif isinstance(value, int):
            request.settings[name].uint32_param = value
        else:
            request.settings[name].string_param = value
    return request


def _bad(
    case_id: str, request: Any, details: str, code: str = "INVALID_ARGUMENT", **rest: Any
) -> Case:
    return Case(case_id, request, code, details, **rest)


TWO = [tensor("INPUT0"), tensor("INPUT1")]
SHM = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
ABOUT = "parameter for tensor 'IN'"
RESERVED = (
    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
    "starting with 'triton_' are allowed: triton_enable_empty_final_response"
)

CASES = [
    # -- answers ---------------------------------------------------------------------------------
    Case("raw contents", infer("one"), outputs={"OUT": np.ones((1, 4), FP32)}),
    Case("id and version are echoed", infer("one", request_id="é1", version="1"),
         outputs={"OUT": np.ones((1, 4), FP32)}),
    Case("GS14 typed FP32", infer("one", [tensor(fp32_contents=[1, 2, 3, 4])], ()),
         outputs={"OUT": np.array([[1, 2, 3, 4]], FP32)}),
    Case("GS14 typed narrow integers take the low bits",
         infer("all_int8", [tensor(datatype="INT8", shape=[3], int_contents=[300, -1, 5])], ()),
         outputs={"OUT": np.array([44, -1, 5], np.int8)}),
    Case("GS14 typed UINT16", infer("all_uint16", [tensor(datatype="UINT16", shape=[2], uint_contents=[70000, 1])], ()),
         outputs={"OUT": np.array([4464, 1], np.uint16)}),
    Case("GS14 typed INT64", infer("all_int64", [tensor(datatype="INT64", shape=[1], int64_contents=[-5])], ()),
         outputs={"OUT": np.array([-5], np.int64)}),
    Case("GS14 typed UINT64", infer("all_uint64", [tensor(datatype="UINT64", shape=[1], uint64_contents=[2**64 - 1])], ()),
         outputs={"OUT": np.array([2**64 - 1], np.uint64)}),
    Case("GS14 typed FP64", infer("all_fp64", [tensor(datatype="FP64", shape=[1], fp64_contents=[0.1])], ()),
         outputs={"OUT": np.array([0.1], np.float64)}),
    Case("GS14 typed BOOL", infer("all_bool", [tensor(datatype="BOOL", shape=[2], bool_contents=[True, False])], ()),
         outputs={"OUT": np.array([True, False])}),
    Case("GS14 typed BYTES", infer("all_string", [tensor(datatype="BYTES", shape=[2], bytes_contents=[b"a\0", b""])], ()),
         outputs={"OUT": [b"a\0", b""]}),
    Case("raw BYTES", infer("all_string", [tensor(datatype="BYTES", shape=[2])], [_string(b"\xff", b"xy")]),
         outputs={"OUT": [b"\xff", b"xy"]}),
    Case("raw FP16", infer("all_fp16", [tensor(datatype="FP16", shape=[2])], [np.array([1, 2], np.float16).tobytes()]),
         outputs={"OUT": np.array([1, 2], np.float16)}),
    Case("no elements", infer("flexible", [tensor(datatype="INT32", shape=[0])], [b""]),
         outputs={"OUT": np.zeros(0, np.int32)}),
    Case("GS13 more contents than inputs are ignored", infer("one", raw=[ONES, b"more"]),
         outputs={"OUT": np.ones((1, 4), FP32)}),
    Case("one of two outputs", infer("two", TWO, [ONES, ONES], outputs={"OUTPUT1": {}}),
         outputs={"OUTPUT1": np.ones((1, 4), FP32)}),
    Case("optional input", infer("optional", [tensor("INPUT0")]), outputs={"OUTPUT0": np.ones((1, 4), FP32)}),
    Case("classification", infer("labelled", [tensor(shape=[1, 3])], [np.array([1, 9, 5], FP32).tobytes()],
                                 outputs={"OUT": {"classification": 2}}),
         outputs={"OUT": [b"9.000000:1:one", b"5.000000:2:two"]}),
    Case("KS34 binary_data_output is a parameter like any other",
         infer("parameters", [tensor(shape=[1])], [ONES[:4]], parameters={"binary_data_output": True}),
         outputs={"OUT": [b'{"binary_data_output":true}']},
         ours_only=True),  # the real server's JSON has no spaces
    Case("KS9 an empty version is the highest", infer("one", version=""), outputs={"OUT": np.ones((1, 4), FP32)}),
    Case("GS16 priority may be unsigned", infer("one", parameters={"priority": UInt(3)}),
         outputs={"OUT": np.ones((1, 4), FP32)}),
    Case("GS16 a negative timeout is a large one", infer("one", parameters={"timeout": -1}),
         outputs={"OUT": np.ones((1, 4), FP32)}),
    # -- models and versions ---------------------------------------------------------------------
    _bad("unknown model", infer("nope"), "Request for unknown model: 'nope' is not found", "NOT_FOUND"),
    _bad("unknown version", infer("one", version="7"), "Request for unknown model: 'one' version 7 is not found",
         "NOT_FOUND"),
    _bad("KS9 version abc", infer("one", version="abc"),
         "failed to get model version from specified version string 'abc' (details: stol), version should "
         "be an integral value > 0"),
    _bad("KS9 version -1", infer("one", version="-1"),
         "invalid model version specified '-1' , version should be an integral value > 0"),
    _bad("KS9 version 0", infer("one", version="0"), "Request for unknown model: 'one' version 0 is not found",
         "NOT_FOUND"),
    _bad("KS9 ready, version x", pb.ModelReadyRequest(name="nope", version="x"),
         "failed to get model version from specified version string 'x' (details: stol), version should "
         "be an integral value > 0", method="ModelReady"),
    _bad("KS9 ready, version -1", pb.ModelReadyRequest(name="one", version="-1"),
         "invalid model version specified '-1' , version should be an integral value > 0", method="ModelReady"),
    Case("KS9 ready, version 0", pb.ModelReadyRequest(name="one", version="0"), method="ModelReady"),
    _bad("decoupled", infer("stream", [tensor(datatype="INT32", shape=[1])], [b"\0\0\0\0"]),
         "ModelInfer RPC doesn't support models with decoupled transaction policy", "UNIMPLEMENTED"),
    _bad("model error", infer("failing"), "not today", "INTERNAL"),
    # -- inputs ----------------------------------------------------------------------------------
    _bad("unknown input", infer("one", [tensor("WRONG")]), "unexpected inference input 'WRONG' for model 'one'"),
    _bad("missing input", infer("two", [tensor("INPUT0")]),
         ID + "expected 2 inputs but got 1 inputs for model 'two'. Got input(s) ['INPUT0'], but missing required "
         "input(s) ['INPUT1']. Please provide all required input(s)."),
    _bad("duplicate input", infer("two", [tensor("INPUT0"), tensor("INPUT0")], [ONES, ONES]),
         ID + "input 'INPUT0' already exists in request"),
    _bad("unknown output", infer("one", outputs={"WRONG": {}}), "unexpected inference output 'WRONG' for model 'one'"),
    _bad("wrong dims, unbatched", infer("plain", [tensor(shape=[5])], [b"\0" * 20]),
         ID + "unexpected shape for input 'IN' for model 'plain'. Expected [4], got [5]. "),
    _bad("batch too large", infer("one", [tensor(shape=[9, 4])], [b"\0" * 144]),
         ID + "inference request batch-size must be <= 8 for 'one'"),
    _bad("wrong datatype", infer("one", [tensor(datatype="INT32")]),
         ID + "inference input 'IN' data-type is 'INT32', but model 'one' expects 'FP32'"),
    _bad("GS15 unknown datatype", infer("one", [tensor(datatype="FP8")]),
         ID + "inference input 'IN' data-type is '<invalid>', but model 'one' expects 'FP32'"),
    _bad("GS15 shape -1", infer("plain", [tensor(shape=[-1])]),
         ID + "All input dimensions should be specified for input 'IN' for model 'plain', got [-1]"),
    _bad("GS15 shape -4", infer("flexible", [tensor(datatype="INT32", shape=[-4])]),
         ID + "input byte size mismatch for input 'IN' for model 'flexible'. Expected -16, got 16"),
    _bad("GS15 batched -1", infer("one", [tensor(shape=[-1, 4])]),
         ID + "input byte size mismatch for input 'IN' for model 'one'. Expected 68719476720, got 16"),
    _bad("one of two batches -1", infer("two", [tensor("INPUT0"), tensor("INPUT1", shape=[-1, 4])], [ONES, ONES]),
         ID + "input 'INPUT0' batch size does not match other inputs for 'two'"),
    _bad("negative dimensions of another rank", infer("all_int8", [tensor(datatype="INT8", shape=[-2, -1])], [b"1"]),
         ID + "unexpected shape for input 'IN' for model 'all_int8'. Expected [-1], got [-2,-1]. "),
    _bad("a negative dimension and a wrong datatype", infer("plain", [tensor(datatype="INT8", shape=[-1])], [b"1"]),
         ID + "inference input 'IN' data-type is 'INT8', but model 'plain' expects 'FP32'"),
    _bad("a negative dimension and an unknown output", infer("plain", [tensor(shape=[-1])], [b"1"], outputs={"Z": {}}),
         "unexpected inference output 'Z' for model 'plain'"),
    _bad("-1 behind the batch", infer("one", [tensor(shape=[1, -1])]),
         ID + "All input dimensions should be specified for input 'IN' for model 'one', got [1,-1]"),
    _bad("too few bytes", infer("one", raw=[ONES[:12]]),
         ID + "input byte size mismatch for input 'IN' for model 'one'. Expected 16, got 12"),
    _bad("GS13 no data", infer("one", raw=[]), "unable to find data for input tensor 'IN' for model 'one' in request."),
    _bad("GS13 fewer contents than inputs", infer("two", TWO, [ONES]),
         "unable to find data for input tensor 'INPUT1' for model 'two' in request."),
    _bad("GS13 raw and typed", infer("one", [tensor(fp32_contents=[1])]),
         "contents field must not be specified when using raw_input_contents for 'IN' for model 'one'"),
    _bad("GS14 typed of another kind", infer("one", [tensor(int_contents=[1, 2, 3, 4])], ()),
         "unexpected explicit tensor data for input tensor 'IN' for model 'one' of type 'INT32', expected "
         "datatype 'FP32'"),
    _bad("GS14 FP16 has no typed contents", infer("half", [tensor(datatype="FP16", shape=[1, 2], fp32_contents=[1, 2])], ()),
         "unexpected explicit tensor data for input tensor 'IN' for model 'half' of type 'FP32', expected "
         "datatype 'FP16'"),
    _bad("A15 a cut string, and too few", infer("text", [tensor(datatype="BYTES", shape=[2])], [b"abcd"]),
         ID + "expected 2 string elements for inference input 'IN' for model 'text', got 1"),
    _bad("too few strings", infer("text", [tensor(datatype="BYTES", shape=[2])], [_string(b"a")]),
         ID + "expected 2 string elements for inference input 'IN' for model 'text', got 1"),
    _bad("a huge shape", infer("flexible", [tensor(datatype="INT32", shape=[2**40])]),
         ID + "input byte size mismatch for input 'IN' for model 'flexible'. Expected 4398046511104, got 16"),
    # -- parameters ------------------------------------------------------------------------------
    _bad("GS16 parameter without value", infer("one", parameters={"p": UNSET}),
         "invalid value type for 'p' parameter, expected int64_param, bool_param, or string_param."),
    _bad("GS16 unsigned parameter", infer("one", parameters={"p": UInt(1)}),
         "invalid value type for 'p' parameter, expected int64_param, bool_param, or string_param."),
    _bad("GS17 reserved parameter", infer("one", parameters={"triton_x": 1}), RESERVED),
    _bad("GS16 sequence_id", infer("one", parameters={"sequence_id": True}),
         "invalid value type for 'sequence_id' parameter, expected int64_param or string_param."),
    _bad("GS16 sequence_start", infer("one", parameters={"sequence_start": 1}),
         "invalid value type for 'sequence_start' parameter, expected bool_param."),
    _bad("sequence_end", infer("one", parameters={"sequence_end": "x"}),
         "invalid value type for 'sequence_end' parameter, expected bool_param."),
    _bad("GS16 negative priority", infer("one", parameters={"priority": -1}),
         "invalid value for 'priority', expected value >= 0."),
    _bad("GS16 timeout", infer("one", parameters={"timeout": "x"}),
         "invalid value type for 'timeout' parameter, expected int64_param."),
    _bad("GS17 empty_final kind", infer("one", parameters={"triton_enable_empty_final_response": 1}),
         "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param."),
    _bad("long string id", infer("sequence", parameters={"sequence_id": "x" * 129}),
         "string correlation ID cannot be longer than 128 characters", "UNIMPLEMENTED"),
    _bad("no sequence id", infer("sequence"),
         "inference request to model 'sequence' must specify a non-zero or non-empty correlation ID"),
    _bad("sequence not started", infer("sequence", parameters={"sequence_id": 77}),
         "inference request for sequence 77 to model 'sequence' must specify the START flag on the first request "
         "of the sequence"),
    # -- outputs and shared memory ---------------------------------------------------------------
    _bad("classification kind", infer("one", outputs={"OUT": {"classification": "2"}}),
         "invalid value type for 'classification' parameter, expected int64_param"),
    _bad("BF16, too short", infer("all_bf16", [tensor(datatype="BF16", shape=[2])], [b"\1\2"]),
         ID + "input byte size mismatch for input 'IN' for model 'all_bf16'. Expected 4, got 2"),
    _bad("BF16, another datatype", infer("all_bf16", [tensor(datatype="FP16", shape=[2])], [b"\1\2\3\4"]),
         ID + "inference input 'IN' data-type is 'FP16', but model 'all_bf16' expects 'BF16'"),
    _bad("GS16 priority kind", infer("one", parameters={"priority": "1"}),
         "invalid value type for 'priority' parameter, expected int64_param or uint64_param."),
    _bad("classification 0", infer("one", outputs={"OUT": {"classification": 0}}),
         "invalid value for 'classification' parameter, expected >= 0"),
    _bad("negative classification", infer("one", outputs={"OUT": {"classification": -1}}),
         "invalid value for 'classification' parameter, expected >= 0"),
    _bad("classification of BOOL", infer("all_bool", [tensor(datatype="BOOL", shape=[1])], [b"\1"],
                                         outputs={"OUT": {"classification": 1}}),
         "class result not available for output due to unsupported type 'BOOL'"),
    _bad("GS19 region kind", infer("one", [tensor(parameters={"shared_memory_region": 1})], ()),
         f"invalid value type for 'shared_memory_region' {ABOUT}, expected string_param."),
    _bad("GS19 offset kind", infer("one", [tensor(parameters={**SHM, "shared_memory_offset": "x"})], ()),
         f"invalid value type for 'shared_memory_offset' {ABOUT}, expected int64_param."),
    _bad("GS19 size kind", infer("one", [tensor(parameters={**SHM, "shared_memory_byte_size": "x"})], ()),
         f"invalid value type for 'shared_memory_byte_size' {ABOUT}, expected int64_param."),
    _bad("inputs before outputs", infer("one", [tensor(parameters={"shared_memory_offset": 1})],
                                        outputs={"OUT": {"classification": "2"}}),
         f"'shared_memory_offset' can not be specified without 'shared_memory_region' {ABOUT}"),
    _bad("an offset and no region", infer("one", [tensor(parameters={"shared_memory_offset": "x"})]),
         f"'shared_memory_offset' can not be specified without 'shared_memory_region' {ABOUT}"),
    _bad("a region without a name", infer("one", [tensor(parameters={**SHM, "shared_memory_region": ""})], ()),
         "Unable to find shared memory region: ''", "NOT_FOUND"),
    _bad("a region of size 0", infer("one", [tensor(parameters={**SHM, "shared_memory_byte_size": 0})], ()),
         "Unable to find shared memory region: 'r'", "NOT_FOUND"),
    _bad("GS19 no size", infer("one", [tensor(parameters={"shared_memory_region": "r"})], ()),
         f"'shared_memory_byte_size' must be specified along with 'shared_memory_region' {ABOUT}"),
    _bad("GS19 no region", infer("one", [tensor(parameters={"shared_memory_byte_size": 16})], ()),
         f"'shared_memory_byte_size' can not be specified without 'shared_memory_region' {ABOUT}"),
    _bad("GS19 shared memory and contents", infer("one", [tensor(parameters=SHM, fp32_contents=[1])], ()),
         "unexpected 'content' provided when using shared memory for input tensor 'IN' for model 'one'"),
    _bad("unknown region", infer("one", [tensor(parameters=SHM)], ()),
         "Unable to find shared memory region: 'r'", "NOT_FOUND"),
    _bad("unknown output region", infer("one", outputs={"OUT": SHM}),
         "Unable to find shared memory region: 'r'", "NOT_FOUND"),
    # -- everything else -------------------------------------------------------------------------
    _bad("GS12 statistics of an unknown model", pb.ModelStatisticsRequest(name="nope"),
         "requested model 'nope' is not available", method="ModelStatistics"),
    _bad("GS12 statistics of an unknown version", pb.ModelStatisticsRequest(name="one", version="9"),
         "requested model version is not available for model 'one'", method="ModelStatistics"),
    _bad("metadata of an unknown model", pb.ModelMetadataRequest(name="nope"),
         "Request for unknown model: 'nope' is not found", "NOT_FOUND", method="ModelMetadata"),
    _bad("configuration of an unknown model", pb.ModelConfigRequest(name="nope"),
         "Request for unknown model: 'nope' is not found", "NOT_FOUND", method="ModelConfig"),
    _bad("KS16 index of a named repository", pb.RepositoryIndexRequest(repository_name="x"),
         "'repository_name' specification is not supported", "UNIMPLEMENTED", method="RepositoryIndex"),
    _bad("load", _load("one", {}), "explicit model load / unload is not allowed if polling is enabled",
         "UNAVAILABLE", method="RepositoryModelLoad"),
    _bad("KS65 load with an unknown parameter", _load("one", {"foo": "x"}), "unrecognized load parameter 'foo'.",
         method="RepositoryModelLoad"),
    _bad("GS18 load with a wrong kind", _load("one", {"config": 1}),
         "invalid value type for load parameter 'config', expected string_param.", method="RepositoryModelLoad"),
    _bad("GS18 load with a file of a wrong kind", _load("one", {"file:1/model.py": "x"}),
         "invalid value type for load parameter 'file:1/model.py', expected bytes_param.",
         method="RepositoryModelLoad"),
    _bad("unload", _unload("one", {}), "explicit model load / unload is not allowed if polling is enabled",
         "UNAVAILABLE", method="RepositoryModelUnload"),
    _bad("GS18 unload with a wrong kind", _unload("one", {"unload_dependents": 1}),
         "invalid value type for 'unload_dependents' parameter, expected bool_param.",
         method="RepositoryModelUnload"),
    _bad("unknown region's status", pb.SystemSharedMemoryStatusRequest(name="r"),
         "Unable to find system shared memory region: 'r'", "NOT_FOUND", method="SystemSharedMemoryStatus"),
    _bad("no such object", pb.SystemSharedMemoryRegisterRequest(name="r", key="/nope", byte_size=4096),
         "Unable to open shared memory region: '/nope'", "INTERNAL", method="SystemSharedMemoryRegister"),
    Case("KS41 unregister unknown", pb.SystemSharedMemoryUnregisterRequest(name="r"),
         method="SystemSharedMemoryUnregister"),
    Case("KS41 unregister unknown cuda", pb.CudaSharedMemoryUnregisterRequest(name="r"),
         method="CudaSharedMemoryUnregister"),
    _bad("KS70 trace without a file", _trace(trace_level=["TIMESTAMPS"]),
         "Attempting to set invalid trace setting :trace file name is not given", method="TraceSetting"),
    _bad("trace of an unknown model", _trace("nope"), "Request for unknown model : nope", method="TraceSetting"),
    _bad("KS70 trace rate", _trace(trace_rate=["abc"]), "Unable to parse 'trace_rate', got: abc", method="TraceSetting"),
    _bad("two trace rates", _trace(trace_rate=["1", "2"]), "expect only 1 value for 'trace_rate'",
         method="TraceSetting"),
    _bad("KS70 trace count", _trace(trace_count=["-2"]), "Unable to parse 'trace_count'. Expecting value >= -1, got: -2",
         method="TraceSetting"),
    _bad("KS70 trace file", _trace(trace_file=["x"]), "trace file location can not be updated through network protocol",
         "UNIMPLEMENTED", method="TraceSetting"),
    _bad("OFF beside others", _trace(trace_level=["OFF", "TENSORS"]), "Expect only one trace level 'OFF' is specified",
         method="TraceSetting"),
    _bad("KS71 log_info", _log(log_info="x"), "expect boolean for 'log_info'", method="LogSettings"),
    _bad("log_verbose_level", _log(log_verbose_level="x"), "expect int32 for 'log_verbose_level'",
         method="LogSettings"),
    _bad("KS71 log_format", _log(log_format="zzz"), "invalid argument for log_format, got: zzz", method="LogSettings"),
    _bad("KS71 log_file", _log(log_file="x"), "log file location can not be updated through network protocol",
         "UNIMPLEMENTED", method="LogSettings"),
    Case("log_verbose_level beyond 31 bits", _log(log_verbose_level=2**32 - 1), method="LogSettings"),
    *(
        _bad(f"no message, {method}", _Garbage(), "Unable to parse request", "INTERNAL", method=method)
        for method in ("ModelInfer", "ModelReady", "ServerLive", "RepositoryIndex")
    ),
    Case("ready", pb.ModelReadyRequest(name="one"), method="ModelReady"),
    Case("GS12 an unknown model is not ready", pb.ModelReadyRequest(name="nope"), method="ModelReady"),
    Case("GS12 a model without name is not ready", pb.ModelReadyRequest(), method="ModelReady"),
    Case("KS13 metadata", pb.ModelMetadataRequest(name="two"), method="ModelMetadata"),
    Case("configuration", pb.ModelConfigRequest(name="labelled"), method="ModelConfig"),
    Case("GS10 server live", pb.ServerLiveRequest(), method="ServerLive"),
    Case("GS10 server ready", pb.ServerReadyRequest(), method="ServerReady"),
    Case("KS12 server metadata", pb.ServerMetadataRequest(), method="ServerMetadata"),
    Case("trace settings", pb.TraceSettingRequest(), method="TraceSetting"),
]  # fmt: skip
