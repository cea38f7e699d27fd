"""Futures and streams: waiting, callbacks, cancelling, asyncio, nesting."""

# ruff: noqa: N803 - a model function names its tensors
from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import inspect
import pickle
import threading
import weakref

import numpy as np
import pytest

from nbtriton.backends.base import RequestOptions
from nbtriton.common.errors import (
    CancelledError,
    InvalidArgumentError,
    ModelError,
    NotFoundError,
    UnsupportedError,
)
from nbtriton.runtime.engine import InferenceFuture, Server, Submission, TraceSample
from nbtriton.runtime.engine.core.execution import BatchCompletion
from tests.engine.support import (
    WAIT_S,
    Gate,
    echo,
    ensemble_text,
    fields,
    gated,
    ones,
    row,
    streaming,
    waited,
)
from tests.until import until

DECOUPLED = "model_transaction_policy { decoupled: true }"


def test_result_waits_and_gives_up(server: Server, gate: Gate):
    server.load(echo(), gated(gate), name="m")
    future = server.submit("m", {"IN": row(3)})
    gate.wait_entered()
    assert not future.done()
    for wait in (future.result, future.exception):
        with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
            wait(0.01)
    gate.open()
    assert future.result(WAIT_S)["OUT"][0, 0] == 3  # a timeout gives nothing up
    assert future.done()
    assert future.exception() is None
    assert future.result() is future.result()


def test_a_wait_that_gave_up_leaves_nothing_behind(server: Server, gate: Gate):
    """Who asks again and again would fill the memory, and hold the thread that answers."""
    server.load(echo(), gated(gate), name="m")
    future = server.submit("m", {"IN": ones()})
    gate.wait_entered()
    before = len(future._then)
    for _ in range(10):
        with pytest.raises(TimeoutError):
            future.result(timeout=0)
    assert len(future._then) == before
    gate.open()
    future.result(WAIT_S)


@pytest.mark.parametrize("timeout", [float("inf"), 1e30])
def test_any_thread_may_wait_for_longer_than_clocks_count(
    server: Server, gate: Gate, timeout: float
):
    server.load(echo(), gated(gate), name="m")
    future = server.submit("m", {"IN": ones()})
    gate.wait_entered()
    before = len(future._then)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(future.result, timeout)
        assert until(lambda: waiting.done() or len(future._then) > before)
        gate.open()
        assert waiting.result(WAIT_S)["OUT"].shape == (1, 4)


def test_an_error_is_raised_by_result_and_returned_by_exception(server: Server):
    def model(IN):
        raise ValueError("no")

    server.load(echo(), model, name="m")
    future = server.submit("m", {"IN": ones()})
    assert isinstance(future.exception(WAIT_S), ModelError)
    with pytest.raises(ModelError):
        future.result()


def test_many_threads_wait_for_one_answer(server: Server, gate: Gate):
    server.load(echo(), gated(gate), name="m")
    future = server.submit("m", {"IN": row(9)})
    gate.wait_entered()
    got = []
    waiters = [
        threading.Thread(target=lambda: got.append(future.result(WAIT_S)["OUT"][0, 0]))
        for _ in range(8)
    ]
    for waiter in waiters:
        waiter.start()
    gate.open()
    for waiter in waiters:
        waiter.join(WAIT_S)
    assert got == [9] * 8


# -- callbacks ---------------------------------------------------------------------------------------


def test_callbacks_come_once_each_before_and_after_the_answer(server: Server, gate: Gate):
    server.load(echo(), gated(gate), name="m")
    future = server.submit("m", {"IN": ones()})
    gate.wait_entered()
    calls: list[tuple[str, int]] = []
    done = threading.Event()
    future.add_done_callback(lambda f: calls.append(("early", threading.get_ident())))
    future.add_done_callback(lambda f: done.set())
    gate.open()
    waited(done)
    server.infer("m", {"IN": ones()})  # its instance is through with the callbacks
    future.add_done_callback(lambda f: calls.append(("late", threading.get_ident())))
    assert [name for name, _ in calls] == ["early", "late"]
    # On the thread that finished the request; here and now if it was finished.
    assert calls[0][1] == gate.threads[0]
    assert calls[1][1] == threading.get_ident()


def test_a_callback_added_while_the_answer_comes_is_called_once(server: Server):
    """Both sides of the race run at once, again and again."""
    server.load(echo(), lambda IN: {"OUT": IN}, name="m")
    for _ in range(200):
        calls: list[InferenceFuture] = []
        called = threading.Event()

        def note(future: InferenceFuture, calls=calls, called=called) -> None:
            calls.append(future)
            called.set()

        future = server.submit("m", {"IN": ones()})
        future.add_done_callback(note)
        waited(called)
        assert calls == [future]


