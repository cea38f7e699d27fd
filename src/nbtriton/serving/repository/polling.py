"""Poll of one model: its files and configuration, or those of a load request (L12), are read, but not loaded.

Every error here is a *poll failure* of Triton's: the reason is logged, and not sent to the client (F7).
"""

from __future__ import annotations

import base64
import contextlib
import logging
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath
from typing import Any

from nbtriton.common.errors import (
    ConfigError,
    InternalError,
    InvalidArgumentError,
    LoadError,
    NotFoundError,
    TritonError,
)
from nbtriton.model.config import ModelConfig, as_config, equal_but_for_instances, is_ensemble
from nbtriton.runtime.engine.core.dispatch import versions_to_keep
from nbtriton.runtime.engine.lifecycle.loading import CODE_TEXTS
from nbtriton.runtime.engine.lifecycle.model_builder import latest_mtime_ns
from nbtriton.runtime.engine.lifecycle.model_lifecycle import UNLOADED
from nbtriton.serving.repository.reader import (
    RepositoryModel,
    check_config,
    is_folder_name,
    parse_config,
    read_model,
)

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
        Newest modification time in the directory. For an override of the configuration, the time of
        the request; for an override of files, 0.
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

        Their files have not changed, and the configurations differ only in version policy and instance
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


def composing_models(config: ModelConfig) -> tuple[str, ...]:
    """Return the composing models of an ensemble, each once."""
    return tuple(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))


def by_dependency(ensembles: Mapping[str, ModelConfig]) -> tuple[list[str], dict[str, ConfigError]]:
    """Order ensembles after their composing ensembles; return errors for ensembles in a cycle."""
    graph = {
        name: {member for member in composing_models(config) if member in ensembles}
        for name, config in ensembles.items()
    }
    cyclic: dict[str, ConfigError] = {}
    while True:
        try:
            return list(TopologicalSorter(graph).static_order()), cyclic
        except CycleError as error:
            cycle: list[str] = error.args[1][:-1]
            for index, name in enumerate(cycle):
                following = cycle[index - 1]
                cyclic[name] = ConfigError(
                    f"circular dependency between ensembles: {name} -> ... -> {following} -> {name}"
                )  # V116
                graph.pop(name)
            graph = {name: members & graph.keys() for name, members in graph.items()}


# Logger of loads and their failures. Silent in a program without logging, as callers also get the
# errors.
LOADS = "nbtriton.serving.repository.loads"
logging.getLogger(LOADS).addHandler(logging.NullHandler())

# Triton's state of a version, and its reason.
VersionState = tuple[str, str]


@dataclass(slots=True)
class ModelRecord:
    """State of one model; dicts are replaced, not changed, as other threads read them."""

    name: str
    explicit: bool = False
    loaded: PolledModel | None = None  # is serving, or was before an unload
    waiting: PolledModel | None = None  # an ensemble that failed and waits for its composing models
    # States of versions that do not serve; READY with a reason for versions left by a failed update.
    states: dict[int, VersionState] = field(default_factory=dict)
    error: TritonError | None = None  # error of the last load
    kept: ModelConfig | None = None  # as given, of the version that served then and still serves
    polled_error: str = ""  # the poll failure that was logged last
    busy: threading.RLock = field(default_factory=threading.RLock)

    def set_unloaded(self, versions: Collection[int]) -> None:
        """Record that versions were unloaded on purpose."""
        self.states = self.states | dict.fromkeys(versions, ("UNAVAILABLE", UNLOADED))

    def version_states(
        self, serving: Mapping[int, VersionState], unloading: Collection[int]
    ) -> dict[int, VersionState]:
        """Return the state of every version, those included that the server serves or unloads."""
        states = {version: state for version, state in self.states.items() if state[0] != "READY"}
        if self.loaded is not None:
            # Unloaded by `Server.unload`, without the control.
            for version in self.loaded.versions:
                states.setdefault(version, ("UNAVAILABLE", UNLOADED))
        for version, (_, reason) in states.items():
            if reason == UNLOADED and version in unloading:
                states[version] = ("UNLOADING", "")
        for version, state in serving.items():
            failed = self.states.get(version, state)  # READY with the reason of a failed update
            states[version] = failed if failed[0] == state[0] == "READY" else state
        return states


def load_reason(name: str, version: int, error: TritonError) -> str:
    """Return the reason of a version that failed, such as ``Internal: no such file``."""
    for state in ("UNAVAILABLE", "READY"):
        prefix = f"load failed for model '{name}': version {version} is at {state} state: "
        if error.message.startswith(prefix):
            return error.message.removeprefix(prefix).removesuffix(";")
    return f"{CODE_TEXTS[error.status]}: {error.message}"


