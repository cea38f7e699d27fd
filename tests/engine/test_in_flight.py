"""Requests in flight: what is inside is seen while it waits and runs, by whom, and since when."""

from __future__ import annotations

import threading
from time import monotonic_ns

import pytest

from nbtriton.common.errors import NotFoundError
from nbtriton.runtime.engine import Server
from tests.engine.sequence_models import PATIENT
from tests.engine.support import WAIT_S, Gate, echo, ensemble_text, gated, ones, waited

BATCHING = "dynamic_batching { max_queue_delay_microseconds: 1000 }"


@pytest.mark.parametrize("recorder", [True, False])
@pytest.mark.parametrize(
    "scheduling",
    [
        "",
        "dynamic_batching {}",
        "dynamic_batching { max_queue_delay_microseconds: 60000000 preferred_batch_size: 4 }",
        "dynamic_batching { priority_levels: 3 default_priority_level: 2 }",
    ],
)
def test_a_model_that_hangs_shows_what_runs_and_what_waits(scheduling, recorder):
    gate = Gate()
    with Server(recorder=recorder) as server:
        server.load(echo(scheduling, max_batch_size=4), gated(gate), name="slow")
        before = monotonic_ns()
        first = server.submit("slow", {"IN": ones(4)}, request_id="first")
        gate.wait_entered()
        rest = [server.submit("slow", {"IN": ones()}, request_id=f"w{i}") for i in range(4)]
        running, *waiting = server.in_flight("slow")
        gate.open()
        for future in (first, *rest):
            future.result(WAIT_S)
        assert server.in_flight() == ()
    assert (running.request_id, running.answered_ns, running.size) == ("first", 0, 4)
    assert running.batch is not None
    assert running.batch.instance == "slow_0"
    assert running.batch.requests == (running.number,)
    assert before <= running.arrival_ns <= running.batch.formed_ns <= running.batch.start_ns
    assert running.batch.end_ns == 0
    assert [one.request_id for one in waiting] == ["w0", "w1", "w2", "w3"]
    assert all(one.batch is None and not one.answered_ns for one in waiting)


def test_a_request_inside_an_ensemble_is_in_the_step_that_names_it(server: Server, gate: Gate):
    server.load(echo(), gated(Gate(is_open=True)), name="fast")
    server.load(echo(), gated(gate), name="slow")
    steps = [("fast", {"IN": "X"}, {"OUT": "Y"}), ("slow", {"IN": "Y"}, {"OUT": "Z"})]
    text = ensemble_text(*steps, inputs={"X": "FP32[4]"}, outputs={"Z": "FP32[4]"})
    server.load(text, name="both")
    future = server.submit("both", {"X": ones()})
    gate.wait_entered()
    whole, step = server.in_flight()
    assert (whole.model, whole.batch, whole.caller) == ("both", None, 0)
    assert (step.model, step.caller, step.step) == ("slow", whole.number, 1)
    assert step.batch is not None
    gate.open()
    future.result(WAIT_S)


def test_a_sequence_of_requests_waits_behind_its_first(server: Server, gate: Gate):
    server.load(echo(f"sequence_batching {{ {PATIENT} }}"), gated(gate), name="m")
    futures = [
        server.submit("m", {"IN": ones()}, sequence_id=7, sequence_start=True),
        server.submit("m", {"IN": ones()}, sequence_id=7),
    ]
    gate.wait_entered()
    running, waiting = server.in_flight("m")
    assert (running.sequence, running.begins, waiting.sequence) == (7, True, 7)
    assert running.batch is not None
    assert waiting.batch is None
    gate.open()
    for future in futures:
        future.result(WAIT_S)


def test_a_version_that_finishes_its_last_request_is_still_looked_into(server: Server, gate: Gate):
    server.load(echo(), gated(gate), name="m")
    future = server.submit("m", {"IN": ones()})
    gate.wait_entered()
    server.unload("m")
    (running,) = server.in_flight("m")
    assert running.batch is not None
    gate.open()
    future.result(WAIT_S)


def test_a_strategy_that_keeps_the_batcher_keeps_no_view(server: Server):
    """Which waits for it a fifth of a second only: what is in the batcher is not seen then."""
    entered, leave = threading.Event(), threading.Event()

    class Strategy:
        def model_batcher_initialize(self, model):
            return model

        def model_batch_initialize(self, batcher):
            return batcher

        def model_batch_include_request(self, _request, _batch):
            entered.set()
            waited(leave)
            return True

        def model_batch_finalize(self, batch):
            pass

        def model_batcher_finalize(self, batcher):
            pass

    server.load(
        echo("dynamic_batching {}"), gated(Gate(is_open=True)), name="m", batching=Strategy()
    )
    sender = threading.Thread(target=server.infer, args=("m", {"IN": ones()}))
    sender.start()
    waited(entered)
    assert server.in_flight("m") == ()
    leave.set()
    sender.join(WAIT_S)
    assert not sender.is_alive()


def test_an_unknown_model_has_nothing_in_flight_to_ask_for(server: Server):
    with pytest.raises(NotFoundError, match="unknown model: 'nobody'"):
        server.in_flight("nobody")


def test_the_history_says_since_when_the_oldest_is_inside(server: Server, gate: Gate):
    server.load(echo(), gated(gate), name="m")
    assert server.history().models[0].inside_since_ns == 0
    futures = [server.submit("m", {"IN": ones()}) for _ in range(2)]
    gate.wait_entered()
    assert server.history().models[0].inside_since_ns == server.in_flight("m")[0].arrival_ns
    gate.open()
    for future in futures:
        future.result(WAIT_S)
