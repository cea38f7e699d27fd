"""What a repository has of one model now: files and configuration read, nothing loaded.

Everything that fails here is a *poll failure* in Triton's words: the client is told only that, the
log has the reason (F7).
"""

from __future__ import annotations

import base64
import binascii
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from nbtriton.config import (
    ModelConfig,
    as_config,
    equal_but_for_instances,
    is_ensemble,
)
from nbtriton.engine.core.registry import versions_to_keep
from nbtriton.engine.lifecycle.modified import newest
from nbtriton.errors import (
    ConfigError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    TritonError,
)
from nbtriton.repository.reader import (
    RepositoryModel,
    check_config,
    parse_config,
    read_model,
)

__all__ = ["DUPLICATE", "Override", "Polled", "directories_of", "poll_model"]

DUPLICATE = "model appears in two or more repositories"

_FILE = "file:"


@dataclass(frozen=True, slots=True)
class Override:
    """What a load request brings in place of the repository's files (L12).

    Attributes
    ----------
    config : str or None
        A configuration as JSON.
    files : mapping of str to bytes
        The whole of the model's directory, by path.
    """

    config: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Override | None:
        """Read a load request's parameters; None if nothing is overridden.

        Contents of files are bytes, or base64 text as HTTP brings it.

        Raises
        ------
        InternalError
            A parameter that Triton does not know, or of another type, with the HTTP front end's
            text.
        """
        files: dict[str, bytes] = {}
        config = None
        for key, value in parameters.items():
            if key == "config":
                if not isinstance(value, str):
                    raise InternalError("attempt to access JSON non-string as string")
                config = value
            elif key.startswith(_FILE):
                if not isinstance(value, str | bytes):
                    raise InternalError("attempt to access JSON non-string as string")
                # Joined to the directory, also where it begins with a slash.
                files[key.removeprefix(_FILE).lstrip("/")] = _decoded(value)
            else:
                raise InternalError(
                    "unexpected error on creating Triton parameter",
                    hint=f"unrecognized load parameter '{key}'.",
                )
        return cls(config, files) if parameters else None


@dataclass(frozen=True, slots=True)
class Polled:
    """One model as the repository has it.

    Attributes
    ----------
    given, config : ModelConfig
        As written, and normalised.
    versions : tuple of int
        Those that the version policy wants; empty is an error of the load, not of the poll.
    stamp_ns : int
        The newest modification time below the directory, or when a configuration came with a request;
        0 where files came with it.
    is_override : bool
        Its directory came with a request.
    version_stamps_ns : mapping of int to int
        The newest modification time of what each version is made of: its directory, and what lies
        beside the versions but for the configuration.
    """

    name: str
    directory: Path
    given: ModelConfig
    config: ModelConfig
    versions: tuple[int, ...]
    stamp_ns: int
    is_override: bool = False
    version_stamps_ns: Mapping[int, int] = field(default_factory=dict)

    @property
    def members(self) -> tuple[str, ...]:
        """The models that an ensemble composes."""
        return tuple(dict.fromkeys(s.model_name for s in self.config.ensemble_scheduling.step))

    def unchanged_since(self, before: Polled) -> set[int]:
        """Return the versions that need not be loaded again (L16).

        Their files are as old as they were, and the configuration differs in nothing but its
        version policy and its instance groups.
        """
        if is_ensemble(self.config) or self.directory != before.directory:
            return set()
        if not equal_but_for_instances(self.config, before.config):
            return set()
        stamps = before.version_stamps_ns
        return {v for v, stamp in self.version_stamps_ns.items() if stamp <= stamps.get(v, -1)}

    def source(self, version: int) -> Path | None:
        """Return what a backend gets as the model: a file, or the directory of the version."""
        if is_ensemble(self.config):
            return None
        directory = self.directory / str(version)
        filename = str(self.config.default_model_filename)
        return directory / filename if filename else directory


