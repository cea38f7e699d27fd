"""Environments for models, made by uv or pip (docs/environments.md)."""

# Annotations are evaluated: the table of options is read from them.
import argparse
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2s
from pathlib import Path
from typing import Annotated, TypedDict, Unpack

from nbtriton.common.errors import InvalidArgumentError, UnavailableError
from nbtriton.common.running import Progress, run_step
from nbtriton.drawing.table import Column, TableView
from nbtriton.options.table import Option, given_options, read_settings, signed, table_of
from nbtriton.runtime.workers.resources import check_fork

__all__ = ["VirtualEnvironment", "environment"]

# A worker needs it for a model's tensors.
_NUMPY = "numpy"
_READY = "ready.json"
_VERSION = "import sys; print('%d.%d.%d' % sys.version_info[:3], sys.base_prefix)"
_PACKAGES = (
    "import importlib.metadata as m, json; "
    "print(json.dumps(sorted({d.metadata['Name']: d.version for d in m.distributions()}.items())))"
)


@dataclass(frozen=True, slots=True, repr=False)
class VirtualEnvironment(TableView):
    """An environment for models.

    Attributes
    ----------
    name : str
    folder : Path
        For ``EXECUTION_ENV_PATH``.
    python : str
        The version of its Python.
    packages : tuple of (str, str)
        Installed packages, with versions.
    """

    name: str
    folder: Path
    python: str
    packages: tuple[tuple[str, str], ...]

    def _table(self) -> tuple[Sequence[str | Column], Sequence[Sequence[object]], str]:
        caption = f"{self.name}: Python {self.python} in {self.folder}"
        return ("package", "version"), self.packages, caption


class EnvironmentSettings(TypedDict, total=False):
    """What an environment is made of, beside its packages."""

    requirements: Annotated["str | Path | None", Option("-r --requirements", "a requirements file", "FILE")]  # fmt: skip
    python: Annotated["str | Path | None", Option(
        "--python", "its Python, a version such as 3.12 or an interpreter; by default that of this process", "VERSION|PATH")]  # fmt: skip
    anew: Annotated[bool, Option(
        "--anew", "make it again, with the versions of today", default=False, action="store_true")]  # fmt: skip


ENVIRONMENT = table_of(EnvironmentSettings)


def environments_directory() -> Path:
    """Return ``$NBTRITON_ENVIRONMENTS``, or a folder in the user's cache."""
    folder = os.environ.get("NBTRITON_ENVIRONMENTS")
    if folder:
        return Path(folder)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "nbtriton" / "environments"


@signed(ENVIRONMENT)
def environment(
    name: str,
    packages: Sequence[str] = (),
    *,
    on_progress: Progress | None = None,
    **options: Unpack[EnvironmentSettings],
) -> VirtualEnvironment:
    """Return an environment with these packages, made on the first request for them.

    Installed by uv if that is on the PATH, else by pip. NumPy, which holds a model's tensors, is always
    installed.

    Parameters
    ----------
    name : str
        For messages and for ``--env``.
    packages : sequence of str
        As for pip: ``"scikit-learn<1.6"``, the path of a wheel, a URL.
    on_progress : callable, optional
        Called with each line of uv's or pip's output.
    **options
        See the table.

    Raises
    ------
    InvalidArgumentError
        No packages are named, or the file does not exist.
    UnavailableError
        The Python does not exist, or the installation failed, with its last lines.
    UnsupportedError
        On Windows: an environment needs a worker process.
    """
    check_fork("an environment for a model's own process", hint="")
    report = on_progress or (lambda _: None)
    given = read_settings("an environment", ENVIRONMENT, options)
    requirement_lines = _requirements(name, packages, given["requirements"])
    uv = shutil.which("uv")
    interpreter = _interpreter(given["python"], uv)
    folder = environments_directory() / _digest(interpreter, requirement_lines)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        _wait_for(lock.fileno(), name, report)
        ready = folder / _READY
        if given["anew"] or not ready.is_file():
            _make(name, folder, interpreter, requirement_lines, uv, report)
        described = json.loads(ready.read_text(encoding="utf-8"))
    installed = tuple((one, version) for one, version in described["packages"])
    return VirtualEnvironment(name, folder, described["python"], installed)


def _requirements(
    name: str, packages: Sequence[str], requirements: str | Path | None
) -> tuple[str, ...]:
    """Return requirement lines: those of the file, then the named packages."""
    lines: list[str] = []
    if requirements is not None:
        path = Path(requirements).expanduser()
        if not path.is_file():
            raise InvalidArgumentError(
                f"environment '{name}': there is no requirements file '{path}'"
            )
        # Paths in it are relative to it.
        lines.append(f"-r {path.resolve()}")
    for package in filter(None, map(str.strip, packages)):
        path = Path(package).expanduser()
        lines.append(
            str(path.resolve())
            if path.suffix == ".whl" or (os.sep in package and path.exists())
            else package
        )
    if not lines:
        raise InvalidArgumentError(
            f"environment '{name}' has no packages",
            hint="name them, such as scikit-learn<1.6, or give --requirements FILE",
        )
    return tuple(lines)


