"""``runtime``: the backend library named in a configuration, looked up as in Triton."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from nbtriton.backends.base import BACKEND_DIRECTORY
from nbtriton.common.errors import ConfigError, NotFoundError

if TYPE_CHECKING:
    from nbtriton.backends.base import Backend
    from nbtriton.backends.registry import BackendSettings
    from nbtriton.model.config import ModelConfig

__all__ = ["check_runtime"]

# Triton's default of --backend-directory.
_BACKENDS = "/opt/tritonserver/backends"
_IN_PYTHON = "model.py"


def check_runtime(
    config: ModelConfig, backend: type[Backend], source: object, settings: BackendSettings
) -> None:
    """Check that the library named in a configuration exists, if it names one.

    Triton looks for it in the version's directory, the model's, and the backend's.

    Raises
    ------
    ConfigError
        It does not exist, with Triton's text.
    NotFoundError
        It is the model's own, which cannot be loaded here.
    """
    name = str(config.runtime)
    if not name:
        return
    home = Path(settings.get("", {}).get(BACKEND_DIRECTORY, _BACKENDS), backend.name)
    allowed = backend.runtimes()
    hint = "remove runtime, or name " + " or ".join(allowed)
    if name == _IN_PYTHON and name not in allowed:
        raise ConfigError(
            f"unable to find Python backend based backend library '{name}' for model "
            f"'{config.name}', searched: '{home / name}'",
            field="runtime",
            hint=hint,
        )
    if name == _IN_PYTHON:
        return
    searched = _directories(source)
    for folder in searched:
        _refuse_own(f"{folder}/{name}", folder, name, str(config.name), hint)
    path = os.path.normpath(f"{home}/{name}")
    if not any(path == str(home / library) for library in allowed):
        places = "".join(f"'{folder}' " for folder in (*searched, home))
        raise ConfigError(
            f"unable to find backend library '{name}' for model '{config.name}', searched: {places}",
            field="runtime",
            hint=hint,
        )


def _directories(source: object) -> tuple[Path, ...]:
    if not isinstance(source, Path):
        return ()
    version = source if source.is_dir() else source.parent
    return (version, version.parent) if version.name.isdigit() else (version,)


def _refuse_own(path: str, folder: Path, name: str, model: str, hint: str) -> None:
    """Refuse a library in the version's or the model's directory."""
    if not Path(path).exists():
        return
    if not os.path.realpath(path).startswith(os.path.realpath(folder)):
        raise ConfigError(
            f"backend library name '{name}' escapes backend directory '{folder}', for model "
            f"'{model}', check model config runtime field",
            field="runtime",
            hint=hint,
        )
    reason = "C++ libraries cannot be loaded here"
    if Path(path).is_dir():
        reason = "cannot read file data: Is a directory"
    raise NotFoundError(f"unable to load shared library: {path}: {reason}", hint=hint)