def directories_of(roots: Iterable[Path]) -> dict[str, list[Path]]:
    """Return the models' directories by name; more than one if two repositories have the model.

    Raises
    ------
    NotFoundError
        A repository is not there.
    """
    found: dict[str, list[Path]] = {}
    for root in roots:
        try:
            children = sorted(root.iterdir())
        except OSError as error:
            raise NotFoundError(
                f"failed to open model repository '{root}': {error.strerror}"
            ) from None
        for path in children:
            if path.is_dir() and not path.name.startswith("."):
                found.setdefault(path.name, []).append(path)
    return found


def poll_model(
    roots: Iterable[Path],
    name: str,
    *,
    override: Override | None = None,
    config_name: str = "",
    auto_complete: bool = True,
) -> Polled:
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
        What Triton would log as the reason of the poll failure.
    """
    if override is not None and override.files:
        if override.config is None:
            raise InvalidArgumentError(
                "Load parameter 'config' must be specified for model file override"
            )
        directory = _write_files(override.files)
    else:
        directory = _find(roots, name)
    stamp = newest(directory)
    model = read_model(directory, name, config_name=config_name)
    if override is not None and override.config is not None:
        # Files that came with a request are older than any others: the next plain load undoes them.
        stamp = 0 if override.files else time.time_ns()
        try:
            if not override.config.lstrip().startswith("{"):
                raise ConfigError("it is no JSON object")
            given = as_config(override.config)
        except TritonError as error:
            raise InvalidArgumentError(f"Invalid config override: {error.message}") from None
        # Whoever keeps the repository may name files elsewhere; a client may not.
        for field_name, path in _paths_of(given):
            if path and not _stays_inside(path):
                raise InvalidArgumentError(
                    f"Invalid config override: {field_name} '{path}' must stay within model "
                    "directory."
                )
    else:
        given = parse_config(model, auto_complete=auto_complete)
    config = check_config(model, given, auto_complete=auto_complete)
    kept = versions_to_keep(config, model.versions)
    shared = _newest_beside(model)
    return Polled(
        name, directory, given, config, tuple(sorted(kept)), stamp,
        is_override=override is not None and bool(override.files),
        version_stamps_ns={v: max(shared, newest(model.version_directory(v))) for v in kept},
    )  # fmt: skip


def _newest_beside(model: RepositoryModel) -> int:
    """Return the newest modification time of what all versions share, the configuration aside."""
    config = model.config_file
    return max(
        (
            newest(path)
            for path in model.directory.iterdir()
            if not path.name.isdigit() and not (config is not None and config.is_relative_to(path))
        ),
        default=0,
    )


def _find(roots: Iterable[Path], name: str) -> Path:
    # A name with a separator would be a path, out of the repository if it likes.
    proper = name not in ("", ".", "..") and not re.search(r"[/\\\0]", name)
    found = [root / name for root in roots if proper and (root / name).is_dir()]
    if len(found) > 1:
        raise ConfigError(DUPLICATE, hint=", ".join(map(str, found)))
    if not found:
        raise NotFoundError(
            f"failed to poll model '{name}': model not found in any model repository."
        )
    return found[0]


def _write_files(files: Mapping[str, bytes]) -> Path:
    """Lay files out in a new directory; none may leave it."""
    for path in files:
        if not _stays_inside(path):
            raise InvalidArgumentError(
                f"Invalid file parameter '{_FILE}{path}' must stay within model directory."
            )
    directory = Path(tempfile.mkdtemp(prefix="nbtriton-model-"))
    for path, content in files.items():
        target = directory / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        except OSError as error:
            raise InvalidArgumentError(
                f"Invalid file parameter '{_FILE}{path}': {error.strerror}"
            ) from None
    return directory


def _stays_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and not (".." in parts or PurePosixPath(path).is_absolute() or "\0" in path)


def _paths_of(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Yield the fields of a configuration that name files, and what they name."""
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


def _decoded(value: str | bytes) -> bytes:
    """Read base64 as leniently as Triton does: what is none of it is skipped (KS61)."""
    if isinstance(value, bytes):
        return value
    known = re.sub(r"[^A-Za-z0-9+/]", "", value)
    known = known[: len(known) - (len(known) % 4 == 1)]
    try:
        return base64.b64decode(known + "=" * (-len(known) % 4))
    except binascii.Error:
        return b""
