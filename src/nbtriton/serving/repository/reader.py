"""Reader of a model repository's directories, as Triton reads them (F1 to F6, L1 to L3), and its repository agents.

An agent checks a model's directory before the model is loaded from it. The one that Triton comes with checks files
against their checksums (its checksum_repository_agent).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from nbtriton.common.errors import (
    ConfigError,
    InvalidArgumentError,
    UnsupportedError,
    nearest,
)
from nbtriton.model.config import ModelConfig, normalize, parse_pbtxt, validate, validate_io

_KNOWN = ("checksum",)


def run_agents(config: ModelConfig, directory: Path) -> None:
    """Run the agents that a configuration names on the model's directory.

    Parameters
    ----------
    config : ModelConfig
        As written.
    directory : Path
        The model's own.

    Raises
    ------
    InvalidArgumentError
        No such agent exists, or a file does not match its checksum, with Triton's text.
    UnsupportedError
        A checksum that Triton's agent does not know.
    """
    for agent in config.model_repository_agents.agents:
        if agent.name not in _KNOWN:
            raise InvalidArgumentError(
                f"unable to find 'libtritonrepoagent_{agent.name}.so' for repo agent "
                f"'{agent.name}', searched: /opt/tritonserver/repoagents",
                hint=nearest(agent.name, _KNOWN),
            )
        for key, expected in sorted(agent.parameters.items()):
            _check(directory, key, expected)


def _check(directory: Path, key: str, expected: str) -> None:
    algorithm, colon, file = key.partition(":")
    if not colon:
        raise InvalidArgumentError(
            f"failed to parse key: {key}", hint='write key: "MD5:<file of the model\'s directory>"'
        )
    if algorithm.lower() != "md5":
        raise UnsupportedError(f"Unsupported checksum algorithm: {algorithm}", hint="MD5 is known")
    try:
        # Joined as text: a leading slash does not leave the directory.
        content = Path(f"{directory}/{file}").read_bytes()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise InvalidArgumentError(f"failed to open text file for read {file}: {reason}") from None
    from hashlib import md5  # loads OpenSSL

    found = md5(content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise InvalidArgumentError(
            f"Mismatched MD5 hash for file {file}, expect: {expected}, got: {found}"
        )


# A name with a leading zero, or not a number, is not a version (L1).
_VERSION = re.compile(r"[1-9][0-9]*|0")
# Other folders that Triton allows beside the versions.
_OTHER_FOLDERS = ("configs", "initial_state", "warmup")
# Of Linux's file systems, in bytes.
_NAME_MAX = 255


def is_folder_name(name: str) -> bool:
    """Return whether a folder of this name would be inside the repository.

    >>> [is_folder_name(name) for name in ("my model", "..", "a/b", "")]
    [True, False, False, False]
    """
    # A name with a separator would be a path, possibly outside the repository.
    proper = name not in ("", ".", "..") and not re.search(r"[/\\\0]", name)
    return proper and len(name.encode(errors="surrogatepass")) <= _NAME_MAX


@dataclass(frozen=True, slots=True)
class RepositoryModel:
    """One model's directory: versions in ascending order, and the configuration file."""

    name: str
    directory: Path
    versions: tuple[int, ...]
    config_file: Path | None

    def version_directory(self, version: int) -> Path:
        """Return the directory of a version."""
        return self.directory / str(version)


def parse_config(model: RepositoryModel, *, auto_complete: bool = True) -> ModelConfig:
    """Return the configuration in a model's file; empty without a file.

    Raises
    ------
    ConfigError
        The file cannot be parsed, or does not exist and auto-completion is off.
    """
    if model.config_file is not None:
        return parse_pbtxt(model.config_file.read_bytes(), source=str(model.config_file))
    if not auto_complete:
        path = model.directory / "config.pbtxt"
        raise ConfigError(
            f"failed to open text file for read {path}: No such file or directory",
            hint="auto-complete is off, so every model needs a configuration",
        )  # F3
    return ModelConfig()


def check_config(
    model: RepositoryModel, config: ModelConfig, *, auto_complete: bool = True
) -> ModelConfig:
    """Normalise a configuration for this directory, and check it in Triton's order (F7).

    Raises
    ------
    ConfigError
        The backend is unknown, the name differs from the directory's, or a rule of class P is
        broken; without auto-completion also class I.
    TritonError
        A repository agent refused the directory.
    """
    run_agents(config, model.directory)
    first = min(map(str, model.versions), default=None)
    filenames: list[str] = []
    if first is not None:
        filenames = [
            f"{path.name}/" if path.is_dir() else path.name
            for path in model.version_directory(int(first)).iterdir()
        ]
    config = normalize(config, name=model.name, filenames=filenames)
    validate(config)
    if not auto_complete:
        validate_io(config)
    if config.name != model.name:
        raise ConfigError(
            f"unexpected directory name '{model.name}' for model '{config.name}', "
            "directory name must equal model name",
            field="name",
        )  # V50
    return config


def read_model(directory: Path, name: str, *, config_name: str = "") -> RepositoryModel:
    """Return one model's directory, without opening its files.

    Parameters
    ----------
    directory : Path
        The model's directory.
    name : str
        Name of the model; the directory's name, except for an override.
    config_name : str
        ``--model-config-name``: ``configs/<name>.pbtxt`` is preferred to ``config.pbtxt`` (F2).
    """
    versions = sorted(
        int(child.name)
        for child in directory.iterdir()
        if child.is_dir() and _VERSION.fullmatch(child.name)
    )
    return RepositoryModel(name, directory, tuple(versions), _config_file(directory, config_name))


def _config_file(directory: Path, config_name: str) -> Path | None:
    candidates = [directory / "config.pbtxt"]
    if config_name:
        candidates.insert(0, directory / "configs" / f"{config_name}.pbtxt")
    return next((path for path in candidates if path.is_file()), None)


def directories_without_version(directory: Path) -> list[tuple[str, str]]:
    """Return the directories of a model that are not versions, each with Triton's reason."""
    return [
        (
            child.name,
            "contains leading zeros in its directory name"
            if child.name.startswith("0")
            else "fails to convert to integral number",
        )
        for child in sorted(directory.iterdir())
        if child.is_dir()
        and child.name not in _OTHER_FOLDERS
        and not _VERSION.fullmatch(child.name)
    ]