def _digest(interpreter: str, requirements: Sequence[str]) -> str:
    """Return the name of an environment's folder: by its Python, and the content of its requirements."""
    content = blake2s(_described(interpreter).encode(), digest_size=8)
    for text in requirements:
        path = Path(text.removeprefix("-r "))
        content.update(b"\0" + (path.read_bytes() if path.is_file() else text.encode()))
    return content.hexdigest()


def _described(interpreter: str) -> str:
    """Return version and path of an interpreter; a version for uv describes itself."""
    if not Path(interpreter).is_absolute():
        return interpreter
    try:
        return _last_line(f"'{interpreter}' does not start", [interpreter, "-c", _VERSION])
    except OSError as error:
        raise UnavailableError(f"'{interpreter}' does not start: {error.strerror}") from None


def _last_line(what: str, command: Sequence[str]) -> str:
    """Run a short command; return its answer, behind what the site of its Python prints."""
    return run_step(what, command, lambda _: None).rpartition("\n")[2]


def _interpreter(python: str | Path | None, uv: str | None) -> str:
    """Return the absolute path of an interpreter, or a version that uv has to find."""
    if python is None:
        return sys.executable
    text = str(python)
    if os.sep in text:
        return str(Path(text).expanduser().absolute())
    version = text.removeprefix("python")
    if sys.version_info[:2] == tuple(int(part) for part in version.split(".") if part.isdigit()):
        return sys.executable
    executable = shutil.which(f"python{version}")
    if executable is not None:
        # A shim of pyenv is on the PATH for versions that it does not run.
        with contextlib.suppress(UnavailableError):
            _described(executable)
            return executable
    if uv is not None:
        return version
    raise UnavailableError(
        f"there is no Python {version} on the PATH",
        hint="give the path of its interpreter; with uv (pip install uv) it is downloaded",
    )


def _make(
    name: str,
    folder: Path,
    interpreter: str,
    requirements: Sequence[str],
    uv: str | None,
    report: Progress,
) -> None:
    """Make the folder; nothing is left of a failed one."""
    shutil.rmtree(folder, ignore_errors=True)
    python = str(folder / "bin" / "python")
    file = folder / "requirements.txt"
    if uv is not None:
        make = [uv, "venv", "--no-project", "--python", interpreter, str(folder)]
        install = [uv, "pip", "install", "--python", python, "-r", str(file)]
    else:
        make = [interpreter, "-m", "venv", "--without-pip", str(folder)]
        install = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input",
                   "--python", python, "install", "--progress-bar", "off", "-r", str(file)]  # fmt: skip
    makes, installs = ("venv", "pip") if uv is None else ("uv", "uv")
    try:
        report(f"making an environment with {'venv and pip' if uv is None else 'uv'}")
        run_step(f"environment '{name}' cannot be made, {makes} says", make, report)
        file.write_text("\n".join((*requirements, _NUMPY, "")), encoding="utf-8")
        run_step(f"environment '{name}' cannot be made, {installs} says", install, report)
        output = {}
        for key, script in (("python", _VERSION), ("packages", _PACKAGES)):
            what = f"environment '{name}' does not start"
            output[key] = _last_line(what, [python, "-c", script])
        ready = {"python": output["python"].split()[0], "packages": json.loads(output["packages"])}
        (folder / _READY).write_text(json.dumps(ready), encoding="utf-8")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _wait_for(lock: int, name: str, report: Progress) -> None:
    """Wait until no other process makes the same environment."""
    import fcntl  # POSIX only, as are environments

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        report(f"another process makes '{name}': waiting for it")
        fcntl.flock(lock, fcntl.LOCK_EX)


def add_env(env: argparse.ArgumentParser) -> None:
    """Make an environment for models."""
    env.description = (
        "Make an environment with these packages and NumPy, by uv if it is on the PATH, else by pip, and "
        "print its folder, which is a value of EXECUTION_ENV_PATH. What was made once is kept, by its content."
    )
    env.add_argument(
        "packages", metavar="PACKAGE", nargs="*", help="as for pip, such as 'scikit-learn<1.6'"
    )
    for option in ENVIRONMENT.values():
        option.add(env.add_argument)
    env.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    report, given = partial(print, file=sys.stderr), given_options(arguments, ENVIRONMENT)
    made = environment("environment", arguments.packages, on_progress=report, **given)
    print(made.folder)
    return 0
