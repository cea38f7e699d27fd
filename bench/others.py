"""Comparison with other Python servers: PyTriton, LitServe, Ray Serve, MLServer.

Each has its own environment, made on first use, and serves the jobs of `bench.jobs` with dynamic batching up
to 32 and one worker, as its documentation recommends for a CPU. One client (`bench.wire`), which is faster
than theirs, measures all over HTTP with JSON; nbtriton is also measured in the kernel. Servers that use the
processor while idle are suspended while nbtriton is measured.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

import nbtriton
from bench import models
from bench.environments import environment, share_packages
from bench.figures import Figure, Missing, Sides
from bench.jobs import BATCH, JOBS, Job
from bench.load import Measured, in_process
from bench.machine import ROOT
from bench.processes import free_ports, stopped
from bench.session import Session
from bench.wire import Request, wait_until_answered

__all__ = ["FIGURES"]

IN_FLIGHT = BATCH
NUMPY = "numpy==2.4.6"
START_S = 180
# Seconds of load before the first figure: some servers start threads, or adapt their batch size, under
# their first load.
WARM_S = 1.0
Where = Literal["kernel", "http"]


@dataclass(frozen=True, slots=True)
class Other:
    """Another server: its packages, its URL's path, and its properties."""

    name: str
    title: str
    requirements: tuple[str, ...]
    path: str = ""  # KServe's if empty
    # Needs the reference's libraries for the tritonserver in its wheel.
    needs_reference: bool = False
    # Use of a processor while idle, for servers that have to be suspended. The others use 0.003, and
    # PyTriton's tritonserver drops a model whose process was suspended for a second.
    idle_cores: float = 0.0
    settings: dict[str, str] = field(default_factory=dict, hash=False)

    def request(self, job: Job, port: int) -> Request:
        """Return the request with the job's row."""
        if not self.path:
            return kserve(job, "IN", port)
        return Request(port, self.path, json.dumps({"input": job.row()[0].tolist()}).encode())


