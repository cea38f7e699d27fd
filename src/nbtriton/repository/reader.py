"""A model repository on disk, read as Triton reads it (config.md §1, scheduling.md §16.1)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nbtriton.config import ModelConfig, normalize, parse_pbtxt
from nbtriton.errors import ConfigError, NotFoundError

__all__ = ["RepositoryModel", "read_config", "read_repository"]

# A leading zero or anything but a number is no version (L1).
_VERSION = re.compile(r"[1-9][0-9]*|0")


@dataclass(frozen=True, slots=True)
class RepositoryModel:
    """One model's directory: its versions, lowest first, and its configuration file."""

    name: str
    directory: Path
    versions: tuple[int, ...]
    config_file: Path | None

    def version_directory(self, version: int) -> Path:
        """Return where a version's files are."""
        return self.directory / str(version)


def read_repository(directory: str | Path, *, config_name: str = "") -> list[RepositoryModel]:
    """Return the models of a repository by name; their files are not opened.

    Parameters
    ----------
    directory : path
    config_name : str
        ``--model-config-name``: ``configs/<name>.pbtxt`` is preferred to ``config.pbtxt`` (F2).

    Raises
    ------
    NotFoundError
        There is no such directory.
    """
    root = Path(directory)
    if not root.is_dir():
        raise NotFoundError(f"failed to open model repository '{root}': no such directory")
    return [
        RepositoryModel(
            path.name,
            path,
            tuple(
                sorted(
                    int(child.name)
                    for child in path.iterdir()
                    if child.is_dir() and _VERSION.fullmatch(child.name)
                )
            ),
            _config_file(path, config_name),
        )
        for path in sorted(root.iterdir())
        if path.is_dir() and not path.name.startswith(".")
    ]


def read_config(model: RepositoryModel, *, auto_complete: bool = True) -> ModelConfig:
    """Read and normalise a model's configuration.

    Raises
    ------
    ConfigError
        It cannot be read or parsed, no backend can be told, or its name is not the directory's.
    """
    if model.config_file is None:
        if not auto_complete:
            path = model.directory / "config.pbtxt"
            raise ConfigError(
                f"failed to open text file for read {path}: No such file or directory",
                hint="auto-complete is off, so every model needs a configuration",
            )  # F3
        config = ModelConfig()
    else:
        config = parse_pbtxt(model.config_file.read_bytes(), source=str(model.config_file))
    first = min(map(str, model.versions), default=None)
    filenames: list[str] = []
    if first is not None:
        filenames = [
            f"{path.name}/" if path.is_dir() else path.name
            for path in (model.directory / first).iterdir()
        ]
    config = normalize(config, name=model.name, filenames=filenames)
    if config.name != model.name:
        raise ConfigError(
            f"unexpected directory name '{model.name}' for model '{config.name}', "
            "directory name must equal model name",
            field="name",
        )  # V-50
    return config


def _config_file(directory: Path, config_name: str) -> Path | None:
    candidates = [directory / "config.pbtxt"]
    if config_name:
        candidates.insert(0, directory / "configs" / f"{config_name}.pbtxt")
    return next((path for path in candidates if path.is_file()), None)
