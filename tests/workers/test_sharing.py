"""Two instances that share a worker: INSTANCE_SHARING, with a process of this machine in the place of an actor."""

# ruff: noqa: N803 - tensors have Triton's names

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socket import socketpair
from time import monotonic
from typing import Any

import numpy as np
import pytest

import nbtriton
from nbtriton.backends.python import install_pb_utils
from nbtriton.common.errors import ConfigError, TritonError
from nbtriton.extensions.ray import backend
from nbtriton.model.config import parse_pbtxt
from nbtriton.model.config.parameters import sharing_of
from nbtriton.runtime.engine import Server
from nbtriton.runtime.workers import protocol, supervisor
from nbtriton.runtime.workers.core import connection
from nbtriton.runtime.workers.process import Peer
from nbtriton.runtime.workers.supervisor import RestartPolicy
from nbtriton.runtime.workers.worker.server import main
from tests.engine.support import WAIT_S, Gate, echo
from tests.until import until
from tests.workers.conftest import MODELS, TARGET
from tests.workers.support import is_alive

pytestmark = pytest.mark.slow

MODEL = Path(__file__).parent / "models" / "shared" / "1" / "model.py"
SHARED = """
parameters { key: "INSTANCE_ISOLATION" value { string_value: "ray" } }
parameters { key: "INSTANCE_SHARING" value { string_value: "2" } }
"""
CONFIG = """
name: "m" backend: "python" max_batch_size: 0
input {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }}
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }}, {{ name: "ABOUT" data_type: TYPE_INT64 dims: 2 }} ]
instance_group {{ kind: KIND_CPU count: {count} }}
""" + SHARED.replace("{", "{{").replace("}", "}}")
ONE = np.ones(1, np.float32)
# Forks what has NumPy and nbtriton already.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([main.__module__])


class Child(Peer):
    """The real worker program, with some lanes."""

    def __init__(self, name: str, lanes: int) -> None:
        ours, theirs = zip(*[socketpair() for _ in range(1 + lanes)], strict=True)
        calls, execute, *more = theirs
        self._process = FORKS.Process(target=main, args=(execute, calls, name, *more))
        self._process.start()
        for one in theirs:
            one.close()
        super().__init__(name, ours[1:], ours[0], ())
        self.pid = self._process.pid
        self.node = "there"
        threading.Thread(target=self._wait).start()

    def kill(self) -> None:
        self._process.kill()

    def _wait(self) -> None:
        self._process.join()
        self.ended(self._process.exitcode)


class Children:
    """In the place of a cluster."""

    def __init__(self) -> None:
        self.started: list[Child] = []
        self.together = threading.Barrier(1)

    def start(self, name: str, options: object, lanes: int) -> Child:
        if name != "m":  # which completes the configuration
            self.together.wait(WAIT_S)
        self.started.append(Child(name, lanes))
        return self.started[-1]


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[Children]:
    found = Children()
    monkeypatch.setattr(backend, "cluster_of", lambda address: found)
    yield found
    assert until(lambda: not any(is_alive(one.pid) for one in found.started))


class Told:
    """What the model tells by calling other models, and where it stands."""

    def __init__(self, server: Server) -> None:
        self.started, self.queued, self.gate = Gate(is_open=True), Gate(is_open=True), Gate()
        for name in ("started", "queued", "gate"):
            server.load(TARGET.format(more=""), model=self._model(getattr(self, name)), name=name)

    @staticmethod
    def _model(gate: Gate) -> Any:
        def stand(IN):
            gate.stand([])
            return {"OUT": IN}

        return stand


