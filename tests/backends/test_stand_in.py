"""Stand-ins: models without their backend or file, of the declared shapes and cost."""

# ruff: noqa: N803, F821, UP037 - a model function names its tensors, and their types in its annotations
from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.backends import RequestOptions, backend_for, find_backend
from nbtriton.backends.base import WAY_OUT
from nbtriton.backends.core.batching import gather_inputs
from nbtriton.backends.ragged import layout
from nbtriton.common.errors import InternalError, InvalidArgumentError, TritonError
from nbtriton.extensions.stand_in import cost_of
from nbtriton.model.config import as_config, stand_in_reason
from tests.backends.fakes import Request

PLAN = """platform: "tensorrt_plan" max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] }
output [ { name: "OUT" data_type: TYPE_FP16 dims: [ -1, 2 ] }, { name: "TEXT" data_type: TYPE_STRING dims: 1 } ]
"""
UNKNOWN = "unable to find backend library for backend 'tensorrt'"
MISSING = "there is no backend 'tensorrt'"


@pytest.fixture
def server():
    with nt.Server(gpus=(), stand_in=True) as running:
        yield running


def image(rows=2):
    return {"IN": np.ones((rows, 3, 5, 7), np.float32)}


def cost(text):
    return f'parameters {{ key: "STAND_IN_COST_US" value {{ string_value: "{text}" }} }}'


def test_a_model_without_backend_answers_zeros_of_its_shapes(server, caplog):
    with caplog.at_level(logging.WARNING, "nbtriton.stand_in"):
        server.load(PLAN, name="m")
    assert "model 'm' is a stand-in for tensorrt: there is no backend" in caplog.text
    assert "no cost is declared" in caplog.text
    result = server.infer("m", image())
    assert result["OUT"].dtype == np.float16
    assert result["OUT"].shape == (2, 5, 2)  # as the first variable dimension of the input
    assert result["TEXT"].tolist() == [[b""], [b""]]
    assert not result["OUT"].any()
    # As Triton does with a TensorRT model that says no scheduler.
    assert list(server.config("m").dynamic_batching.preferred_batch_size) == [8]


def test_without_the_option_the_error_names_it():
    with nt.Server(gpus=()) as running:
        for text, model in (
            (PLAN, "model.plan"),
            (PLAN.replace('platform: "tensorrt_plan"', 'backend: "onnxruntime"'), "none.onnx"),
            (PLAN.replace('platform: "tensorrt_plan"', 'backend: "pytorch"'), None),
        ):
            with pytest.raises(TritonError) as caught:
                running.load(text, model, name="m")
            assert WAY_OUT in caught.value.hint


def test_a_model_that_has_everything_is_no_stand_in(server):
    server.load("max_batch_size: 2", _double, name="m")
    assert stand_in_reason(server.config("m")) == ""
    assert server.infer("m", {"IN": [[2.0] * 4]})["OUT"].tolist() == [[4.0] * 4]


def _double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    return {"OUT": IN * 2}


def test_everything_that_shows_a_stand_in_says_so(server, tmp_path):
    server.load(PLAN + cost(100), name="m")
    server.load(
        """platform: "ensemble" max_batch_size: 8
        input { name: "X" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] }
        output { name: "Y" data_type: TYPE_FP16 dims: [ -1, 2 ] }
        ensemble_scheduling { step { model_name: "m" model_version: -1
          input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "Y" } } }""",
        name="e",
    )
    reason = stand_in_reason(server.config("m"))
    assert reason == MISSING
    assert server.metadata("m")["platform"] == "tensorrt_plan (stand-in)"
    frame = nt.status(server).set_index("model")
    assert frame["stand_in"].to_dict() == {"e": "", "m": reason}
    assert "stand-in · tensorrt" in nt.dag(server, "e")._repr_mimebundle_()["text/html"]
    report = nt.perf(
        server, "e", concurrency=[1], request_count=4, shapes={"X": [3, 4, 4]}, max_trials=1,
        measurement_interval_ms=50,
    )  # fmt: skip
    assert any(note.startswith("'m' is a stand-in") for note in report.notes)
    with pytest.warns(UserWarning, match="'m' is a stand-in .*: its file is not written"):
        exported = server.export(tmp_path / "out")
    assert any("'m' is a stand-in" in line for model in exported.models for line in model.notes)
    assert "STAND_IN " not in (tmp_path / "out" / "m" / "config.pbtxt").read_text()


def test_a_repository_of_configurations_and_the_command_line_option(tmp_path):
    from nbtriton.serving.frontends.flags import parse_flags

    folder = tmp_path / "net" / "1"
    folder.mkdir(parents=True)
    (tmp_path / "net" / "config.pbtxt").write_text(
        PLAN.replace("tensorrt_plan", "onnxruntime_onnx")
    )
    assert parse_flags(["--stand-in"]).stand_in is True
    with nt.Server(gpus=()) as running:
        assert "does not exist" not in running.load_repository(tmp_path).errors
        assert not running.is_ready("net")
    with nt.Server(gpus=(), stand_in=True) as running:
        running.load_repository(tmp_path)
        assert stand_in_reason(running.config("net")) == "the file 'model.onnx' does not exist"
        assert running.infer("net", image(1))["OUT"].shape == (1, 5, 2)