OTHERS = (
    Other("pytriton", "PyTriton", ("nvidia-pytriton==0.7.0",), needs_reference=True),
    Other("litserve", "LitServe", ("litserve==0.2.19", NUMPY), "/predict", idle_cores=0.11),
    Other(
        "ray", "Ray Serve", ("ray[serve]==2.60.0", NUMPY), "/",
        # As its performance guide recommends: no separate threads for user code and router.
        settings={"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}, idle_cores=0.08,
    ),
    Other("mlserver", "MLServer", ("mlserver==1.7.1", "uvloop==0.21.0")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Running:
    """A running server, and the request for it."""

    post: Request
    pid: int


def kserve(job: Job, tensor: str, port: int) -> Request:
    """Return the request in KServe's protocol."""
    row = job.row()
    tensors = [
        {"name": tensor, "shape": list(row.shape), "datatype": "FP32", "data": row[0].tolist()}
    ]
    return Request(port, f"/v2/models/{job.name}/infer", json.dumps({"inputs": tensors}).encode())


def python_of(other: Other, job: Job) -> Path:
    """Return the python of its environment, with the job's packages in the versions installed here."""
    python = environment(other.name, Path(sys.executable), other.requirements)
    for package in job.packages:
        pinned = f"{package}=={version_of(package)}"
        # One environment for all: torch has a gigabyte.
        share_packages(python, environment(package, Path(sys.executable), (pinned, NUMPY)))
    return python


def version_of(package: str) -> str:
    """Return the version installed here, without a local version label."""
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError as error:
        raise Missing(f"{package} is not installed here") from error


@contextmanager
def running(session: Session, other: Other, job: Job) -> Iterator[Running]:
    """Run a server until the block ends."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
    # The programs import `bench.jobs`.
    env |= {"PYTHONPATH": str(ROOT), **other.settings}
    if other.needs_reference:
        # Its stub embeds this interpreter, and must find its library.
        libraries = (session.reference.directory / "lib", sysconfig.get_config_var("LIBDIR"))
        env["LD_LIBRARY_PATH"] = ":".join(map(str, libraries))
    ports = free_ports(3)
    program = ROOT / "bench" / "programs" / f"{other.name}_server.py"
    folder = session.folder()
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            [python_of(other, job), program, job.name, *map(str, ports)],
            cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            post = other.request(job, ports[0])
            try:
                wait_until_answered(post, lambda: process.poll() is None, START_S)
                see_right(job, post)
                post.load(IN_FLIGHT, WARM_S)
            except Missing as error:
                log.seek(0)
                last = log.read().strip().splitlines()[-1:]
                raise Missing(f"{other.title}: {error} {' '.join(last)}") from None
            yield Running(post, process.pid)
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate a server, then all its processes: some servers leave workers."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def see_right(job: Job, post: Request) -> None:
    """Raise `Missing` unless the response is the function's result for the row."""
    answer = json.loads(post.once())
    found = answer["output"] if "output" in answer else answer["outputs"][0]["data"]
    see_close(job, np.array(found, np.float32))


def see_close(job: Job, found: Any) -> None:
    wanted = job.make()(job.row())[0]
    if found.size != wanted.size or not np.allclose(found.ravel(), wanted, rtol=1e-4, atol=1e-6):
        raise Missing(f"the answer is {found.ravel()[:4]} ..., not {wanted[:4]} ...")


@dataclass(frozen=True, slots=True)
class Ours:
    """A job in nbtriton: in this process, and from the same files in `nbtriton serve`."""

    server: nbtriton.Server
    tensor: str
    served: Running


@contextmanager
def ours_of(session: Session, job: Job) -> Iterator[Ours]:
    """Serve a job until the block ends, after a check of its responses."""
    for package in job.packages:
        version_of(package)
    with nbtriton.Server(gpus=()) as server:
        if job.name == models.DOUBLE.name:
            models.load(server, (models.DOUBLE,), session.folder())
            tensor = "IN"
        else:
            tensor = load_net(server, job)
        answer = server.infer(job.name, {tensor: job.row()})
        see_close(job, next(iter(answer.values())))
        repository = session.folder()
        server.export(repository)
        process = session.serve(repository)
        post = kserve(job, tensor, process.http_port)
        see_right(job, post)
        post.load(IN_FLIGHT, WARM_S)
        yield Ours(server, tensor, Running(post, process.process.pid))


def load_net(server: nbtriton.Server, job: Job) -> str:
    """Load a torch module, computed by one thread as in the other servers; return its input's name."""
    from bench.nets import NETS, seeded

    (net,) = (net for net in NETS if net.name == job.name)
    one_thread = 'parameters { key: "INTRA_OP_THREAD_COUNT" value { string_value: "1" } }'
    config = f"{net.config(BATCH)}\n{one_thread}"
    server.load(config, seeded(net.name), name=job.name)
    return "INPUT__0"


def figure(other: Other, job: Job, where: Where, connections: int) -> Figure:
    many = connections > 1

    def value(measured: Measured) -> float:
        return measured.infer_per_s if many else measured.p50_us

    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        # A third of the time in the short form.
        ms = session.interval_ms // 3 if session.short else session.interval_ms
        seconds = 3 * ms / 1000
        # Before the other server's processes start, so that no server starts beside a busy one.
        ours = session.resource(job, lambda: ours_of(session, job))
        theirs = session.one_at_a_time((other, job), lambda: running(session, other, job))
        row = {ours.tensor: job.row()}

        def here() -> float:
            if where == "http":
                return value(ours.served.post.load(connections, seconds))
            return value(
                in_process(ours.server, job.name, row, concurrency=connections, interval_ms=ms)
            )

        def alone() -> float:
            with stopped(theirs.pid) if other.idle_cores else nullcontext():
                return here()

        yield Sides(alone, lambda: value(theirs.post.load(connections, seconds)))

    return Figure(
        ".".join(
            ["others", other.name, *([job.name] if job.packages else []), where,
             "many" if many else "one"]
        ),
        f"{job.title}: nbtriton {'in the kernel' if where == 'kernel' else 'over HTTP'}, "
        + (f"{connections} in flight" if many else "one request at a time, p50"),
        "infer/s" if many else "us", "higher" if many else "lower",
        f"{other.title} over HTTP", (), sides,
    )  # fmt: skip


FIGURES = tuple(
    figure(other, job, where, connections)
    for other in OTHERS
    for job in JOBS.values()
    for where in ("kernel", "http")
    for connections in (1, IN_FLIGHT)
)  # fmt: skip
