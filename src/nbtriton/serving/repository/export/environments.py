"""Environments of exported models, packed into the model's directory for the real server to unpack."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from nbtriton.common.errors import UnsupportedError
from nbtriton.common.packages import needed
from nbtriton.common.running import run_step
from nbtriton.model.config import EXECUTION_ENV_PATH, ModelConfig
from nbtriton.runtime.workers.environment import (
    MODEL_DIRECTORY,
    describe,
    environment_path,
    interpreter_of,
)

__all__ = ["is_environment", "write_environment"]

_PACK = "import sys, {package}; {package}.pack(prefix=sys.argv[1], output=sys.argv[2], force=True{more})"


def is_environment(folder: Path) -> bool:
    """Return True for a valid folder of ``EXECUTION_ENV_PATH``."""
    return (folder / "bin" / "activate").is_file()


def write_environment(
    config: ModelConfig,
    source: object,
    folder: Path,
    *,
    python_prefix: str | None,
    on_progress: Callable[[str], None],
) -> list[str]:
    """Pack the environment of a model into its directory, and set it in the configuration.

    Parameters
    ----------
    config : ModelConfig
        Of the exported model; modified.
    source : Path or None
        Source directory of the model.
    folder : Path
        Directory of the exported model.
    python_prefix : str or None
        Prefix of the virtual environment's Python on the server; by default as here.
    on_progress : callable
        Called with a description of the current step.

    Returns
    -------
    list of str
        Notes for the user.

    Raises
    ------
    InternalError
        The environment no longer exists.
    UnsupportedError
        The folder is not a virtual or conda environment, or the package that packs it is missing.
    UnavailableError
        Packing failed, with the last lines of output.
    """
    path = environment_path(config, source if isinstance(source, Path) else None)
    if path is None:
        return []
    if path.is_dir():
        archive = folder / f"{path.name}.tar.gz"
        on_progress(f"packing the environment of model '{config.name}' from {path}")
        _pack(path, archive, python_prefix)
        notes = _notes(config.name, path, archive, python_prefix)
    else:
        archive = folder / path.name
        if not archive.exists():
            shutil.copyfile(path, archive)
        notes = []
    place = f"{MODEL_DIRECTORY}/{archive.relative_to(folder)}"
    config.parameters[EXECUTION_ENV_PATH].string_value = place
    return notes


def _pack(folder: Path, archive: Path, python_prefix: str | None) -> None:
    conda = (folder / "conda-meta").is_dir()
    if not conda and not (folder / "pyvenv.cfg").is_file():
        raise UnsupportedError(
            f"'{folder}' is neither a virtual environment nor one of conda's",
            hint="pack it yourself, and let EXECUTION_ENV_PATH name the archive",
        )
    package = "conda_pack" if conda else "venv_pack"
    with needed("packing an environment", package=package):
        if find_spec(package) is None:
            raise ModuleNotFoundError(name=package)
    more = "" if conda or python_prefix is None else f", python_prefix={python_prefix!r}"
    command = [sys.executable, "-c", _PACK.format(package=package, more=more), str(folder)]
    # The temporary folder is removed even after an error.
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".pack-") as scratch:
        run_step(
            f"environment '{folder}' cannot be packed, {package} says",
            [*command, str(archive)], lambda _: None, {"TMPDIR": scratch},
        )  # fmt: skip


def _notes(model: str, folder: Path, archive: Path, python_prefix: str | None) -> list[str]:
    python = interpreter_of(folder)
    version, numpy = describe(folder, python, {})
    minor = ".".join(version.split(".")[:2])
    notes = [
        (
            f"model '{model}' runs in {archive.name}: Python {version}, NumPy {numpy}. Triton needs a "
            f"triton_python_backend_stub for Python {minor} (that of 24.10's image is for 3.10; "
            "docs/differences.md: environments)"
        )
    ]
    if not (folder / "conda-meta").is_dir():
        base = Path(python_prefix) if python_prefix else python.resolve().parents[1]
        notes.append(
            f"{archive.name} is a virtual environment: its Python is expected in {base} on the server"
            + ("" if python_prefix else " (python_prefix='/usr' for Triton's images)")
        )
    if int(numpy.partition(".")[0]) >= 2:
        notes.append(
            f"{archive.name} has NumPy {numpy}: the stub of Triton 2.51 needs numpy<2, with others "
            "its outputs are empty"
        )
    return notes
