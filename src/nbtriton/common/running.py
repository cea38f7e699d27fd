"""Long commands of other programs, with their output line by line."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from nbtriton.common.errors import UnavailableError

Progress: TypeAlias = Callable[[str], None]

_LAST_LINES = 12
# Seconds from SIGTERM to SIGKILL of an interrupted command.
_GRACE_S: Final = 3.0
# Variables of another environment's interpreter, and of installations into it.
_FOREIGN = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "PIP_TARGET", "PIP_USER")


def run_step(
    what: str, command: Sequence[str], report: Progress, variables: Mapping[str, str] | None = None
) -> str:
    """Run a long command; return its output.

    Parameters
    ----------
    what : str
        The first line of the error.
    command : sequence of str
    report : callable
        Called with every line.
    variables : mapping of str to str, optional
        In addition to this process's.

    Raises
    ------
    UnavailableError
        The command failed; with the last lines of its output.
    BaseException
        An error of `report`, or an interrupt; the command and its children have ended.
    """
    process = subprocess.Popen(  # noqa: S603 - uv, pip, and the interpreter that was asked for
        command, env={**own_variables(), **(variables or {})}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    lines: list[str] = []
    try:
        with process.stdout as output:
            for line in output:
                if text := line.strip():
                    lines.append(text)
                    report(text)
        status = process.wait()
    except BaseException:
        _end(process)
        raise
    if status:
        last = "\n".join(lines[-_LAST_LINES:])
        raise UnavailableError(f"{what}:\n{last}")
    return "\n".join(lines)


def _end(process: subprocess.Popen[str]) -> None:
    """End a step with the processes that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
            return


def own_variables() -> dict[str, str]:
    """Return this process's variables without those of its environment."""
    return {key: value for key, value in os.environ.items() if key not in _FOREIGN}
