"""Separate Python environments in the user's cache folder."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Missing
from nbtriton.extensions.verify.reference import default_directory

__all__ = ["environment", "share_packages"]


def environment(name: str, interpreter: Path, *installs: Sequence[str]) -> Path:
    """Return the python of an environment, made on first use and again when its arguments change.

    Parameters
    ----------
    name : str
    interpreter : Path
    *installs : sequence of str
        Arguments of ``pip install``, one call each.

    Raises
    ------
    Missing
        The environment could not be made; with pip's last line.
    """
    folder = default_directory().parent / "bench" / name
    python, mark = folder / "bin" / "python", folder / "ready.txt"
    wanted = "\n".join(map(shlex.join, ([str(interpreter)], *installs)))
    if mark.exists() and mark.read_text() == wanted:
        return python
    print(f"installing {' '.join(word for each in installs for word in each)} into {folder}")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    steps = [[str(interpreter), "-m", "venv", "--clear", str(folder)]]
    for step in steps + [[*pip, *each] for each in installs]:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["?"])[-1]
            raise Missing(f"{name} could not be installed: {last}")
    mark.write_text(wanted)
    return python


def share_packages(python: Path, source: Path) -> None:
    """Let an environment import another's packages, after its own.

    Parameters
    ----------
    python, source : Path
        From `environment`.
    """
    target, shared = (each.parents[1] / "lib" for each in (python, source))
    (to,), (packages,) = (each.glob("python3*/site-packages") for each in (target, shared))
    (to / "shared.pth").write_text(f"{packages}\n")