def load_error(name: str, error: TritonError) -> LoadError:
    """Return the error of a model that failed before it had a version."""
    return LoadError(f"load failed for model '{name}': {error.message}\n", hint=error.hint)


def with_hint(error: TritonError) -> str:
    """Return an error's text for the log, with its hint in brackets."""
    return error.message.strip() + f" ({error.hint})" * bool(error.hint)


_FILE = "file:"


@dataclass(frozen=True, slots=True)
class Override:
    """Parameters of a load request.

    Attributes
    ----------
    config : str or None
        A configuration as JSON.
    files : mapping of str to bytes
        All files of the model's directory, by path.
    """

    config: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Override | None:
        """Read a load request's parameters; None if nothing is overridden.

        Contents of files are bytes, or base64 text over HTTP.

        Raises
        ------
        InternalError
            A parameter is unknown to Triton or of the wrong type, with the text of Triton's HTTP
            endpoint.
        """
        given = load_parameters(parameters)
        # Relative to the directory, even with a leading slash.
        files = {
            key.removeprefix(_FILE).lstrip("/"): value
            for key, value in given.items()
            if isinstance(value, bytes)
        }
        config = given.get("config")
        return cls(None if config is None else str(config), files) if given else None

    def parse_config(self) -> ModelConfig:
        """Return the configuration.

        Raises
        ------
        InvalidArgumentError
            It is not a JSON object, or names files outside the model's directory, which only the
            repository's owner may do.
        """
        text = self.config or ""
        try:
            if not text.lstrip().startswith("{"):
                raise ConfigError("it is not a JSON object")
            config = as_config(text)
        except TritonError as error:
            raise InvalidArgumentError(f"Invalid config override: {error.message}") from None
        for field_name, path in _paths_of(config):
            if path and not _stays_inside(path):
                raise InvalidArgumentError(
                    f"Invalid config override: {field_name} '{path}' must stay within model "
                    "directory."
                )
        return config

    def write_files(self, directory: Path) -> None:
        """Write the files into an empty directory.

        Raises
        ------
        InvalidArgumentError
            The configuration is missing, or a file is outside the directory or cannot be written.
        """
        if self.config is None:
            raise InvalidArgumentError(
                "Load parameter 'config' must be specified for model file override"
            )
        for path in self.files:
            if not _stays_inside(path):
                raise InvalidArgumentError(
                    f"Invalid file parameter '{_FILE}{path}' must stay within model directory."
                )
        for path, content in self.files.items():
            target = directory / path
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
            except OSError as error:
                raise InvalidArgumentError(
                    f"Invalid file parameter '{_FILE}{path}': {error.strerror}"
                ) from None


def load_parameters(parameters: Mapping[str, Any]) -> dict[str, str | bytes]:
    """Return the parameters of a load request; contents of files are bytes, or base64 text over HTTP.

    Raises
    ------
    InternalError
        A parameter is unknown to Triton or of the wrong type, with the text of Triton's HTTP endpoint.
    """
    found: dict[str, str | bytes] = {}
    for key, value in parameters.items():
        is_file = key.startswith(_FILE)
        if not isinstance(value, str) and not (is_file and isinstance(value, bytes)):
            raise InternalError("attempt to access JSON non-string as string")
        if not is_file and key != "config":
            raise InternalError(
                "unexpected error on creating Triton parameter",
                hint=f"unrecognized load parameter '{key}'.",
            )
        found[key] = decode_base64(value) if is_file and isinstance(value, str) else value
    return found


def _stays_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and not (".." in parts or PurePosixPath(path).is_absolute() or "\0" in path)


def _paths_of(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Yield the fields of a configuration that name files, with the names."""
    yield "default_model_filename", config.default_model_filename
    for filename in config.cc_model_filenames.values():
        yield "cc_model_filenames", filename
    for output in config.output:
        yield "label_filename", output.label_filename
    for sample in config.model_warmup:
        for tensor in sample.inputs.values():
            yield "input_data_file", tensor.input_data_file
    for state in config.sequence_batching.state:
        for initial in state.initial_state:
            yield "data_file", initial.data_file


def decode_base64(text: str) -> bytes:
    """Decode base64 as libb64 does: skip other characters, drop an incomplete end (KS61)."""
    digits = re.sub(r"[^A-Za-z0-9+/]", "", text)
    digits = digits[: len(digits) - (len(digits) % 4 == 1)]
    return base64.b64decode(digits + "=" * (-len(digits) % 4))
