"""``EXECUTION_ENV_PATH``: the environment of its own that a model asks for, checked as in Triton."""

from __future__ import annotations

import tarfile
from pathlib import Path

from nbtriton.backends.parameters import text_parameter
from nbtriton.config import ModelConfig
from nbtriton.errors import InternalError

__all__ = ["ENVIRONMENT", "check_environment"]

ENVIRONMENT = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"


def check_environment(config: ModelConfig, directory: Path | None) -> None:
    """Check that the archive or the folder of an environment is one.

    Parameters
    ----------
    config : ModelConfig
    directory : Path or None
        The model's own, for ``$$TRITON_MODEL_DIRECTORY``.

    Raises
    ------
    InternalError
        It does not exist, with Triton's text.
    """
    given = text_parameter(config, ENVIRONMENT)
    if not given:
        return
    path = Path(given.replace(_MODEL_DIRECTORY, "" if directory is None else str(directory)))
    if not path.exists():
        raise InternalError(
            f"Failed to get the canonical path for {path}.",
            hint=f"remove the parameter {ENVIRONMENT}: the model runs in this interpreter here, "
            "with its packages",
        )
    path = path.resolve()
    if path.is_dir():
        activate = path / "bin" / "activate"
        if not activate.is_file():
            raise InternalError(
                f"Path {activate} does not exist. The Python environment should contain an "
                "'activate' script."
            )
    elif not _is_archive(path):
        raise InternalError(
            "archive_read_open_filename() failed.",
            hint=f"{path} is no tar file, as conda-pack makes them",
        )


def _is_archive(path: Path) -> bool:
    try:
        return tarfile.is_tarfile(path)
    except OSError:
        return False
