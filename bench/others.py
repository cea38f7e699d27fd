"""What one would otherwise pick in Python: PyTriton, LitServe, Ray Serve, MLServer.

Each lives in an environment of its own, made on first use, and serves the same doubling of 16 numbers
with dynamic batching up to 32, as its documentation recommends for a CPU. All are asked over HTTP with
JSON by the same client (`bench.wire`), which is faster than the ones they ship; nbtriton is measured
in the kernel, and over HTTP by that client too.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from bench.environments import environment
from bench.figures import Figure, Measure, Missing, Sides
from bench.load import Measured, in_process
from bench.machine import ROOT
from bench.models import DOUBLE
from bench.session import Session
from bench.wire import Request, wait_until_answered

__all__ = ["FIGURES"]

IN_FLIGHT = 32
ROW = [0.5 * n for n in range(16)]
X = {"IN": np.array([ROW], np.float32)}
PLAIN = json.dumps({"input": ROW}).encode()
KSERVE = json.dumps(
    {"inputs": [{"name": "IN", "shape": [1, 16], "datatype": "FP32", "data": ROW}]}
).encode()
INFER = "/v2/models/double/infer"
START_S = 180
Where = Literal["kernel", "http"]


@dataclass(frozen=True, slots=True)
class Other:
    """A server that is not ours: what to install, the program that serves, and what to send."""

    name: str
    title: str
    requirements: tuple[str, ...]
    path: str = "/"
    body: bytes = PLAIN
    # Its wheel carries tritonserver, which needs libraries that the reference keeps.
    needs_reference: bool = False


OTHERS = (
    Other("pytriton", "PyTriton", ("nvidia-pytriton==0.7.0",), INFER, KSERVE, needs_reference=True),
    Other("litserve", "LitServe", ("litserve==0.2.19", "numpy==2.4.6"), "/predict"),
    Other("ray", "Ray Serve", ("ray[serve]==2.60.0", "numpy==2.4.6")),
    Other("mlserver", "MLServer", ("mlserver==1.7.1", "uvloop==0.21.0"), INFER, KSERVE),
)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def running(session: Session, other: Other) -> Iterator[Request]:
    """Run its server until the block ends; gives the request that it answers."""
    python = environment(other.name, Path(sys.executable), other.requirements)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
    if other.needs_reference:
        # Its stub embeds this interpreter, and must find this one's library.
        libraries = (session.reference.directory / "lib", sysconfig.get_config_var("LIBDIR"))
        env["LD_LIBRARY_PATH"] = ":".join(map(str, libraries))
    ports = free_ports(3)
    program = ROOT / "bench" / "programs" / f"{other.name}_double.py"
    folder = session.folder()
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            [python, program, *map(str, ports)],
            cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            post = Request(ports[0], other.path, other.body)
            try:
                wait_until_answered(post, lambda: process.poll() is None, START_S)
            except Missing as error:
                log.seek(0)
                last = log.read().strip().splitlines()[-1:]
                raise Missing(f"{other.title}: {error} {' '.join(last)}") from None
            see_doubled(other.title, post)
            yield post
        finally:
            stop(process)


def see_doubled(title: str, post: Request) -> None:
    """Raise `Missing` unless the answer is twice what was sent."""
    answer = json.loads(post.once())
    found = answer["output"] if "output" in answer else answer["outputs"][0]["data"]
    if list(found) != [2 * x for x in ROW]:
        raise Missing(f"{title} answered {found}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, then end all that it started: workers outlive some of them."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def figure(other: Other, where: Where, connections: int) -> Figure:
    many = connections > 1

    def value(measured: Measured) -> float:
        return measured.infer_per_s if many else measured.p50_us

    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        seconds = 3 * session.interval_ms / 1000
        theirs = session.one_at_a_time(other, lambda: running(session, other))
        ours: Measure
        if where == "kernel":
            server = session.ours(DOUBLE)
            ms = session.interval_ms
            ours = lambda: value(  # noqa: E731
                in_process(server, "double", X, concurrency=connections, interval_ms=ms)
            )
        else:
            post = Request(session.served(DOUBLE).http_port, INFER, KSERVE)
            see_doubled("nbtriton", post)
            ours = lambda: value(post.load(connections, seconds))  # noqa: E731
        yield Sides(ours, lambda: value(theirs.load(connections, seconds)))

    return Figure(
        f"others.{other.name}.{where}.{'many' if many else 'one'}",
        f"nbtriton {'in the kernel' if where == 'kernel' else 'over HTTP'}, "
        + (f"{connections} in flight" if many else "one request at a time, p50"),
        "infer/s" if many else "us", "higher" if many else "lower",
        f"{other.title} over HTTP", (), sides,
    )  # fmt: skip


FIGURES = tuple(
    figure(other, where, connections)
    for other in OTHERS
    for where in ("kernel", "http")
    for connections in (1, IN_FLIGHT)
)  # fmt: skip