def test_a_callback_that_raises_harms_no_request(server: Server, caplog):
    server.load(echo(), lambda IN: {"OUT": IN}, name="m")
    done = threading.Event()

    def bad(future: InferenceFuture) -> None:
        raise RuntimeError("a caller's mistake")

    future = server.submit("m", {"IN": ones()})
    future.add_done_callback(bad)
    future.add_done_callback(lambda _: done.set())
    waited(done)
    assert server.infer("m", {"IN": row(4)})["OUT"][0, 0] == 4
    assert "a caller's mistake" in caplog.text


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("way", ["on_response", "done callback"])
def test_what_a_callback_raises_costs_no_other_request_its_answer(
    server: Server, gate: Gate, caplog, way: str, error: type[BaseException]
):
    """Neither another one of its batch nor another callback; `sys.exit` is for the main thread."""
    server.load(echo("dynamic_batching {}"), gated(gate), name="m")
    busy = server.submit("m", {"IN": ones(8)})
    gate.wait_entered()

    def leave(*_: object) -> None:
        raise error("of a callback")

    called = threading.Event()
    first = server.submit("m", {"IN": ones()}, on_response=leave if way == "on_response" else None)
    if way != "on_response":
        first.add_done_callback(leave)
    first.add_done_callback(lambda _: called.set())
    second = server.submit("m", {"IN": ones()})
    gate.open()
    assert second.result(WAIT_S).timing.batch_size == 2
    assert first.result(WAIT_S).timing.batch_size == 2
    waited(called)
    busy.result(WAIT_S)
    assert "of a callback" in caplog.text


def test_a_trace_that_is_not_taken_costs_no_request_its_answer(server: Server, gate: Gate, caplog):
    """Such as a full disk."""

    def lose(_: TraceSample) -> None:
        raise ValueError("no room for it")

    server.load(echo("dynamic_batching {}"), gated(gate), name="m")
    busy = server.submit("m", {"IN": ones(8)})
    gate.wait_entered()
    trace = TraceSample(frozenset({"TIMESTAMPS"}), lose).begin()
    traced = server.submit("m", {"IN": ones()}, trace=trace)
    other = server.submit("m", {"IN": ones()})
    gate.open()
    for future in (busy, traced, other):
        future.result(WAIT_S)
    assert "no room for it" in caplog.text


def test_tensors_that_cannot_be_copied_are_not_in_the_trace(server: Server, caplog):
    """As where their copies have no room: the request is answered."""

    class Unreadable(dict):
        def items(self):
            raise MemoryError("no room for the copies")

    sample = TraceSample(frozenset({"TENSORS"}), lambda _: None)
    trace = sample.begin()
    trace.tensors("TENSOR_BACKEND_OUTPUT", Unreadable())
    trace.tensors("TENSOR_BACKEND_OUTPUT", {"OUT": ones()})
    assert [activity.tensor for activity in trace.activities] == ["OUT"]
    assert "no room for the copies" in caplog.text


def test_a_callback_may_send_the_next_request(server: Server):
    server.load(echo("dynamic_batching {}"), lambda IN: {"OUT": IN + 1}, name="m")
    done = threading.Event()
    values = []

    def follow(future: InferenceFuture) -> None:
        values.append(float(future.result()["OUT"][0, 0]))
        if len(values) < 50:
            server.submit("m", {"IN": future.result()["OUT"]}).add_done_callback(follow)
        else:
            done.set()

    server.submit("m", {"IN": row(0)}).add_done_callback(follow)
    waited(done)
    assert values == list(range(1, 51))


# -- cancelling --------------------------------------------------------------------------------------


def test_X2_a_queued_request_is_dropped(server: Server, gate: Gate):
    # A queue policy: nothing leaves the queue before an instance is idle.
    server.load(
        echo("dynamic_batching { default_queue_policy { max_queue_size: 9 } }"),
        gated(gate),
        name="m",
    )
    busy = server.submit("m", {"IN": ones(8)}, request_id="busy")
    gate.wait_entered()
    dropped = server.submit("m", {"IN": ones()}, request_id="dropped")
    kept = server.submit("m", {"IN": ones()}, request_id="kept")
    answers: list[InferenceFuture] = []
    dropped.add_done_callback(answers.append)
    assert dropped.cancel() is True
    assert dropped.cancel() is False
    with pytest.raises(CancelledError):
        dropped.result(0)
    gate.open()
    for future in (busy, kept):
        future.result(WAIT_S)
    assert gate.batches == [["busy"], ["kept"]]
    assert len(answers) == 1
    server.infer("m", {"IN": ones()})
    counts = fields(server.statistics(), "m")
    assert (counts["success"], counts["fail"]) == (3, 1)