def test_a_stand_in_stays_where_it_is(server):
    """It has no code that a process of its own could isolate."""
    own = 'parameters { key: "INSTANCE_ISOLATION" value { string_value: "process" } }'
    server.load(PLAN + own, name="m")
    assert server.infer("m", image())["OUT"].shape == (2, 5, 2)


def test_the_option_of_a_running_server(server):
    server.load(PLAN, name="m")
    with pytest.raises(TritonError, match=UNKNOWN):
        server.set_options(stand_in=False)
    assert server.infer("m", image())["OUT"].shape == (2, 5, 2)  # nothing has changed


def test_a_configuration_that_says_no_tensors_cannot_stand_in(server):
    with pytest.raises(TritonError, match="a stand-in for model 'm' needs the inputs"):
        server.load('platform: "tensorrt_plan" max_batch_size: 8', name="m")


def test_decoupled_stateful_and_bf16_stand_ins(server):
    io = """input { name: "IN" data_type: TYPE_BF16 dims: 1 }
    output { name: "OUT" data_type: TYPE_BF16 dims: 1 }"""
    server.load('backend: "vllm" model_transaction_policy { decoupled: true } ' + io, name="stream")
    import torch

    given = {"IN": torch.ones(1, dtype=torch.bfloat16)}
    (response,) = server.stream("stream", given)
    assert response["OUT"].dtype == torch.bfloat16
    state = """sequence_batching { state { input_name: "S" output_name: "T"
    data_type: TYPE_INT32 dims: 2 } }"""
    server.load(f'platform: "tensorrt_plan" max_batch_size: 2 {io} {state}', name="stateful")
    given = {"IN": torch.ones((1, 1), dtype=torch.bfloat16)}
    first = server.infer("stateful", given, sequence_id=3, sequence_start=True)
    last = server.infer("stateful", given, sequence_id=3, sequence_end=True)
    assert first["OUT"].shape == last["OUT"].shape == (1, 1)


# -- the cost -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500", {1: 500, 64: 500}),
        ("1:100, 8:800", {1: 100, 2: 200, 8: 800, 16: 1600}),
        ("4: 100, 8: 60", {1: 100, 4: 100, 6: 80, 8: 60, 100: 0}),
    ],
)
def test_a_declared_cost(text, seconds):
    found = cost_of(as_config(PLAN + cost(text)), None)
    assert {rows: round(found.seconds(rows) * 1e6, 6) for rows in seconds} == seconds


@pytest.mark.parametrize("text", ["", "fast", "1:", "0:5", "-4", "1:2:3", "nan"])
def test_a_cost_that_cannot_be_read(text):
    with pytest.raises(InvalidArgumentError, match="expected microseconds of a batch"):
        cost_of(as_config(PLAN + cost(text)), None)


def test_a_recording_of_a_server_is_a_cost(tmp_path):
    def took(ns, count):
        return {"count": count, "ns": ns}

    batches = [
        {"batch_size": size, "compute_input": took(10_000 * n, n), "compute_infer": took(us * 1000 * n, n),
         "compute_output": took(0, n)}
        for size, us, n in ((1, 90, 4), (4, 290, 2))
    ]  # fmt: skip
    recording = {"model_stats": [{"name": "other"}, {"name": "m", "batch_stats": batches}]}
    (tmp_path / "stand_in.json").write_text(json.dumps(recording))
    found = cost_of(as_config('name: "m" ' + PLAN), tmp_path)
    assert [round(found.seconds(rows) * 1e6) for rows in (1, 2, 4, 5)] == [100, 167, 300, 367]
    assert found.source == "recorded in stand_in.json"
    named = PLAN + 'parameters { key: "STAND_IN_STATISTICS" value { string_value: "none.json" } }'
    with pytest.raises(InternalError, match=r"none.json' is not a recording: FileNotFoundError"):
        cost_of(as_config(named), tmp_path)


def test_our_own_statistics_are_a_recording(server, tmp_path):
    server.load("max_batch_size: 2", _double, name="m")
    for rows in (1, 2):
        server.infer("m", {"IN": np.ones((rows, 4), np.float32)})
    path = tmp_path / "stand_in.json"
    path.write_text(json.dumps(server.statistics("m")))
    assert [rows for rows, _ in cost_of(as_config('name: "m"'), tmp_path).points] == [1, 2]


def test_a_batch_waits_as_long_as_it_costs(server, monkeypatch):
    waits = []
    waiting = SimpleNamespace(sleep=waits.append)
    monkeypatch.setattr("nbtriton.extensions.stand_in.time", waiting)
    server.load(PLAN + cost("1:100, 8:800"), name="m")
    for rows in (1, 4):
        server.infer("m", image(rows))
    assert [round(seconds * 1e6) for seconds in waits] == [100, 400]


