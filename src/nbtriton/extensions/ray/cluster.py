"""Ray clusters as the kernel sees them: a process that speaks with Ray, and connections to its actors."""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Final

from nbtriton.backends.forking import after_fork, per_process
from nbtriton.common.errors import UnavailableError
from nbtriton.common.packages import needed
from nbtriton.extensions.ray.actor import CONNECTIONS, configure
from nbtriton.extensions.ray.driver import ENDED, KILL, LEFT, PERIODS, READY, START, STARTED
from nbtriton.runtime.interrupts import interrupts_allowed, wait_in_slices
from nbtriton.runtime.workers.core.channel import Channel, ChannelClosed
from nbtriton.runtime.workers.launching import OutputPipe
from nbtriton.runtime.workers.process import Peer, current_directory

# Seconds for a local cluster to start on a busy machine, or for another one to answer.
_JOIN_S: Final = 120.0
# Seconds for an actor to find a node and to start there.
_START_S: Final = 60.0
_GRACE_S: Final = 5.0
# A cluster without instances stays joined for the next run of a cell.
_LINGER_S: Final = 600.0
_BOOTSTRAP = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from nbtriton.extensions.ray.driver import main; main(int(sys.argv[1]), sys.argv[2])"
)

# Of `Place.where`.
_Where = tuple[str, int, str, int, bytes]


class NodeGoneError(UnavailableError):
    """The node has gone through which the cluster was joined."""


class RayProcess(Peer):
    """The worker of one instance, or of several that share it, in an actor."""

    def __init__(self, name: str, cluster: Cluster, number: int, lanes: int, where: _Where) -> None:
        host, port, node, pid, token = where
        count = CONNECTIONS + lanes - 1
        calls, stdout, stderr, *sockets = _connected(name, host, port, token, count)
        outputs = OutputPipe("stdout", stdout.detach()), OutputPipe("stderr", stderr.detach())
        super().__init__(name, sockets, calls, outputs)
        self.pid = pid
        self.node = f"{host} (node {node[:8]})"
        self._cluster = cluster
        self._number = number

    def kill(self) -> None:
        """End its actor at once."""
        self._cluster.kill(self._number)


