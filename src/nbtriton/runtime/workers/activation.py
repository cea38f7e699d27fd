"""The environment of a worker: the variables of its activate script, its interpreter, its NumPy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from nbtriton.common.errors import InternalError, UnsupportedError

__all__ = ["activated", "describe", "interpreter_of"]

# The oldest Python of the worker's side: that of Triton 2.51's own image.
OLDEST_PYTHON: Final = (3, 10)
# Timeout of an activate script, or of NumPy's import on a busy machine.
_TIMEOUT_S = 120.0
_LAST_LINES = 8
# Variables of the shell that runs the script, not of the environment.
_OF_THE_SHELL = frozenset({"_", "OLDPWD", "PS1", "PWD", "SHLVL"})
_OF_THIS_PYTHON = ("PYTHONHOME", "PYTHONPATH")
_DESCRIBE = """
import json, sys
found = {"python": sys.version_info[:3]}
try:
    import numpy
    found["numpy"] = numpy.__version__
except ImportError as error:
    found["missing"] = isinstance(error, ModuleNotFoundError) and error.name == "numpy"
    found["error"] = str(error).strip().splitlines()[-1:]
print(json.dumps(found))
"""


def activated(folder: Path, activate: Path) -> dict[str, str]:
    """Return the variables that activation sets, with the environment's libraries first, as Triton does."""
    bash = shutil.which("bash")
    if bash is None:
        raise UnsupportedError(
            f"the environment '{folder}' is activated by bash, which is not on the PATH"
        )
    before = _inherited()
    # By its path, as in Triton: a script may compare it with "$0".
    script = 'source "$1" >&2 && exec env -0'
    done = _run(
        [bash, "--noprofile", "--norc", "-c", script, "bash", str(activate)], before, folder
    )
    after = dict(
        line.split("=", 1)
        for line in done.decode(errors="surrogateescape").split("\0")
        if "=" in line
    )
    libraries = (str(folder / "lib"), after.get("LD_LIBRARY_PATH"))
    after["LD_LIBRARY_PATH"] = ":".join(filter(None, libraries))
    return {
        name: value
        for name, value in after.items()
        if before.get(name) != value and name not in _OF_THE_SHELL
    }


def describe(folder: Path, python: Path, variables: dict[str, str]) -> tuple[str, str]:
    """Return the version of an environment's interpreter and that of its NumPy.

    Raises
    ------
    InternalError
        No worker can run in it.
    """
    description = json.loads(_run([str(python), "-c", _DESCRIBE], _inherited() | variables, folder))
    version = ".".join(map(str, description["python"]))
    if tuple(description["python"]) < OLDEST_PYTHON:
        raise InternalError(
            f"The environment '{folder}' has Python {version}; a model needs "
            f"{'.'.join(map(str, OLDEST_PYTHON))} or newer."
        )
    if "numpy" not in description:
        why = (
            ""
            if description["missing"]
            else f" that can be imported: {' '.join(description['error'])}"
        )
        raise InternalError(
            f"The environment '{folder}' has no NumPy{why or ', which holds the tensors of a model'}.",
            hint=f"{python} -m pip install numpy",
        )
    return version, description["numpy"]


def interpreter_of(folder: Path) -> Path:
    """Return the interpreter of an environment.

    Raises
    ------
    InternalError
        It has none.
    """
    names = [folder / "bin" / name for name in ("python", "python3")]
    for path in names:
        if path.is_file() and os.access(path, os.X_OK):
            return path
    broken = next((path for path in names if path.is_symlink()), None)
    if broken is None:
        raise InternalError(
            f"The environment '{folder}' has no Python interpreter: {names[0]} does not exist."
        )
    raise InternalError(
        f"The environment '{folder}' has no usable Python interpreter: {broken} is a link to "
        f"'{os.path.realpath(broken)}', which does not exist.",
        hint="a packed virtual environment needs the Python that it was made with at the same place "
        "(venv-pack --python-prefix); conda-pack packs the interpreter, too",
    )


def _inherited() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OF_THIS_PYTHON}


def _run(command: list[str], variables: dict[str, str], folder: Path) -> bytes:
    """Return the output of a command in an environment; an error has its last lines."""
    try:
        done = subprocess.run(  # noqa: S603 - the environment's own
            command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, check=False,
            timeout=_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InternalError(
            f"The environment '{folder}' does not start: {command[0]} took longer than {_TIMEOUT_S:.0f} s."
        ) from None
    except OSError as error:
        raise InternalError(
            f"The environment '{folder}' does not start: {command[0]}: {error.strerror or error}."
        ) from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
        status = (
            f"exit status {done.returncode}"
            if done.returncode > 0
            else f"signal {-done.returncode}"
        )
        raise InternalError(
            f"The environment '{folder}' does not start ({status}):\n" + "\n".join(lines)
        )
    return done.stdout