@pytest.mark.parametrize("extra", ["", "dynamic_batching {}"], ids=["default", "dynamic"])
def test_X3_a_request_that_runs_or_is_in_a_batch_runs_on(server: Server, gate: Gate, extra: str):
    server.load(echo(extra), gated(gate), name="m")
    futures = [server.submit("m", {"IN": ones(8)}, request_id=name) for name in ("a", "b")]
    gate.wait_entered()
    answers: list[InferenceFuture] = []
    for future in futures:
        future.add_done_callback(answers.append)
        assert future.cancel() is True
        assert isinstance(future.exception(0), CancelledError)
    gate.open()
    server.infer("m", {"IN": ones()}, request_id="c")
    assert gate.batches == [["a"], ["b"], ["c"]]
    assert answers == futures, "one answer each"
    assert fields(server.statistics(), "m")["success"] == 3


def test_X4_a_running_model_sees_the_cancellation(server: Server):
    entered, left = threading.Event(), threading.Event()
    seen: list[bool] = []

    class TritonPythonModel:
        def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            seen.append(requests[0].is_cancelled())
            entered.set()
            waited(left)
            seen.append(requests[0].is_cancelled())
            return [
                pb_utils.InferenceResponse(
                    error=pb_utils.TritonError("gave up", pb_utils.TritonError.CANCELLED)
                )
            ]

    server.load(echo(), TritonPythonModel, name="m")
    future = server.submit("m", {"IN": ones()})
    waited(entered)
    future.cancel()
    left.set()
    server.unload("m", timeout_s=WAIT_S)
    assert seen == [False, True]


def test_cancel_after_the_answer_changes_nothing(server: Server):
    server.load(echo(), lambda IN: {"OUT": IN}, name="m")
    future = server.submit("m", {"IN": row(2)})
    assert future.result(WAIT_S)["OUT"][0, 0] == 2
    assert future.cancel() is False
    assert future.result()["OUT"][0, 0] == 2


def test_X6_cancelling_an_ensemble_drops_its_waiting_step(server: Server, gate: Gate):
    server.load(
        echo("dynamic_batching { default_queue_policy { max_queue_size: 9 } }"),
        gated(gate),
        name="part",
    )
    server.load(
        ensemble_text(
            ("part", {"IN": "X"}, {"OUT": "Y"}), inputs={"X": "FP32[4]"}, outputs={"Y": "FP32[4]"}
        ),
        name="e",
    )
    server.submit("part", {"IN": ones(8)}, request_id="busy")
    gate.wait_entered()
    future = server.submit("e", {"X": ones()}, request_id="step")
    assert future.cancel()
    gate.open()
    server.infer("part", {"IN": ones()}, request_id="after")
    assert gate.batches == [["busy"], ["after"]]
    assert server.models()[0].executing == 0


@pytest.mark.parametrize(
    ("extra", "executed"),
    [
        ("", ["dropped", "kept"]),
        ("response_cache { enable: true }", ["dropped", "kept"]),
        ("dynamic_batching {}", ["kept"]),
        ("dynamic_batching { preserve_ordering: true }", ["kept"]),
        ("dynamic_batching { priority_levels: 2 default_priority_level: 1 }", ["kept"]),
        ("dynamic_batching {} response_cache { enable: true }", ["kept"]),
        ("sequence_batching {}", ["kept"]),
        ("sequence_batching { oldest {} }", ["kept"]),
    ],
)
def test_X6_a_step_that_begins_after_the_cancellation_does_as_its_scheduler(
    gate: Gate, extra: str, executed: list[str]
):
    """Also where an instance is idle: seen on the server for each of these."""
    later = Gate(is_open=True)
    with Server(gpus=(), cache_bytes=10_000) as server:
        server.load(echo("dynamic_batching {}"), gated(gate), name="first")
        server.load(echo(extra), gated(later), name="next")
        chain = ensemble_text(
            ("first", {"IN": "X"}, {"OUT": "between"}),
            ("next", {"IN": "between"}, {"OUT": "Y"}),
            inputs={"X": "FP32[4]"},
            outputs={"Y": "FP32[4]"},
        )
        server.load(chain, name="e")
        server.submit("first", {"IN": ones(8)})
        gate.wait_entered()
        dropped, kept = (
            server.submit("e", {"X": row(number)}, request_id=name, sequence_id=number, sequence_start=True)
            for number, name in enumerate(("dropped", "kept"), start=1)
        )  # fmt: skip
        gate.let()
        gate.wait_entered()
        assert gate.batches[1] == ["dropped", "kept"]
        dropped.cancel()
        gate.open()
        assert kept.result(WAIT_S)["Y"][0, 0] == 2
        server.unload("e", timeout_s=WAIT_S)
        assert sorted(name for batch in later.batches for name in batch if name) == executed
        counts = fields(server.statistics(), "next")
        assert (counts["success"], counts["fail"]) == (len(executed), 2 - len(executed))
        assert counts["cache_miss"] == ("cache" in extra) * len(executed)
        if "sequence" in extra:  # its sequence has ended with it
            with pytest.raises(InvalidArgumentError, match="START flag"):
                server.infer("next", {"IN": ones()}, sequence_id=1)