@pytest.fixture
def server(children: Children, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    install_pb_utils()
    monkeypatch.setattr(supervisor, "DEFAULT", RestartPolicy(first_ns=0))
    with Server(gpus=()) as running:

        def target(IN):
            return {"OUT": IN + 1}

        running.load(TARGET.format(more=""), model=target, name="target")
        running.load(CONFIG.format(count=2), model=MODEL)
        yield running


@pytest.fixture
def told(server: Server) -> Told:
    return Told(server)


def submit(server: Server, program: str = "double", value: np.ndarray = ONE) -> Any:
    return server.submit("m", {"IN": value}, parameters={"program": program})


def about(future: Any) -> tuple[int, int]:
    """The process that answered, and how many executions it had begun."""
    pid, executions = future.result(WAIT_S)["ABOUT"]
    return int(pid), int(executions)


def instances(server: Server) -> Any:
    return next(one for one in server.models() if one.name == "m").instances


@pytest.mark.parametrize(
    ("sharing", "isolation", "good"),
    [("1", "ray", True), ("8", "ray", True), ("2", "", True), ("0", "ray", False), ("9", "ray", False),
     ("two", "ray", False), ("1.0", "ray", False), ("2", "process", False), ("2", "thread", False)],
)  # fmt: skip
def test_the_parameter_is_a_small_number_with_isolation_ray(
    sharing: str, isolation: str, good: bool
):
    values = {"INSTANCE_SHARING": sharing} | (
        {"INSTANCE_ISOLATION": isolation} if isolation else {}
    )
    config = parse_pbtxt(
        "".join(
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
            for key, value in values.items()
        )
    )
    if good:
        assert sharing_of(config) == int(sharing)
        return
    with pytest.raises(
        ConfigError, match="Incorrect value for INSTANCE_SHARING of model"
    ) as caught:
        sharing_of(config)
    assert caught.value.field == "parameters.INSTANCE_SHARING"
    assert "with isolation ray: how many instances share an actor, 1 to 8" in caught.value.hint


def test_where_the_server_has_the_instances_in_threads_it_has_no_effect() -> None:
    text = 'parameters { key: "INSTANCE_SHARING" value { string_value: "2" } }'
    with (
        nbtriton.Server(gpus=()) as own,
        pytest.warns(
            nbtriton.errors.ConfigWarning,
            match=r"parameters\[INSTANCE_SHARING\] has no effect here",
        ),
    ):
        own.load(echo(text), lambda IN: {"OUT": IN}, name="m")


def test_an_execution_overlaps_with_the_way_of_the_next(server: Server, told: Told):
    """The second one's inputs are there before the first one has ended, and it is executed behind it."""
    first = submit(server, "hold")
    told.started.wait_entered()
    second = submit(server, value=np.array([3.0], np.float32))
    told.queued.wait_entered()
    assert not second.done()
    told.gate.open()
    (pid, before), (same, behind) = about(first), about(second)
    assert (same, behind) == (pid, before + 1)
    assert second.result()["OUT"].tolist() == [6.0]


def test_each_answer_is_that_of_its_request(server: Server):
    """From two lanes at once, with tensors that follow their message and such in shared memory."""
    values = [np.full(size, number, np.float32) for number in range(30) for size in (3, 30_000)]
    futures = [
        submit(server, "bls" if n % 3 else "double", value) for n, value in enumerate(values)
    ]
    for number, (value, future) in enumerate(zip(values, futures, strict=True)):
        expected = value + 1 if number % 3 else value * 2
        np.testing.assert_array_equal(future.result(WAIT_S)["OUT"], expected)
    assert [one.executions > 0 for one in instances(server)] == [True, True]


def test_four_instances_have_two_workers_which_start_at_once(server: Server, children: Children):
    children.together = threading.Barrier(2)
    server.load(CONFIG.format(count=6), model=MODEL)  # beside the two that are there
    first, *others = [one.pid for one in children.started if one.name != "m"]
    assert len(others) == 2
    found = {about(one)[0] for one in [submit(server, "bls") for _ in range(60)]}
    assert first in found
    assert found <= {first, *others}


def test_who_leaves_ends_nothing_and_who_comes_joins(
    server: Server, children: Children, caplog: pytest.LogCaptureFixture
):
    pid, _ = about(submit(server))
    for count in (1, 2):
        server.load(CONFIG.format(count=count), model=MODEL)
        assert len(instances(server)) == count
        assert {about(one)[0] for one in [submit(server) for _ in range(6)]} == {pid}
    assert server.unload("m", timeout_s=WAIT_S)
    assert until(lambda: not is_alive(pid))
    assert [one.getMessage() for one in caplog.records if "finalized" in one.getMessage()] == [
        "finalized after 13"
    ]


def test_a_kill_answers_both_once_and_both_come_back(server: Server, told: Told):
    pid, _ = about(submit(server))
    answers: list[Any] = []
    both = [submit(server, "killed")]
    told.started.wait_entered()
    both.append(submit(server))
    for one in both:
        one.add_done_callback(answers.append)
    assert {str(one.exception(WAIT_S)).splitlines()[0] for one in both} == {
        f"Stub process 'm_0_{number}' is not healthy." for number in range(2)
    }
    assert until(lambda: [one.restart.restarts for one in instances(server)] == [1, 1])
    assert until(lambda: len(answers) == 2)
    found = {about(one)[0] for one in [submit(server) for _ in range(6)]}
    assert len(found) == 1
    assert pid not in found


def test_a_cancellation_reaches_a_request_that_waits_for_its_turn(server: Server, told: Told):
    first = submit(server, "hold_until_cancelled")
    told.started.wait_entered()
    second = submit(server, "tell_cancelled")
    told.queued.wait_entered()
    second.cancel()
    told.gate.wait_entered()
    told.gate.open()
    assert first.result(WAIT_S)["OUT"].tolist() == [2.0]


def test_an_interrupt_ends_the_wait_for_a_turn_and_nothing_else(
    server: Server, told: Told, patient: None
):
    first = submit(server, "hold")
    told.started.wait_entered()
    main = threading.get_ident()

    def interrupt() -> None:
        told.queued.wait_entered()
        signal.pthread_kill(main, signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        server.infer("m", {"IN": ONE})
    sender.join()
    told.gate.open()
    pid, executions = about(first)
    assert about(submit(server)) == (pid, executions + 1)


def test_an_interrupt_of_the_one_that_executes_leaves_the_one_that_waits(
    server: Server, told: Told, patient: None
):
    main, waiting = threading.get_ident(), []

    def interrupt() -> None:
        told.started.wait_entered()
        waiting.append(submit(server))
        signal.pthread_kill(main, signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        server.infer("m", {"IN": ONE}, parameters={"program": "spin"})
    sender.join()
    assert waiting[0].result(WAIT_S)["OUT"].tolist() == [2.0]
    assert [one.restart.restarts for one in instances(server)] == [0, 0]


def test_a_thread_answers_while_the_other_instance_executes(server: Server):
    first = submit(server, "later", np.array([7.0], np.float32))
    while not first.done():
        submit(server).result(WAIT_S)
    assert first.result()["OUT"].tolist() == [14.0]


@pytest.mark.parametrize("program", ["three", "from_a_thread"])
def test_streams_of_both_instances_have_all_their_responses(server: Server, program: str):
    more = "model_transaction_policy { decoupled: true }" + SHARED
    model = MODELS / "stream" / "1" / "model.py"
    server.load(TARGET.format(more=more), model=model, name="stream")

    def ask(number: int) -> list[list[float]]:
        asked = {"IN": ONE * number}
        found = server.stream("stream", asked, parameters={"program": program})
        return [response["OUT"].tolist() for response in found]

    with ThreadPoolExecutor(8) as pool:
        for number, found in enumerate(pool.map(ask, range(24))):
            assert found == [[0.0], [number], [2.0 * number]]


def test_a_child_that_the_model_forks_answers_nothing(server: Server):
    pid, _ = about(submit(server))
    for _ in range(2):
        forked = submit(server, "fork").result(WAIT_S)["OUT"].tolist()
        assert forked != [0.0]
        assert until(lambda forked=forked: not is_alive(int(forked[0])))
    assert about(submit(server))[0] == pid


def test_a_model_that_calls_itself_is_refused(server: Server):
    with pytest.raises(TritonError, match="'m' calls itself, and its instances share an actor"):
        submit(server, "itself").result(WAIT_S)


def test_the_wait_for_a_turn_is_no_part_of_the_way(server: Server, told: Told):
    first = submit(server, "hold")
    told.started.wait_entered()
    second = submit(server)
    told.queued.wait_entered()
    began, seconds = monotonic(), 0.0
    while seconds < 0.2:
        server.infer("target", {"IN": ONE})
        seconds = monotonic() - began
    told.gate.open()
    first.result(WAIT_S)
    second.result(WAIT_S)
    copies = nbtriton.copies(server).query("target == 'there'")
    way_us = (copies["us_per_copy"] * copies["copies"]).sum()
    (model,) = (one for one in server.models() if one.name == "m")
    assert 0 < way_us <= model.compute_input_ns / 1e3 - seconds * 1e6


@pytest.mark.skipif(nbtriton.compiled, reason="compiled code keeps its own clock")
def test_the_time_of_an_execution_does_not_begin_before_its_turn(monkeypatch: pytest.MonkeyPatch):
    """The reply before it is when that was, at the earliest."""
    now = 0.0
    monkeypatch.setattr(connection, "monotonic", lambda: now)
    link = connection.Connection(child := Child("m_0", 2), None, timeout_s=10.0)
    lane, other = link.join("m_0"), link.join("m_1")
    assert link.join("m_2") is None
    lane.deadline = 10.0
    now = 9.0
    with pytest.raises(TritonError):  # it is a reply
        link.ask(other, protocol.CREATE, {"version": 0})
    ended = []
    for now in (11.0, 18.0, 20.0):  # noqa: B007 - what the clock says
        ended.append(link._readable(lane, 0.0))
    assert ended == [False, False, True]
    assert until(lambda: child.exit)
    assert str(child.exit).startswith("killed (SIGKILL)")
    link.close(other)
    link.close(lane)
