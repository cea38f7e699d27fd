"""Completion and checks of a configuration (F7)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from nbtriton.backends import BackendSettings, backend_for, check_runtime, find_backend
from nbtriton.backends.base import WAY_OUT, Backend, ModelContext
from nbtriton.common import entries
from nbtriton.common.errors import (
    ConfigError,
    InvalidArgumentError,
    LoadError,
    NotFoundError,
    TritonError,
    UnsupportedError,
)
from nbtriton.model.config import (
    ModelConfig,
    copy_config,
    equal_but_for_instances,
    is_ensemble,
    isolation_of,
    mark_stand_in,
    normalize,
    normalize_instance_groups,
    validate,
    validate_ensemble,
    validate_instance_groups,
    validate_io,
    validate_load,
    without_stand_in,
)
from nbtriton.runtime.engine.core.custom_batching import check_library
from nbtriton.runtime.engine.core.model_runtime import ModelRuntime
from nbtriton.runtime.engine.core.sequence_tensors import check_file
from nbtriton.runtime.engine.lifecycle.isolation import isolated
from nbtriton.runtime.workers.environment import Environments
from nbtriton.runtime.workers.resources import WorkerOptions

# What Triton writes for a status in front of a message.
CODE_TEXTS = {
    "INVALID_ARG": "Invalid argument",
    "INTERNAL": "Internal",
    "NOT_FOUND": "Not found",
    "UNAVAILABLE": "Unavailable",
    "UNSUPPORTED": "Unsupported",
    "ALREADY_EXISTS": "Already exists",
    "UNKNOWN": "Unknown",
    "CANCELLED": "Cancelled",
}


def complete_model(
    config: ModelConfig,
    source: object,
    version: int,
    *,
    example: object = None,
    gpus: Sequence[int],
    auto_complete: bool = True,
    settings: BackendSettings = MappingProxyType({}),
    stand_in: bool = False,
    environments: Environments | None = None,
    isolation: str | None = None,
    workers: WorkerOptions | None = None,
) -> tuple[Backend, ModelConfig]:
    """Complete and check a configuration without creating anything that serves.

    `settings` are those of `nbtriton.Server`'s ``backend_config``; with `stand_in` a stand-in takes the
    place of a backend or a file that is missing. `environments` are the server's. `isolation` is where
    the instances will live, by default what the configuration says; `workers` holds for processes.

    Returns
    -------
    backend : Backend
        Not opened.
    config : ModelConfig
        Completed, with its instance groups resolved for these GPUs.

    Raises
    ------
    ConfigError
        The configuration is wrong.
    LoadError
        The model's own auto-complete failed, with Triton's text and the model's traceback.
    """
    backend = _backend(config, source, settings, stand_in=stand_in)
    named = _named(without_stand_in(config), backend)
    if backend.stand_in:
        named = mark_stand_in(named, backend.stand_in)
    validate(named)
    isolation_of(named)
    try:
        check_runtime(config, type(backend), source, settings)
    except NotFoundError as error:
        raise load_failure(config.name, version, error) from error
    backend = isolated(
        backend, named, settings, environments or Environments(), workers or WorkerOptions(),
        chosen=isolation,
    )  # fmt: skip
    config = named
    of_backend = settings_of(settings, backend.name)
    if auto_complete:
        context = ModelContext(
            config.name, version, config, source, model_directory(source), None, example, of_backend
        )
        with _failing(backend, config, source, version, passing=(ConfigError,)):
            config = _named(backend.complete_config(context), backend)
        validate(config)
    validate_io(config)
    config = resolve_instances(config, backend, gpus)
    validate_load(config)
    with _failing(backend, config, source, version):
        check_library(config)
        _check_files(config, model_directory(source))
        context = ModelContext(
            config.name, version, config, source, model_directory(source), settings=of_backend
        )
        backend.check(context)
    return backend, config


def settings_of(settings: BackendSettings, backend: str) -> Mapping[str, str]:
    """Return the settings of one backend, with those of all."""
    return {**settings.get("", {}), **settings.get(backend, {})}


def changes_only_instances(runtime: ModelRuntime, config: ModelConfig) -> bool:
    """Return True if a configuration asks for nothing but other instances or versions (L16).

    It may be as the user wrote it, or as `nbtriton.Server.config` returns it.
    """
    wanted = normalize(config, name=runtime.name)
    present = (runtime.config, normalize(runtime.given, name=runtime.name))
    return any(equal_but_for_instances(wanted, one) for one in present)


def resolve_instances(config: ModelConfig, backend: Backend, gpus: Sequence[int]) -> ModelConfig:
    """Return a configuration with its instance groups resolved for these GPUs.

    Raises
    ------
    ConfigError
        An instance group is wrong.
    """
    config = normalize_instance_groups(
        config, gpus=gpus, default_kind="KIND_GPU" if gpus and backend.prefers_gpu() else "KIND_CPU"
    )
    validate_instance_groups(config, gpus=gpus)
    return config


def check_ensemble(
    config: ModelConfig,
    version: int,
    members: Mapping[str, ModelConfig],
    versions: Mapping[str, Collection[int]],
    directory: Path | None = None,
) -> ModelConfig:
    """Return an ensemble's configuration completed from its composing models and their versions.

    Raises
    ------
    ConfigError
        With Triton's text.
    LoadError
        A file that it names is not in the ensemble's directory, with Triton's text.
    """
    config = normalize(config, name=config.name)
    validate(config)
    validate_io(config)
    config = validate_ensemble(config, members, versions)
    try:
        _check_files(config, directory)
    except TritonError as error:
        raise load_failure(config.name, version, error) from error
    return config


def _backend(
    config: ModelConfig, source: object, settings: BackendSettings, *, stand_in: bool
) -> Backend:
    if is_ensemble(config):
        raise ConfigError(
            f"Ensemble model '{config.name}' must have platform type 'ensemble' and empty backend "
            "type",
            hint='an ensemble has no code of its own: remove backend, set platform: "ensemble"'
            if config.backend
            else "an ensemble has no code of its own: load it without a model",
            field="platform",
        )
    # The platform names the backend where the configuration does not (N2).
    named = config if config.backend else normalize(config, name=config.name)
    if not named.backend:
        return backend_for(source)()
    if not stand_in:
        return find_backend(named.backend, settings, source)()
    stand_in_for: Callable[[str, str, str], type[Backend]] = entries.find(
        "stand_ins", "zeros", "there are no stand-ins in this installation"
    )
    try:
        found = find_backend(named.backend, settings)
    except UnsupportedError as error:
        return stand_in_for(named.backend, named.platform, error.message)()
    except InvalidArgumentError:
        reason = f"there is no backend '{named.backend}'"
        return stand_in_for(named.backend, named.platform, reason)()
    reason = found.missing(source, named)
    return (stand_in_for(named.backend, named.platform, reason) if reason else found)()


@contextmanager
def _failing(
    backend: Backend,
    config: ModelConfig,
    source: object,
    version: int,
    *,
    passing: tuple[type[TritonError], ...] = (),
) -> Iterator[None]:
    """Raise errors as those of the load, with advice for a model that a stand-in could study."""
    try:
        yield
    except passing:
        raise
    except TritonError as error:
        if backend.missing(source, config):
            error.hint = f"{error.hint}; {WAY_OUT}" if error.hint else WAY_OUT
        raise load_failure(config.name, version, error) from error


def _named(config: ModelConfig, backend: Backend) -> ModelConfig:
    copy = copy_config(config)
    copy.backend = backend.name
    copy.runtime = copy.runtime or backend.runtime
    return normalize(copy, name=config.name)


def _check_files(config: ModelConfig, directory: Path | None) -> None:
    """Check that the files of the model's directory that a configuration names exist."""
    if directory is None:
        return
    named = [output.label_filename for output in config.output]
    for sample in config.model_warmup:
        named += [f"warmup/{one.input_data_file}" for one in sample.inputs.values()
                  if one.WhichOneof("input_data_type") == "input_data_file"]  # fmt: skip
    for state in config.sequence_batching.state:
        named += [f"initial_state/{one.data_file}" for one in state.initial_state
                  if one.WhichOneof("state_data") == "data_file"]  # fmt: skip
    for name in filter(None, named):
        check_file(directory, name)


def model_directory(source: object) -> Path | None:
    """``<repository>/<model>`` for a version folder or a file in it."""
    if not isinstance(source, Path):
        return None
    folder = source if source.is_dir() else source.parent
    return folder.parent if folder.name.isdigit() else folder


def load_failure(
    name: str, version: int, error: Exception, *, state: str = "UNAVAILABLE"
) -> LoadError:
    """Return Triton's error of a version that failed to load."""
    if isinstance(error, TritonError):
        code, text, hint = CODE_TEXTS[error.status], error.message, error.hint
    else:
        code, text, hint = "Internal", f"{type(error).__name__}: {error}", ""
    return LoadError(
        f"load failed for model '{name}': version {version} is at {state} state: {code}: {text};",
        hint=hint,
        user_traceback=getattr(error, "user_traceback", ""),
    )
