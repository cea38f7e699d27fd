"""Whether the instances of a model wait for the interpreter: a measure that knows why they wait."""

# ruff: noqa: F821, N803 - annotations name tensors

import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from nbtriton.runtime.engine import Server
from nbtriton.runtime.engine.diagnostics import interpreter
from nbtriton.runtime.engine.diagnostics.interpreter import (
    NEVER_NS,
    InterpreterProbe,
    has_interpreter_lock,
)
from tests.until import until

PROBES = 6
# Denser samples would let the two take turns by themselves.
INTERVAL_NS = 15_000_000
# A sample that takes longer was a wait for the lock, which Python code here keeps for longer still: nothing else of a
# busy machine takes as long so often.
FREE_S = 0.05
MATRIX = np.ones((300, 300), np.float32)

needs_lock = pytest.mark.skipif(
    not has_interpreter_lock(), reason="a free-threaded interpreter has no lock to wait for"
)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Who computes in Python keeps the lock for twice as long as a sample may take."""
    for name in ("_FREE_NS", "_FREE_ELSEWHERE_NS"):
        monkeypatch.setattr(interpreter, name, int(FREE_S * 1e9))
    before = sys.getswitchinterval()
    sys.setswitchinterval(2 * FREE_S)
    yield
    sys.setswitchinterval(before)


def long(work):
    """Do some work again and again, three times as long as no wait takes."""

    def again():
        end = time.monotonic() + 3 * FREE_S
        while time.monotonic() < end:
            work()

    return again


def compute(n=20000):
    return sum(i * i for i in range(n))


def release():
    MATRIX @ MATRIX


def rest():
    time.sleep(0.002)


def sampled(work, enough=lambda found: found.probes >= PROBES):
    """Run some work on two threads at once, with a sample after each; return the samples."""
    probe = InterpreterProbe(INTERVAL_NS)
    running = [0, 0]
    ended = threading.Event()

    def live(index):
        due = 0
        while not ended.is_set():
            running[index] = 1
            work()
            running[index] = 0
            if time.monotonic_ns() >= due:
                due = probe.probe(running[1 - index])
            if enough(probe.result()):
                ended.set()

    threads = [threading.Thread(target=live, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return probe.result()


@needs_lock
@pytest.mark.medium
def test_python_code_waits_for_the_interpreter(patient):
    def enough(found):
        return found.probes >= PROBES and (found.share > 0.1 or found.probes >= 20 * PROBES)

    # Of two each has it half of the time. (Where others leave no processor, they wait for that instead.)
    assert 0.1 < sampled(long(compute), enough).share <= 0.5


@needs_lock
@pytest.mark.parametrize("work", [release, rest])
@pytest.mark.medium
def test_code_that_releases_the_interpreter_does_not_wait_for_it(patient, work):
    assert sampled(long(work)).share < 0.2


@pytest.mark.medium
def test_torch_does_not_wait_for_it(patient):
    torch = pytest.importorskip("torch")
    weights = torch.ones(256, 256)
    assert sampled(long(lambda: weights @ weights)).share < 0.2


def test_nothing_is_sampled_while_no_other_instance_executes():
    probe = InterpreterProbe(interval_ns=5)
    before = time.monotonic_ns()
    due = probe.probe(0)
    assert probe.result().probes == 0
    assert due >= before + 5


def test_a_free_threaded_interpreter_is_never_sampled(monkeypatch):
    monkeypatch.setattr("sys._is_gil_enabled", lambda: False, raising=False)
    probe = InterpreterProbe(interval_ns=0)
    assert probe.probe(1) == NEVER_NS
    assert probe.result().probes == 0


@needs_lock
def test_the_snapshot_of_a_model_has_the_share():
    def model(IN: "INT32[1]") -> {"OUT": "INT32[1]"}:
        compute()
        return {"OUT": IN}

    def waited():
        (snapshot,) = server.models()
        return snapshot.interpreter

    config = "max_batch_size: 1 instance_group { count: 2 kind: KIND_CPU }"
    with Server(gpus=()) as server:
        server.load(config, model=model, name="m")
        runtime = server.engine.registry.resolve("m")
        runtime.interpreter = InterpreterProbe(INTERVAL_NS)
        x = np.ones((1, 1), np.int32)

        def has_waited():
            for future in [server.submit("m", {"IN": x}) for _ in range(20)]:
                future.result()
            return waited().share > 0

        assert until(has_waited)
        found = waited()
        assert found.share <= 0.5
        assert found.since(found) == (0, 0)
        assert server.models()[0].isolation == "thread"
