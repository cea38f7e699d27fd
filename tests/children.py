"""Child processes of the tests: one that hangs dumps the stacks of its threads before it is killed.

``PYTHONFAULTHANDLER`` lets Python write them on SIGABRT; tests/conftest.py sets it, so that servers,
kernels and their children have it too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, Any

__all__ = ["CHILD_TIMEOUT_S", "finish", "run_python"]

# Long enough for a busy machine: only a child that hangs takes it. pytest's own limit is longer.
CHILD_TIMEOUT_S = 150.0
_DUMP_S = 60.0


def run_python(
    *arguments: object,
    timeout_s: float = CHILD_TIMEOUT_S,
    check: bool = False,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments to its end; return its status and what it wrote.

    ``check`` asserts the status 0 and shows what was written otherwise.
    """
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env={**(os.environ if env is None else env), "PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip
    written = finish(process, timeout_s)
    if check:
        assert process.returncode == 0, "".join(written)
    return subprocess.CompletedProcess(process.args, process.returncode, *written)


def finish(process: subprocess.Popen[str], timeout_s: float = CHILD_TIMEOUT_S) -> tuple[str, str]:
    """Wait for the end of a child; return what it wrote to its two pipes.

    One that does not end in time fails the test with the stacks of its threads.
    """
    try:
        return process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
    try:
        written = process.communicate(timeout=_DUMP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        written = process.communicate()
    finally:
        _close(process.stdin, process.stdout, process.stderr)
    message = f"{process.args!r} did not end within {timeout_s:g} s; it wrote:\n"
    raise AssertionError(message + "\n".join(text for text in written if text))


def _close(*pipes: IO[str] | None) -> None:
    for pipe in pipes:
        if pipe is not None:
            pipe.close()
