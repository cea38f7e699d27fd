"""``nt.timeline``: what is drawn, and the trace that Perfetto opens."""

from __future__ import annotations

import json
import threading
from time import monotonic_ns

import pytest

import nbtriton as nt
from nbtriton.backends.python import install_pb_utils
from nbtriton.common.errors import InvalidArgumentError, NotFoundError
from nbtriton.lab.explain.findings import Settings
from nbtriton.lab.explain.timeline import mark_of, read_newest_batches, read_request
from nbtriton.lab.explain.trace import ModelRecords, chrome_trace
from tests.engine.support import WAIT_S, Gate, echo, ensemble_text, gated, ones
from tests.explain.scenarios import MS, US, poisson, simulate
from tests.explain.trace_format import check_trace

MODEL = Settings("m", 4, dynamic=True, instances=2, max_queue_size=6)


@pytest.fixture(scope="module", autouse=True)
def pb_utils():
    install_pb_utils()


@pytest.fixture
def server():
    with nt.Server(gpus=()) as running:
        running.load(echo("dynamic_batching { }"), gated(Gate(is_open=True)), name="m")
        yield running


def load_ensemble(server):
    steps = [("m", {"IN": "A"}, {"OUT": "B"}), ("m", {"IN": "B"}, {"OUT": "C"})]
    text = ensemble_text(*steps, inputs={"A": "FP32[4]"}, outputs={"C": "FP32[4]"})
    server.load(text, name="e")


@pytest.mark.parametrize("seed", range(5))
def test_a_trace_keeps_the_published_format(seed):
    record = simulate(MODEL, poisson(seed, 300, 100), lambda rows: (300 + 90 * rows) * US)
    refused = sum(request.outcome == "queue_full" for request in record.requests)
    assert refused
    phases = check_trace(chrome_trace([ModelRecords("m", record.requests, record.batches)]))
    slices = {kind: [e for e in phases["X"] if e["cat"] == kind] for kind in ("batch", "request")}
    assert len(slices["batch"]) == len(record.batches)
    assert len(slices["request"]) == 300
    assert len(phases["s"]) == 300 - refused
    assert [event["name"] for event in phases["i"]] == ["queue_full"] * refused
    assert min(event["ts"] for event in phases["X"]) == 0
    full = [e for e in slices["batch"] if e["args"]["reason"] == "max_batch_size"]
    assert full
    assert all(e["args"]["rows"] == 4 and "full" in e["args"]["meaning"] for e in full)
    # The queue is empty at the end, and was never longer than its bound.
    waiting = [event["args"]["requests"] for event in phases["C"]]
    assert waiting[-1] == 0
    assert 1 < max(waiting) <= MODEL.max_queue_size


def test_the_validator_finds_what_breaks_the_format():
    record = simulate(MODEL, poisson(1, 20, 150), lambda _: 400 * US)
    whole = chrome_trace([ModelRecords("m", record.requests, record.batches)])
    events = whole["traceEvents"]
    first = next(e for e in events if e["ph"] == "X")
    broken = [
        [e for e in events if e["ph"] != "f"],
        [e for e in events if e["name"] != "process_name"],
        [*events, {**first, "dur": first["dur"] / 2, "ts": first["ts"] + first["dur"] * 0.75}],
        [{k: v for k, v in e.items() if k != "ts"} for e in events],
        [{**e, "ts": e["ts"] + 1e9} if e["ph"] == "f" else e for e in events],
    ]
    for found in broken:
        with pytest.raises(AssertionError):
            check_trace({**whole, "traceEvents": found})


def test_the_steps_of_an_ensemble_follow_its_request(server, tmp_path):
    load_ensemble(server)
    for _ in range(3):
        server.infer("e", {"A": ones()})
    view = nt.timeline(server, "e")
    path = view.save(tmp_path / "trace.json")
    phases = check_trace(json.loads(path.read_text()))
    names = {e["pid"]: e["args"]["name"] for e in phases["M"] if e["name"] == "process_name"}
    assert names == {1: "e", 2: "m"}
    steps = [e for e in phases["s"] if e["cat"] == "step"]
    assert [e["pid"] for e in steps] == [1] * 6
    assert len([e for e in phases["f"] if e["cat"] == "step" and e["pid"] == 2]) == 6
    assert [lanes.name for lanes in view.timeline.models] == ["e", "m"]
    assert [len(lanes.bars) for lanes in view.timeline.models] == [0, 6]
    assert view.save(tmp_path / "t.svg").read_text().startswith("<svg")
    assert "m_0 " in view.save(tmp_path / "t.txt").read_text()


def test_instances_on_two_gpus_have_a_lane_each():
    both = threading.Barrier(2)

    def wait(IN):  # noqa: N803 - a tensor
        both.wait(WAIT_S)
        return {"OUT": IN}

    group = "instance_group { kind: KIND_GPU gpus: [ 0, 1 ] }"
    with nt.Server(gpus="simulated:2") as two:
        two.load(echo(group), wait, name="m")
        requests = [two.submit("m", {"IN": ones()}) for _ in range(2)]
        assert all(one.result(WAIT_S) for one in requests)
        (model,) = nt.timeline(two, "m").timeline.models
    assert model.lanes == ("m_0_0 (GPU device 0)", "m_0_0 (GPU device 1)")
    assert sorted(bar.lane for bar in model.bars) == [0, 1]


