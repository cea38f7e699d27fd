"""Free-threaded CPython compared with this interpreter: a model in pure Python with two instances.

The interpreter is ``$NBTRITON_FREE_THREADED``, else python3.14t or python3.13t on the PATH. It gets its
own environment with the packages that models need.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path

from bench.environments import environment
from bench.figures import Figure, Measure, Missing, Sides
from bench.machine import ROOT
from bench.session import Session

__all__ = ["FIGURES"]

NAMES = ("python3.14t", "python3.13t")
# Packages for models; some packages for endpoints have no wheels for free-threaded Python.
INSTALLS = (("--only-binary=:all:", "numpy", "protobuf"),)
PROGRAM = """
import sys
import numpy as np
import nbtriton
from bench.load import in_process

what, instances, interval_ms = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
CONFIG = '''
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
instance_group { count: %d kind: KIND_CPU }
''' % instances

def busy(IN):
    total = 0
    for number in range(20_000):
        total += number
    return {"OUT": IN + total}

def noop(IN):
    return {"OUT": IN * 2}

with nbtriton.Server(gpus=()) as server:
    server.load(CONFIG, {"busy": busy, "noop": noop}[what], name="model")
    found = in_process(
        server, "model", {"IN": np.ones((1, 4), np.float32)},
        concurrency=1 if what == "noop" else 8, interval_ms=interval_ms,
    )
print(found.p50_us if what == "noop" else found.infer_per_s)
"""


@cache
def free_threaded() -> Path:
    """Return the python of a free-threaded environment; raises `Missing`."""
    named = os.environ.get("NBTRITON_FREE_THREADED")
    found = named or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise Missing(
            f"no free-threaded CPython here: neither {' nor '.join(NAMES)} is on the PATH, and "
            "NBTRITON_FREE_THREADED names none"
        )
    return environment("free-threaded", Path(found), *INSTALLS)


def measured(session: Session, python: Path, what: str, instances: int) -> Measure:
    """Return a measurement in a new process of an interpreter."""

    def measure() -> float:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        done = subprocess.run(
            [python, "-c", PROGRAM, what, str(instances), str(session.interval_ms)],
            env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise Missing(f"{python} failed: {done.stderr.strip()[-300:]}")
        return float(done.stdout)

    return measure


def beside_this(what: str, instances: int) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        yield Sides(
            measured(session, free_threaded(), what, instances),
            measured(session, Path(sys.executable), what, instances),
        )

    return sides


@contextmanager
def two_beside_one(session: Session) -> Iterator[Sides]:
    python = free_threaded()
    yield Sides(measured(session, python, "busy", 2), measured(session, python, "busy", 1))


FIGURES = (
    Figure(
        "threads.parallel", "a model in pure Python, two instances, free-threaded CPython",
        "infer/s", "higher", "the same, one instance", (), two_beside_one, first="two instances",
    ),
    Figure(
        "threads.two", "a model in pure Python, two instances", "infer/s", "higher",
        "this interpreter", (), beside_this("busy", 2), first="free-threaded",
    ),
    Figure(
        "threads.one", "one request at a time, p50", "us", "lower",
        "this interpreter", (), beside_this("noop", 1), first="free-threaded",
    ),
)  # fmt: skip
