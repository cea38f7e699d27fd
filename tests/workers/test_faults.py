"""Workers that end in every way: what was inside fails once, no other request is affected, the instance restarts."""

from __future__ import annotations

import gc
import io
import math
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from nbtriton.backends.python import install_pb_utils
from nbtriton.common.errors import InternalError, TritonError
from nbtriton.runtime.engine import Server
from nbtriton.runtime.workers import supervisor
from nbtriton.runtime.workers.core import connection
from nbtriton.runtime.workers.process import start_worker
from nbtriton.runtime.workers.supervisor import RestartPolicy
from tests.engine.support import WAIT_S, Gate, waited
from tests.forked import in_child
from tests.until import until
from tests.workers.faults import run_faults
from tests.workers.support import descriptors, is_alive, workers

pytestmark = pytest.mark.slow

MODEL = Path(__file__).parent / "models" / "fragile" / "1" / "model.py"
IN = np.arange(4, dtype=np.float32)
CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "PID" data_type: TYPE_INT64 dims: 1 } ]
parameters { key: "INSTANCE_ISOLATION" value { string_value: "process" } }
"""
UNHEALTHY = r"^Stub process 'm(_0)+' is not healthy\.\n"


@pytest.fixture(scope="module", autouse=True)
def _spare() -> Iterator[None]:
    """A worker more, so that the servers of the tests share a fork server."""
    spare = start_worker("spare")
    yield
    spare.close()


@pytest.fixture(autouse=True)
def _no_thread_left() -> Iterator[None]:
    """A test ends with its threads: the next one may count them, and what they have open."""
    before = {*threading.enumerate()}
    yield
    assert until(lambda: {*threading.enumerate()} <= before)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    install_pb_utils()
    # Restarts follow at once.
    monkeypatch.setattr(supervisor, "DEFAULT", RestartPolicy(first_ns=0))
    with Server(gpus=()) as running:
        yield running


def load(server: Server, more: str = "", count: int = 1) -> None:
    group = f"instance_group {{ kind: KIND_CPU count: {count} }}"
    server.load(CONFIG + group + more, model=MODEL, name="m")


def submit(server: Server, how: str = "live", **parameters: str):
    return server.submit("m", {"IN": IN}, parameters={"how": how, **parameters})


def pid(server: Server) -> int:
    return int(submit(server).result(WAIT_S)["PID"][0])


def state(server: Server):
    return server.models()[0].instances[0].restart


class Heard(io.StringIO):
    """A standard output that tells when something is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.something = threading.Event()

    def write(self, text: str) -> int:
        self.something.set()
        return super().write(text)


ENDS = {
    "leave": "exit status 3",
    "fault": "killed (SIGSEGV)",
    "killed": "killed (SIGKILL), as the system does when memory runs out",
}


def test_a_model_may_ask_for_no_restarts_as_in_triton(server: Server):
    load(server, 'parameters { key: "INSTANCE_RESTARTS" value { string_value: "number=0" } }')
    for _ in range(2):
        with pytest.raises(InternalError, match=UNHEALTHY):
            submit(server, "leave").result(WAIT_S)
    assert state(server).down


def test_a_process_that_ends_fails_what_is_inside_and_is_restarted(server: Server):
    load(server)
    found = {pid(server)}
    for restarts, (how, cause) in enumerate(ENDS.items(), 1):
        for direct in (True, False):
            with pytest.raises(InternalError, match=UNHEALTHY) as caught:
                if direct:
                    server.infer("m", {"IN": IN}, parameters={"how": how})
                else:
                    submit(server, how).result(WAIT_S)
            assert caught.value.hint == f"its process has ended: {cause}"
            found.add(pid(server))
        assert state(server).cause == cause
        assert state(server).restarts == 2 * restarts
    assert len(found) == 7
    assert [one for one in found if is_alive(one)] == [pid(server)]


def test_an_idle_process_that_is_killed_fails_no_request(server: Server):
    load(server)
    for restarts in (1, 2, 3):
        before = pid(server)
        os.kill(before, signal.SIGKILL)
        assert until(lambda restarts=restarts: state(server).restarts == restarts)
        assert pid(server) != before
    counts = server.statistics()["model_stats"][0]["inference_stats"]
    assert counts["fail"]["count"] == 0


def test_the_other_instance_serves_on(server: Server):
    load(server, count=2)
    futures = [submit(server, "leave" if n == 5 else "live") for n in range(40)]
    errors = [future.exception(WAIT_S) for future in futures]
    assert [n for n, error in enumerate(errors) if error is not None] == [5]


