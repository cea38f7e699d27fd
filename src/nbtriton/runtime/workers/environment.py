"""``EXECUTION_ENV_PATH``: a model's own Python and packages.

An archive (conda-pack's or venv-pack's) is unpacked once for a server, and again after a change; a folder is
used in place. ``bin/activate`` gives its variables, as in Triton (PB91).
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import nbtriton
from nbtriton.backends.parameters import text_parameter
from nbtriton.common.checks import absolute
from nbtriton.common.errors import InternalError
from nbtriton.common.scratch import ScratchFolder
from nbtriton.model.config import EXECUTION_ENV_PATH, ModelConfig

if TYPE_CHECKING:
    from nbtriton.runtime.workers.launching import Interpreter

__all__ = ["MODEL_DIRECTORY", "Environment", "Environments", "environment_path"]

_log = logging.getLogger("nbtriton.runtime.workers")

MODEL_DIRECTORY: Final = "$$TRITON_MODEL_DIRECTORY"
_PREFIX = "nbtriton_env_"


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment for workers.

    Attributes
    ----------
    folder : Path
    interpreter : Interpreter
        Its Python, with the variables that activation sets and nbtriton's sources on its path. At its start,
        its libraries come first on ``LD_LIBRARY_PATH``.
    libraries : str
        ``LD_LIBRARY_PATH`` for the model: programs that its code starts use it as without the environment.
    python, numpy : str
        Versions.
    """

    folder: Path
    interpreter: Interpreter
    libraries: str
    python: str
    numpy: str


class Environments:
    """The environments of one server; `close` removes the unpacked ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unpacked: dict[Path, tuple[int, Path]] = {}  # by archive: its last change, its folder
        self._base: ScratchFolder | None = None

    def find(self, config: ModelConfig, directory: Path | None) -> Environment | None:
        """Return the environment that a configuration names; None if it names none.

        Parameters
        ----------
        config : ModelConfig
        directory : Path or None
            The model's own, for ``$$TRITON_MODEL_DIRECTORY``.

        Raises
        ------
        InternalError
            It does not exist or is invalid, with Triton's text where Triton has one.
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
        from nbtriton.runtime.workers.activation import activated, describe, interpreter_of
        from nbtriton.runtime.workers.launching import Interpreter

        python = interpreter_of(folder)  # no script is run of an environment that has none
        variables = activated(folder, activate)
        version, numpy = describe(folder, python, variables)
        interpreter = Interpreter(str(python), (str(sources),), tuple(sorted(variables.items())))
        libraries = variables["LD_LIBRARY_PATH"].partition(":")[2]
        return Environment(folder, interpreter, libraries, version, numpy)

    def close(self) -> None:
        """Remove the unpacked environments; idempotent."""
        with self._lock:
            if self._base is None:
                return
            from nbtriton.runtime.workers.launching import end_idle_servers

            end_idle_servers()  # run in the removed folders
            self._unpacked.clear()
            self._base.close()
            self._base = None

    def _unpack(self, archive: Path) -> Path:
        """Return the folder of an archive, unpacked in its current form."""
        changed = archive.stat().st_mtime_ns
        unpacked = self._unpacked.get(archive)
        if unpacked is not None and unpacked[0] == changed:
            return unpacked[1]
        import shutil
        import tempfile

        from nbtriton.runtime.workers.archive import extract

        _log.info("Extracting Python execution env %s", archive)
        # A new folder: instances may run in the old one.
        folder = Path(tempfile.mkdtemp(dir=self._folder()))
        try:
            extract(archive, folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._unpacked[archive] = changed, folder
        return folder

    def _sources(self) -> Path:
        """Return a folder with nbtriton and none of this process's other packages."""
        folder = self._folder() / "sources"
        if not folder.is_dir():
            folder.mkdir()
            package = Path(nbtriton.__file__).parent
            # The modules of a compiled build, for a Python of the same version.
            for one in (package, *package.parent.glob("*__mypyc.*")):
                (folder / one.name).symlink_to(one)
        return folder

    def _folder(self) -> Path:
        if self._base is None:
            self._base = ScratchFolder(_PREFIX)
        return self._base.path


def environment_path(config: ModelConfig, directory: Path | None) -> Path | None:
    """Return the archive or folder that a configuration names; None if it names none.

    Raises
    ------
    InternalError
        It does not exist, with Triton's text.
    """
    path_text = text_parameter(config, EXECUTION_ENV_PATH)
    if not path_text:
        return None
    path = Path(path_text.replace(MODEL_DIRECTORY, "" if directory is None else str(directory)))
    if path.exists():
        return path.resolve()
    hint = "an archive of conda-pack or venv-pack, or a folder; %triton_env makes one"
    if path_text.startswith(MODEL_DIRECTORY) and directory is None:
        hint = f"a model without a directory has no {MODEL_DIRECTORY}: give the path"
    elif not path.is_absolute():
        hint = f"there is no {absolute(path)}; {MODEL_DIRECTORY}/{path.name} is in the model's directory"
    raise InternalError(f"Failed to get the canonical path for {path}.", hint=hint)


def _inner_folder(folder: Path, archive: Path) -> str:
    """Return advice for an archive whose files are in one inner folder."""
    inner = next(folder.glob("*/bin/activate"), None)
    if inner is None or folder == archive:
        return ""
    name = inner.parents[1].name
    return f"{archive} has it in the folder '{name}': pack what is in that folder, by tar -C {name} -czf {archive.name} ."
