"""The response thread: it answers a batch while the instance runs the next one."""

from __future__ import annotations

import hashlib
import random
import sys
import threading
import weakref

import numpy as np
import pytest

from nbtriton.runtime.engine import Server
from nbtriton.runtime.engine.core.responding import ResponseThread
from tests.engine.support import WAIT_S, Gate, echo, fields, gated, ones, order_of, row, waited

PAIRS = echo("dynamic_batching { preferred_batch_size: 2 }", max_batch_size=2)
MS = 1_000_000
WITH_GIL = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="Python without a GIL"
)


def computing(gate: Gate, seen: list[str] | None = None) -> type:
    """A model that computes for some milliseconds without the GIL, and fails on negative numbers."""
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            gate.stand([request.request_id() for request in requests])
            hashlib.pbkdf2_hmac("sha256", b"some", b"work", 5000)
            values = [pb_utils.get_input_tensor_by_name(r, "IN").as_numpy() for r in requests]
            if values[0].flat[0] < 0:
                raise ValueError("kaboom")
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", v)]) for v in values]

        def finalize(self):
            if seen is not None:
                seen.append("finalized")

    return TritonPythonModel


def at_the_gate(server: Server, gate: Gate, *names: str) -> dict[str, object]:
    """Requests that wait behind one at the gate."""
    futures = {"first": server.submit("m", {"IN": ones()}, request_id="first")}
    gate.wait_entered()
    for name in names:
        futures[name] = server.submit("m", {"IN": ones()}, request_id=name)
    return futures


def test_the_next_batch_runs_during_slow_callbacks(server: Server, gate: Gate):
    server.load(PAIRS, computing(gate), name="m")
    futures = at_the_gate(server, gate, "a", "b", "c", "d")
    third_runs, called = threading.Event(), threading.Event()

    def callback(_: object) -> None:
        waited(third_runs)
        called.set()

    futures["a"].add_done_callback(callback)
    gate.let(2)
    gate.wait_entered(2)
    third_runs.set()
    waited(called)
    gate.open()
    assert all(future.exception(WAIT_S) is None for future in futures.values())
    assert gate.batches == [["first"], ["a", "b"], ["c", "d"]]
    assert len(set(gate.threads)) == 1  # the model itself stays on its thread


def test_a_batch_that_can_still_grow_waits_for_the_answers(server: Server, gate: Gate):
    """Callers that send their next request after an answer get full batches."""
    server.load(PAIRS, computing(gate), name="m")
    futures = at_the_gate(server, gate, "a", "b", "c")
    sent = []
    futures["a"].add_done_callback(
        lambda _: sent.append(server.submit("m", {"IN": ones()}, request_id="d"))
    )
    gate.open()
    assert futures["c"].exception(WAIT_S) is None
    assert gate.batches == [["first"], ["a", "b"], ["c", "d"]]


def test_answers_leave_in_the_order_of_the_batches(server: Server, gate: Gate):
    server.load(PAIRS, computing(gate), name="m")
    names = [str(number) for number in range(120)]
    futures = at_the_gate(server, gate, *names)
    threads = set()
    for future in futures.values():
        future.add_done_callback(lambda _: threads.add(threading.current_thread().name))
    order = order_of(futures)
    gate.open()
    assert order() == ["first", *names]
    assert any(name.endswith("-answers") for name in threads)


def test_a_model_is_finalized_behind_its_last_answer(server: Server, gate: Gate):
    seen: list[str] = []
    server.load(PAIRS, computing(gate, seen), name="m")
    futures = at_the_gate(server, gate, "a", "b", "c", "d")
    unloading, last = threading.Event(), threading.Event()

    def callback(_: object) -> None:
        waited(unloading)
        waited(last)
        seen.append("answered")

    futures["b"].add_done_callback(callback)
    gate.open()
    thread = threading.Thread(target=lambda: server.unload("m"))
    thread.start()
    unloading.set()
    last.set()
    thread.join(WAIT_S)
    assert futures["d"].exception(WAIT_S) is None
    server.close(timeout_s=WAIT_S)
    assert seen == ["answered", "finalized"]


