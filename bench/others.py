"""What one would otherwise pick in Python: PyTriton, LitServe, Ray Serve, MLServer.

Each lives in an environment of its own, made on first use, and serves the jobs of `bench.jobs` with
dynamic batching up to 32 and one worker, as its documentation recommends for a CPU. All are asked over
HTTP with JSON by the same client (`bench.wire`), which is faster than the ones they ship; nbtriton is
measured in the kernel, and over HTTP by that client too. Those that compute also when no request comes
anything are stopped while nbtriton is measured; nbtriton does not.
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
# Before its first figure each server is asked so long by all clients: some start threads, or find
# the size of their batches, under their first load.
WARM_S = 1.0
Where = Literal["kernel", "http"]


@dataclass(frozen=True, slots=True)
class Other:
    """A server that is not ours: what to install, where it is asked, and what is to know of it."""

    name: str
    title: str
    requirements: tuple[str, ...]
    path: str = ""  # KServe's if empty
    # Its wheel carries tritonserver, which needs libraries that the reference keeps.
    needs_reference: bool = False
    # The part of a processor that it takes when no request comes, if that is worth stopping it
    # for. The others take 0.003, and PyTriton's tritonserver gives up a model whose process was
    # stopped for a second.
    idle_cores: float = 0.0
    settings: dict[str, str] = field(default_factory=dict, hash=False)

    def request(self, job: Job, port: int) -> Request:
        """Return the request that carries the job's row."""
        if not self.path:
            return kserve(job, "IN", port)
        return Request(port, self.path, json.dumps({"input": job.row()[0].tolist()}).encode())


OTHERS = (
    Other("pytriton", "PyTriton", ("nvidia-pytriton==0.7.0",), needs_reference=True),
    Other("litserve", "LitServe", ("litserve==0.2.19", NUMPY), "/predict", idle_cores=0.11),
    Other(
        "ray", "Ray Serve", ("ray[serve]==2.60.0", NUMPY), "/",
        # As its guide to performance says: no thread of its own for the code and for the router.
        settings={"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}, idle_cores=0.08,
    ),
    Other("mlserver", "MLServer", ("mlserver==1.7.1", "uvloop==0.21.0")),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Running:
    """A server in processes of its own, and the request that it answers."""

    post: Request
    pid: int


def kserve(job: Job, tensor: str, port: int) -> Request:
    """Return the request in the protocol of KServe."""
    row = job.row()
    tensors = [
        {"name": tensor, "shape": list(row.shape), "datatype": "FP32", "data": row[0].tolist()}
    ]
    return Request(port, f"/v2/models/{job.name}/infer", json.dumps({"inputs": tensors}).encode())


def python_of(other: Other, job: Job) -> Path:
    """Return the python of its environment, with what the job needs in the versions that are here."""
    python = environment(other.name, Path(sys.executable), other.requirements)
    for package in job.packages:
        pinned = f"{package}=={version_of(package)}"
        # One for all of them: torch is a gigabyte.
        share_packages(python, environment(package, Path(sys.executable), (pinned, NUMPY)))
    return python


def version_of(package: str) -> str:
    """Return what is installed here, without the mark of a local build."""
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError as error:
        raise Missing(f"{package} is not installed here") from error


@contextmanager
def running(session: Session, other: Other, job: Job) -> Iterator[Running]:
    """Run its server until the block ends."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL"))}
    # The programs import `bench.jobs`.
    env |= {"PYTHONPATH": str(ROOT), **other.settings}
    if other.needs_reference:
        # Its stub embeds this interpreter, and must find this one's library.
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
    """Ask it to end, then end all that it started: workers outlive some of them."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def see_right(job: Job, post: Request) -> None:
    """Raise `Missing` unless the answer is the function's own of the row that is sent."""
    answer = json.loads(post.once())
    found = answer["output"] if "output" in answer else answer["outputs"][0]["data"]
    see_close(job, np.array(found, np.float32))


def see_close(job: Job, found: Any) -> None:
    wanted = job.make()(job.row())[0]
    if found.size != wanted.size or not np.allclose(found.ravel(), wanted, rtol=1e-4, atol=1e-6):
        raise Missing(f"the answer is {found.ravel()[:4]} ..., not {wanted[:4]} ...")


@dataclass(frozen=True, slots=True)
class Ours:
    """A job in nbtriton: in this process, and with the same files in `nbtriton serve`."""

    server: nbtriton.Server
    tensor: str
    served: Running


@contextmanager
def ours_of(session: Session, job: Job) -> Iterator[Ours]:
    """Serve a job until the block ends, its answers seen to be right."""
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
    """Load a torch module, computed by one thread as all others compute it; its input's name."""
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
        # A third as long where the bench shall be short.
        ms = session.interval_ms // 3 if session.short else session.interval_ms
        seconds = 3 * ms / 1000
        # Before the other's processes start, so that no server starts beside a busy one.
        ours = session.kept(job, lambda: ours_of(session, job))
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
