"""``EXECUTION_ENV_PATH``: the Python and the packages that a model asks for.

An archive (conda-pack's or venv-pack's) is unpacked once for a server, and again when it has changed; a folder is
used as it is. ``bin/activate`` says which variables belong to it, as in Triton (PB91).
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import nbtriton
from nbtriton.backends.parameters import text_parameter
from nbtriton.config import EXECUTION_ENV_PATH, ModelConfig
from nbtriton.errors import InternalError

if TYPE_CHECKING:
    from nbtriton.workers.launching import Interpreter

__all__ = ["MODEL_DIRECTORY", "Environment", "Environments", "environment_path"]

_log = logging.getLogger("nbtriton.workers")

MODEL_DIRECTORY: Final = "$$TRITON_MODEL_DIRECTORY"
_PREFIX = "nbtriton_env_"
_LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment that a worker can run in.

    Attributes
    ----------
    folder : Path
    interpreter : Interpreter
        Its Python, with the variables that activation sets and nbtriton's sources on its path. Its
        libraries stand first on ``LD_LIBRARY_PATH`` when that starts.
    libraries : str
        ``LD_LIBRARY_PATH`` for the model: what its code starts is found as without the environment.
    python, numpy : str
        Versions.
    """

    folder: Path
    interpreter: Interpreter
    libraries: str
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
        # On first use: most servers never need it.
        from nbtriton.workers.activation import activated, describe
        from nbtriton.workers.launching import Interpreter

        variables = activated(folder, activate)
        python, version, numpy = describe(folder, variables)
        interpreter = Interpreter(str(python), (str(sources),), tuple(sorted(variables.items())))
        libraries = variables["LD_LIBRARY_PATH"].partition(":")[2]
        return Environment(folder, interpreter, libraries, version, numpy)

    def close(self) -> None:
        """Remove what was unpacked; idempotent."""
        with self._lock:
            if self._base is None:
                return
            from nbtriton.workers.launching import end_idle_servers

            end_idle_servers()  # which run in what is removed
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
        import shutil
        import tempfile

        from nbtriton.workers.archive import extract

        _log.info("Extracting Python execution env %s", archive)
        # Not where the last one was: instances may run in that.
        folder = Path(tempfile.mkdtemp(dir=self._folder()))
        try:
            extract(archive, folder)
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
            import fcntl  # POSIX alone, as are environments
            import tempfile

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
    path = Path(given.replace(MODEL_DIRECTORY, "" if directory is None else str(directory)))
    if path.exists():
        return path.resolve()
    hint = "an archive of conda-pack or venv-pack, or a folder; %triton_env makes one"
    if given.startswith(MODEL_DIRECTORY) and directory is None:
        hint = f"a model without a directory has no {MODEL_DIRECTORY}: give the path"
    elif not path.is_absolute():
        hint = f"{path} is looked for in {Path.cwd()}; {MODEL_DIRECTORY}/{path.name} is in the model's directory"
    raise InternalError(f"Failed to get the canonical path for {path}.", hint=hint)


def _inner_folder(folder: Path, archive: Path) -> str:
    """Return advice for an archive whose files lie in one folder."""
    inner = next(folder.glob("*/bin/activate"), None)
    if inner is None or folder == archive:
        return ""
    name = inner.parents[1].name
    return f"{archive} has it in the folder '{name}': pack what is in that folder, by tar -C {name} -czf {archive.name} ."


def _remove_folder(folder: Path, lock: int, owner: int) -> None:
    import shutil

    if os.getpid() == owner:  # not in a forked child
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_abandoned() -> None:
    """Remove what processes that were killed have left."""
    import fcntl
    import shutil
    import tempfile

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
