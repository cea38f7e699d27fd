"""Validation of a repository without serving it."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nbtriton.backends import BACKEND_DIRECTORY, BackendSettings, find_backend
from nbtriton.backends.devices.device_set import visible_gpus
from nbtriton.common.errors import ConfigError, InternalError, NotFoundError, TritonError
from nbtriton.common.foreign import BATCH_STRATEGY, batch_strategy_in
from nbtriton.model.config import (
    Difference,
    ModelConfig,
    differences,
    format_pbtxt,
    ignored_fields,
    is_ensemble,
    stand_in_reason,
)
from nbtriton.options.repository import REPOSITORY
from nbtriton.options.server import SERVER
from nbtriton.runtime.engine.core.dispatch import versions_to_keep
from nbtriton.runtime.engine.core.warmup import check_samples
from nbtriton.runtime.engine.lifecycle.loading import (
    check_ensemble,
    complete_model,
    load_failure,
    model_directory,
)
from nbtriton.runtime.workers.environment import Environments
from nbtriton.serving.repository.polling import by_dependency
from nbtriton.serving.repository.reader import (
    RepositoryModel,
    check_config,
    parse_config,
    read_model,
)

_DEFAULT_FILES = {"python": "model.py", "pytorch": "model.pt", "onnxruntime": "model.onnx"}


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one model: its completed configuration, or its error."""

    name: str
    config: ModelConfig | None = None
    error: TritonError | None = None
    ignored: Sequence[tuple[str, str]] = ()  # fields without effect here, and the reasons
    differences: Sequence[Difference] = ()  # of Triton 2.51, where the model is not as it is here

    @property
    def stand_in(self) -> str:
        """Reason why only a stand-in could run the model; empty for a complete model."""
        return "" if self.config is None else stand_in_reason(self.config)

    def __str__(self) -> str:
        if self.error is not None:
            return f"{self.name}: {self.error.message}"
        mark = f" as a stand-in ({self.stand_in})" if self.stand_in else ""
        return f"{self.name}: OK{mark}"


def validate_repository(
    directory: str | Path,
    *,
    auto_complete: bool = True,
    config_name: str = "",
    settings: BackendSettings = MappingProxyType({}),
    stand_in: bool = False,
) -> Iterator[Finding]:
    """Complete and check every model of a repository, also after errors.

    The models' ``auto_complete_config`` is run, but not their ``initialize``.

    Parameters
    ----------
    directory : path
    auto_complete : bool
        False is ``--disable-auto-complete-config``.
    config_name : str
        ``--model-config-name``.
    settings : mapping of str to mapping
        ``--backend-config``, as `nbtriton.Server` takes it.
    stand_in : bool
        Check a model whose backend, package or file is missing as a stand-in of its shapes.

    Yields
    ------
    Finding
        One per model: first models that are not ensembles, then ensembles after their composing models.

    Raises
    ------
    NotFoundError
        The directory does not exist.
    """
    with closing(Environments()) as environments:
        how = {
            "gpus": visible_gpus(), "auto_complete": auto_complete, "settings": settings,
            "stand_in": stand_in, "environments": environments,
        }  # fmt: skip
        yield from _findings(read_repository(directory, config_name=config_name), how)


def read_repository(directory: str | Path, *, config_name: str = "") -> list[RepositoryModel]:
    """Return the models of a repository by name, without opening their files.

    Parameters
    ----------
    directory : path
    config_name : str
        ``--model-config-name``: ``configs/<name>.pbtxt`` is preferred to ``config.pbtxt`` (F2).

    Raises
    ------
    NotFoundError
        The directory does not exist.
    """
    root = Path(directory)
    # An empty name, for example from an unset shell variable, does not mean the current directory.
    if not str(directory) or not root.is_dir():
        raise NotFoundError(f"failed to open model repository '{directory}': no such directory")
    return [
        read_model(path, path.name, config_name=config_name)
        for path in sorted(root.iterdir())
        if path.is_dir() and not path.name.startswith(".")
    ]


def read_config(model: RepositoryModel, *, auto_complete: bool = True) -> ModelConfig:
    """Read, normalise and check a model's configuration.

    Raises
    ------
    ConfigError
        The configuration cannot be read or parsed, or `check_config` refuses it.
    """
    given = parse_config(model, auto_complete=auto_complete)
    return check_config(model, given, auto_complete=auto_complete)


