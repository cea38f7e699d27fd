"""Ctrl-C stops the caller at once, loses no request and leaves the server usable."""

# ruff: noqa: N803 - a model function names its tensors
from __future__ import annotations

import asyncio
import gc
import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import nbtriton as nt
from nbtriton.common.errors import CancelledError, EngineStoppedError, InternalError
from nbtriton.runtime.engine import Server
from nbtriton.runtime.engine.lifecycle.model_builder import ModelBuilder
from nbtriton.runtime.interrupts import INTERRUPTS, interrupts_deferred
from tests.children import run_python
from tests.engine.support import WAIT_S, Gate, echo, ensemble_text, fields, gated, ones, row, waited
from tests.until import until

FP32 = "FP32[4]"


@pytest.fixture(autouse=True)
def usual_handler() -> Iterator[None]:
    """Every test begins and ends with Python's own handler of SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    # Python ignores what is raised in a callback of the garbage collector; Hypothesis has one.
    callbacks, gc.callbacks[:] = gc.callbacks.copy(), []
    yield
    gc.callbacks[:] = callbacks
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler
    assert INTERRUPTS.depth == 0


@contextmanager
def interrupted(when: Callable[[], object]) -> Iterator[None]:
    """Send SIGINT to this thread as soon as `when` returns on another one; it has to end the block."""
    this = threading.get_ident()

    def press() -> None:
        when()
        signal.pthread_kill(this, signal.SIGINT)

    presser = threading.Thread(target=press)
    with pytest.raises(KeyboardInterrupt):
        presser.start()
        yield
    presser.join(WAIT_S)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_interrupts_at_random_moments(seed: int):
    script = Path(__file__).with_name("interrupted.py")
    ran = run_python(str(script), str(seed), "800")
    assert ran.returncode == 0, ran.stderr[-3000:]
    report = json.loads(ran.stdout)
    assert report["sent"] == report["raised"] == 800, "an interrupt was swallowed or came twice"
    assert report["completed"] > 0
    assert report["surprises"] == [], "a request of another thread failed"
    assert (report["left"], report["alive"], report["threads"]) == ([], 0, []), (
        "a request or thread is stuck"
    )
    assert report["handler"], "the earlier handler is restored"
    # One request an execution, but for the model that waits for more; nothing is counted twice.
    for name in ("plain", "busy", "nested"):
        success, fail, executions = report["counts"][name]
        assert success + fail == executions
        assert fail > 0, f"no interrupt hit {name}: the test tests nothing"


# -- the same, moment by moment ----------------------------------------------------------------------


def test_an_interrupt_of_a_wait_cancels_the_request(server: Server, gate: Gate):
    server.load(
        echo("dynamic_batching { default_queue_policy { max_queue_size: 9 } }"),
        gated(gate),
        name="m",
    )
    busy = server.submit("m", {"IN": ones(8)}, request_id="busy")
    gate.wait_entered()
    # Only the snapshot shows that the call below was accepted.
    with interrupted(lambda: until(lambda: server.models()[0].queued)):
        server.infer("m", {"IN": ones()}, request_id="given up")
    gate.open()
    busy.result(WAIT_S)
    server.infer("m", {"IN": ones()}, request_id="after")
    assert gate.batches == [["busy"], ["after"]]
    counts = fields(server.statistics(), "m")
    assert (counts["success"], counts["fail"]) == (2, 1)


def test_an_interrupt_in_the_models_code_ends_that_request_only(server: Server):
    def model(IN):
        if IN[0, 0] == 1:
            signal.raise_signal(signal.SIGINT)
        return {"OUT": IN}

    server.load(echo(), model, name="m")
    with pytest.raises(KeyboardInterrupt):
        server.infer("m", {"IN": row(1)})
    assert server.infer("m", {"IN": row(2)})["OUT"][0, 0] == 2
    counts = fields(server.statistics(), "m")
    assert (counts["success"], counts["fail"], counts["execution_count"]) == (1, 1, 2)
    assert server.models()[0].executing == 0


def test_an_interrupt_does_not_strand_batches_accepted_by_the_caller(server: Server):
    """The second branch waits for the same instance; the interrupt comes in the first."""
    calls = []

    def model(IN):
        calls.append(threading.get_ident())
        if len(calls) == 1:
            raise KeyboardInterrupt
        return {"OUT": IN}

    server.load(echo(), model, name="m")
    server.load(
        ensemble_text(
            ("m", {"IN": "X"}, {"OUT": "L"}),
            ("m", {"IN": "X"}, {"OUT": "R"}),
            inputs={"X": FP32},
            outputs={"L": FP32, "R": FP32},
        ),
        name="e",
    )
    with pytest.raises(KeyboardInterrupt):
        server.infer("e", {"X": ones()})
    assert server.submit("m", {"IN": row(3)}).result(WAIT_S)["OUT"][0, 0] == 3
    assert len(calls) == 3
    assert set(server.infer("e", {"X": ones()})) == {"L", "R"}
    assert server.unload("e", timeout_s=WAIT_S)
    assert server.unload("m", timeout_s=WAIT_S)


def test_a_keyboard_interrupt_on_an_instances_thread_fails_the_request(server: Server, caplog):
    """No caller can be interrupted: a library raised it, and the instance goes on."""

    def model(IN):
        if IN[0, 0] == 1:
            raise KeyboardInterrupt
        return {"OUT": IN}

    server.load(echo(), model, name="m")
    error = server.submit("m", {"IN": row(1)}).exception(WAIT_S)
    assert isinstance(error, InternalError)
    assert "was interrupted" in error.message
    assert server.submit("m", {"IN": row(2)}).result(WAIT_S)["OUT"][0, 0] == 2


def test_an_interrupt_in_a_stream_cancels_it(server: Server, gate: Gate):
    server.load(echo(), gated(gate), name="m")
    responses = []
    with interrupted(gate.wait_entered):
        for response in server.stream("m", {"IN": ones()}):
            responses.append(response)
    assert responses == []
    gate.open()
    assert server.submit("m", {"IN": row(4)}).result(WAIT_S)["OUT"][0, 0] == 4


def test_result_can_be_interrupted_and_called_again(server: Server, gate: Gate):
    server.load(echo(), gated(gate), name="m")
    future = server.submit("m", {"IN": row(5)})
    gate.wait_entered()
    ready = threading.Event()
    with interrupted(lambda: waited(ready)):
        ready.set()
        future.result()
    gate.open()
    assert future.result(WAIT_S)["OUT"][0, 0] == 5


@pytest.mark.medium
def test_an_interrupt_just_before_a_wait_is_not_lost(server: Server, gate: Gate):
    """The signal comes while another thread holds the GIL and the main thread is about to block."""
    server.load(echo(), gated(gate), name="m")
    for turn in range(200):
        with interrupted(gate.wait_entered):
            if turn % 2:
                list(server.stream("m", {"IN": ones()}))
            else:
                server.submit("m", {"IN": ones()}).result()
        gate.let(1)


def test_an_interrupted_load_keeps_the_served_version(server: Server):
    entered, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    class Slow:
        def initialize(self, args):
            entered.set()
            waited(go_on)

        def execute(self, requests):
            return []

        def finalize(self):
            ended.set()

    server.load(echo(), lambda IN: {"OUT": IN + 1}, name="m")
    with interrupted(lambda: waited(entered)):
        server.load(echo(), Slow, name="m")
    assert server.infer("m", {"IN": row(1)})["OUT"][0, 0] == 2
    go_on.set()
    waited(ended)  # the half-loaded version is released
    server.load(echo(), lambda IN: {"OUT": IN + 5}, name="m")
    assert server.infer("m", {"IN": row(1)})["OUT"][0, 0] == 6


@pytest.mark.parametrize("call", ["load", "set_options", "load_repository"])
def test_an_interrupt_after_a_version_is_made_leaves_none_without_an_owner(
    call: str, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    build, made = ModelBuilder.build, []

    def build_interrupted(*arguments, **options):
        made.append(build(*arguments, **options))
        signal.raise_signal(signal.SIGINT)
        return made[-1]

    if call == "set_options":
        server.load(echo(), lambda IN: {"OUT": IN}, name="m")
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text(echo())
    source = "class TritonPythonModel:\n    def execute(self, requests): ..."
    (tmp_path / "m" / "1" / "model.py").write_text(source)
    control = nt.Server()
    monkeypatch.setattr(ModelBuilder, "build", build_interrupted)
    with pytest.raises(KeyboardInterrupt):
        if call == "load":
            server.load(echo(), lambda IN: {"OUT": IN}, name="m")
        elif call == "set_options":
            server.set_options(cache_bytes=1000)
        else:
            control.load_repository(tmp_path)
    (control if call == "load_repository" else server).unload("m", timeout_s=WAIT_S)
    assert [version.wait_drained(WAIT_S) for version in made] == [True]
    control.close()


def test_an_interrupt_comes_between_the_starts_of_many_instances(
    server: Server, monkeypatch: pytest.MonkeyPatch
):
    start, begun = threading.Thread.start, []

    def interrupted_start(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith("nbtriton-m_0_"):
            begun.append(thread.name)
            if len(begun) == 3:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(threading.Thread, "start", interrupted_start)
    with pytest.raises(KeyboardInterrupt):
        server.load(
            echo("instance_group { count: 9 kind: KIND_CPU }"), lambda IN: {"OUT": IN}, name="m"
        )
    assert len(begun) == 3
    assert not server.is_ready("m")


def test_an_interrupted_wait_for_an_unload_unloads(server: Server, gate: Gate):
    server.load(echo(), gated(gate), name="m")
    future = server.submit("m", {"IN": row(3)})
    gate.wait_entered()
    ready = threading.Event()
    with interrupted(lambda: waited(ready)):
        ready.set()
        server.unload("m", timeout_s=None)
    gate.open()
    assert future.result(WAIT_S)["OUT"][0, 0] == 3
    server.unload("m", timeout_s=WAIT_S)
    assert server.engine.inspection.model_names() == ()


# -- deferring itself --------------------------------------------------------------------------------


def test_an_interrupted_close_answers_what_runs(server: Server, gate: Gate):
    server.load(echo(), gated(gate), name="m")
    future = server.submit("m", {"IN": ones()})
    gate.wait_entered()
    with interrupted(lambda: until(lambda: server.engine.registry.closed is not None)):
        server.close(timeout_s=10 * WAIT_S)
    assert isinstance(future.exception(0), EngineStoppedError)


@pytest.mark.parametrize("way", ["refusal", "cancellation"])
def test_an_interrupt_in_a_callback_is_raised_and_the_engine_goes_on(
    server: Server, gate: Gate, way: str, caplog
):
    """A callback of the main thread's own: what is raised in it may not cost others their answers."""

    def press(*_: object) -> None:
        raise KeyboardInterrupt

    queue = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    server.load(echo(queue), gated(gate), name="m")
    busy = server.submit("m", {"IN": ones(8)})
    gate.wait_entered()
    waits = server.submit("m", {"IN": ones()}, request_id="waits")
    with pytest.raises(KeyboardInterrupt):
        if way == "refusal":
            server.submit("m", {"IN": ones()}, on_response=press)
        else:
            waits.add_done_callback(press)
            waits.cancel()
    gate.open()
    busy.result(WAIT_S)
    assert server.unload("m", timeout_s=WAIT_S), "no request is counted as inside for ever"
    assert (["waits"] in gate.batches) is (way == "refusal")


