"""The recorder: what is kept of requests and batches, and for how long."""

from __future__ import annotations

import gc
import os

import pytest

from nbtriton import compiled
from nbtriton.common.errors import (
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnavailableError,
)
from nbtriton.drawing.numbers import THIN
from nbtriton.runtime.engine import Server
from nbtriton.runtime.engine.core.execution import Execution, Statistics
from nbtriton.runtime.engine.core.history import Meter, ModelHistory, Recorder
from nbtriton.runtime.engine.events import events
from tests.engine.support import WAIT_S, Gate, echo, ensemble_text, gated, ones, row, streaming
from tests.until import until

BATCHING = echo("dynamic_batching {}")


def same_values(IN):  # noqa: N803 - a model function names its tensors
    return {"OUT": IN}


@pytest.fixture
def same() -> type:
    return gated(Gate(is_open=True))


def test_a_change_counts_the_instances_of_all_gpus():
    with Server(gpus="simulated:2") as server:
        server.load(echo("instance_group { count: 2 kind: KIND_GPU }"), same_values, name="m")
        (model,) = server.history().models
        assert len(model.model.instances) == 4
        assert model.changes[0].summary == "loaded: 4 instances, max_batch_size 8"


def test_a_request_alone_is_kept_with_its_times_and_its_batch(server: Server, same):
    server.load(echo(), same, name="m")
    server.infer("m", {"IN": ones(3)}, request_id="mine")
    (request,) = server.requests("m")
    (batch,) = server.batches("m")
    assert (request.model, request.version, request.request_id) == ("m", 1, "mine")
    assert (request.size, request.caller, request.responses, request.status) == (3, 0, 0, "")
    assert request.batch == batch
    assert batch.requests == (request.number,)
    assert (batch.batch_size, batch.reason, batch.waiting) == (3, "batching_off", 0)
    assert (
        request.arrival_ns <= request.enqueued_ns <= batch.formed_ns <= batch.start_ns
        <= batch.infer_start_ns <= batch.infer_end_ns <= batch.end_ns <= request.answered_ns
    )  # fmt: skip


def test_requests_of_a_batch_share_it_and_it_says_what_it_left_waiting(server: Server, gate: Gate):
    server.load(echo("dynamic_batching {}", max_batch_size=2), gated(gate), name="m")
    first = server.submit("m", {"IN": ones()})
    gate.wait_entered()
    rest = [server.submit("m", {"IN": ones()}) for _ in range(3)]
    gate.open()
    for future in (first, *rest):
        future.result(WAIT_S)
    one, two, three = server.batches("m")
    assert [(b.batch_size, b.reason, b.waiting) for b in (one, two, three)] == [
        (1, "no_delay", 0),
        (2, "max_batch_size", 1),
        (1, "no_delay", 0),
    ]
    requests = server.requests("m")
    assert [request.batch for request in requests] == [one, two, two, three]
    assert two.requests == tuple(request.number for request in requests[1:3])
    assert len({request.arrival_ns for request in requests}) == 4


def test_steps_of_an_ensemble_name_the_request_that_they_are_of(server: Server, same):
    server.load(echo(), same, name="m")
    steps = [("m", {"IN": "X"}, {"OUT": "Y"}), ("m", {"IN": "Y"}, {"OUT": "Z"})]
    tensor = "FP32[4]"
    text = ensemble_text(*steps, inputs={"X": tensor}, outputs={"Z": tensor})
    server.load(text, name="inner")
    outer = [("inner", {"X": "A"}, {"Z": "B"}), ("m", {"IN": "B"}, {"OUT": "C"})]
    text = ensemble_text(*outer, inputs={"A": tensor}, outputs={"C": tensor})
    server.load(text, name="outer")
    server.infer("outer", {"A": ones()})
    (whole,) = server.requests("outer")
    (inner,) = server.requests("inner")
    assert (whole.caller, whole.batch) == (0, None)
    assert (inner.caller, inner.step) == (whole.number, 0)
    callers = [(request.caller, request.step) for request in server.requests("m")]
    assert callers == [(inner.number, 0), (inner.number, 1), (whole.number, 1)]
    assert all(request.answered_ns > request.arrival_ns for request in server.requests("m"))


