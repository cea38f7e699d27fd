"""No descriptor of others is ever closed, read or written by number: they come and go beside workers."""

from __future__ import annotations

import os
import signal
import socket
import threading

import pytest

from nbtriton.runtime.engine import Server
from tests.until import until
from tests.workers.support import workers
from tests.workers.test_faults import WAIT_S, load, pid, submit

pytestmark = pytest.mark.slow


class Foreign(threading.Thread):
    """Opens pipes and sockets, whose numbers others have just had, uses them and closes them."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.rounds = 0
        self.found: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.over.is_set():
                self._use()
                self.rounds += 1
                self.over.wait(0.0005)
        except BaseException as error:
            self.found = error

    def _use(self) -> None:
        reader, writer = os.pipe()
        ours, theirs = socket.socketpair()
        number, inode = ours.fileno(), os.fstat(ours.fileno()).st_ino
        text = f"{self.rounds}".encode()
        os.write(writer, text)
        ours.sendall(text)
        self.over.wait(0.0005)
        assert os.read(reader, 100) == text
        theirs.settimeout(30)
        assert theirs.recv(100) == text
        assert os.fstat(number).st_ino == inode
        for descriptor in (reader, writer, ours.detach(), theirs.detach()):
            os.close(descriptor)  # raises if another one has closed it


def test_workers_that_start_and_end_leave_other_descriptors_alone():
    others = [Foreign() for _ in range(3)]
    for one in others:
        one.start()
    assert until(lambda: all(one.rounds or one.found for one in others))
    for _ in range(3):
        with Server(gpus=()) as server:
            load(server, count=2)
            killed = pid(server)
            futures = [submit(server) for _ in range(20)]
            os.kill(killed, signal.SIGKILL)
            for future in futures:
                error = future.exception(WAIT_S)
                assert error is None or "is not healthy" in str(error)
            assert until(lambda pid=killed: pid not in workers())
    for one in others:
        one.over.set()
        one.join()
        assert one.found is None, one.found