@pytest.mark.medium
@pytest.mark.parametrize("instances", [1, 3])
def test_each_request_is_answered_once_under_failures_and_changes(
    server: Server, gate: Gate, instances: int
):
    """Failures, cancellations, removed instances, and an unload during all of them."""
    gate.open()

    def config(count: int) -> str:
        return PAIRS + f"instance_group {{ count: {count} kind: KIND_CPU }}"

    model = computing(gate)
    server.load(config(instances), model, name="m")
    draw = random.Random(5)
    answers: dict[int, int] = {}
    missing = 300
    turn = threading.Condition()
    futures = []

    def count(future) -> None:
        nonlocal missing
        with turn:
            answers[id(future)] = answers.get(id(future), 0) + 1  # `futures` keeps them
            missing -= 1
            turn.notify_all()

    for number in range(missing):
        value = -1.0 if draw.random() < 0.1 else float(number)
        future = server.submit("m", {"IN": row(value)})
        future.add_done_callback(count)
        futures.append((value, future))
        if draw.random() < 0.1:
            future.cancel()
        if number == 150:
            server.load(config(instances + 1), None, name="m")
            server.load(config(1), None, name="m")
    server.unload("m")
    with turn:
        assert turn.wait_for(lambda: missing == 0, WAIT_S)
    assert set(answers.values()) == {1}
    for value, future in futures:
        error = future.exception()
        if error is None:
            assert future.result()["OUT"][0, 0] == value
        else:
            assert error.status in ("CANCELLED", "INTERNAL"), error


def test_statistics_are_kept_before_the_answers(server: Server, gate: Gate):
    server.load(PAIRS, computing(gate), name="m")
    futures = at_the_gate(server, gate, "a", "b", "c", "d")
    found = []
    futures["b"].add_done_callback(lambda _: found.append(fields(server.statistics("m"), "m")))
    order = order_of(futures)
    gate.let(2)
    gate.wait_entered(2)
    gate.open()
    order()
    assert found[0]["batches"][2] >= 1
    assert found[0]["success"] >= 3


def test_a_process_that_can_have_no_more_threads_answers_all_the_same(
    server: Server, gate: Gate, monkeypatch
):
    server.load(PAIRS, computing(gate), name="m")
    futures = at_the_gate(server, gate, "a", "b", "c", "d", "e", "f")

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limit:
        limit.setattr(threading.Thread, "start", start)
        gate.open()
        assert all(future.exception(WAIT_S) is None for future in futures.values())


# -- the thread itself -------------------------------------------------------------------------------


def test_short_executions_are_answered_on_the_instances_thread():
    thread = ResponseThread("nbtriton-test-answers")
    assert not thread.should_offload(MS // 10)
    assert thread.should_offload(MS)
    thread.stop()


@WITH_GIL
def test_a_model_that_keeps_the_gil_is_offloaded_less_and_less():
    thread = ResponseThread("nbtriton-test-answers")
    executions, asked = 2000, 0
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(WAIT_S)  # no other thread runs before this one waits
        for _ in range(executions):
            if thread.should_offload(MS):
                thread.put(int)
                asked += 1
            thread.wait_idle()
    finally:
        sys.setswitchinterval(before)
        thread.stop()
    assert 1 < asked < executions // 50


def test_a_response_thread_that_was_late_once_is_soon_used_again():
    thread = ResponseThread("nbtriton-test-answers")
    assert thread.should_offload(MS)
    for _ in range(50):
        begun = threading.Event()
        while not thread.should_offload(MS):
            thread.wait_idle()
        thread.put(begun.set)
        waited(begun)  # the model computes meanwhile
        thread.wait_idle()
        assert thread.should_offload(MS)
    thread.stop()


def test_an_answer_that_ends_abnormally_does_not_end_the_thread(caplog):
    thread = ResponseThread("nbtriton-test-answers")
    assert thread.should_offload(MS)
    answered = threading.Event()

    def leave() -> None:
        raise SystemExit(3)

    thread.put(leave)
    thread.put(answered.set)
    thread.wait_idle()
    assert answered.is_set()
    assert "ended abnormally" in caplog.text
    thread.stop()


@WITH_GIL  # without it what one thread made another cannot free at once
def test_a_request_is_freed_before_the_next_one_is_answered(server: Server, gate: Gate):
    """Else the garbage collector would count the whole batch as objects that stay."""
    server.load(
        echo(
            "dynamic_batching { preferred_batch_size: 4 } "
            'parameters { key: "READ_ONLY_INPUTS" value { string_value: "yes" } }',  # not copied
            max_batch_size=4,
        ),
        gated(gate),
        name="m",
    )
    server.submit("m", {"IN": ones()})
    gate.wait_entered()
    alive: list[list[bool]] = []
    inputs: list[weakref.ref[np.ndarray]] = []
    done = threading.Semaphore(0)

    def answered(_: object) -> None:
        alive.append([each() is not None for each in inputs])
        done.release()

    for _ in range(4):
        x = ones()
        inputs.append(weakref.ref(x))
        server.submit("m", {"IN": x}).add_done_callback(answered)
        del x
    gate.open()
    for _ in range(4):
        assert done.acquire(timeout=WAIT_S)
    # The one that is being answered and those that follow.
    assert [sum(each) for each in alive] == [4, 3, 2, 1]