def test_a_call_from_a_model_names_the_batch_that_called(server: Server, same):
    import triton_python_backend_utils as pb_utils

    class Calling:
        def execute(self, requests):
            responses = []
            for request in requests:
                call = pb_utils.InferenceRequest(
                    model_name="m", requested_output_names=["OUT"], inputs=request.inputs()
                )
                responses.append(pb_utils.InferenceResponse(call.exec().output_tensors()))
            return responses

    server.load(echo(), same, name="m")
    server.load(echo(), Calling, name="caller")
    server.infer("caller", {"IN": ones()})
    (calling,) = server.requests("caller")
    (called,) = server.requests("m")
    assert called.caller == calling.number
    assert called.arrival_ns >= calling.batch.start_ns


def test_refused_and_failed_requests_say_why(server: Server, gate: Gate):
    policy = (
        "default_queue_policy { max_queue_size: 1 default_timeout_microseconds: 3600000000"
        " allow_timeout_override: true }"
    )
    server.load(echo(f"dynamic_batching {{ {policy} }}"), gated(gate), name="m")
    running = server.submit("m", {"IN": ones()})
    gate.wait_entered()
    late = server.submit("m", {"IN": ones()}, timeout_us=1)
    with pytest.raises(TritonError):
        late.result(WAIT_S)
    waiting = server.submit("m", {"IN": ones()})
    with pytest.raises(TritonError):
        server.submit("m", {"IN": ones()}).result(WAIT_S)
    gate.open()
    running.result(WAIT_S)
    waiting.result(WAIT_S)
    found = [(r.outcome, r.status, bool(r.error), r.batch is None) for r in server.requests("m")]
    assert found == [
        ("timeout", "UNAVAILABLE", True, True),
        ("queue_full", "UNAVAILABLE", True, True),
        ("", "", False, False),
        ("", "", False, False),
    ]


def test_a_model_that_raises_leaves_its_error(server: Server):
    class Failing:
        def execute(self, requests):
            raise ValueError("no such thing")

    server.load(BATCHING, Failing, name="m")
    with pytest.raises(TritonError):
        server.infer("m", {"IN": ones()})
    (request,) = server.requests("m")
    assert request.status == "INTERNAL"
    assert "no such thing" in request.error
    assert request.batch.failed


def test_an_answer_from_the_cache_has_no_batch(same):
    with Server(gpus=(), cache_bytes=1_000_000) as server:
        server.load(echo("response_cache { enable: true }"), same, name="m")
        for _ in range(2):
            server.infer("m", {"IN": ones()})
        missed, hit = server.requests("m")
    assert (missed.outcome, missed.batch is None) == ("", False)
    assert (hit.outcome, hit.batch) == ("cache_hit", None)


def test_a_stream_counts_its_responses(server: Server):
    server.load(echo("model_transaction_policy { decoupled: true }"), streaming(), name="m")
    assert len(list(server.stream("m", {"IN": row(3)}))) == 3
    # A request alone in its batch is kept with the batch, which ends after the last response.
    assert until(lambda: server.requests("m"))
    (request,) = server.requests("m")
    assert request.responses == 3
    assert request.arrival_ns < request.first_response_ns <= request.answered_ns


def test_history_survives_loads_updates_and_unloads(server: Server, same):
    for count in (1, 2, 1):
        group = f"instance_group {{ count: {count} kind: KIND_CPU }}"
        server.load(f"{BATCHING} {group}", same, name="m")
        server.infer("m", {"IN": ones()})
    server.load(echo("dynamic_batching {}", max_batch_size=4), same, name="m")
    server.infer("m", {"IN": ones()})
    assert len(server.requests("m")) == len(server.batches("m")) == 4
    (model,) = server.history().models
    assert model.moments[-1].requests == model.moments[-1].inferences == 4
    assert model.model.success_count == 1  # Triton's statistics begin anew
    summaries = [change.summary for change in model.changes]
    assert summaries[0].startswith("loaded: 1 instance, max_batch_size 8, dynamic batching")
    assert "max_batch_size 4" in summaries[-1]
    server.unload("m", timeout_s=None)
    assert len(server.requests("m")) == 4
    with pytest.raises(NotFoundError, match="unknown model: 'n'"):
        server.requests("n")