def test_a_deferred_interrupt_is_raised_at_the_end():
    reached = []
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117 - the order is what is tested
        with interrupts_deferred():
            with interrupts_deferred():
                signal.raise_signal(signal.SIGINT)
                reached.append("inner")
            reached.append("outer")
    assert reached == ["inner", "outer"]
    with interrupts_deferred():
        pass  # it came once


def test_several_deferred_interrupts_are_raised_as_one():
    with pytest.raises(KeyboardInterrupt), interrupts_deferred():
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
    with interrupts_deferred():
        pass


def test_the_earlier_handler_is_called_and_restored():
    asked = []
    # A new handler each time, as ipykernel sets one for every cell.
    for sign in (1, -1):

        def handler(number, frame, sign=sign):
            asked.append(sign * number)

        signal.signal(signal.SIGINT, handler)
        del asked[:]
        with interrupts_deferred():
            signal.raise_signal(signal.SIGINT)
            assert asked == []
        assert asked == [sign * signal.SIGINT]
        assert signal.getsignal(signal.SIGINT) is handler
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_handler_that_model_code_sets_stays(server: Server):
    asked = []

    def handler(number, frame):
        asked.append(number)

    def outer(IN):
        signal.signal(signal.SIGINT, handler)
        server.infer("inner", {"IN": IN})
        assert signal.getsignal(signal.SIGINT) is handler
        return {"OUT": IN}

    def inner(IN):
        signal.raise_signal(signal.SIGINT)
        return {"OUT": IN}

    server.load(echo(), outer, name="outer")
    server.load(echo(), inner, name="inner")
    server.infer("outer", {"IN": ones()})
    assert asked == [signal.SIGINT]
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is handler