def test_cancel_and_answer_at_once_give_one_answer(server: Server):
    server.load(echo("dynamic_batching {}"), lambda IN: {"OUT": IN}, name="m")
    outcomes = {"answered": 0, "cancelled": 0}
    for _ in range(300):
        answers: list[InferenceFuture] = []
        future = server.submit("m", {"IN": ones()})
        future.add_done_callback(answers.append)
        won = future.cancel()
        assert isinstance(future.exception(WAIT_S), CancelledError) is won
        outcomes["cancelled" if won else "answered"] += 1
        server.infer("m", {"IN": ones()})
        assert len(answers) == 1
    counts = fields(server.statistics(), "m")
    assert counts["success"] + counts["fail"] == 600


# -- asyncio -----------------------------------------------------------------------------------------


def test_await_gives_the_result(server: Server):
    server.load(echo("dynamic_batching {}"), lambda IN: {"OUT": IN * 2}, name="m")

    async def main() -> list[float]:
        results = await asyncio.gather(
            *(server.infer_async("m", {"IN": row(n)}) for n in range(20))
        )
        single = await server.submit("m", {"IN": row(50)})
        return [float(result["OUT"][0, 0]) for result in (*results, single)]

    assert asyncio.run(main()) == [2.0 * n for n in (*range(20), 50)]


def test_await_raises_what_the_model_raised(server: Server):
    def model(IN):
        raise ValueError("no")

    server.load(echo(), model, name="m")

    async def main() -> None:
        await server.infer_async("m", {"IN": ones()})

    with pytest.raises(ModelError, match="ValueError: no"):
        asyncio.run(main())
    with pytest.raises(InvalidArgumentError, match="unexpected inference input"):
        asyncio.run(as_coroutine(server, {"NI": ones()}))


def test_infer_async_is_a_coroutine(server: Server):
    server.load(echo("dynamic_batching {}"), lambda IN: {"OUT": IN}, name="m")

    async def main() -> list[float]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(server.infer_async("m", {"IN": row(n)})) for n in range(20)]
        return [float(task.result()["OUT"][0, 0]) for task in tasks]

    assert asyncio.run(main()) == [*range(20)]
    assert inspect.iscoroutinefunction(server.infer_async)


async def as_coroutine(server: Server, inputs: dict) -> None:
    await server.infer_async("m", inputs)


def test_a_loop_goes_on_while_requests_run(server: Server, gate: Gate):
    server.load(echo(), gated(gate), name="m")

    async def main() -> float:
        waiting = asyncio.ensure_future(as_result(server))
        await asyncio.to_thread(gate.wait_entered)  # the loop is free to do other things
        assert not waiting.done()
        gate.open()
        return await asyncio.wait_for(waiting, WAIT_S)

    assert asyncio.run(main()) == 6


async def as_result(server: Server) -> float:
    return float((await server.infer_async("m", {"IN": row(6)}))["OUT"][0, 0])


def test_a_cancelled_await_cancels_the_request(server: Server, gate: Gate):
    server.load(echo(), gated(gate), name="m")
    futures: list[InferenceFuture] = []

    async def main() -> None:
        futures.append(server.submit("m", {"IN": ones()}))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(futures[0], 0.01)

    asyncio.run(main())
    assert isinstance(futures[0].exception(0), CancelledError)
    gate.open()
    assert server.infer("m", {"IN": row(3)})["OUT"][0, 0] == 3


def test_an_answer_for_a_closed_loop_is_dropped(server: Server, gate: Gate, caplog):
    server.load(echo(), gated(gate), name="m")
    futures: list[InferenceFuture] = []

    async def main() -> None:
        futures.append(server.submit("m", {"IN": ones()}))
        task = asyncio.ensure_future(wrap(futures[0]))
        await asyncio.sleep(0)
        assert not task.done()

    async def wrap(future: InferenceFuture) -> None:
        await future

    asyncio.run(main())
    gate.open()
    server.infer("m", {"IN": ones()})
    assert futures[0].done()
    assert not caplog.records


# -- streams -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 5])
def test_stream_yields_every_response_in_order(server: Server, count: int):
    server.load(echo(DECOUPLED), streaming(), name="m")
    responses = list(server.stream("m", {"IN": row(count)}, request_id="r"))
    assert [float(response["OUT"][0, 0]) for response in responses] == list(range(count))
    assert all(response.request_id == "r" for response in responses)


def test_stream_of_a_model_that_is_not_decoupled_yields_one(server: Server):
    server.load(echo(), lambda IN: {"OUT": IN + 1}, name="m")
    (response,) = server.stream("m", {"IN": row(1)})
    assert response["OUT"][0, 0] == 2