def test_a_recorder_keeps_as_much_as_its_option_says(same):
    with Server(gpus=(), recorder=3) as server:
        server.load(BATCHING, same, name="m")
        for number in range(5):
            server.infer("m", {"IN": ones()}, request_id=str(number))
        assert [request.request_id for request in server.requests("m")] == ["2", "3", "4"]
        futures = [server.submit("m", {"IN": ones()}) for _ in range(20)]
        for future in futures:
            future.result(WAIT_S)
        assert len(server.batches("m")) <= 3
        assert len(server.engine.inspection.histories("m")[0].requests()) <= 3


def test_without_a_recorder_nothing_is_kept_and_that_is_said(same):
    with Server(gpus=(), recorder=False) as server:
        server.load(BATCHING, same, name="m")
        server.infer("m", {"IN": ones()})
        for read in (server.requests, server.batches):
            with pytest.raises(UnavailableError, match="recorder of this server is off"):
                read("m")
        (model,) = server.history().models
        assert model.moments == ()
        assert model.model.success_count == 1
        server.set_options(recorder=True)
        server.infer("m", {"IN": ones()})
        assert len(server.requests("m")) == 1
    with pytest.raises(InvalidArgumentError, match=r"recorder must be .*; found -1"):
        Server(recorder=-1)


def test_a_burst_is_seen_although_no_view_was_open(server: Server, gate: Gate):
    server.load(echo(max_batch_size=0), gated(gate), name="m")
    futures = [server.submit("m", {"IN": ones()[0]}) for _ in range(7)]
    gate.wait_entered()
    gate.open()
    for future in futures:
        future.result(WAIT_S)
    (model,) = server.history().models
    assert model.model.queued == 0
    assert max(moment.deepest for moment in model.moments) == 6


def test_a_history_lets_go_of_the_runtimes_that_have_ended(server: Server, same):
    for _ in range(3):
        server.load(BATCHING, same, name="m")
        server.infer("m", {"IN": ones()})
    runtime = server.engine.registry.resolve("m")
    server.unload("m", timeout_s=None)
    (history,) = server.engine.inspection.histories("m")
    assert until(lambda: not history.is_attached)  # runtimes that were replaced end by themselves
    assert history.moments()[-1].requests == 3
    assert not [one for one in gc.get_referrers(runtime) if isinstance(one, ModelHistory)]


# -- moments: a history that gets its times as arguments --------------------------------------------

MS = 1_000_000


def attached(monkeypatch, at_ms: int) -> tuple[ModelHistory, Meter]:
    history = Recorder(8).history("m", 1)
    meter = Meter(("m_0", "KIND_CPU", 0))
    monkeypatch.setattr("nbtriton.runtime.engine.core.history._now_ns", lambda: at_ms * MS)
    history.attach(Statistics(), lambda: [meter], "one instance")
    return history, meter


