"""A poll of one model: its files and its configuration as they are now, read but not loaded.

Every error here is a *poll failure* in Triton's words: the client gets no reason, which is only
logged (F7).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nbtriton.config import (
    ModelConfig,
    equal_but_for_instances,
    is_ensemble,
)
from nbtriton.engine.core.registry import versions_to_keep
from nbtriton.engine.lifecycle.mtimes import latest_mtime_ns
from nbtriton.errors import ConfigError, NotFoundError
from nbtriton.repository.dependencies import composing_models
from nbtriton.repository.override import Override
from nbtriton.repository.reader import (
    RepositoryModel,
    check_config,
    parse_config,
    read_model,
)

__all__ = ["DUPLICATE", "PolledModel", "directories_of", "poll_model"]

DUPLICATE = "model appears in two or more repositories"


@dataclass(frozen=True, slots=True)
class PolledModel:
    """One model of a repository.

    Attributes
    ----------
    given, config : ModelConfig
        As written, and normalised.
    versions : tuple of int
        Those of the version policy; empty is an error of the load, not of the poll.
    mtime_ns : int
        The newest modification time below the directory, or the time of a request that brought a
        configuration; 0 where it brought files.
    is_override : bool
        Its directory came with a request.
    version_mtimes_ns : mapping of int to int
        The newest modification time of each version: of its directory, and of everything beside
        the versions but the configuration.
    """

    name: str
    directory: Path
    given: ModelConfig
    config: ModelConfig
    versions: tuple[int, ...]
    mtime_ns: int
    is_override: bool = False
    version_mtimes_ns: Mapping[int, int] = field(default_factory=dict)

    @property
    def is_ensemble(self) -> bool:
        """True if it composes other models."""
        return is_ensemble(self.config)

    @property
    def members(self) -> tuple[str, ...]:
        """The models that an ensemble composes."""
        return composing_models(self.config)

    def unchanged_since(self, before: PolledModel) -> set[int]:
        """Return the versions that need not be loaded again (L16).

        Their files are no newer, and the configuration differs in nothing but its version policy
        and its instance groups.
        """
        if self.is_ensemble or self.directory != before.directory:
            return set()
        if not equal_but_for_instances(self.config, before.config):
            return set()
        earlier = before.version_mtimes_ns
        return {v for v, mtime in self.version_mtimes_ns.items() if mtime <= earlier.get(v, -1)}

    def source(self, version: int) -> Path | None:
        """Return what a backend loads: a file, or the directory of the version."""
        if self.is_ensemble:
            return None
        directory = self.directory / str(version)
        filename = str(self.config.default_model_filename)
        return directory / filename if filename else directory


def directories_of(roots: Iterable[Path]) -> dict[str, list[Path]]:
    """Return the models' directories by name; more than one if two repositories have the model.

    Raises
    ------
    NotFoundError
        A repository does not exist.
    """
    directories: dict[str, list[Path]] = {}
    for root in roots:
        try:
            children = sorted(root.iterdir())
        except OSError as error:
            raise NotFoundError(
                f"failed to open model repository '{root}': {error.strerror}"
            ) from None
        for path in children:
            if path.is_dir() and not path.name.startswith("."):
                directories.setdefault(path.name, []).append(path)
    return directories


def poll_model(
    roots: Iterable[Path],
    name: str,
    *,
    override: Override | None = None,
    config_name: str = "",
    auto_complete: bool = True,
) -> PolledModel:
    """Read one model.

    Parameters
    ----------
    roots : iterable of Path
        The repositories.
    name : str
    override : Override, optional
        Its files are written into a directory of their own, which the caller removes.
    config_name : str
        ``--model-config-name``.
    auto_complete : bool
        False is ``--disable-auto-complete-config``.

    Raises
    ------
    TritonError
        The reason of the poll failure, as Triton logs it.
    """
    is_override = override is not None and bool(override.files)
    if override is not None and is_override:
        directory = override.write_files()
    else:
        directory = _find(roots, name)
    mtime_ns = latest_mtime_ns(directory)
    model = read_model(directory, name, config_name=config_name)
    if override is not None and override.config is not None:
        # Files that came with a request are older than any others: the next plain load undoes them.
        mtime_ns = 0 if is_override else time.time_ns()
        given = override.parse_config()
    else:
        given = parse_config(model, auto_complete=auto_complete)
    config = check_config(model, given, auto_complete=auto_complete)
    kept = versions_to_keep(config, model.versions)
    shared = _newest_beside(model)
    return PolledModel(
        name, directory, given, config, tuple(sorted(kept)), mtime_ns,
        is_override=is_override,
        version_mtimes_ns={v: max(shared, latest_mtime_ns(model.version_directory(v))) for v in kept},
    )  # fmt: skip


def _newest_beside(model: RepositoryModel) -> int:
    """Return the newest modification time of files of all versions, the configuration aside."""
    config = model.config_file
    return max(
        (
            latest_mtime_ns(path)
            for path in model.directory.iterdir()
            if not path.name.isdigit() and not (config is not None and config.is_relative_to(path))
        ),
        default=0,
    )


def _find(roots: Iterable[Path], name: str) -> Path:
    # A name with a separator would be a path, also out of the repository.
    proper = name not in ("", ".", "..") and not re.search(r"[/\\\0]", name)
    found = [root / name for root in roots if proper and (root / name).is_dir()]
    if len(found) > 1:
        raise ConfigError(DUPLICATE, hint=", ".join(map(str, found)))
    if not found:
        raise NotFoundError(
            f"failed to poll model '{name}': model not found in any model repository."
        )
    return found[0]