def test_Y5_a_decoupled_model_needs_a_stream(server: Server):
    server.load(echo(DECOUPLED), streaming(), name="m")
    for send in (server.infer, server.submit):
        with pytest.raises(UnsupportedError) as caught:
            send("m", {"IN": ones()})
        assert caught.value.message == (
            "ModelInfer RPC doesn't support models with decoupled transaction policy"
        )


def test_submit_with_a_response_callback(server: Server):
    server.load(echo(DECOUPLED), streaming(), name="m")
    got: list[tuple[int, bool]] = []
    future = server.submit(
        "m",
        {"IN": row(2)},
        on_response=lambda response, final: got.append((len(response.outputs), final)),
    )
    assert dict(future.result(WAIT_S)) == {}
    assert got == [(1, False), (1, False), (0, True)]


def partial_then_error() -> type:
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                tensor = pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())
                sender.send(pb_utils.InferenceResponse([tensor]))
                sender.send(
                    pb_utils.InferenceResponse(error=pb_utils.TritonError("half way")),
                    flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
                )

    return TritonPythonModel


def test_an_error_in_the_middle_of_a_stream_is_raised_by_its_step(server: Server):
    server.load(echo(DECOUPLED), partial_then_error(), name="m")
    got = []
    with pytest.raises(Exception, match="half way"):
        for response in server.stream("m", {"IN": row(1)}):
            got.append(response)
    assert len(got) == 1
    assert len(list(server.models())) == 1


def test_leaving_a_stream_early_cancels_it(server: Server):
    left, cancelled = threading.Event(), threading.Event()

    class TritonPythonModel:
        def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            (request,) = requests
            sender = request.get_response_sender()
            tensor = pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())
            sender.send(pb_utils.InferenceResponse([tensor]))
            waited(left)
            if sender.is_cancelled():
                cancelled.set()
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    server.load(echo(DECOUPLED), TritonPythonModel, name="m")
    for _ in server.stream("m", {"IN": ones()}):
        break
    left.set()
    waited(cancelled)


def test_a_response_may_come_long_after_execute(server: Server, gate: Gate):
    """The version stays until the last response is out, even if it is unloaded meanwhile."""

    class TritonPythonModel:
        def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            def later(sender, value):
                gate.stand([])
                sender.send(
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]),
                    flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
                )

            for request in requests:
                arguments = (request.get_response_sender(), request.inputs()[0].as_numpy())
                threading.Thread(target=later, args=arguments).start()

    server.load(echo(DECOUPLED), TritonPythonModel, name="m")
    got: list[float] = []
    futures = [
        server.submit(
            "m",
            {"IN": row(n)},
            on_response=lambda response, _: got.append(float(response.outputs["OUT"][0, 0])),
        )
        for n in range(3)
    ]
    gate.wait_entered(3)
    assert server.unload("m") is False
    gate.open()
    for future in futures:
        future.result(WAIT_S)
    assert sorted(got) == [0, 1, 2]


# -- models that ask the server ----------------------------------------------------------------------


def test_infer_from_inside_a_model(server: Server):
    """The direct path nests: caller, outer and inner model share one thread."""
    threads = []

    def inner(IN):
        threads.append(threading.get_ident())
        return {"OUT": IN + 1}

    def outer(IN):
        threads.append(threading.get_ident())
        return {"OUT": server.infer("inner", {"IN": IN})["OUT"] * 10}

    server.load(echo(), inner, name="inner")
    server.load(echo(), outer, name="outer")
    assert server.infer("outer", {"IN": row(1)})["OUT"][0, 0] == 20
    assert threads == [threading.get_ident()] * 2
    assert server.submit("outer", {"IN": row(2)}).result(WAIT_S)["OUT"][0, 0] == 30
    assert fields(server.statistics(), "inner")["success"] == 2


def test_infer_from_inside_a_step_of_an_ensemble(server: Server):
    server.load(echo(), lambda IN: {"OUT": IN + 1}, name="inner")
    server.load(echo(), lambda IN: server.infer("inner", {"IN": IN}), name="outer")
    server.load(
        ensemble_text(
            ("outer", {"IN": "X"}, {"OUT": "m"}),
            ("outer", {"IN": "m"}, {"OUT": "Y"}),
            inputs={"X": "FP32[4]"},
            outputs={"Y": "FP32[4]"},
        ),
        name="e",
    )
    for _ in range(3):
        assert server.infer("e", {"X": row(1)})["Y"][0, 0] == 3


def test_an_error_inside_a_nested_call_is_the_inner_models(server: Server):
    def inner(IN):
        raise ValueError("deep")

    server.load(echo(), inner, name="inner")
    server.load(echo(), lambda IN: server.infer("inner", {"IN": IN}), name="outer")
    with pytest.raises(ModelError, match="ValueError: deep"):
        server.infer("outer", {"IN": ones()})
    with pytest.raises(NotFoundError):
        server.infer("none", {"IN": ones()})
    server.load(echo(), lambda IN: {"OUT": IN}, name="inner")
    assert server.infer("outer", {"IN": row(3)})["OUT"][0, 0] == 3


