"""Models that call models: those that would wait for each other for ever are told (§13)."""

# ruff: noqa: N803 - a model function names its tensors
from __future__ import annotations

import threading

import pytest

from nbtriton.engine import Server
from nbtriton.errors import ModelError, UnavailableError
from tests.engine.support import WAIT_S, Gate, echo, ensemble_text, ones, row


def calling(server: Server, name: str, *, into: str = "IN", out: str = "OUT"):
    """A model that asks another one while its input is positive, and adds 1 to the answer."""

    def model(IN):
        if IN[0, 0] <= 0:
            return {"OUT": IN}
        return {"OUT": server.infer(name, {into: IN - 1})[out] + 1}

    return model


@pytest.mark.parametrize("direct", [True, False], ids=["infer", "submit"])
def test_a_model_that_calls_its_only_instance_is_told(server: Server, direct: bool):
    server.load(echo(), calling(server, "m"), name="m")
    send = server.infer if direct else lambda *a: server.submit(*a).result(WAIT_S)
    with pytest.raises(ModelError, match="deadlock: 'm_0' calls model 'm'"):
        send("m", {"IN": row(1)})
    assert send("m", {"IN": row(0)})["OUT"][0, 0] == 0  # and it still serves


def test_two_models_that_call_each_other_are_told(server: Server):
    server.load(echo(), calling(server, "b"), name="a")
    server.load(echo(), calling(server, "a"), name="b")
    with pytest.raises(ModelError, match="deadlock"):
        server.infer("a", {"IN": row(5)})
    for name in ("a", "b"):
        assert server.infer(name, {"IN": row(0)})["OUT"][0, 0] == 0
    assert server.infer("a", {"IN": row(1)})["OUT"][0, 0] == 1


def test_two_callers_that_cross_are_told_once(server: Server):
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
    told = [error for error in errors if error is not None]
    assert len(told) == 1, "one call was given up, so the other could go on"
    assert "deadlock" in str(told[0])


def test_enough_instances_are_no_deadlock(server: Server):
    config = echo("instance_group { count: 4 kind: KIND_CPU }")
    server.load(config, calling(server, "m"), name="m")
    assert server.infer("m", {"IN": row(3)})["OUT"][0, 0] == 3
    with pytest.raises(ModelError, match="deadlock"):
        server.infer("m", {"IN": row(4)})


def test_a_circle_through_an_ensemble_is_told(server: Server):
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


def test_a_busy_model_is_waited_for(server: Server):
    """What is only slow is no deadlock."""
    gate = Gate()

    def slow(IN):
        gate.stand([])
        return {"OUT": IN}

    server.load(echo(), slow, name="slow")
    server.load(echo(), calling(server, "slow"), name="m")
    busy = server.submit("slow", {"IN": ones()})
    gate.wait_entered()
    caller = server.submit("m", {"IN": row(1)})
    gate.let(1)
    gate.wait_entered()  # the call came through
    gate.open()
    assert caller.result(WAIT_S)["OUT"][0, 0] == 1
    busy.result(WAIT_S)


def test_a_wait_with_a_limit_is_nobodys_deadlock(server: Server):
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
