"""The compiled core compared with the same sources in pure Python (`make compiled`).

Each round of a side is a new process. All three figures are processor time of the calling thread, which does all
the work on an idle server.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from bench import machine
from bench.figures import Figure, Measure, Missing, Sides, value_at_most
from bench.session import Session

__all__ = ["FIGURES", "measured"]

BUILD = machine.ROOT / "build" / "compiled"
PROGRAM = """
import sys, tempfile, time
from pathlib import Path
import numpy as np
import nbtriton
from bench import bls, ensemble, machine
from bench.models import load

assert machine.compiled() == (sys.argv[1] == "compiled"), "the other build was imported"
X = {"IN": np.ones((1, 16), np.float32)}
WINDOWS = 15

def spent_us(server, model, window_s):
    count = 0
    begin, cpu = time.perf_counter(), time.thread_time()
    while count == 0 or time.perf_counter() - begin < window_s:
        for _ in range(20):
            server.infer(model, X)
        count += 20
    return (time.thread_time() - cpu) / count * 1e6

def of(models, fewer, more, by):
    with tempfile.TemporaryDirectory() as folder, nbtriton.Server(gpus=()) as server:
        load(server, models, Path(folder))
        window_s = float(sys.argv[3]) / 1000 / WINDOWS
        # The quietest window of each, so that what else runs on the machine counts least.
        low, high = (
            min(spent_us(server, model, window_s) for _ in range(WINDOWS)) if model else 0.0
            for model in (fewer, more)
        )
        return (high - low) / by

print({
    "request": lambda: of(ensemble.MODELS[:1], "", "noop", 1),
    "step": lambda: of(
        ensemble.MODELS, f"steps_{ensemble.FEW}", f"steps_{ensemble.MANY}", ensemble.MANY - ensemble.FEW
    ),
    "call": lambda: of(bls.MODELS, f"calls_{bls.FEW}", f"calls_{bls.MANY}", bls.MANY - bls.FEW),
}[sys.argv[2]]())
"""


def measured(session: Session, python: Path, build: str, what: str) -> Measure:
    """Return a measurement of a build in a new process.

    Raises
    ------
    Missing
        There is no compiled build.
    """
    sources = {"compiled": BUILD, "pure": machine.ROOT / "src"}[build]
    if not sources.exists():
        raise Missing(
            f"there is no compiled build in {BUILD.relative_to(machine.ROOT)}: make compiled"
        )

    def measure() -> float:
        path = os.pathsep.join([str(sources), str(machine.ROOT)])
        window_ms = str(session.interval_ms * 3)
        done = subprocess.run(
            [python, "-c", PROGRAM, build, what, window_ms],
            env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise Missing(f"{python} failed: {done.stderr.strip()[-300:]}")
        return float(done.stdout)

    return measure


def both(what: str) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        python = Path(sys.executable)
        yield Sides(
            measured(session, python, "compiled", what), measured(session, python, "pure", what)
        )

    return sides


FIGURES = (
    Figure(
        "compiled.request", "one request, no-op python model: processor time",
        "us", "lower", "pure Python", (value_at_most(20, aim=True),), both("request"), first="compiled",
    ),
    Figure(
        "compiled.step", "each further ensemble step: processor time",
        "us", "lower", "pure Python", (value_at_most(10, aim=True),), both("step"), first="compiled",
    ),
    Figure(
        "compiled.call", "a call from model to model (BLS): processor time",
        "us", "lower", "pure Python", (value_at_most(30, aim=True),), both("call"), first="compiled",
    ),
)  # fmt: skip