def test_an_early_response_of_a_step_does_not_wait_for_execute(server: Server):
    """A step that answers through its sender and goes on working delays no other step."""
    second_ran = threading.Event()

    class First:
        def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            (request,) = requests
            tensor = pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())
            request.get_response_sender().send(
                pb_utils.InferenceResponse([tensor]),
                flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL,
            )
            waited(second_ran)
            return [None]

    def second(IN):
        second_ran.set()
        return {"OUT": IN + 1}

    server.load(echo(), First, name="first")
    server.load(echo(), second, name="second")
    server.load(
        ensemble_text(
            ("first", {"IN": "X"}, {"OUT": "m"}),
            ("second", {"IN": "m"}, {"OUT": "Y"}),
            inputs={"X": "FP32[4]"},
            outputs={"Y": "FP32[4]"},
        ),
        name="e",
    )
    assert server.infer("e", {"X": row(1)})["Y"][0, 0] == 2


def test_D12_ordered_responses_do_not_overtake_each_other_in_delivery(server: Server):
    """The first answer is still with its receiver when the second is ready on another thread."""
    receiver, gate = Gate(), Gate(is_open=True)
    server.load(
        echo(
            "dynamic_batching { preferred_batch_size: 1 preserve_ordering: true } "
            "instance_group { count: 2 kind: KIND_CPU }",
            max_batch_size=1,
        ),
        gated(gate),
        name="m",
    )
    order: list[str] = []

    def slow_receiver(response, final):
        order.append("a begins")
        receiver.stand([])
        order.append("a ends")

    futures = [server.submit("m", {"IN": ones()}, on_response=slow_receiver)]
    receiver.wait_entered()
    gate.wait_entered()
    for name in ("b", "c"):
        futures.append(
            server.submit("m", {"IN": ones()}, on_response=lambda *_, n=name: order.append(n))
        )
    # The other instance is at c: it is through with b and its answer.
    gate.wait_entered(2)
    assert order == ["a begins"]
    receiver.open()
    for future in futures:
        future.result(WAIT_S)
    assert order == ["a begins", "a ends", "b", "c"]


def test_an_answered_request_is_freed_without_the_garbage_collector(server):
    """A request and its tensors must not wait for a collection: a body may have many megabytes."""

    class Watched(np.ndarray):
        pass

    class Ones:
        def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", ones())]) for _ in requests]

    server.load(echo(), Ones, name="m")
    tensor = np.asarray(row(1)).view(Watched)
    reference = weakref.ref(tensor)
    gc.disable()
    try:
        server.infer("m", {"IN": tensor})
        server.submit("m", {"IN": tensor}).result(WAIT_S)
        server.unload("m", timeout_s=WAIT_S)
        del tensor
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.medium
@pytest.mark.parametrize("way", ["infer", "submit", "stream"])
def test_an_awaited_result_is_freed_without_the_garbage_collector(server: Server, way: str):
    freed = []

    async def ask() -> None:
        if way == "infer":
            result = await server.infer_async("m", {"IN": ones()})
        elif way == "submit":
            result = await server.submit("m", {"IN": ones()})
        else:
            (result,) = [one async for one in server.stream("m", {"IN": ones()})]
        assert result["OUT"] is result["OUT"]  # the result's own
        freed.append(weakref.ref(result["OUT"]))

    server.load(echo(), lambda IN: IN * 2, name="m")
    with asyncio.Runner() as runner:
        runner.run(ask())
        gc.collect()
        freed.clear()
        gc.disable()
        try:
            runner.run(ask())
            server.unload("m", timeout_s=WAIT_S)
            assert [reference() for reference in freed] == [None]
        finally:
            gc.enable()


