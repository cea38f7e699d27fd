"""A forked child has no thread of the server: calls fail at once, and it can have a server of its own."""

# ruff: noqa: N803 - a model function names its tensors
from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading

import pytest

from nbtriton.common.errors import EngineStoppedError
from nbtriton.runtime.engine import Server
from nbtriton.runtime.interrupts import interrupts_deferred
from nbtriton.serving.server import server as process_server
from tests.engine.support import WAIT_S, Gate, echo, gated, ones, row
from tests.forked import in_child, start_child
from tests.until import until

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def test_every_call_in_a_child_fails_at_once(server: Server, gate: Gate):
    server.load(echo(), lambda IN: {"OUT": IN}, name="m")
    server.load(echo(), gated(gate), name="busy")
    running = server.submit("busy", {"IN": ones()})
    gate.wait_entered()
    asked = {
        "infer": lambda: server.infer("m", {"IN": ones()}),
        "submit": lambda: server.submit("m", {"IN": ones()}),
        "stream": lambda: list(server.stream("m", {"IN": ones()})),
        "load": lambda: server.load(echo(), lambda IN: {"OUT": IN}, name="m"),
        "unload": lambda: server.unload("m"),
        "models": server.models,
        "statistics": server.statistics,
        "config": lambda: server.config("m"),
        "result": running.result,
    }

    def ask() -> dict[str, BaseException | None]:
        found: dict[str, BaseException | None] = {}
        for name, question in asked.items():
            found[name] = None
            try:
                question()
            except EngineStoppedError as error:
                found[name] = error
        assert repr(server) == "<nbtriton.Server: in the parent process>"
        server.close()
        return found

    for name, error in in_child(ask).items():
        assert error is not None, name
        assert "this process was forked" in error.message
        assert "make an nbtriton.Server() in the child" in error.hint
    gate.open()
    assert running.result(WAIT_S)["OUT"].shape == (1, 4)
    assert server.infer("m", {"IN": row(3)})["OUT"][0, 0] == 3


def test_a_child_may_have_a_server_of_its_own(server: Server):
    server.load(echo("dynamic_batching {}"), lambda IN: {"OUT": IN}, name="m")

    def serve() -> tuple[float, float]:
        with Server(gpus=()) as own:
            own.load(echo("dynamic_batching {}"), lambda IN: {"OUT": IN + 1}, name="m")
            direct = own.infer("m", {"IN": row(1)})["OUT"][0, 0]
            return float(direct), float(own.submit("m", {"IN": row(2)}).result(WAIT_S)["OUT"][0, 0])

    assert in_child(serve) == (2, 3)
    assert server.infer("m", {"IN": row(1)})["OUT"][0, 0] == 1


@pytest.mark.slow
def test_forks_while_other_threads_infer(server: Server):
    """The child waits for no lock that they hold at the fork."""
    server.load(echo("dynamic_batching {}"), lambda IN: {"OUT": IN}, name="m")
    stop = threading.Event()
    answered = [0, 0, 0]

    def infer(place: int) -> None:
        while not stop.is_set():
            if place:
                server.infer("m", {"IN": ones()})
            else:
                server.submit("m", {"IN": ones()}).result(WAIT_S)
            answered[place] += 1

    def ask() -> tuple[str, float]:
        try:
            server.infer("m", {"IN": ones()})
        except EngineStoppedError as error:
            text = error.message
        with Server(gpus=()) as own:
            own.load(echo("dynamic_batching {}"), lambda IN: {"OUT": IN}, name="m")
            return text, float(own.submit("m", {"IN": row(4)}).result(WAIT_S)["OUT"][0, 0])

    threads = [threading.Thread(target=infer, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert until(lambda: all(answered))
        for _ in range(10):
            for wait in [start_child(ask) for _ in range(2)]:
                text, value = wait()
                assert "this process was forked" in text
                assert value == 4
    finally:
        stop.set()
        for thread in threads:
            thread.join(WAIT_S)


def test_a_child_of_another_thread_can_be_interrupted(server: Server):
    """Its main thread is the one that forked, wherever the parent's was."""
    server.load(echo(), lambda IN: {"OUT": IN}, name="m")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    found: list[object] = []

    def interrupt() -> str:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        try:
            with interrupts_deferred():
                signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            return "interrupted"
        return "not interrupted"

    thread = threading.Thread(target=lambda: found.append(in_child(interrupt)))
    with interrupts_deferred():
        thread.start()
        thread.join(WAIT_S)
    signal.signal(signal.SIGINT, before)
    assert found == ["interrupted"]


def test_the_default_server_fails_in_a_child_too():
    process_server()

    def ask() -> str:
        try:
            process_server().infer("m", {"IN": ones()})
        except EngineStoppedError as error:
            return error.message
        return ""

    assert "this process was forked" in in_child(ask)


def _touch(value: float, server: Server | None = None) -> float:
    return value if server is None else float(server.infer("m", {"IN": row(value)})["OUT"][0, 0])


def test_pools_of_processes_work_beside_a_server(server: Server):
    server.load(echo(), lambda IN: {"OUT": IN}, name="m")
    server.infer("m", {"IN": ones()})
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(_touch, [1.0, 2.0, 3.0]) == [1, 2, 3]


@pytest.mark.medium
@pytest.mark.parametrize("touches", [False, True])
def test_a_data_loader_with_workers(server: Server, touches: bool):
    torch = pytest.importorskip("torch", reason="the extra 'torch'")
    server.load(echo(), lambda IN: {"OUT": IN}, name="m")
    server.infer("m", {"IN": ones()})

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return _touch(float(index), server if touches else None)

    loader = torch.utils.data.DataLoader(
        Numbers(), num_workers=2, multiprocessing_context="fork", timeout=WAIT_S
    )
    if touches:
        with pytest.raises(EngineStoppedError, match=r"make an nbtriton\.Server\(\) in the child"):
            list(loader)
    else:
        assert [float(batch[0]) for batch in loader] == [0, 1, 2, 3]
    assert server.infer("m", {"IN": row(3)})["OUT"][0, 0] == 3


def test_a_server_is_not_sent_to_a_process_that_is_spawned(server: Server):
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        pickle.dumps({"server": server})
