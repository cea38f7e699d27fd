"""``EXECUTION_ENV_PATH``: the Python and the packages that a model asks for.

An archive (conda-pack's or venv-pack's) is unpacked once for a server, and again when it has changed; a folder is
used as it is. ``bin/activate`` says which variables belong to it, as in Triton (PB91).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import threading
import weakref
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import nbtriton
from nbtriton.backends.parameters import text_parameter
from nbtriton.config import ModelConfig
from nbtriton.errors import InternalError, UnsupportedError
from nbtriton.workers.launching import Interpreter

__all__ = ["EXECUTION_ENV_PATH", "Environment", "Environments", "environment_path"]

EXECUTION_ENV_PATH: Final = "EXECUTION_ENV_PATH"
# The oldest Python that the worker's side runs in: that of Triton 2.51's own image.
OLDEST_PYTHON: Final = (3, 10)
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_PREFIX = "nbtriton_env_"
_LOCK = ".lock"
# To run an activate script, or to import NumPy on a busy machine.
_TIMEOUT_S = 120.0
_LAST_LINES = 8
# Of the shell that runs the script, not of the environment.
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


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment that a worker can run in.

    Attributes
    ----------
    folder : Path
    interpreter : Interpreter
        Its Python, with the variables that activation sets and nbtriton's sources on its path.
    python, numpy : str
        Versions.
    """

    folder: Path
    interpreter: Interpreter
    python: str
    numpy: str