@pytest.mark.medium
@pytest.mark.parametrize("model", ["fails", "function", "chain", "caller"])
@pytest.mark.parametrize("way", ["infer", "submit", "stream", "endpoint"])
def test_a_failed_request_is_freed_without_the_garbage_collector(
    server: Server, model: str, way: str
):
    """Its error has the frames of the model's code, which hold the request and its tensors."""
    import triton_python_backend_utils as pb_utils

    tensors = []

    class Failing:
        def execute(self, requests):
            array = pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy().copy()
            tensors.append(weakref.ref(array))
            raise ValueError("no")

    def function(IN):
        array = IN.copy()
        tensors.append(weakref.ref(array))
        raise ValueError("no")

    class Calling:
        def execute(self, requests):
            call = pb_utils.InferenceRequest(
                model_name="fails", requested_output_names=["OUT"], inputs=requests[0].inputs()
            )
            error = call.exec().error()
            raise pb_utils.TritonModelException(error.message())

    server.load(echo(), Failing, name="fails")
    server.load(echo(), function, name="function")
    server.load(echo(), Calling, name="caller")
    server.load(
        ensemble_text(
            ("fails", {"IN": "IN"}, {"OUT": "OUT"}),
            inputs={"IN": "FP32[4]"}, outputs={"OUT": "FP32[4]"},
        ),
        name="chain",
    )  # fmt: skip

    def send() -> str:
        try:
            if way == "submit":
                server.submit(model, {"IN": ones()}).result(WAIT_S)
            elif way == "stream":
                list(server.stream(model, {"IN": ones()}))
            elif way == "infer":
                server.infer(model, {"IN": ones()})
            else:
                answered, texts = threading.Event(), []

                def on_response(request, response, final):
                    texts.append(response.error.message)
                    answered.set()

                options = RequestOptions()
                call = Submission(model, -1, {"IN": ones()}, options, on_response)
                server.engine.dispatcher.submit_many([call])
                waited(answered)
                return texts[0]
        except ModelError as error:
            return error.message
        return ""

    gc.collect()
    gc.disable()
    try:
        assert "no" in send()
        for loaded in ("chain", "caller", "function", "fails"):  # its threads have ended
            server.unload(loaded, timeout_s=WAIT_S)
        assert len(tensors) == 1
        assert tensors[0]() is None
    finally:
        gc.enable()


@pytest.mark.medium
@pytest.mark.parametrize("name", ["m", "chain", "fails"])
def test_an_answered_batch_leaves_nothing_to_the_garbage_collector(
    server: Server, gate: Gate, name: str
):
    def failing(IN):
        raise ValueError("no")

    server.load(echo("dynamic_batching {}"), gated(gate), name="m")
    server.load(
        ensemble_text(
            ("m", {"IN": "IN"}, {"OUT": "BETWEEN"}),
            ("m", {"IN": "BETWEEN"}, {"OUT": "OUT"}),
            inputs={"IN": "FP32[4]"}, outputs={"OUT": "FP32[4]"},
        ),
        name="chain",
    )  # fmt: skip
    server.load(echo("dynamic_batching {}"), failing, name="fails")
    gc.collect()
    gc.disable()
    try:
        first = server.submit("m", {"IN": ones()})
        gate.wait_entered()
        futures = [server.submit(name, {"IN": ones()}) for _ in range(4)]
        gate.open()
        for future in (first, *futures):
            future.exception(WAIT_S)
        for loaded in ("chain", "m", "fails"):
            server.unload(loaded, timeout_s=WAIT_S)
        assert not [each for each in gc.get_objects() if isinstance(each, BatchCompletion)]
    finally:
        gc.enable()


# -- as others have futures --------------------------------------------------------------------------


def test_concurrent_futures_wait_and_as_completed(server: Server, gate: Gate):
    def failing(IN):
        raise ValueError("no")

    server.load(echo("dynamic_batching {}"), gated(gate), name="m")
    server.load(echo(), failing, name="fails")
    done = server.submit("fails", {"IN": ones()})
    done.exception(WAIT_S)
    pending = [server.submit("m", {"IN": row(n)}) for n in range(4)]
    gate.wait_entered()
    cancelled = server.submit("m", {"IN": ones()})
    assert cancelled.cancel()
    assert cancelled.cancelled()
    futures = [done, *pending, cancelled]
    found = concurrent.futures.wait(futures, WAIT_S, concurrent.futures.FIRST_EXCEPTION)
    assert (found.done, found.not_done) == ({done, cancelled}, set(pending))
    with pytest.raises(TimeoutError):
        list(concurrent.futures.as_completed(pending, 0.01))
    gate.open()
    values = [
        float(future.result()["OUT"][0, 0])
        for future in concurrent.futures.as_completed(pending, WAIT_S)
    ]
    assert sorted(values) == [0, 1, 2, 3]
    assert concurrent.futures.wait(futures, WAIT_S).done == set(futures)


@pytest.mark.parametrize("wait", ["result", "exception"])
def test_the_wait_of_a_future_has_the_name_that_it_has_elsewhere(server: Server, wait: str):
    assert list(inspect.signature(getattr(InferenceFuture, wait)).parameters)[1] == "timeout"
    server.load(echo(), lambda IN: {"OUT": IN}, name="m")
    getattr(server.submit("m", {"IN": ones()}), wait)(timeout=WAIT_S)


