"""Description of the machine and versions of a bench's run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import nbtriton

__all__ = ["ROOT", "commit", "compiled", "cpu", "machine", "python"]

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("numpy", "torch", "grpcio", "httptools", "uvloop", "ipython")
# Version that `nbtriton.extensions.verify.install` installs.
REFERENCE = {"tritonserver": "2.51.0", "perf_analyzer": "2.50.0"}


def cpu() -> str:
    """Return the processor's name."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit() -> str:
    """Return the measured commit, with a ``+`` if the sources differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    with suppress(OSError):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout.strip()
    return ""


def compiled() -> bool:
    """Return whether the imported nbtriton is a compiled build (`make compiled`)."""
    return nbtriton.compiled


def python() -> str:
    """Return the interpreter's version and kind."""
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    return platform.python_version() + ("" if locked else " free-threaded")


def machine() -> dict[str, object]:
    """Return the machine, its load and the relevant versions."""
    versions = {}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "cpu": cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
        "python": python(),
        "nbtriton": nbtriton.__version__,
        "compiled": compiled(),
        "commit": commit(),
        **versions,
        **REFERENCE,
    }  # fmt: skip