class Environments:
    """The environments of one server; `close` removes what was unpacked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unpacked: dict[
            Path, tuple[int, Path]
        ] = {}  # by archive: when it changed, where it is
        self._base: Path | None = None
        self._remove: weakref.finalize | None = None  # type: ignore[type-arg]

    def find(self, config: ModelConfig, directory: Path | None) -> Environment | None:
        """Return the environment that a configuration names; None where it names none.

        Parameters
        ----------
        config : ModelConfig
        directory : Path or None
            The model's own, for ``$$TRITON_MODEL_DIRECTORY``.

        Raises
        ------
        InternalError
            There is none, or it is none, with Triton's text where Triton has one.
        """
        path = environment_path(config, directory)
        if path is None:
            return None
        with self._lock:
            folder = path if path.is_dir() else self._unpack(path)
            sources = self._sources()
        activate = folder / "bin" / "activate"
        if not activate.is_file():
            raise InternalError(
                f"Path {activate} does not exist. The Python environment should contain an "
                "'activate' script.",
                hint=_inner_folder(folder, path),
            )
        return _describe(folder, _activated(folder, activate), sources)

    def close(self) -> None:
        """Remove what was unpacked; idempotent."""
        with self._lock:
            self._unpacked.clear()
            self._base = None
            if self._remove is not None:
                self._remove()

    def _unpack(self, archive: Path) -> Path:
        """Return the folder of an archive, unpacked as it is now."""
        changed = archive.stat().st_mtime_ns
        found = self._unpacked.get(archive)
        if found is not None and found[0] == changed:
            return found[1]
        # Not where the last one was: instances may run in that.
        folder = Path(tempfile.mkdtemp(dir=self._folder()))
        try:
            _extract(archive, folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._unpacked[archive] = changed, folder
        return folder

    def _sources(self) -> Path:
        """Return a folder that holds nbtriton and nothing else of this process's packages."""
        folder = self._folder() / "sources"
        if not folder.is_dir():
            folder.mkdir()
            package = Path(nbtriton.__file__).parent
            # What the modules of a compiled build are in, for a Python of the same version.
            for one in (package, *package.parent.glob("*__mypyc.*")):
                (folder / one.name).symlink_to(one)
        return folder

    def _folder(self) -> Path:
        if self._base is None:
            _remove_abandoned()
            self._base = Path(tempfile.mkdtemp(prefix=_PREFIX))
            lock = os.open(self._base / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._remove = weakref.finalize(self, _remove_folder, self._base, lock, os.getpid())
        return self._base


def environment_path(config: ModelConfig, directory: Path | None) -> Path | None:
    """Return the archive or folder that a configuration names; None where it names none.

    Raises
    ------
    InternalError
        It does not exist, with Triton's text.
    """
    given = text_parameter(config, EXECUTION_ENV_PATH)
    if not given:
        return None
    path = Path(given.replace(_MODEL_DIRECTORY, "" if directory is None else str(directory)))
    if path.exists():
        return path.resolve()
    hint = "an archive of conda-pack or venv-pack, or a folder; %triton_env makes one"
    if given.startswith(_MODEL_DIRECTORY) and directory is None:
        hint = f"a model without a directory has no {_MODEL_DIRECTORY}: give the path"
    elif not path.is_absolute():
        hint = f"{path} is looked for in {Path.cwd()}; {_MODEL_DIRECTORY}/{path.name} is in the model's directory"
    raise InternalError(f"Failed to get the canonical path for {path}.", hint=hint)


# -- archives --------------------------------------------------------------------------------------


def _extract(archive: Path, folder: Path) -> None:
    """Unpack a tar file, which may be compressed by gzip, as in Triton."""
    try:
        with archive.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        opened = tarfile.open(archive, "r:gz" if compressed else "r:")  # noqa: SIM115 - closed below
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise InternalError(
            "archive_read_open_filename() failed.",
            hint=f"{archive} is no tar or tar.gz file, as conda-pack and venv-pack make them: {error}",
        ) from None
    try:
        with opened:
            opened.extractall(folder, filter=_only_inside)  # noqa: S202 - checked, member by member
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise InternalError(
            f"archive_read_next_header() failed with error code = -30 error message is {error}",
            hint=f"{archive} cannot be unpacked to {folder}",
        ) from None


def _only_inside(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """Refuse what is written outside of the folder, and devices.

    A symbolic link may lead outside, as that of a virtual environment to its Python does; nothing is
    written through it.
    """
    check = tarfile.tar_filter if member.issym() else tarfile.data_filter
    return check(member, folder)


def _inner_folder(folder: Path, archive: Path) -> str:
    """Return advice for an archive whose files lie in one folder."""
    inner = next(folder.glob("*/bin/activate"), None)
    if inner is None or folder == archive:
        return ""
    name = inner.parents[1].name
    return f"{archive} has it in the folder '{name}': pack what is in that folder, by tar -C {name} -czf {archive.name} ."


def _remove_folder(folder: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_abandoned() -> None:
    """Remove what processes that were killed have left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR)
        except OSError:  # another user's, or being made
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # in use
            continue
        finally:
            os.close(lock)


# -- interpreters ----------------------------------------------------------------------------------


def _activated(folder: Path, activate: Path) -> dict[str, str]:
    """Return the variables that activation sets, with the environment's libraries first, as Triton does."""
    bash = shutil.which("bash")
    if bash is None:
        raise UnsupportedError(
            f"the environment '{folder}' is activated by bash, which is not on the PATH"
        )
    before = _inherited()
    script = 'source "$0" >&2 && exec env -0'
    done = _run([bash, "--noprofile", "--norc", "-c", script, str(activate)], before, folder)
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


def _describe(folder: Path, variables: dict[str, str], sources: Path) -> Environment:
    """Ask an environment's interpreter what it has."""
    python = _python_of(folder)
    found = json.loads(_run([str(python), "-c", _DESCRIBE], _inherited() | variables, folder))
    version = ".".join(map(str, found["python"]))
    if tuple(found["python"]) < OLDEST_PYTHON:
        raise InternalError(
            f"The environment '{folder}' has Python {version}; a model needs "
            f"{'.'.join(map(str, OLDEST_PYTHON))} or newer."
        )
    if "numpy" not in found:
        why = "" if found["missing"] else f" that can be imported: {' '.join(found['error'])}"
        raise InternalError(
            f"The environment '{folder}' has no NumPy{why or ', which holds the tensors of a model'}.",
            hint=f"{python} -m pip install numpy",
        )
    interpreter = Interpreter(str(python), (str(sources),), tuple(sorted(variables.items())))
    return Environment(folder, interpreter, version, found["numpy"])


def _python_of(folder: Path) -> Path:
    """Return the interpreter of an environment."""
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
    """Return what a command of an environment writes; an error has its last lines."""
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