def test_asyncio_wraps_a_future(server: Server, gate: Gate):
    def failing(IN):
        raise ValueError("no")

    server.load(echo(), gated(gate), name="m")
    server.load(echo(), failing, name="fails")

    async def main() -> float:
        wrapped = asyncio.wrap_future(server.submit("m", {"IN": row(7)}))
        late = server.submit("m", {"IN": ones()})
        given_up = asyncio.wrap_future(late)
        await asyncio.to_thread(gate.wait_entered)
        given_up.cancel()
        with pytest.raises(CancelledError):
            await asyncio.to_thread(late.result, WAIT_S)
        gate.open()
        with pytest.raises(ModelError, match="ValueError: no"):
            await asyncio.wrap_future(server.submit("fails", {"IN": ones()}))
        return float((await wrapped)["OUT"][0, 0])

    assert asyncio.run(main()) == 7


def test_what_asyncio_of_python_3_14_asks_of_a_future(server: Server, gate: Gate):
    server.load(echo(), gated(gate), name="m")
    running, cancelled = (server.submit("m", {"IN": ones()}) for _ in range(2))
    assert running._get_snapshot() == (False, False, None, None)
    cancelled.cancel()
    assert cancelled._get_snapshot() == (True, True, None, None)
    gate.open()
    result = running.result(WAIT_S)
    assert running._get_snapshot() == (True, False, result, None)


def test_many_futures_are_waited_for_while_they_are_answered(server: Server):
    server.load(echo("dynamic_batching {}"), lambda IN: {"OUT": IN}, name="m")
    for _ in range(50):
        futures = [server.submit("m", {"IN": ones()}) for _ in range(8)]
        assert concurrent.futures.wait(futures, WAIT_S).done == set(futures)
        assert set(concurrent.futures.as_completed(futures, WAIT_S)) == set(futures)


def test_the_state_stands_still_while_a_waiter_is_added(server: Server, gate: Gate):
    """`concurrent.futures.wait` would count a future as done, and its end as that of another one."""
    server.load(echo(), gated(gate), name="m")
    future = server.submit("m", {"IN": ones()})
    with future._condition:
        gate.open()
        future.result(WAIT_S)
        assert future._state == "PENDING"
    assert concurrent.futures.wait([future], WAIT_S).done == {future}
    assert future._state == "FINISHED"


def test_an_asynchronous_stream(server: Server):
    server.load(echo(DECOUPLED), streaming(), name="s")
    server.load(echo(), lambda IN: {"OUT": IN}, name="m")

    async def main() -> list[list[float]]:
        return [
            [float(r["OUT"][0, 0]) async for r in server.stream(name, {"IN": row(3)})]
            for name in ("s", "m")
        ]

    assert asyncio.run(main()) == [[0, 1, 2], [3]]
    stream = server.stream("s", {"IN": row(3)})
    assert next(stream)["OUT"][0, 0] == 0
    with pytest.raises(RuntimeError, match="iterated already"):
        asyncio.run(anext(stream))  # type: ignore[arg-type]
    assert [float(r["OUT"][0, 0]) for r in stream] == [1, 2]


@pytest.mark.parametrize("way", ["break", "aclosing", "task"])
def test_leaving_an_asynchronous_stream_cancels_its_request(server: Server, way: str):
    import triton_python_backend_utils as pb_utils

    seen = threading.Event()

    class Endless:
        def execute(self, requests):
            sender = requests[0].get_response_sender()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", ones())]))

            def wait() -> None:
                while not sender.is_cancelled():
                    threading.Event().wait(0.005)
                seen.set()
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

            threading.Thread(target=wait).start()

    server.load(echo(DECOUPLED), Endless, name="s")

    async def main() -> None:
        stream = server.stream("s", {"IN": ones()})
        if way == "break":
            async for _ in stream:
                break
        elif way == "aclosing":
            async with contextlib.aclosing(stream) as opened:
                await anext(opened)
        else:
            await anext(stream)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(stream), 0.01)
            return
        del stream

    asyncio.run(main())
    waited(seen)


def test_results_can_be_pickled_and_say_what_they_have(server: Server):
    config = """max_batch_size: 8
    input { name: "IN" data_type: TYPE_FP32 dims: 4 }
    output [ { name: "TOTAL" data_type: TYPE_FP32 dims: 4 },
             { name: "WORDS" data_type: TYPE_STRING dims: 1 } ]"""

    def model(IN):
        return {"TOTAL": IN * 2, "WORDS": np.array([[b"\xff"]] * len(IN), object)}

    server.load(config, model, name="m")
    result = server.infer("m", {"IN": row(1)}, request_id="7")
    copy = pickle.loads(pickle.dumps(result))
    assert type(copy) is type(result)
    assert (copy["TOTAL"][0, 0], copy["WORDS"][0, 0]) == (2, b"\xff")
    assert (copy.request_id, copy.model_name, copy.timing) == ("7", "m", result.timing)
    with pytest.raises(KeyError, match=r"no output 'TOTALS'; it has TOTAL, WORDS, did you mean"):
        result["TOTALS"]
    assert ("TOTALS" in result, result.get("TOTALS", 5), "TOTAL" in result) == (False, 5, True)
