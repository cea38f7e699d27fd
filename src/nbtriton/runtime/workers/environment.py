"""``EXECUTION_ENV_PATH``: a model's own Python and packages.

An archive (conda-pack's or venv-pack's) is unpacked once for a server, and again after a change; a folder is
used in place. ``bin/activate`` gives its variables, as in Triton (PB91).
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nbtriton.common import PACKAGE
from nbtriton.common.checks import absolute
from nbtriton.common.closing import ScratchFolder
from nbtriton.common.errors import InternalError, UnsupportedError
from nbtriton.model.config import EXECUTION_ENV_PATH, ModelConfig
from nbtriton.model.config.parameters import text_parameter

if TYPE_CHECKING:
    import tarfile

    from nbtriton.runtime.workers.launching import Interpreter


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
    """

    folder: Path
    interpreter: Interpreter
    libraries: str


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
        from nbtriton.runtime.workers.launching import Interpreter

        python = interpreter_of(folder)  # no script is run of an environment that has none
        variables = activated(folder, activate)
        interpreter = Interpreter(
            str(python), (str(sources),), tuple(sorted(variables.items())),
            versions=describe(folder, python, variables),
        )  # fmt: skip
        libraries = variables["LD_LIBRARY_PATH"].partition(":")[2]
        return Environment(folder, interpreter, libraries)

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
        import tempfile

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
            # The modules of a compiled build, for a Python of the same version.
            for one in (PACKAGE, *PACKAGE.parent.glob("*__mypyc.*")):
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


def extract(archive: Path, folder: Path) -> None:
    """Unpack an archive into an empty folder, and nothing outside of it.

    Raises
    ------
    InternalError
        Not such a file, an incomplete one, or one that would write elsewhere; with Triton's text.
    """
    import tarfile

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
    """Refuse devices, and files outside of the folder.

    A symbolic link may lead outside, like that of a virtual environment to its Python, but nothing is written
    through it.
    """
    import tarfile

    check = tarfile.tar_filter if member.issym() else tarfile.data_filter
    return check(member, folder)


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
    said = _run([str(python), "-c", _DESCRIBE], _inherited() | variables, folder)
    description = json.loads(said.splitlines()[-1])  # its site may print, too
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
