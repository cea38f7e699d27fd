"""Memory after a million requests, which must not grow with their number.

Each round is a new process. It answers requests one at a time and 32 in flight, through a python model and
through an ensemble, and reads its resident memory after the first tenth, when all code has run once, and at
the end.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bench.figures import Figure, Sides, Wrong, ratio_at_most
from bench.machine import ROOT
from bench.session import Session

__all__ = ["FIGURES"]

FULL, SHORT = 1_000_000, 100_000
IN_FLIGHT = 32
PROGRAM = """
import gc, json, sys, tempfile
from pathlib import Path
import numpy as np
import nbtriton
from bench.models import NOOP, chain, load

X = {"IN": np.ones((1, 16), np.float32)}

def held_kb():
    gc.collect()
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])

def one_by_one(server, model, count):
    for _ in range(count):
        server.infer(model, X)

def in_flight(server, model, count, width):
    for _ in range(count // width):
        for future in [server.submit(model, X) for _ in range(width)]:
            future.result()

requests, width = int(sys.argv[1]), int(sys.argv[2])
with nbtriton.Server() as server, tempfile.TemporaryDirectory() as folder:
    load(server, (NOOP, chain("two", NOOP, 2)), Path(folder))
    held = []
    for _ in range(10):
        one_by_one(server, "noop", requests // 40)
        one_by_one(server, "two", requests // 40)
        in_flight(server, "noop", requests // 40, width)
        in_flight(server, "two", requests // 40, width)
        held.append(held_kb())
    print(json.dumps(held))
"""


@contextmanager
def growth(session: Session) -> Iterator[Sides]:
    requests = SHORT if session.short else FULL
    resident_kb: list[int] = []
    read: set[int] = set()

    def megabytes(index: int) -> float:
        """Return a reading; a process gives each reading once."""
        if not resident_kb or index in read:
            resident_kb[:] = run(requests)
            read.clear()
        read.add(index)
        return resident_kb[index] / 1024

    yield Sides(lambda: megabytes(-1), lambda: megabytes(0))


def run(requests: int) -> list[int]:
    """Return the resident memory after each tenth of a number of requests, in kB."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(requests), str(IN_FLIGHT)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Wrong(f"the requests ended with an error: {done.stderr.strip()[-300:]}")
    resident_kb: list[int] = json.loads(done.stdout)
    return resident_kb


FIGURES = (
    Figure(
        "memory.resident", "resident memory after a million requests (--short: 100,000)",
        "MB", "flat", "after the first tenth", (ratio_at_most(1.02),), growth,
        first="at the end",
    ),
)  # fmt: skip
