"""Worker processes: their start, what they inherit, and that nothing of them is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nbtriton.common.errors import InternalError
from nbtriton.runtime.workers import process
from nbtriton.runtime.workers.launching import (
    Interpreter,
    OutputPipe,
    end_idle_servers,
    fork_server_of,
)
from nbtriton.runtime.workers.process import WorkerExit, start_worker
from tests.children import finish
from tests.engine.support import WAIT_S
from tests.forked import in_child
from tests.until import until
from tests.workers.support import (
    COMMANDS,
    ask,
    children,
    descriptors,
    is_alive,
    own_children,
    worker,
)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def _no_fork_server_left():
    others = set(threading.enumerate())
    yield
    end_idle_servers(WAIT_S)
    assert not [one for one in {*threading.enumerate()} - others if one.name == "nbtriton-workers"]


def test_a_worker_is_a_small_process_of_its_own():
    with worker("m_7") as made:
        assert ask(made, "os.getpid(), name") == str((made.pid, "m_7"))
        assert made.pid != os.getpid()
        assert ask(made, "os.getpgid(0) == os.getsid(0) == os.getpid()") == "True"
        assert ask(made, "len(os.listdir('/proc/self/task'))") == "1"
        assert Path(f"/proc/{made.pid}/comm").read_text() == "nbt m_7\n"
        # When memory runs out, the system ends it and not the notebook.
        own, its = (
            int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in ("self", made.pid)
        )
        assert its == min(1000, own + 300)


def test_a_worker_has_the_environment_path_and_folder_of_now(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    with worker():  # the fork server runs: what changes from here on is not its own
        monkeypatch.setenv("OF_KERNEL", "now \udcff")
        monkeypatch.syspath_prepend("/of/kernel")
        monkeypatch.chdir(tmp_path)
        with worker(environment={"OF_MODEL": "1"}) as made:
            assert ask(made, "os.environ['OF_KERNEL']") == repr("now \udcff")
            assert ask(made, "os.environ['OF_MODEL'], os.getcwd()") == str(("1", str(tmp_path)))
            assert ask(made, "__import__('sys').path[0]") == "'/of/kernel'"


def test_workers_have_random_numbers_of_their_own():
    numbers = "__import__('numpy').random.rand(), __import__('random').random()"
    with worker() as one, worker() as other:
        assert ask(one, numbers) != ask(other, numbers)


def test_what_a_worker_prints_stands_before_its_answer(capsys: pytest.CaptureFixture[str]):
    with worker() as made:
        ask(made, "print('a model prints \u00e9')")
        made.forward_output()
        assert capsys.readouterr().out == "a model prints \u00e9\n"
        ask(made, "os.write(2, b'a library of C prints\\n')")
        made.forward_output()
        assert capsys.readouterr().err == "a library of C prints\n"


def test_what_a_worker_prints_last_is_not_lost(capsys: pytest.CaptureFixture[str]):
    with worker() as made:
        ask(made, "print('x' * 300_000) or os._exit(0)")
        assert until(lambda: made.exit)
    assert len(capsys.readouterr().out) == 300_001


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("os._exit(3)", 3, "exit status 3"),
        ("leave(4)", 4, "exit status 4"),
        ("os.kill(os.getpid(), 11)", -signal.SIGSEGV, "killed (SIGSEGV)"),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL,
         "killed (SIGKILL), as the system does when memory runs out"),
    ],
)  # fmt: skip
def test_the_end_of_a_worker_is_reported_with_its_cause(command: str, code: int, text: str):
    with worker() as made:
        assert ask(made, command) == ""
        assert until(lambda: made.exit)
        assert made.exit == WorkerExit(code)
        assert str(made.exit) == text


def test_a_child_of_a_worker_ends_with_it_and_does_not_hide_its_end():
    """It has copies of the sockets: the end of the file alone would not come."""
    with worker() as made:
        child = int(ask(made, "os.fork() or time.sleep(1000)"))
        assert is_alive(child)
        made.kill()
        assert made.lanes[0].recv(1) == b""
        assert made.calls.recv(1) == b""
        assert until(lambda: not is_alive(child))


def test_close_ends_a_worker_that_waits_and_kills_one_that_does_not():
    waiting = start_worker("m_0", interpreter=COMMANDS)
    waiting.close(WAIT_S)
    assert waiting.exit == WorkerExit(0)
    hanging = start_worker("m_1", interpreter=COMMANDS)
    hanging.lanes[0].sendall(b"[None for _ in iter(int, 1)]")
    hanging.close(timeout_s=0.1)
    assert until(lambda: hanging.exit)
    assert hanging.exit == WorkerExit(-signal.SIGKILL)
    assert not is_alive(hanging.pid)
    hanging.close()  # and once more


def test_a_hundred_workers_leave_no_descriptor_and_no_process_behind():
    others = {*children(os.getpid())}  # of fixtures that all tests share
    with worker():
        pass
    before = descriptors()
    for _ in range(10):
        made = [start_worker(f"m_{n}", interpreter=COMMANDS) for n in range(10)]
        for one in made:
            one.close()
    assert descriptors() == before
    end_idle_servers(WAIT_S)
    assert descriptors() < before
    assert {*children(os.getpid())} <= others


def test_workers_are_started_from_many_threads_at_once():
    made = []

    def start() -> None:
        made.append(start_worker("m", interpreter=COMMANDS))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({int(ask(one, "os.getpid()")) for one in made}) == 8
    assert len(set(map(int, (ask(one, "os.getppid()") for one in made)))) == 1
    for one in made:
        one.close()


def test_the_end_of_the_fork_server_ends_its_workers_and_the_next_has_a_new_one():
    with worker() as made:
        server = int(ask(made, "os.getppid()"))
        os.kill(server, signal.SIGKILL)
        assert until(lambda: made.exit)
        assert until(lambda: not is_alive(made.pid))
    with worker() as made:
        assert int(ask(made, "os.getppid()")) != server


def test_a_start_that_takes_too_long_fails_and_the_other_workers_go_on(
    monkeypatch: pytest.MonkeyPatch,
):
    """As where the fork server was stopped for a while."""
    with worker("serves") as serves:
        (fork_server,) = {int(ask(serves, "os.getppid()"))}
        before = {*own_children(fork_server)}
        monkeypatch.setattr(process, "_START_S", 0.2)
        os.kill(fork_server, signal.SIGSTOP)
        try:
            with pytest.raises(
                InternalError, match="failed to start a process for 'late': no answer"
            ):
                start_worker("late", interpreter=COMMANDS)
            assert ask(serves, "40 + 2") == "42"
        finally:
            os.kill(fork_server, signal.SIGCONT)
        monkeypatch.undo()
        with worker("next") as following:
            assert int(ask(following, "os.getppid()")) == fork_server
            # The late one was forked before it, and is killed.
            assert until(lambda: {*own_children(fork_server)} == before | {following.pid})
        assert ask(serves, "40 + 2") == "42"


def test_a_start_that_is_interrupted_leaves_no_process():
    with worker("serves") as serves:
        fork_server = int(ask(serves, "os.getppid()"))
        before = {*own_children(fork_server)}
        os.kill(fork_server, signal.SIGSTOP)  # it has no time to start one
        main = threading.main_thread().ident

        def interrupt() -> None:
            known = fork_server_of(COMMANDS)
            assert until(lambda: len(known._workers) == 2)
            signal.pthread_kill(main, signal.SIGINT)

        sender = threading.Thread(target=interrupt)
        sender.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                start_worker("interrupted", interpreter=COMMANDS)
        finally:
            os.kill(fork_server, signal.SIGCONT)
        sender.join()
        with worker("next") as following:  # which is started behind it
            assert until(lambda: {*own_children(fork_server)} == before | {following.pid})


def test_a_standard_output_that_fails_ends_no_worker(monkeypatch: pytest.MonkeyPatch):
    class Broken:
        tried = threading.Event()

        def write(self, text: str) -> int:
            self.tried.set()
            raise AttributeError("the user's own")

    with worker() as made:
        with monkeypatch.context() as replaced:
            replaced.setattr(sys, "stdout", Broken())
            ask(made, "print('a model prints')")
            assert Broken.tried.wait(WAIT_S)
        with worker() as other:  # by the thread that has written
            assert ask(other, "1 + 1") == "2"
        assert ask(made, "1 + 1") == "2"


def test_an_output_that_cannot_be_read_is_at_its_end():
    """As that of a worker on a machine that has vanished, which is no reset."""
    output = OutputPipe("stdout", os.open(os.sep, os.O_RDONLY))
    assert not output.forward()
    output.close()


def test_an_interpreter_that_cannot_start_says_why(tmp_path: Path):
    with pytest.raises(InternalError, match=r"failed to start .*none: No such file or directory"):
        start_worker("m_0", interpreter=Interpreter(executable=str(tmp_path / "none")))
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho no Python here >&2\nexit 1\n")
    broken.chmod(0o700)
    with pytest.raises(InternalError, match="process for 'm_0': no Python here"):
        start_worker("m_0", interpreter=Interpreter(executable=str(broken)))


def test_what_a_worker_cannot_import_is_said():
    with pytest.raises(InternalError, match=r"No module named 'tests\.workers\.nothing'"):
        start_worker("m_0", interpreter=Interpreter(entry="tests.workers.nothing:main"))


def test_another_interpreter_has_its_own_path(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", "/of/kernel")
    root = str(Path(__file__).parents[2])
    source = str(Path(root, "src"))
    other = Interpreter(sys.executable, (source, root), (("OF_OTHER", "1"),), COMMANDS.entry)
    made = start_worker("m_0", interpreter=other)
    try:
        assert ask(made, "os.environ['OF_OTHER'], 'PYTHONPATH' in os.environ") == "('1', False)"
        assert ask(made, "__import__('sys').path[:2]") == str([source, root])
    finally:
        made.close()


def test_a_forked_child_of_the_kernel_has_no_connection_and_starts_workers_of_its_own():
    with worker() as made:
        before = int(ask(made, "os.getppid()"))

        def in_fork() -> tuple[int, int]:
            made.close()  # of the parent: nothing happens
            with worker() as own:
                found = int(ask(own, "os.getppid()"))
            end_idle_servers()
            return found, made.lanes[0].fileno()

        server, descriptor = in_child(in_fork)
        assert server not in (before, os.getpid())
        assert descriptor == -1
        assert ask(made, "1 + 1") == "2"


_KERNEL = """
import sys
from tests.workers.support import COMMANDS, start_worker
made = [start_worker(f"m_{n}", interpreter=COMMANDS) for n in range(3)]
made[0].lanes[0].sendall(b"[None for _ in iter(int, 1)]")  # busy for ever
made[1].lanes[0].sendall(b"subprocess.Popen(['sleep', '1000']).pid")
print(made[1].lanes[0].recv(100).decode(), *(one.pid for one in made), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_kernel_that_is_killed(sent: signal.Signals):
    kernel = subprocess.Popen(
        [sys.executable, "-c", _KERNEL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert kernel.stdout is not None
    pids = [*map(int, kernel.stdout.readline().split())]
    started = {*children(kernel.pid)}
    assert {*pids} <= started
    assert len(started) == 5  # and the fork server
    kernel.send_signal(sent)
    finish(kernel)
    assert until(lambda: not any(map(is_alive, started)))