def test_no_memory_is_an_error_of_the_request(server: Server):
    load(server)
    before = pid(server)
    assert "MemoryError" in str(submit(server, "allocate").exception(WAIT_S))
    assert pid(server) == before


def test_a_process_that_ends_behind_its_answer_takes_nothing_with_it(
    server: Server, tmp_path: Path
):
    load(server)
    marker = tmp_path / "now"
    assert submit(server, "later", marker=str(marker)).result(WAIT_S)["OUT"][1] == 2
    marker.touch()
    assert until(lambda: state(server).restarts == 1)
    assert state(server).cause == "exit status 4"
    assert pid(server)


def test_a_request_that_was_to_be_answered_later_fails_once(server: Server):
    load(server)
    answers = []
    future = submit(server, "answer_later")
    future.add_done_callback(answers.append)
    assert re.match(r"^Stub process 'm(_0)+' is not healthy", str(future.exception(WAIT_S)))
    assert pid(server)
    assert until(lambda: answers)
    assert len(answers) == 1


def test_what_a_process_that_ended_has_asked_for_is_cancelled(server: Server, tmp_path: Path):
    gate = Gate()

    def slow(IN):  # noqa: N803 - a model function names its tensors
        gate.stand([])
        return {"OUT": IN}

    server.load('max_batch_size: 0 backend: "python" '
                'input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } '
                'output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }', slow, name="slow")  # fmt: skip
    load(server)
    marker = tmp_path / "now"
    future = submit(server, "bls", marker=str(marker))
    gate.wait_entered()
    marker.touch()
    assert isinstance(future.exception(WAIT_S), InternalError)  # at once
    gate.open()
    assert pid(server)


def test_one_that_prints_forever_is_killed_like_any_other(server: Server):
    load(server)
    before = pid(server)
    with redirect_stdout(Heard()) as heard:
        future = submit(server, "print_for_ever")
        waited(heard.something)
        os.kill(before, signal.SIGKILL)
        assert isinstance(future.exception(WAIT_S), InternalError)
    assert pid(server) != before


def test_a_load_that_ends_its_process_fails_with_the_cause(server: Server, tmp_path: Path):
    broken = tmp_path / "model.py"
    broken.write_text(MODEL.read_text().replace("self.hangs = False", "os._exit(9)"))
    before = workers()
    with pytest.raises(TritonError, match="is not healthy"):
        server.load(CONFIG, model=broken, name="m")
    assert workers() == before


def test_an_instance_that_cannot_restart_stays_down(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(supervisor, "DEFAULT", RestartPolicy(limit=2, first_ns=0))
    marker = tmp_path / "second"
    fragile = tmp_path / "model.py"
    check = f"self.hangs = os.path.exists({str(marker)!r}) and os._exit(9)"
    fragile.write_text(MODEL.read_text().replace("self.hangs = False", check))
    server.load(CONFIG, model=fragile, name="m")
    marker.touch()
    assert isinstance(submit(server, "leave").exception(WAIT_S), InternalError)
    assert until(lambda: state(server).down)
    with pytest.raises(InternalError, match=UNHEALTHY):
        submit(server).result(WAIT_S)
    marker.unlink()
    server.load(model=fragile, name="m")
    assert pid(server)


@pytest.mark.parametrize("how", ["loop", "deaf", "sleep"])
def test_close_ends_a_worker_that_hangs_within_its_timeout(how: str):
    install_pb_utils()
    running = Server(gpus=())
    load(running)
    process = pid(running)
    with redirect_stdout(Heard()) as heard:
        future = submit(running, how)
        waited(heard.something)
    running.close(timeout_s=0.1)
    assert isinstance(future.exception(WAIT_S), TritonError)
    assert until(lambda: not is_alive(process))


def test_close_ends_a_finalize_that_hangs_within_its_timeout():
    install_pb_utils()
    running = Server(gpus=())
    load(running)
    process = pid(running)
    submit(running, "hang_at_the_end").result(WAIT_S)
    running.close(timeout_s=0.1)
    assert until(lambda: not is_alive(process))


def test_close_ends_a_restart_that_hangs_within_its_timeout(tmp_path: Path):
    install_pb_utils()
    running = Server(gpus=())
    marker, fragile = tmp_path / "second", tmp_path / "model.py"
    fragile.write_text(
        MODEL.read_text().replace(
            "self.hangs = False",
            f"os.path.exists({str(marker)!r}) and (print('restarts', flush=True), time.sleep(1000))",
        )
    )
    others = {*workers()}
    running.load(CONFIG, model=fragile, name="m")
    marker.touch()
    with redirect_stdout(Heard()) as heard:
        assert isinstance(submit(running, "leave").exception(WAIT_S), InternalError)
        waited(heard.something)
        (process,) = {*workers()} - others
        running.close(timeout_s=0.1)
    assert until(lambda: not is_alive(process))


def test_an_execution_longer_than_its_time_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisor, "DEFAULT", RestartPolicy(first_ns=0))
    install_pb_utils()
    with Server(gpus=(), worker_timeout_s=2.0) as running:
        load(running)
        for restarts, direct in enumerate((True, False), 1):
            with pytest.raises(InternalError, match=UNHEALTHY) as caught:
                if direct:
                    running.infer("m", {"IN": IN}, parameters={"how": "loop"})
                else:
                    submit(running, "deaf").result(WAIT_S)
            cause = "an execution took longer than 2 s"
            assert caught.value.hint == f"its process has ended: {cause}"
            # And not by an execution: it might take as long here.
            assert until(lambda restarts=restarts: state(running).restarts == restarts)
        assert state(running).cause == cause