def seen(history: ModelHistory) -> list[tuple[int, int, int]]:
    """Each moment in milliseconds, with its deepest queue and how long the instance had been busy."""
    return [
        (m.at_ns // MS, m.deepest, m.busy.get(("m_0", "KIND_CPU", 0), 0) // MS)
        for m in history.moments()
    ]


@pytest.mark.skipif(
    not ModelHistory.__module__ or hasattr(ModelHistory, "__mypyc_attrs__"),
    reason="a compiled class reads the clock itself",
)
def test_moments_are_a_fifth_of_a_second_and_idle_time_costs_none(monkeypatch):
    history, meter = attached(monkeypatch, 1010)
    history.note_depth(1050 * MS, 5)
    history.note_depth(1100 * MS, 2)
    meter.started_ns = 1100 * MS
    history.advance(1500 * MS)  # the execution ends after two moments
    meter.busy_ns += 400 * MS
    meter.started_ns = 0
    history.note_depth(1500 * MS, 0)
    monkeypatch.setattr("nbtriton.runtime.engine.core.history._now_ns", lambda: 99_900 * MS)
    for _ in range(3):
        found = seen(history)
    assert found == [
        (1010, 0, 0),
        (1200, 5, 100),
        (1400, 2, 300),
        (1600, 2, 400),
        (99_800, 0, 400),
        (99_900, 0, 400),
    ]


@pytest.mark.skipif(compiled, reason="a compiled class has no subclass of Python's")
def test_no_batch_is_missing_while_its_runtime_ends():
    class Ending(Statistics):
        def totals(self):
            seen.append(len(history.executions()))
            return super().totals()

    seen: list[int] = []
    history, statistics = Recorder(8).history("m", 1), Ending()
    history.attach(statistics, list, "one instance")
    statistics.record_execution(Execution(1))
    history.detach(statistics)
    assert seen[-1] == 1
    assert not history.is_attached


# -- DataFrames ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["request", "batch"])
def test_what_is_answered_while_events_are_read_is_one_of_them(gate: Gate, by: str):
    class Answering(Server):
        def requests(self, *arguments, **options):
            found = super().requests(*arguments, **options)
            gate.open()
            future.result(WAIT_S)
            return found

    with Answering(gpus=()) as server:
        server.load(echo(), gated(gate), name="m")
        future = server.submit("m", {"IN": ones()})
        gate.wait_entered()
        assert len(events(server, by=by)) == 1


def test_events_are_a_frame_of_what_happened_in_order(server: Server, same):
    server.load(BATCHING, same, name="m")
    step = ("m", {"IN": "X"}, {"OUT": "Y"})
    text = ensemble_text(step, inputs={"X": "FP32[4]"}, outputs={"Y": "FP32[4]"})
    server.load(text, name="e")
    server.infer("e", {"X": ones(2)})
    frame = events(server)
    assert list(frame.event) == [
        "arrival", "arrival", "batch", "start", "end", "answer", "answer",
    ]  # fmt: skip
    assert frame.at_ms.iloc[0] == 0
    assert frame.at_ms.is_monotonic_increasing
    batch = frame[frame.event == "batch"].iloc[0]
    assert (batch.model, batch.rows, batch.reason, batch.waiting) == ("m", 2, "no_delay", 0)
    (request,) = events(server, "m", by="request").to_dict("records")
    assert (request["rows"], request["batch_size"], request["status"]) == (2, 2, "")
    parts = sum(request[f"{part}_us"] for part in ("queue", "handover", "compute", "answer"))
    assert parts == pytest.approx(request["total_us"])
    assert list(events(server, "m", by="batch").reason) == ["no_delay"]
    assert events(server, "e", by="batch").empty
    # Shown: moments to the microsecond, numbers of requests that can be pasted and lead to the timeline.
    page = frame._repr_html_()
    assert f"{frame.at_ms.iloc[-1]:,.3f}".replace(",", THIN) in page
    assert f'href="#nbt-{os.getpid()}-{request["request"]}"' in page
    assert "NaN" not in page
    with pytest.raises(InvalidArgumentError, match="by 'requests'") as raised:
        events(server, by="requests")
    assert "request" in raised.value.hint


def test_events_name_refusals(server: Server, gate: Gate):
    policy = "default_queue_policy { max_queue_size: 1 }"
    server.load(echo(f"dynamic_batching {{ {policy} }}"), gated(gate), name="m")
    futures = [server.submit("m", {"IN": ones()})]
    gate.wait_entered()
    futures += [server.submit("m", {"IN": ones()}) for _ in range(2)]
    gate.open()
    for future in futures:
        future.exception(WAIT_S)
    frame = events(server, "m")
    refusal = frame[frame.event == "refusal"].iloc[0]
    assert (refusal.reason, refusal.status) == ("queue_full", "UNAVAILABLE")
    assert len(frame[frame.event == "answer"]) == 2
