"""Requests to a model that computes: timed, or their instructions counted by valgrind's callgrind.

Counts repeat to half a percent on a busy machine too, so CI holds them: `tests/engine/test_instructions.py`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.figures import Missing

__all__ = ["AT_MOST", "SCENARIOS", "counted", "missing", "timed"]

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = Path(__file__).with_name("programs") / "computing.py"
SCENARIOS: Mapping[str, str] = {
    "one": "a request",
    "two_steps": "a request to a two-step ensemble",
    "eight_steps": "a request to an eight-step ensemble",
    "call": "a request whose model calls another",
    "many": "a request, 32 in flight",
    "two_steps_many": "a request to a two-step ensemble, 32 in flight",
}
# Thousands of instructions with CPython 3.11 on x86-64, of two builds of the Makefile: 61.6 and 138.9 with the versions
# of constraints.txt, 94.9 and 239.7 without the C compiler's optimization.
AT_MOST: Mapping[str, Mapping[str, float]] = {
    "compiled": {"one": 65, "two_steps": 140},
    "unoptimized": {"one": 100, "two_steps": 242},
}
REQUESTS = 192
# What counts is what lies between the two calls: neither the start nor the load of the models.
MARKS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(const char *scenario) { CALLGRIND_DUMP_STATS_AT(scenario); CALLGRIND_STOP_INSTRUMENTATION; }
"""


def missing() -> str:
    """Return what this machine lacks to count instructions, in one line; empty for nothing."""
    for program, package in (("valgrind", "valgrind"), ("cc", "gcc")):
        if shutil.which(program) is None:
            return f"counting instructions needs {program} (apt-get install {package})"
    return ""


def counted(build: Path, scenarios: Sequence[str], requests: int = REQUESTS) -> Mapping[str, float]:
    """Return the instructions of one request, in thousands, by scenario of `PROGRAM`.

    Parameters
    ----------
    build : Path
        A compiled build: what is put on Python's path.
    scenarios : sequence of str
    requests : int
        How many of each are counted.

    Raises
    ------
    Missing
        This machine has no valgrind, or the program failed.
    """
    if reason := missing():
        raise Missing(reason)
    with tempfile.TemporaryDirectory(prefix="nbtriton-instructions-") as folder:
        marks = Path(folder, "marks.so")
        _run(["cc", "-shared", "-fPIC", "-x", "c", "-o", str(marks), "-"], given=MARKS)
        done = _run(
            ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/out",
             sys.executable, str(PROGRAM), str(requests), str(marks), *scenarios],
            **_paths(build),
        )  # fmt: skip
        ran = json.loads(done.splitlines()[-1])
        totals: dict[str, int] = {}
        for path in Path(folder).glob("out.*"):
            text = path.read_text(errors="replace")
            name = re.search(r"^desc: Trigger: Client Request: (\w+)$", text, re.MULTILINE)
            total = re.search(r"^totals: (\d+)", text, re.MULTILINE)
            if name and total:
                totals[name[1]] = int(total[1])
    return {name: totals[name] / ran[name][0] / 1000 for name in scenarios}


def _paths(build: Path) -> dict[str, str]:
    """Return the variables of a process that imports a build; sets have the same order in each."""
    return {"PYTHONPATH": os.pathsep.join([str(build), str(ROOT)]), "PYTHONHASHSEED": "0"}


def _run(command: Sequence[str], *, given: str = "", **variables: str) -> str:
    done = subprocess.run(
        command, input=given, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )  # fmt: skip
    if done.returncode:
        raise Missing(f"{command[0]} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def timed(build: Path, requests: int = 1000) -> Mapping[str, float]:
    """Return the median microseconds of one request, by scenario of `PROGRAM`."""
    done = _run([sys.executable, str(PROGRAM), str(requests), "-", *SCENARIOS], **_paths(build))
    return {name: took_us for name, (_, took_us) in json.loads(done.splitlines()[-1]).items()}
