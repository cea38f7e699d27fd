"""What happens beside an execution in a worker: streams, coroutines, interrupts, cancellation (PB12)."""

# ruff: noqa: N803 - tensors have Triton's names

from __future__ import annotations

import io
import signal
import threading
from contextlib import redirect_stdout

import pytest

from nbtriton.common.errors import InternalError, ModelError, TritonError
from nbtriton.runtime.engine.diagnostics.deadlocks import DEADLOCKS
from tests.engine.support import WAIT_S
from tests.workers.conftest import ARRAY, CONFIG, MODELS, TARGET

pytestmark = pytest.mark.slow

PROCESS = 'parameters { key: "INSTANCE_ISOLATION" value { string_value: "process" } }'
DECOUPLED = "model_transaction_policy { decoupled: true }"


@pytest.fixture(scope="module")
def beside(server):
    for name, more in (("stream_apart", DECOUPLED), ("coroutine", "")):
        folder = name.removesuffix("_apart")
        server.load(
            TARGET.format(more=PROCESS + more).replace("count: 2", "count: 1"),
            model=MODELS / folder / "1" / "model.py",
            name=name,
        )
    return server


def stream(server, program):
    """The responses of a stream: arrays, and the error that ended it."""
    found = []
    try:
        for response in server.stream(
            "stream_apart", {"IN": ARRAY}, parameters={"program": program}
        ):
            found.append(response["OUT"].tolist())
    except TritonError as error:
        found.append(error.message)
    return found


@pytest.mark.parametrize("program", ["three", "from_a_thread"])
def test_PB12_a_decoupled_model_sends_from_any_thread(beside, program):
    assert stream(beside, program) == [(ARRAY * times).tolist() for times in range(3)]


def test_a_callback_that_exits_harms_no_other_stream(beside):
    called = threading.Event()

    def leave(response, final):
        called.set()
        raise SystemExit

    beside.submit(
        "stream_apart", {"IN": ARRAY}, parameters={"program": "from_a_thread"}, on_response=leave
    )
    assert called.wait(WAIT_S)
    assert stream(beside, "from_a_thread") == [(ARRAY * times).tolist() for times in range(3)]


def test_an_error_response_is_one_of_the_stream(beside):
    assert stream(beside, "with_errors") == [[1.0], "in between"]


def test_an_abandoned_request_is_answered(beside):
    (found,) = stream(beside, "abandoned")
    assert found == "The model finished with the request without sending a final response."


def test_an_exception_ends_a_stream(beside):
    first, second = stream(beside, "raising")
    assert first == [1.0]
    assert "ValueError: halfway" in second


def test_a_stream_sees_that_it_was_cancelled_and_its_memory_is_used_again(beside):
    begun, ended = threading.Event(), threading.Event()

    def on_response(response, final):
        begun.set()
        if final:
            ended.set()

    future = beside.submit(
        "stream_apart",
        {"IN": ARRAY},
        parameters={"program": "until_cancelled"},
        on_response=on_response,
    )
    assert begun.wait(30)
    future._ask_to_end()
    assert ended.wait(30)
    assert stream(beside, "three")[0] == [0, 0, 0]


@pytest.mark.parametrize(
    ("program", "expected"),
    [("side_by_side", [1, 2, 3] * 4), ("streams", [0, 0, 0, 0, 1, 2, 0, 2, 4])],
)
def test_a_coroutine_calls_other_models(beside, program, expected):
    found = beside.infer("coroutine", {"IN": ARRAY}, parameters={"program": program})
    assert found["OUT"].tolist() == expected


def test_a_coroutine_that_raises_has_its_line(beside):
    with pytest.raises(ModelError, match=r"in a coroutine\n\nAt:\n.*model.py") as caught:
        beside.infer("coroutine", {"IN": ARRAY}, parameters={"program": "raising"})
    assert "raise ValueError" in caught.value.user_traceback


def test_a_deadlock_of_a_coroutine_is_refused(beside, monkeypatch):
    monkeypatch.setattr(DEADLOCKS, "patience_s", 0.05)
    with pytest.raises(InternalError, match="deadlock: 'coroutine_0_0' calls model 'coroutine'"):
        beside.infer("coroutine", {"IN": ARRAY}, parameters={"program": "itself"})


def test_an_answer_comes_behind_what_another_thread_is_about_to_print(server):
    reading, gate = threading.Event(), threading.Event()

    class Slow(io.StringIO):
        def write(self, text):
            reading.set()
            assert gate.wait(30)
            return super().write(text)

    def read(IN):
        assert reading.wait(30)
        return {"OUT": IN}

    server.load(TARGET.format(more=""), model=read, name="started")
    with redirect_stdout(Slow()) as out:
        future = server.submit("apart", {"IN": ARRAY}, parameters={"program": "say_and_call"})
        with pytest.raises(TimeoutError):
            future.result(0.2)
        gate.set()
        future.result(30)
        assert out.getvalue() == "printed\n"


@pytest.fixture
def idle(server):
    """A model that is asked by `infer` alone: executed on the main thread, the only one that hears Ctrl-C."""
    server.load(
        CONFIG.format(name="idle", isolation="process"), model=MODELS / "probe" / "1" / "model.py"
    )
    return "idle"


def test_an_interrupt_reaches_the_models_code(server, ask, patient, idle):
    started = threading.Event()

    def signalled(IN):
        started.set()
        return {"OUT": IN}

    server.load(TARGET.format(more=""), model=signalled, name="started")
    before = ask(idle, "pid")
    main = threading.get_ident()

    def interrupt():
        started.wait(30)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        ask(idle, "spin")
    thread.join()
    assert ask(idle, "pid") == before


def test_an_interrupt_during_a_call_of_the_model_passes_through_it(server, ask, patient, idle):
    entered, gate = threading.Event(), threading.Event()

    def waiting(IN):
        entered.set()
        while not gate.wait(0.01):
            pass
        return {"OUT": IN}

    server.load(TARGET.format(more="").replace("target", "waiting"), model=waiting, name="target")
    main = threading.get_ident()

    def interrupt():
        entered.wait(30)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        ask(idle, "bls")
    gate.set()
    thread.join()
    assert isinstance(ask(idle, "pid"), int)
