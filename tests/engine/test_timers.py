"""The scheduler thread: it outlives what callbacks and configurations do to it, and its timers do not pile up."""

# ruff: noqa: N803 - a model function names its tensors
from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from nbtriton.common.errors import RequestTimeoutError
from nbtriton.runtime.engine import Server
from tests.engine.support import WAIT_S, Gate, echo, gated, ones, row, waited

FOREVER_US = 2**64 - 1
DELAYED = echo("dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 1000 }")
PAIRS = """
sequence_batching {
  max_sequence_idle_microseconds: %d
  direct { max_queue_delay_microseconds: 1000 minimum_slot_utilization: 1.0 }
}
"""


def same(IN):
    return {"OUT": IN}


def test_a_delay_beyond_all_clocks_ends_no_timer_of_others(server: Server):
    """Triton takes any number of 64 bits."""
    forever = (
        f"dynamic_batching {{ preferred_batch_size: 4 max_queue_delay_microseconds: {FOREVER_US} }}"
    )
    server.load(echo(forever), same, name="patient")
    server.load(DELAYED, same, name="delayed")
    waits = server.submit("patient", {"IN": ones()})
    for _ in range(3):
        server.submit("delayed", {"IN": ones()}).result(WAIT_S)
    assert not waits.done()
    server.submit("patient", {"IN": ones(3)}).result(WAIT_S)
    assert waits.result(WAIT_S).timing.batch_size == 4


@pytest.mark.parametrize("way", ["on_response", "done callback"])
def test_a_callback_on_the_scheduler_thread_may_raise_anything(
    server: Server, gate: Gate, caplog, way: str
):
    policy = "default_queue_policy { default_timeout_microseconds: 1000 }"
    server.load(echo(f"dynamic_batching {{ {policy} }}"), gated(gate), name="timed")
    server.load(DELAYED, same, name="delayed")
    busy = server.submit("timed", {"IN": ones(8)})
    gate.wait_entered()

    def leave(*_: object) -> None:
        raise SystemExit(f"by {way}")

    late = server.submit(
        "timed", {"IN": ones()}, on_response=leave if way == "on_response" else None
    )
    if way != "on_response":
        with suppress(SystemExit):  # where the time has run out already
            late.add_done_callback(leave)
    assert isinstance(late.exception(WAIT_S), RequestTimeoutError)
    server.submit("delayed", {"IN": ones()}).result(WAIT_S)
    gate.open()
    busy.result(WAIT_S)


def test_timers_that_are_far_away_do_not_pile_up(server: Server):
    """A sequence that may be idle for an hour, each of whose requests waits for the delay."""
    server.load(echo(PAIRS % (3600 * 10**6), max_batch_size=2), same, name="m")
    for number in range(20):
        future = server.submit(
            "m",
            {"IN": row(number)},
            sequence_id=1,
            sequence_start=not number,
            sequence_end=number == 19,
        )
        assert future.result(WAIT_S)["OUT"][0, 0] == number
    assert len(server.engine.lifecycle._thread._heap) < 5


def test_timers_begin_once_a_thread_can_be_started(server: Server, monkeypatch: pytest.MonkeyPatch):
    server.load(DELAYED, same, name="delayed")

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", refuse)
        first = server.submit("delayed", {"IN": ones()})
    second = server.submit("delayed", {"IN": ones()})
    assert first.result(WAIT_S).timing.batch_size == second.result(WAIT_S).timing.batch_size == 2


def test_close_does_not_wait_for_a_callback_on_the_scheduler_thread(gate: Gate, server: Server):
    policy = "default_queue_policy { default_timeout_microseconds: 1000 }"
    server.load(echo(f"dynamic_batching {{ {policy} }}"), gated(gate), name="timed")
    server.submit("timed", {"IN": ones(8)})
    gate.wait_entered()
    entered, leaves, closed = threading.Event(), threading.Event(), threading.Event()

    def stay(_: object) -> None:
        entered.set()
        leaves.wait(2 * WAIT_S)

    server.submit("timed", {"IN": ones()}).add_done_callback(stay)
    waited(entered)

    def close() -> None:
        server.close(timeout_s=0.01)
        closed.set()

    closing = threading.Thread(target=close)
    closing.start()
    try:
        waited(closed)
    finally:
        leaves.set()
        closing.join()
