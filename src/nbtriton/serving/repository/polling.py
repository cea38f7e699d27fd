"""Poll of one model: its files and configuration are read, but not loaded.

Every error here is a *poll failure* of Triton's: the reason is logged, and not sent to the client (F7).
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nbtriton.common.errors import ConfigError, NotFoundError
from nbtriton.model.config import (
    ModelConfig,
    equal_but_for_instances,
    is_ensemble,
)
from nbtriton.runtime.engine.core.registry import versions_to_keep
from nbtriton.runtime.engine.lifecycle.mtimes import latest_mtime_ns
from nbtriton.serving.repository.dependencies import composing_models
from nbtriton.serving.repository.override import Override
from nbtriton.serving.repository.reader import (
    RepositoryModel,
    check_config,
    is_folder_name,
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
        Versions by the version policy; none is an error of the load, not of the poll.
    mtime_ns : int
        Newest modification time in the directory; the time of the request for an override of the
        configuration; 0 for an override of files.
    is_override : bool
        Whether the directory is an override.
    version_mtimes_ns : mapping of int to int
        Newest modification time of each version: of its directory and of all files beside the
        versions except the configuration.
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
        """True for an ensemble."""
        return is_ensemble(self.config)

    @property
    def members(self) -> tuple[str, ...]:
        """Composing models of an ensemble."""
        return composing_models(self.config)

    def unchanged_since(self, before: PolledModel) -> set[int]:
        """Return the versions that need not be loaded again (L16).

        Their files are no newer, and the configurations differ only in version policy and instance
        groups.
        """
        if self.is_ensemble or self.directory != before.directory:
            return set()
        if not equal_but_for_instances(self.config, before.config):
            return set()
        earlier = before.version_mtimes_ns
        return {v for v, mtime in self.version_mtimes_ns.items() if mtime <= earlier.get(v, -1)}

    def source(self, version: int) -> Path | None:
        """Return the path that a backend loads: a file, or the directory of the version."""
        if self.is_ensemble:
            return None
        directory = self.directory / str(version)
        filename = str(self.config.default_model_filename)
        return directory / filename if filename else directory


def directories_of(roots: Iterable[Path]) -> dict[str, list[Path]]:
    """Return the models' directories by name; several if several repositories have the model.

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
    scratch: Callable[[], Path],
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
        Its files are written into a new directory.
    scratch : callable
        Returns the folder for such directories.
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
    with contextlib.ExitStack() as on_failure:
        if override is not None and is_override:
            directory = Path(tempfile.mkdtemp(dir=scratch()))
            on_failure.callback(shutil.rmtree, directory, ignore_errors=True)
            override.write_files(directory)
        else:
            directory = _find(roots, name)
        mtime_ns = latest_mtime_ns(directory)
        model = read_model(directory, name, config_name=config_name)
        if override is not None and override.config is not None:
            # An override of files is older than any other files: the next load without one undoes it.
            mtime_ns = 0 if is_override else time.time_ns()
            given = override.parse_config()
        else:
            given = parse_config(model, auto_complete=auto_complete)
        config = check_config(model, given, auto_complete=auto_complete)
        selected = versions_to_keep(config, model.versions)
        shared = _newest_beside(model)
        on_failure.pop_all()
    return PolledModel(
        name, directory, given, config, tuple(sorted(selected)), mtime_ns,
        is_override=is_override,
        version_mtimes_ns={v: max(shared, latest_mtime_ns(model.version_directory(v))) for v in selected},
    )  # fmt: skip


def _newest_beside(model: RepositoryModel) -> int:
    """Return the newest modification time of files beside the versions, except the configuration."""
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
    folder = is_folder_name(name)
    places = [root / name for root in roots if folder and (root / name).is_dir()]
    if len(places) > 1:
        raise ConfigError(DUPLICATE, hint=", ".join(map(str, places)))
    if not places:
        raise NotFoundError(
            f"failed to poll model '{name}': model not found in any model repository."
        )
    return places[0]
