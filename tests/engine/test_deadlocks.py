"""Deadlocks of models that call models are refused (B7)."""

# ruff: noqa: N803 - a model function names its tensors
from __future__ import annotations

import threading

import pytest

from nbtriton.common.errors import ModelError, UnavailableError
from nbtriton.runtime.engine import Server
from nbtriton.runtime.engine.diagnostics.deadlocks import DEADLOCKS
from tests.engine.support import (
    WAIT_S,
    Gate,
    echo,
    ensemble_text,
    fields,
    gated,
    ones,
    row,
    waited,
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for deadlocks starts after a twentieth of a second instead of a second."""
    monkeypatch.setattr(DEADLOCKS, "patience_s", 0.05)


def calling(server: Server, name: str, *, into: str = "IN", out: str = "OUT"):
    """A model that asks another one while its input is positive, and adds 1 to the answer."""

    def model(IN):
        if IN[0, 0] <= 0:
            return {"OUT": IN}
        return {"OUT": server.infer(name, {into: IN - 1})[out] + 1}

    return model


@pytest.mark.parametrize("direct", [True, False], ids=["infer", "submit"])
def test_B7_a_call_of_the_callers_only_instance_is_refused(server: Server, direct: bool):
    server.load(echo(), calling(server, "m"), name="m")
    send = server.infer if direct else lambda *a: server.submit(*a).result(WAIT_S)
    with pytest.raises(ModelError, match="deadlock: 'm_0' calls model 'm'"):
        send("m", {"IN": row(1)})
    assert send("m", {"IN": row(0)})["OUT"][0, 0] == 0  # and it still serves


def test_two_models_that_call_each_other_get_an_error(server: Server):
    server.load(echo(), calling(server, "b"), name="a")
    server.load(echo(), calling(server, "a"), name="b")
    with pytest.raises(ModelError, match="deadlock"):
        server.infer("a", {"IN": row(5)})
    for name in ("a", "b"):
        assert server.infer(name, {"IN": row(0)})["OUT"][0, 0] == 0
    assert server.infer("a", {"IN": row(1)})["OUT"][0, 0] == 1


def test_of_two_crossing_calls_one_is_refused(server: Server):
    """Neither call is wrong alone: both instances are taken before either calls."""
    barrier = threading.Barrier(2, timeout=WAIT_S)

    def crossing(other: str):
        def model(IN):
            if IN[0, 0] <= 0:
                return {"OUT": IN}
            barrier.wait()
            return server.infer(other, {"IN": IN * 0})

        return model

    server.load(echo(), crossing("b"), name="a")
    server.load(echo(), crossing("a"), name="b")
    futures = [server.submit(name, {"IN": ones()}) for name in ("a", "b")]
    errors = [future.exception(WAIT_S) for future in futures]
    refused = [error for error in errors if error is not None]
    assert len(refused) == 1, "one call was refused, so the other could go on"
    assert "deadlock" in str(refused[0])


def test_B7_enough_instances_are_no_deadlock(server: Server):
    config = echo("instance_group { count: 4 kind: KIND_CPU }")
    server.load(config, calling(server, "m"), name="m")
    assert server.infer("m", {"IN": row(3)})["OUT"][0, 0] == 3
    with pytest.raises(ModelError, match="deadlock"):
        server.infer("m", {"IN": row(4)})


def test_a_deadlock_through_an_ensemble_is_refused(server: Server):
    server.load(echo(), calling(server, "e", into="X", out="Y"), name="m")
    server.load(
        ensemble_text(
            ("m", {"IN": "X"}, {"OUT": "Y"}), inputs={"X": "FP32[4]"}, outputs={"Y": "FP32[4]"}
        ),
        name="e",
    )
    with pytest.raises(ModelError, match="deadlock"):
        server.infer("e", {"X": row(1)})
    assert server.infer("e", {"X": row(0)})["Y"][0, 0] == 0


# -- refused calls -----------------------------------------------------------------------------------


def always(server: Server, name: str, how: str, runs: list[str]):
    """A model that calls another one for every request."""
    import triton_python_backend_utils as pb_utils

    def request(tensor):
        return pb_utils.InferenceRequest(
            model_name=name, requested_output_names=["OUT"], inputs=[tensor]
        )

    def answer(response):
        if response.has_error():
            raise RuntimeError(response.error().message())
        return pb_utils.InferenceResponse(response.output_tensors())

    class Blocking:
        def execute(self, requests):
            runs.append(name)
            tensor = pb_utils.get_input_tensor_by_name(requests[0], "IN")
            if how == "exec":
                return [answer(request(tensor).exec())]
            if how == "decoupled":
                return [answer(next(request(tensor).exec(decoupled=True)))]
            inputs = {"IN": tensor.as_numpy()}
            if how == "infer":
                out = server.infer(name, inputs)
            elif how == "submit":
                out = server.submit(name, inputs).result()
            else:
                (out,) = server.stream(name, inputs)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out["OUT"])])]

    class Awaiting:
        async def execute(self, requests):
            runs.append(name)
            tensor = pb_utils.get_input_tensor_by_name(requests[0], "IN")
            if how == "async_exec":
                return [answer(await request(tensor).async_exec())]
            return [answer(next(await request(tensor).async_exec(decoupled=True)))]

    return Awaiting if how.startswith("async") else Blocking


@pytest.mark.parametrize("scheduling", ["", "dynamic_batching {}"], ids=["default", "dynamic"])
@pytest.mark.parametrize(
    "how",
    ["infer", "submit", "stream", "exec", "decoupled", "async_exec", "async_decoupled"],
)
def test_a_refused_call_never_runs(server: Server, how: str, scheduling: str):
    """To itself, to a model that calls back, and through an ensemble."""
    for cycle in (["m"], ["a", "b"], ["x", "e"]):
        runs: list[str] = []
        code = [name for name in cycle if name != "e"]
        for name, callee in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            if name == "e":
                server.load(
                    ensemble_text(
                        ("x", {"IN": "IN"}, {"OUT": "OUT"}),
                        inputs={"IN": "FP32[4]"},
                        outputs={"OUT": "FP32[4]"},
                    ),
                    name="e",
                )
            else:
                server.load(echo(scheduling), always(server, callee, how, runs), name=name)
        with pytest.raises(ModelError, match="deadlock"):
            server.submit(cycle[0], {"IN": ones()}).result(WAIT_S)
        # Nothing of it is left: an unload waits for what is in the queues.
        statistics = server.statistics()
        for name in reversed(cycle):
            assert server.unload(name, timeout_s=WAIT_S)
        assert len(runs) == len(code)
        for name in code:
            found = fields(statistics, name)
            refused = name == code[0]
            assert (found["success"], found["fail"]) == (0, 1 + refused)


def test_a_deadlock_of_resources_is_refused():
    """The caller holds what its callee needs: with one of it, neither can finish."""
    limited = echo(
        "instance_group { count: 1 kind: KIND_CPU"
        ' rate_limiter { resources { name: "R" count: 1 } } }'
    )
    runs: list[str] = []
    with Server(gpus=(), rate_limit="execution_count") as server:
        server.load(limited, always(server, "b", "infer", runs), name="a")
        server.load(limited, lambda IN: {"OUT": IN}, name="b")
        for _ in range(2):
            with pytest.raises(ModelError, match="deadlock: 'a_0_0' calls model 'b'"):
                server.submit("a", {"IN": ones()}).result(WAIT_S)
            assert server.submit("b", {"IN": row(4)}).result(WAIT_S)["OUT"][0, 0] == 4
        assert runs == ["b", "b"]  # the caller's executions, and no more
        assert fields(server.statistics(), "b")["success"] == 2


# -- callbacks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2], ids=["alone", "batched"])
def test_a_callback_that_waits_for_its_own_model_gets_an_error(server: Server, rows: int, caplog):
    gate = Gate()
    server.load(echo("dynamic_batching {}"), gated(gate), name="m")
    errors: list[object] = []
    done = threading.Event()

    def call_again(future) -> None:
        try:
            server.infer("m", {"IN": ones()})
        except UnavailableError as error:
            errors.append(error)
        done.set()

    blocked = server.submit("m", {"IN": ones()})
    gate.wait_entered()
    futures = [server.submit("m", {"IN": ones()}) for _ in range(rows)]
    futures[0].add_done_callback(call_again)
    gate.open()
    waited(done)
    assert "a callback on the thread of 'm_0' calls model 'm'" in str(errors[0])
    assert "submit the request and give it a callback" in errors[0].hint
    assert "Triton 2.51 would wait (docs/differences.md: bls-deadlock)" in errors[0].hint
    for future in (blocked, *futures, server.submit("m", {"IN": ones()})):
        assert future.result(WAIT_S)["OUT"].shape == (1, 4)


def test_a_callback_may_wait_for_others_of_its_batch(server: Server):
    """They are answered first; so is what another model or instance has to do."""
    gate = Gate()
    server.load(echo("dynamic_batching {}"), gated(gate), name="m")
    server.load(echo(), lambda IN: {"OUT": IN + 1}, name="other")
    found: list[float] = []
    done = threading.Event()

    def wait(future) -> None:
        try:
            found.extend(float(one.result()["OUT"][0, 0]) for one in futures)
            found.append(float(server.infer("other", {"IN": row(6)})["OUT"][0, 0]))
            found.append(float(server.submit("other", {"IN": row(7)}).result()["OUT"][0, 0]))
        finally:
            done.set()

    blocked = server.submit("m", {"IN": ones()})
    gate.wait_entered()
    futures = [server.submit("m", {"IN": row(n)}) for n in range(4)]
    futures[0].add_done_callback(wait)
    gate.open()
    waited(done)
    assert found == [0, 1, 2, 3, 7, 8]
    blocked.result(WAIT_S)


def test_a_callback_on_the_answering_thread_may_wait_for_its_own_model(server: Server):
    """The instance computes the next batch meanwhile, and the ones after it."""
    entered = threading.Event()
    found: list[float] = []
    done = threading.Event()

    def model(IN):
        threading.Event().wait(0.002)  # long enough for a thread of its own to answer
        return {"OUT": IN}

    def wait(future) -> None:
        if not entered.is_set() and threading.current_thread().name.endswith("answers"):
            entered.set()
            found.append(float(server.infer("m", {"IN": row(5)})["OUT"][0, 0]))
            done.set()

    server.load(echo("dynamic_batching {}", max_batch_size=2), model, name="m")
    futures: list = []
    for _ in range(500):
        futures = [server.submit("m", {"IN": ones()}) for _ in range(16)]
        for future in futures:
            future.add_done_callback(wait)
        for future in futures:
            future.result(WAIT_S)
        if entered.is_set():
            break
    waited(done)
    assert found == [5]


# -- no deadlock -------------------------------------------------------------------------------------


def test_a_busy_model_is_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch):
    """A slow model is no deadlock, however often the search runs."""
    gate = Gate()

    def slow(IN):
        gate.stand([])
        return {"OUT": IN}

    server.load(echo(), slow, name="slow")
    server.load(echo(), calling(server, "slow"), name="m")
    busy = server.submit("slow", {"IN": ones()})
    gate.wait_entered()
    caller = server.submit("m", {"IN": row(1)})
    looked = threading.Event()
    search = DEADLOCKS.search
    monkeypatch.setattr(DEADLOCKS, "search", lambda: (search(), looked.set()))
    waited(looked)
    gate.let(1)
    gate.wait_entered()  # the call came through
    gate.open()
    assert caller.result(WAIT_S)["OUT"][0, 0] == 1
    busy.result(WAIT_S)


def test_a_wait_with_a_timeout_is_no_deadlock(server: Server):
    def model(IN):
        if IN[0, 0] == 0:
            return {"OUT": IN}
        future = server.submit("m", {"IN": IN * 0})
        try:
            future.result(0.01)
        except TimeoutError:
            future.cancel()
        return {"OUT": IN}

    server.load(echo("dynamic_batching {}"), model, name="m")
    assert server.infer("m", {"IN": row(2)})["OUT"][0, 0] == 2


def test_the_error_says_what_helps(server: Server):
    errors = []

    def model(IN):
        try:
            return server.infer("m", {"IN": IN})
        except UnavailableError as error:
            errors.append(error)
            return {"OUT": IN}

    server.load(echo(), model, name="m")
    server.infer("m", {"IN": ones()})
    assert "one more instance" in errors[0].hint


def test_a_wait_is_searched_only_after_its_patience(
    server: Server, monkeypatch: pytest.MonkeyPatch
):
    """A call that is answered in time costs no search."""
    monkeypatch.setattr(DEADLOCKS, "patience_s", 60)
    monkeypatch.setattr(DEADLOCKS, "search", lambda: pytest.fail("nothing has lasted"))
    server.load(echo(), lambda IN: {"OUT": IN}, name="leaf")

    def model(IN):
        return {"OUT": server.submit("leaf", {"IN": IN}).result()["OUT"]}

    server.load(echo(), model, name="m")
    assert server.infer("m", {"IN": row(3)})["OUT"][0, 0] == 3