def _connected(name: str, host: str, port: int, token: bytes, count: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for index in range(count):
            sock = socket.create_connection((host, port), _GRACE_S * 2)
            sockets.append(sock)
            sock.settimeout(None)
            configure(sock)
            sock.sendall(token + bytes([index]))
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise UnavailableError(
            f"the Ray actor of '{name}' cannot be reached at {host}:{port}: {error.strerror or error}",
            hint="the kernel sends tensors to the cluster's nodes directly, and must be in their network",
        ) from None
    return sockets


class _Start:
    """A start that a thread waits for."""

    def __init__(self) -> None:
        self.settled = threading.Event()
        self.where: _Where | None = None
        self.cause = ""


class Cluster:
    """One cluster, by the process that speaks with it.

    Parameters
    ----------
    address : str
        ``local:N`` for a new cluster with N processors on this machine; ``auto``, ``host:port`` or ``ray://…`` for one
        that runs.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._numbers = 0
        self._starts: dict[int, _Start] = {}
        self._processes: dict[int, RayProcess] = {}
        self._joined = threading.Event()
        self._cause = ""
        self.alive = True
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter
                [sys.executable, "-c", _BOOTSTRAP, str(theirs.fileno()), address,
                 *[folder or os.curdir for folder in sys.path]],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),), start_new_session=True,
            )  # fmt: skip
        self._channel = Channel(ours)
        self._selector = selectors.DefaultSelector()
        self._selector.register(ours, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._read, name="nbtriton-ray", daemon=True)
        self._thread.start()

    def start(self, name: str, options: Mapping[str, Any], lanes: int = 1) -> RayProcess:
        """Start an actor for an instance, or for as many as it has lanes, and connect to it.

        Raises
        ------
        NodeGoneError
            The cluster has to be joined again.
        UnavailableError
            The cluster cannot be reached, has no room, or the actor failed.
        """
        if not interrupts_allowed(wait_in_slices, self._joined.wait, _JOIN_S):
            self.close()
        start = _Start()
        with self._lock:
            self._numbers += 1
            number = self._numbers
            self._starts[number] = start
        process = None
        try:
            if not self.alive:
                raise ChannelClosed
            self._channel.send(
                (START, number, _START_S, dict(options), name, lanes, current_directory())
            )
            limit_s = PERIODS * _START_S + _GRACE_S
            if not interrupts_allowed(wait_in_slices, start.settled.wait, limit_s):
                start.cause = "no answer in time"
            if start.where is not None:
                process = RayProcess(name, self, number, lanes, start.where)
        except ChannelClosed:
            start.cause = self._cause or "the connection has ended"
        finally:
            if process is None:
                self._starts.pop(number, None)
                self.kill(number)
        if process is None:
            kind = NodeGoneError if self._cause == LEFT else UnavailableError
            raise kind(f"no Ray actor for '{name}' in the cluster '{self.address}': {start.cause}")
        with self._lock:
            self._processes[number] = process
            ended = self._starts.pop(number).cause
            for output in process.outputs:
                self._selector.register(output.reader, selectors.EVENT_READ, output)
        if ended or not self.alive:  # in the meantime
            self._end(number, ended or self._cause)
        return process

    def kill(self, number: int) -> None:
        """End an actor at once."""
        with suppress(ChannelClosed):
            self._channel.send((KILL, number))

    def close(self) -> None:
        """Leave the cluster; its actors for this kernel end, and a local cluster with them."""
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        try:
            while True:
                ready = self._selector.select(_LINGER_S)
                if not ready and self._idle():
                    raise ChannelClosed
                for key, _ in ready:
                    if key.data is None:
                        self._receive()
                    elif not key.data.forward():
                        with suppress(KeyError):  # it has ended
                            self._selector.unregister(key.fd)
        except (ChannelClosed, OSError, ValueError):  # it was closed, or its process has ended
            self._gone()

    def _receive(self) -> None:
        while True:
            self._handle(*self._channel.receive()[0])
            if not self._channel.has_more:
                return

    def _handle(self, kind: int, *values: Any) -> None:
        if kind == READY:
            (self._cause,) = values
            self.alive = not self._cause
            self._joined.set()
        elif kind == STARTED:
            start = self._starts.get(values[0])
            if start is not None:
                start.where = values[1:]
                start.settled.set()
        elif kind == ENDED:
            self._end(values[0], values[1] or "it was ended")

    def _idle(self) -> bool:
        with self._lock:
            idle = not self._processes and not self._starts
            self.alive = self.alive and not idle
            return idle

    def in_child(self) -> None:
        """Leave the connection to the parent, in a forked child."""
        self._channel.leave()
        for process in self._processes.values():
            process.in_child()

    def _end(self, number: int, cause: str) -> None:
        self.kill(number)  # an actor whose method has returned keeps its room
        with self._lock:
            start = self._starts.get(number)
            process = self._processes.pop(number, None)
            if start is not None:
                start.cause = cause
                start.settled.set()
        if process is not None:
            for output in process.outputs:
                with suppress(KeyError, ValueError):
                    self._selector.unregister(output.reader)
            process.ended(None, f"{cause}, on {process.node}")

    def _gone(self) -> None:
        self.alive = False
        self._cause = self._cause or "the connection to it has ended"
        self._joined.set()
        for number in (*self._starts, *self._processes):
            self._end(number, self._cause)
        self.close()


_lock = per_process(threading.Lock)
_clusters: dict[str, Cluster] = {}


def cluster_of(address: str) -> Cluster:
    """Return the cluster of an address, joined if it was not.

    Raises
    ------
    UnsupportedError
        Ray is not installed.
    """
    with needed("an instance on a Ray cluster", package="ray"):
        if find_spec("ray") is None:
            raise ModuleNotFoundError
    with _lock():
        cluster = _clusters.get(address)
        if cluster is None or not cluster.alive:
            cluster = _clusters[address] = Cluster(address)
        return cluster


_of_parent: list[Cluster] = []  # never freed: they would wait for processes that are not this one's


def _in_child() -> None:
    for cluster in _clusters.values():
        cluster.in_child()
        _of_parent.append(cluster)
    _clusters.clear()


after_fork(_in_child)