def test_the_models_that_a_model_calls_are_beneath_it(server):
    import triton_python_backend_utils as pb_utils

    class Calls:
        def execute(self, requests):
            tensor = pb_utils.get_input_tensor_by_name(requests[0], "IN")
            inner = pb_utils.InferenceRequest(
                model_name="m", requested_output_names=["OUT"], inputs=[tensor]
            )
            return [pb_utils.InferenceResponse(inner.exec().output_tensors())]

    server.load(echo(), Calls, name="calls")
    server.infer("m", {"IN": ones()})
    assert [each.name for each in nt.timeline(server, "m").timeline.models] == ["m"]
    for _ in range(3):
        server.infer("calls", {"IN": ones()})
    view = nt.timeline(server, "calls")
    assert [(each.name, len(each.bars)) for each in view.timeline.models] == [
        ("calls", 3),
        ("m", 4),
    ]
    begun, called = view.timeline.models
    for outer, inner in zip(begun.bars, called.bars[1:], strict=True):
        assert outer.begin_ms < inner.begin_ms < inner.end_ms < outer.end_ms
    assert (
        len([e for e in view.trace()["traceEvents"] if e["ph"] == "s" and e["cat"] == "step"]) == 3
    )


def test_a_span_cuts_the_picture_and_not_the_trace(server):
    for _ in range(50):
        server.infer("m", {"IN": ones()})
    assert len(nt.timeline(server, "m").timeline.models[0].bars) == 40
    (lanes,) = nt.timeline(server, "m", span_ms=60_000).timeline.models
    assert len(lanes.bars) == len(lanes.waits) == 50
    view = nt.timeline(server, "m", span_ms=0.001)
    assert len(view.timeline.models[0].bars) <= 1
    assert (
        len([e for e in view.trace()["traceEvents"] if e["ph"] == "X" and e["cat"] == "batch"])
        == 50
    )
    with pytest.raises(InvalidArgumentError, match="span_ms=0"):
        nt.timeline(server, "m", span_ms=0)
    with pytest.raises(NotFoundError, match="'n'"):
        nt.timeline(server, "n")


def test_a_request_has_a_lane_for_each_step(server):
    load_ensemble(server)
    server.infer("e", {"A": ones()})
    begun = monotonic_ns()
    server.infer("e", {"A": ones()})
    server.infer("m", {"IN": ones()})
    timeline = read_request(server, "e", begun)
    assert timeline is not None
    (shown,) = timeline.models
    assert shown.lanes == ("m", "m (2)")
    assert [bar.lane for bar in shown.bars] == [wait.lane for wait in shown.waits] == [0, 1]
    first, second = shown.bars
    assert 0 <= first.begin_ms < first.end_ms <= second.begin_ms < second.end_ms <= timeline.span_ms
    assert timeline.begin_ns >= begun
    assert timeline.finding.startswith("e: ")
    assert "2 steps" in timeline.finding
    assert read_request(server, "e", monotonic_ns()) is None


def test_the_newest_batches_have_a_lane_for_each_model(server):
    server.load(echo("instance_group { count: 3 }"), gated(Gate(is_open=True)), name="m")
    load_ensemble(server)
    for _ in range(3):
        server.infer("e", {"A": ones()})
    timeline = read_newest_batches(server, "e")
    assert timeline is not None
    (shown,) = timeline.models
    assert shown.lanes == ("m",)
    assert {bar.lane for bar in shown.bars} == {0}
    assert len(shown.bars) == 6


def test_without_a_recorder_there_is_neither():
    with nt.Server(gpus=(), recorder=0) as server:
        server.load(echo(), gated(Gate(is_open=True)), name="m")
        load_ensemble(server)
        server.infer("e", {"A": ones()})
        assert read_request(server, "e", 0) is None
        assert read_newest_batches(server, "e") is None


def test_an_unloaded_model_is_still_drawn_and_an_idle_one_says_so(server):
    assert "no batch is recorded" in repr(nt.timeline(server, "m"))
    server.infer("m", {"IN": ones()})
    server.unload("m", timeout_s=WAIT_S)
    (lanes,) = nt.timeline(server, "m").timeline.models
    assert (len(lanes.bars), lanes.lanes) == (1, ("m_0",))


def test_marks_say_why_a_batch_left():
    record = simulate(MODEL, [(n * MS, 1, None) for n in range(3)], lambda _: 10 * US)
    assert {mark_of(batch).letter for batch in record.batches} == {"I"}
    full = record.batches[0]._replace(reason="max_batch_size")
    assert mark_of(full).letter == "F"
    assert mark_of(full._replace(reason="custom_batching")).letter == "C"