# -- shape tensors --------------------------------------------------------------------------------------

SHAPED = """name: "myshapetensormodel" platform: "tensorrt_plan" max_batch_size: 8
input [ { name: "input0" data_type: TYPE_FP32 dims: [ 1, 3 ] },
        { name: "input1" data_type: TYPE_INT32 dims: [ 2 ] is_shape_tensor: true } ]
output { name: "output0" data_type: TYPE_FP32 dims: [ 1, 3 ] }
"""
ROWS = ([[[1, 2, 3]]], [[[4, 5, 6]], [[7, 8, 9]]], [[[10, 11, 12]]])


def shaped(rows, *values):
    return {"input0": np.array(rows, np.float32), "input1": np.array(values, np.int32)}


@pytest.mark.parametrize("with_size", [True, False])
def test_G9_the_documented_batch_of_three_requests(with_size):
    requests = [Request(shaped(rows, *([len(rows)] if with_size else []), 4, 6)) for rows in ROWS]
    config = as_config(SHAPED)
    found = gather_inputs(requests, ["input0", "input1"], layout(config))
    assert found["input0"].tolist() == [[[1, 2, 3]], [[4, 5, 6]], [[7, 8, 9]], [[10, 11, 12]]]
    assert found["input1"].tolist() == [4, 4, 6]


def test_G9_requests_with_one_shape_share_a_batch_and_others_do_not(server):
    server.load(
        SHAPED
        + "dynamic_batching { max_queue_delay_microseconds: 60000000 preferred_batch_size: 4 }"
    )
    name = "myshapetensormodel"
    futures = [server.submit(name, shaped(rows, len(rows), 4, 6)) for rows in ROWS]
    found = [future.result(30)["output0"].shape for future in futures]
    assert found == [(1, 1, 3), (2, 1, 3), (1, 1, 3)]
    assert [batch.batch_size for batch in server.batches(name)] == [4]
    build = server.engine.inspection.signature(name).build_request
    keys = [
        build(shaped(rows, *values), RequestOptions()).shape_key
        for rows, values in ((ROWS[0], (1, 4, 6)), (ROWS[1], (4, 6)), (ROWS[0], (4, 7)))
    ]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (shaped(ROWS[1], 1, 4, 6), "shape tensor 'input1' for model 'myshapetensormodel' begins with 1, the batch size of the request is 2"),
        (shaped(ROWS[0], 4), "unexpected shape for input 'input1' for model 'myshapetensormodel'. Expected [-1,2], got [1]"),
        ({"input0": np.ones((9, 1, 3), np.float32), "input1": np.array([4, 6], np.int32)}, "inference request batch-size must be <= 8"),
        ({"input0": np.ones((1, 1, 3), np.float32)}, "expected 2 inputs but got 1 inputs"),
        (shaped(ROWS[0], 4, 6) | {"input1": np.array([4, 6], np.int64)}, "data-type is 'INT64'"),
    ],
)  # fmt: skip
def test_a_shape_tensor_that_does_not_fit(server, given, message):
    server.load(SHAPED)
    with pytest.raises(InvalidArgumentError) as caught:
        server.infer("myshapetensormodel", given)
    assert message in caught.value.message


def test_shape_tensors_in_warmup_and_measurements(server):
    sample = """model_warmup { name: "w" batch_size: 2
        inputs { key: "input0" value { data_type: TYPE_FP32 dims: [ 1, 3 ] zero_data: true } }
        inputs { key: "input1" value { data_type: TYPE_INT32 dims: 2 zero_data: true } } }"""
    server.load(SHAPED + sample)
    model = "myshapetensormodel"
    quick = {"concurrency": [1], "request_count": 4, "batch_size": 2}
    for inputs in (None, shaped(ROWS[1] * 2, 4, 4, 6)):
        report = nt.perf(server, model, inputs=inputs, **quick)
        assert [point.error_count for point in report.points] == [0]
    assert {batch.batch_size for batch in server.batches(model)} == {2}


def test_shape_tensors_over_http(server):
    import tritonclient.http as httpclient

    server.load(SHAPED)
    endpoints = server.serve(http_port=0, grpc_port=None, metrics_port=None)
    with httpclient.InferenceServerClient(f"127.0.0.1:{endpoints.http_port}") as client:
        for binary in (True, False):
            inputs = []
            for name, array in shaped(ROWS[1], 2, 4, 6).items():
                kind = "FP32" if name == "input0" else "INT32"
                one = httpclient.InferInput(name, list(array.shape), kind)
                one.set_data_from_numpy(array, binary_data=binary)
                inputs.append(one)
            result = client.infer("myshapetensormodel", inputs)
            assert result.as_numpy("output0").shape == (2, 1, 3)


def test_the_registry_knows_no_stand_ins():
    with pytest.raises(InvalidArgumentError, match=UNKNOWN):
        find_backend("tensorrt")
    assert backend_for(_double).name == "python"
