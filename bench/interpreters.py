"""The compiled core on another Python, as much of the remaining time is Python's.

The build of Python matters: distributions, containers and conda use profile-guided optimization
(``--enable-optimizations``), pyenv does not by default. The other interpreter, of this version, is
``$NBTRITON_OTHER_PYTHON``, else the system's.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path

from bench import machine
from bench.compiled import measured
from bench.environments import environment
from bench.figures import Figure, Missing, Sides
from bench.session import Session
from bench.threads import INSTALLS

__all__ = ["FIGURES"]

SYSTEM = Path("/usr/bin/python3")
TELL = "import platform; print(platform.python_version())"


@cache
def other_python() -> tuple[Path, str]:
    """Return the python of an environment of the other interpreter, and its description."""
    named = os.environ.get("NBTRITON_OTHER_PYTHON")
    found = Path(named) if named else SYSTEM
    here = Path(sys.executable).resolve()
    if not found.exists() or found.resolve() == here:
        raise Missing(
            f"there is no Python but {here}: NBTRITON_OTHER_PYTHON may name another interpreter"
        )
    done = subprocess.run([found, "-c", TELL], capture_output=True, text=True, check=True)
    version = done.stdout.strip()
    if version.split(".")[:2] != platform.python_version().split(".")[:2]:
        raise Missing(f"{found} is Python {version}, the compiled build is for {machine.python()}")
    return environment("other-python", found, *INSTALLS), f"{found}, Python {version}"


def both(what: str) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        python, words = other_python()
        yield Sides(
            measured(session, python, "compiled", what),
            measured(session, Path(sys.executable), "compiled", what),
            f"the other is {words}",
        )

    return sides


FIGURES = tuple(
    Figure(
        f"interpreters.{what}", f"{words}: processor time", "us", "lower", "this Python", (),
        both(what), first="the other Python",
    )
    for what, words in (
        ("request", "one request, no-op python model"),
        ("step", "each further ensemble step"),
        ("call", "a call from model to model (BLS)"),
    )
)  # fmt: skip