def test_the_sigint_handler_is_untouched_between_two_calls(server: Server):
    """asyncio, trio and uvicorn install their handlers only where they find Python's own."""
    server.load(echo(), lambda IN: {"OUT": IN}, name="m")

    async def found() -> object:
        server.infer("m", {"IN": ones()})
        return signal.getsignal(signal.SIGINT)

    def use() -> None:
        server.infer("m", {"IN": ones()})
        server.submit("m", {"IN": ones()}).result(WAIT_S)
        list(server.stream("m", {"IN": ones()}))

    assert asyncio.run(found()) is not signal.default_int_handler
    use()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(ZeroDivisionError), interrupts_deferred():
        use()
        _ = 1 / 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    async def interrupted() -> None:
        await server.infer_async("m", {"IN": ones()})
        cancelled = asyncio.ensure_future(asyncio.Event().wait())
        signal.raise_signal(signal.SIGINT)  # asyncio's handler cancels the main task
        await cancelled

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(interrupted())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_interrupt_stays_ignored(server: Server):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server.load(echo(), lambda IN: {"OUT": IN}, name="m")
    server.infer("m", {"IN": ones()})
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_deferring_interrupts_changes_nothing_on_other_threads(server: Server):
    depths = []
    submitted = threading.Event()

    def model(IN):
        waited(submitted)  # until then the main thread defers them
        depths.append(INTERRUPTS.depth)
        return {"OUT": IN}

    server.load(echo(), model, name="m")
    future = server.submit("m", {"IN": ones()})
    submitted.set()
    future.result(WAIT_S)
    caller = threading.Thread(target=lambda: server.infer("m", {"IN": ones()}))
    caller.start()
    caller.join(WAIT_S)
    server.infer("m", {"IN": ones()})  # user code runs with interrupts allowed
    assert depths == [0, 0, 0]


def test_a_future_cancelled_by_an_interrupt_is_cancelled(server: Server, gate: Gate):
    server.load(echo(), gated(gate), name="m")
    future = server.submit("m", {"IN": ones()})
    with pytest.raises(KeyboardInterrupt), interrupts_deferred():
        signal.raise_signal(signal.SIGINT)
        assert future.cancel()
    assert isinstance(future.exception(0), CancelledError)
    gate.open()