def infer_interrupted(server: Server, how: str, *said: str) -> int:
    """Infer, with a Ctrl-C in the main thread each time when the model has said something more.

    Returns the process before it. By `infer`, which frees the instance before it answers: of a busy one the
    next request would be executed on another thread, where no Ctrl-C is heard.
    """
    before = int(server.infer("m", {"IN": IN})["PID"][0])
    with redirect_stdout(Heard()) as heard:

        def send() -> None:
            for words in said:
                assert until(lambda words=words: words in heard.getvalue())
                signal.raise_signal(signal.SIGINT)

        sender = threading.Thread(target=send)
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            server.infer("m", {"IN": IN}, parameters={"how": how})
        sender.join()
    return before


@pytest.mark.parametrize(("how", "said"), [("loop", "loops"), ("sleep", "sleeps")])
def test_ctrl_c_ends_the_execution(server: Server, patient: None, how: str, said: str):
    load(server)
    before = infer_interrupted(server, how, said)
    assert pid(server) == before


def test_a_second_ctrl_c_ends_the_process_of_a_deaf_execution(
    server: Server, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(connection, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(connection, "_LONGEST_PATIENCE_S", math.inf)
    load(server)
    before = infer_interrupted(server, "deaf", "loops", "goes on")
    assert pid(server) != before
    assert state(server).cause == "it was interrupted, and went on"


def test_one_ctrl_c_ends_the_process_of_a_deaf_execution(server: Server):
    load(server)
    before = infer_interrupted(server, "deaf", "loops")
    assert pid(server) != before
    assert state(server).cause == "it was interrupted, and went on"


def test_a_child_that_a_model_forks_answers_no_request(server: Server):
    load(server)
    before = pid(server)
    for number in range(4):
        request = server.submit("m", {"IN": IN + number}, parameters={"how": "fork"})
        assert (request.result(WAIT_S)["OUT"] == 2 * (IN + number)).all()
    assert pid(server) == before


def test_a_forked_child_of_the_kernel_leaves_the_workers_alone(server: Server):
    load(server)
    before = pid(server)

    def in_fork() -> int:
        server.close()
        with Server(gpus=()) as own:
            load(own)
            return pid(own)

    assert in_child(in_fork) not in (before, 0)
    assert pid(server) == before


def test_loads_and_unloads_leave_no_descriptor_thread_or_process(server: Server):
    def cycle(how: str) -> None:
        load(server, count=2)
        submit(server, how).exception(WAIT_S)
        server.unload("m", timeout_s=WAIT_S)

    cycle("live")
    # A timer of the scheduler's thread suspends an instance that was lost while it was idle.
    threads, before = threading.active_count() + 1, descriptors()
    for how in ("live", "leave", "killed", "live", "answer_later", "later"):
        cycle(how)
    assert threading.active_count() <= threads
    assert descriptors() == before


def test_an_instance_that_an_update_has_removed_is_gone(server: Server):
    def connections() -> int:
        gc.collect()
        return sum(isinstance(one, connection.Connection) for one in gc.get_objects())

    load(server)
    before = connections()
    load(server, count=3)
    assert connections() == before + 2
    load(server)
    assert until(lambda: connections() == before)


def test_random_faults_under_load_lose_and_double_nothing():
    """The short form of ``python -m tests.workers.faults``."""
    counts = run_faults(60, seed=3)
    assert counts["kills"] == 60
    assert counts["restarts"] > 0
    assert counts["right"] > 0