def _findings(models: Sequence[RepositoryModel], how: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings; `how` are arguments of `complete_model`."""
    by_name = {model.name: model for model in models}
    read: dict[str, ModelConfig] = {}
    failed: dict[str, TritonError] = {}
    done: dict[str, ModelConfig] = {}
    for model in models:
        try:
            read[model.name] = read_config(model, auto_complete=how["auto_complete"])
        except TritonError as error:
            failed[model.name] = error
    for model in models:
        if model.name in read and not is_ensemble(read[model.name]):
            try:
                done[model.name] = _check(model, read[model.name], how)
            except TritonError as error:
                failed[model.name] = error
            yield _finding(model.name, read, done, failed, model)
        elif model.name in failed:
            yield Finding(model.name, error=failed[model.name])
    ensembles = {name: config for name, config in read.items() if is_ensemble(config)}
    versions = {
        model.name: versions_to_keep(read[model.name], model.versions)
        for model in models
        if model.name in read
    }
    ordered, cyclic = by_dependency(ensembles)
    for name in (*ordered, *cyclic):  # the check of an ensemble reports the cycle
        try:
            _check_versions(name, versions[name], by_name[name].versions)
            _check_members(name, read, failed)
            known, folder = {**ensembles, **done}, by_name[name].directory
            done[name] = check_ensemble(read[name], max(versions[name]), known, versions, folder)
        except TritonError as error:
            failed[name] = error
        yield _finding(name, read, done, failed)


def _finding(
    name: str,
    read: Mapping[str, ModelConfig],
    done: Mapping[str, ModelConfig],
    failed: Mapping[str, TritonError],
    model: RepositoryModel | None = None,
) -> Finding:
    config = done.get(name)
    found = () if config is None else differences(config)
    ignored = [*ignored_fields(read[name])]
    if model is not None and read[name].HasField("dynamic_batching"):
        folders = [*map(model.version_directory, model.versions), model.directory]
        if (library := batch_strategy_in(folders)) is not None:
            ignored.append((library.name, str(BATCH_STRATEGY)))
    return Finding(name, config, failed.get(name), ignored, found)


def _check(model: RepositoryModel, config: ModelConfig, how: Mapping[str, Any]) -> ModelConfig:
    selected = versions_to_keep(config, model.versions)
    _check_versions(model.name, selected, model.versions)
    if config.backend and not how["stand_in"]:
        find_backend(config.backend, how["settings"], model.version_directory(max(selected)))
    completed = config
    for version in sorted(selected):
        filename = config.default_model_filename or _DEFAULT_FILES.get(config.backend, "")
        source = model.version_directory(version) / filename
        if filename and not source.exists() and not how["stand_in"]:
            raise InternalError(
                f"load failed for model '{model.name}': version {version} is at UNAVAILABLE "
                f"state: Internal: model file '{source}' does not exist;"
            )
        _, completed = complete_model(config, source, version, **how)
        try:
            check_samples(completed, model_directory(source))
        except TritonError as error:
            raise load_failure(config.name, version, error) from error
    return completed


def _check_versions(name: str, selected: Collection[int], found: Sequence[int]) -> None:
    if not selected:
        raise ConfigError(
            f"at least one version must be available under the version policy of model '{name}'",
            hint=f"version directories found: {', '.join(map(str, found)) or 'none'}",
            field="version_policy",
        )  # V51


def _check_members(
    name: str, read: Mapping[str, ModelConfig], failed: Mapping[str, TritonError]
) -> None:
    for step in read[name].ensemble_scheduling.step:
        error = failed.get(step.model_name)
        if error is not None and step.model_name in read:
            raise ConfigError(
                f"ensemble '{name}' depends on '{step.model_name}' which has no loaded version. "
                f"Model '{step.model_name}' loading failed with error: {error.message}"
            )  # V114


def add_validate(validate: argparse.ArgumentParser) -> None:
    """Check every model of a repository without serving it."""
    validate.description = (
        "Complete and check every model of a repository and print one line a model: "
        "'NAME: OK', or 'NAME: ' and the text of Triton's error; below it what has no effect here. "
        "Exit status 1 if any failed. Each model.py is imported, and its code runs with your rights; "
        "not with --disable-auto-complete-config."
    )
    validate.add_argument("directory", metavar="DIR", help="the model repository")
    validate.add_argument(
        "--print", action="store_true", dest="show", help="also print the completed configurations"
    )
    for name in ("auto_complete", "config_name"):
        REPOSITORY[name].add(validate.add_argument)
    validate.add_argument(
        "--backend-directory",
        metavar="DIR",
        help="each NAME/model.py in it is a Python-based backend",
    )
    replace(SERVER["stand_in"], action="store_true").add(validate.add_argument)
    validate.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    failed = False
    directory = arguments.backend_directory
    for finding in validate_repository(
        arguments.directory,
        auto_complete=arguments.auto_complete,
        config_name=arguments.config_name,
        settings={} if directory is None else {"": {BACKEND_DIRECTORY: directory}},
        stand_in=arguments.stand_in,
    ):
        failed = failed or finding.error is not None
        print(finding, flush=True)
        if finding.error is not None and finding.error.hint:
            print(f"  hint: {finding.error.hint}")
        for path, reason in finding.ignored:
            print(f"  {path} has no effect here: {reason}")
        for difference in finding.differences:
            print(f"  {difference}")
        if arguments.show and finding.config is not None:
            print("".join(f"  {line}\n" for line in format_pbtxt(finding.config).splitlines()))
    return int(failed)
