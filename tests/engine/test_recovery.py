"""Instances that are lost while they serve, as those in processes can be (PB92 and what differs)."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import numpy as np
import pytest

from nbtriton.backends import Backend, BackendInstance, Response
from nbtriton.common import entries
from nbtriton.common.errors import InternalError, TritonError
from nbtriton.runtime.engine import Server
from nbtriton.runtime.engine.status import status
from nbtriton.runtime.workers import supervisor
from nbtriton.runtime.workers.supervisor import RestartPolicy
from tests.engine.sequence_models import PATIENT
from tests.engine.support import WAIT_S, echo, row, waited
from tests.until import until

TEXT = "Stub process '{}' is not healthy."
DIES, RAISES = 13, 14


class Fragile(BackendInstance):
    """Echoes; is lost by what it reads, or when the test says so."""

    made: list[Fragile]  # of the test

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.restarts = 0
        self.may_restart = threading.Event()
        self.may_restart.set()
        self.entered = threading.Semaphore(0)
        self.hold: Future[None] | None = None
        self.error: Exception | None = None  # of the restarts
        self.abandoned = False
        self._on_lost: Callable[[str], None] | None = None
        self.made.append(self)

    def watch(self, on_lost):
        self._on_lost = on_lost

    def lose(self, cause="killed") -> None:
        self.alive = False
        self._on_lost(cause)

    def restart(self):
        waited(self.may_restart)
        if self.error is not None:
            raise self.error
        self.restarts += 1
        self.alive = True

    def abandon(self):
        self.abandoned = True
        if self.hold is not None:
            self.lose("abandoned")
            self.hold.set_result(None)

    def execute(self, requests, timer):
        self.entered.release()
        if self.hold is not None:
            self.hold.result(WAIT_S)
        values = [request.inputs["IN"] for request in requests]
        if self.alive and any((value == DIES).any() for value in values):
            self.lose("exit status 1")
        if not self.alive:
            raise InternalError(TEXT.format(self.name))
        return [Response({"OUT": value}) for value in values]


class FragileBackend(Backend):
    name = "fragile"

    def create_instance(self, context):
        return Fragile(context.name)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Fragile]]:
    monkeypatch.setitem(entries.CORE["backends"], "fragile", f"{__name__}:FragileBackend")
    # Restarts take no time, but for those that the test holds up.
    monkeypatch.setattr(supervisor, "DEFAULT", RestartPolicy(limit=3, first_ns=0))
    monkeypatch.setattr(Fragile, "made", [], raising=False)
    yield Fragile.made
    for one in Fragile.made:
        one.may_restart.set()


def load(server: Server, more: str = "", count: int = 1) -> None:
    group = f"instance_group {{ count: {count} kind: KIND_CPU }}"
    server.load(echo(f"{group} {more}", backend="fragile"), object(), name="m")
    Fragile.made.sort(key=lambda one: one.name)  # each is made on a thread of its own


def instance(server: Server, at: int = 0):
    return server.models()[0].instances[at]


def ask(server: Server, value: float = 1, **options) -> float:
    return float(server.infer("m", {"IN": row(value)}, **options)["OUT"][0, 0])


@pytest.mark.parametrize("direct", [True, False], ids=["infer", "submit"])
def test_PB92_the_request_inside_gets_tritons_error_and_the_next_ones_their_answers(
    server: Server, made: list[Fragile], direct: bool
):
    load(server)
    for restarts in (1, 2):
        with pytest.raises(InternalError, match=r"^Stub process 'm_0_0' is not healthy\.$"):
            if direct:
                ask(server, DIES)
            else:
                server.submit("m", {"IN": row(DIES)}).result(WAIT_S)
        assert ask(server, 5) == 5
        assert made[0].restarts == restarts
    state = instance(server).restart
    assert (state.restarts, state.cause, state.due_ns, state.down) == (
        2,
        "exit status 1",
        None,
        False,
    )


def test_requests_wait_for_a_restart_and_none_is_lost(server: Server, made: list[Fragile]):
    load(server, "dynamic_batching {}")
    made[0].may_restart.clear()
    failing = server.submit("m", {"IN": row(DIES)})
    assert isinstance(failing.exception(WAIT_S), InternalError)
    futures = [server.submit("m", {"IN": row(n)}) for n in range(20, 40)]
    # The loss is noted behind the answer.
    assert until(lambda: instance(server).restart.due_ns is not None)
    assert not any(future.done() for future in futures)
    made[0].may_restart.set()
    assert [float(future.result(WAIT_S)["OUT"][0, 0]) for future in futures] == [*range(20, 40)]


def test_one_that_is_lost_while_it_is_idle_is_restarted_before_any_request_comes(
    server: Server, made: list[Fragile]
):
    load(server)
    made[0].lose()
    assert until(lambda: made[0].restarts == 1)
    assert ask(server, 7) == 7
    assert server.statistics()["model_stats"][0]["inference_stats"]["fail"]["count"] == 0


def test_other_instances_serve_while_one_is_down(server: Server, made: list[Fragile]):
    load(server, count=2)
    lost, other = made
    lost.may_restart.clear()
    lost.lose()
    assert until(lambda: instance(server, 0).restart.due_ns is not None)
    for n in range(10):
        assert ask(server, n) == n
    assert not lost.entered.acquire(blocking=False)
    assert sum(1 for _ in iter(lambda: other.entered.acquire(blocking=False), False)) == 10


def test_after_the_limit_requests_fail_at_once_and_a_load_begins_anew(
    server: Server, made: list[Fragile]
):
    load(server)
    made[0].error = ValueError("initialize is broken")
    made[0].lose("killed (SIGSEGV)")
    assert until(lambda: instance(server).restart.down)
    assert instance(server).restart.cause == "ValueError: initialize is broken"
    for _ in range(3):
        with pytest.raises(InternalError, match="is not healthy"):
            ask(server)
    server.load(model=object(), name="m")
    assert ask(server, 3) == 3


def test_the_status_says_when_the_next_restart_is_due_and_how_many_are_left(
    server: Server, made: list[Fragile], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supervisor, "DEFAULT", RestartPolicy(limit=3, first_ns=10**13))
    load(server)
    assert "restarts" not in status(server)
    made[0].lose("killed (SIGSEGV)")  # restarted at once
    assert until(lambda: made[0].restarts == 1)
    assert ask(server, 1) == 1
    made[0].lose("exit status 1")
    assert until(lambda: instance(server).restart.due_ns is not None)
    (said,) = status(server)["restarts"]
    assert re.fullmatch(
        r"m_0_0: 1 \u00d7, exit status 1; again in \d+\.\d s, 1 \u00d7 left after that", said
    )


def test_the_status_says_what_stays_down(server: Server, made: list[Fragile]):
    load(server)
    made[0].error = ValueError("broken")
    made[0].lose()
    assert until(lambda: instance(server).restart.down)
    assert status(server)["restarts"].tolist() == [
        "m_0_0: 0 \u00d7, ValueError: broken; not restarted any more, until the model is loaded again"
    ]


def test_one_that_is_down_for_good_leaves_the_requests_to_the_others(
    server: Server, made: list[Fragile]
):
    load(server, count=2)
    made[0].error = ValueError("broken")
    made[0].lose()
    assert until(lambda: any(one.restart.down for one in server.models()[0].instances))
    assert [ask(server, n) for n in range(5)] == [*range(5)]
    made[1].error = ValueError("broken, too")
    made[1].lose()
    assert until(lambda: all(one.restart.down for one in server.models()[0].instances))
    with pytest.raises(InternalError, match="is not healthy"):
        ask(server)


def test_L16_an_update_adds_instances_beside_one_that_is_down(server: Server, made: list[Fragile]):
    load(server)
    made[0].error = ValueError("broken")
    made[0].lose()
    assert until(lambda: instance(server).restart.down)
    server.load(echo("instance_group { count: 2 kind: KIND_CPU }", backend="fragile"), name="m")
    assert len(server.models()[0].instances) == 2
    assert [ask(server, n) for n in range(5)] == [*range(5)]


def test_L16_a_lost_instance_that_is_removed_is_not_restarted(server: Server, made: list[Fragile]):
    load(server, count=2)
    made[0].error = ValueError("later")
    made[0].may_restart.clear()
    made[0].lose()
    assert until(lambda: instance(server).restart.due_ns is not None)
    server.load(echo("instance_group { count: 1 kind: KIND_CPU }", backend="fragile"), name="m")
    made[0].may_restart.set()
    assert [ask(server, n) for n in range(5)] == [*range(5)]


def test_a_restart_runs_the_warmup_again(server: Server, made: list[Fragile]):
    sample = 'inputs { key: "IN" value { data_type: TYPE_FP32 dims: 4 zero_data: true } }'
    load(server, f'model_warmup {{ name: "w" batch_size: 1 {sample} }}')
    assert made[0].entered.acquire(blocking=False)
    assert not made[0].entered.acquire(blocking=False)
    made[0].lose()
    assert made[0].entered.acquire(timeout=WAIT_S)
    assert ask(server, 2) == 2


def test_close_ends_an_execution_that_hangs_within_its_timeout(server: Server, made: list[Fragile]):
    load(server)
    made[0].hold = Future()
    future = server.submit("m", {"IN": row(1)})
    assert made[0].entered.acquire(timeout=WAIT_S)
    server.close(timeout_s=0.05)
    assert isinstance(future.exception(WAIT_S), TritonError)
    assert made[0].abandoned
    assert made[0].restarts == 0


def test_an_unload_waits_for_those_inside_while_an_instance_restarts(
    server: Server, made: list[Fragile]
):
    load(server)
    made[0].may_restart.clear()
    made[0].lose()
    future = server.submit("m", {"IN": row(6)})
    server.unload("m")
    assert not future.done()
    made[0].may_restart.set()
    assert future.result(WAIT_S)["OUT"][0, 0] == 6


def test_PB92_the_sequences_of_a_lost_instance_need_a_start(server: Server, made: list[Fragile]):
    load(server, f"sequence_batching {{ {PATIENT} direct {{}} }}")
    assert ask(server, 1, sequence_id=7, sequence_start=True) == 1
    with pytest.raises(InternalError, match="is not healthy"):
        ask(server, DIES, sequence_id=7)
    with pytest.raises(TritonError, match="must specify the START flag on the first request"):
        ask(server, 2, sequence_id=7)
    assert ask(server, 3, sequence_id=7, sequence_start=True) == 3


@pytest.mark.parametrize("resources", ["", "rate_limiter { resources { name: 'R' count: 1 } }"])
def test_a_lost_instance_holds_no_resources(made: list[Fragile], resources: str):
    with Server(gpus=(), rate_limit="execution_count", rate_limit_resources=["R:1"]) as server:
        group = f"instance_group {{ count: 1 kind: KIND_CPU {resources} }}"
        for name in ("m", "other"):
            server.load(echo(group, backend="fragile"), object(), name=name)
        made[0].may_restart.clear()
        assert isinstance(server.submit("m", {"IN": row(DIES)}).exception(WAIT_S), InternalError)
        assert server.submit("other", {"IN": row(4)}).result(WAIT_S)["OUT"][0, 0] == 4
        made[0].may_restart.set()
        assert ask(server, 5) == 5


def test_losses_at_any_moment_lose_and_double_nothing(
    server: Server, made: list[Fragile], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supervisor, "DEFAULT", RestartPolicy(limit=1000, first_ns=0))
    server.load(echo("dynamic_batching {} instance_group { count: 3 kind: KIND_CPU }",
                     backend="fragile"), object(), name="m")  # fmt: skip
    chance = np.random.default_rng(5)
    answers: list[int] = []
    futures = []
    for n in range(600):
        future = server.submit("m", {"IN": row(n % 10)})
        future.add_done_callback(lambda _, n=n: answers.append(n))
        futures.append(future)
        if n % 20 == 0:
            one = made[chance.integers(3)]
            if one.alive:
                one.lose()
    failed = 0
    for n, future in enumerate(futures):
        error = future.exception(WAIT_S)
        failed += error is not None
        assert error is None or "is not healthy" in str(error)
        assert error is not None or future.result()["OUT"][0, 0] == n % 10
    # The thread that answers calls back after it wakes who waits.
    assert until(lambda: len(answers) >= 600)
    assert sorted(answers) == [*range(600)]
    assert failed < 600
    assert until(lambda: all(one.alive for one in made))
