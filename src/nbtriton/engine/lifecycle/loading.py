"""From a configuration and a source to a version that serves (F7)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from nbtriton.backends import BackendSettings, backend_for, check_runtime, find_backend
from nbtriton.backends.base import Backend, ModelContext, ServerHandle
from nbtriton.config import (
    ModelConfig,
    equal_but_for_instances,
    is_ensemble,
    normalize,
    normalize_instance_groups,
    plan_instances,
    validate,
    validate_ensemble,
    validate_instance_groups,
    validate_io,
    validate_load,
)
from nbtriton.engine.core.custom_batching import check_library, find_strategy
from nbtriton.engine.core.ensemble_runtime import EnsembleRuntime, Resolve
from nbtriton.engine.core.instance_update import InstanceUpdate
from nbtriton.engine.core.limiter import Limiter
from nbtriton.engine.core.model_runtime import ModelRuntime
from nbtriton.engine.core.scheduler_thread import SchedulerThread
from nbtriton.engine.core.warmup import check_samples
from nbtriton.engine.lifecycle.mtimes import source_mtime_ns
from nbtriton.errors import ConfigError, InternalError, LoadError, NotFoundError, TritonError

__all__ = [
    "CODE_TEXTS",
    "build_ensemble",
    "build_model",
    "changes_only_instances",
    "check_ensemble",
    "check_model",
    "complete_model",
    "update_model",
    "updated_config",
]

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
) -> tuple[Backend, ModelConfig]:
    """Complete and check a configuration without creating anything that serves.

    `settings` are those of `nbtriton.Server`'s ``backend_config``.

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
    backend = _backend(config, source, settings)
    named = _named(config, backend)
    validate(named)
    try:
        check_runtime(config, type(backend), source, settings)
    except NotFoundError as error:
        raise _load_error(config.name, version, error) from error
    config = named
    if auto_complete:
        context = ModelContext(
            config.name, version, config, source, _model_directory(source), None, example,
            {**settings.get("", {}), **settings.get(backend.name, {})},
        )  # fmt: skip
        try:
            config = _named(backend.complete_config(context), backend)
        except ConfigError:
            raise
        except TritonError as error:
            raise _load_error(config.name, version, error) from error
        validate(config)
    validate_io(config)
    config = _with_instances(config, backend, gpus)
    validate_load(config)
    try:
        check_library(config)
        _check_files(config, _model_directory(source))
        backend.check(ModelContext(config.name, version, config, source, _model_directory(source)))
    except TritonError as error:
        raise _load_error(config.name, version, error) from error
    return backend, config


def check_model(config: ModelConfig, source: object, version: int) -> None:
    """Check what a load of a completed configuration meets only once its instances exist.

    Raises
    ------
    LoadError
        A warmup sample is no request for the model, with Triton's text.
    """
    try:
        check_samples(config, _model_directory(source))
    except TritonError as error:
        raise _load_error(config.name, version, error) from error


def build_model(
    config: ModelConfig,
    source: object,
    version: int,
    *,
    example: object,
    gpus: Sequence[int],
    server: ServerHandle,
    clock: SchedulerThread,
    limiter: Limiter | None = None,
    batching: object = None,
    auto_complete: bool = True,
    settings: BackendSettings = MappingProxyType({}),
) -> ModelRuntime:
    """Complete and check a configuration, and create the instances.

    `batching` is the custom batching that the caller wants; None for what the model brings itself.

    Raises
    ------
    ConfigError
        The configuration is wrong.
    LoadError
        The model's own code failed, with Triton's text and the model's traceback.
    """
    mtime_ns = source_mtime_ns(source)
    backend, completed = complete_model(
        config, source, version,
        example=example, gpus=gpus, auto_complete=auto_complete, settings=settings,
    )  # fmt: skip
    context = ModelContext(
        completed.name, version, completed, source, _model_directory(source), server, example
    )
    try:
        strategy = find_strategy(context, batching, backend.batching(context))
        backend.open(context)
        runtime = ModelRuntime(
            context, backend, plan_instances(completed, gpus=gpus), clock, limiter, strategy
        )
        runtime.batching = batching
        runtime.given.CopyFrom(config)
        runtime.auto_complete = auto_complete
        runtime.mtime_ns = mtime_ns
        if strategy is not None:
            strategy.open(context)
        runtime.start()
    except Exception as error:
        raise _load_error(config.name, version, error) from error
    return runtime


def changes_only_instances(runtime: ModelRuntime, config: ModelConfig) -> bool:
    """Return True if a configuration asks for nothing but other instances or versions (L16).

    It may be as the user wrote it, or as `nbtriton.Server.config` returns it.
    """
    wanted = normalize(config, name=runtime.name)
    present = (runtime.config, normalize(runtime.given, name=runtime.name))
    return any(equal_but_for_instances(wanted, one) for one in present)


def updated_config(
    runtime: ModelRuntime, config: ModelConfig, *, gpus: Sequence[int]
) -> ModelConfig:
    """Return a version's configuration with the instances and version policy of another one.

    Raises
    ------
    ConfigError
        An instance group is wrong.
    """
    wanted = normalize(config, name=runtime.name)
    changed = ModelConfig()
    changed.CopyFrom(runtime.config)
    changed.ClearField("instance_group")
    changed.instance_group.extend(wanted.instance_group)
    changed.version_policy.CopyFrom(wanted.version_policy)
    validate(changed)
    return _with_instances(changed, runtime.backend, gpus)


def update_model(
    runtime: ModelRuntime, config: ModelConfig, *, gpus: Sequence[int]
) -> InstanceUpdate:
    """Prepare the instances of another configuration, one that `changes_only_instances`.

    Raises
    ------
    ConfigError
        An instance group is wrong.
    LoadError
        A new instance failed, with Triton's text; the version serves as before.
    """
    changed = updated_config(runtime, config, gpus=gpus)
    try:
        return runtime.prepare_update(changed, plan_instances(changed, gpus=gpus))
    except Exception as error:
        raise _load_error(runtime.name, runtime.version, error, state="READY") from error


def _with_instances(config: ModelConfig, backend: Backend, gpus: Sequence[int]) -> ModelConfig:
    config = normalize_instance_groups(
        config,
        gpus=gpus,
        default_kind="KIND_GPU" if gpus and backend.prefers_gpu() else "KIND_CPU",
    )
    validate_instance_groups(config, gpus=gpus)
    return config


def build_ensemble(
    config: ModelConfig,
    version: int,
    members: Mapping[str, ModelConfig],
    versions: Mapping[str, Collection[int]],
    resolve: Resolve,
    directory: Path | None = None,
) -> EnsembleRuntime:
    """Check an ensemble against its composing models and make it.

    Raises
    ------
    ConfigError, LoadError
        As `check_ensemble`.
    """
    completed = check_ensemble(config, version, members, versions, directory)
    return EnsembleRuntime(completed, version, resolve, directory)


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
        raise _load_error(config.name, version, error) from error
    return config


def _backend(config: ModelConfig, source: object, settings: BackendSettings) -> Backend:
    if is_ensemble(config):
        raise ConfigError(
            f"Ensemble model '{config.name}' must have platform type 'ensemble' and empty backend "
            "type",
            hint='an ensemble has no code of its own: remove backend, set platform: "ensemble"'
            if config.backend
            else "an ensemble has no code of its own: load it without a model",
            field="platform",
        )
    if config.backend:
        return find_backend(config.backend, settings)()
    # The platform names the backend where the configuration does not (N2).
    config = normalize(config, name=config.name)
    return (find_backend(config.backend) if config.backend else backend_for(source))()


def _named(config: ModelConfig, backend: Backend) -> ModelConfig:
    copy = ModelConfig()
    copy.CopyFrom(config)
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
    for name in named:
        path = directory / name
        if name and not path.is_file():
            raise InternalError(
                f"failed to open text file for read {path}: No such file or directory"
            )


def _model_directory(source: object) -> Path | None:
    """``<repository>/<model>`` for a version folder or a file in it."""
    if not isinstance(source, Path):
        return None
    folder = source if source.is_dir() else source.parent
    return folder.parent if folder.name.isdigit() else folder


def _load_error(
    name: str, version: int, error: Exception, *, state: str = "UNAVAILABLE"
) -> LoadError:
    if isinstance(error, TritonError):
        code, text, hint = CODE_TEXTS[error.status], error.message, error.hint
    else:
        code, text, hint = "Internal", f"{type(error).__name__}: {error}", ""
    return LoadError(
        f"load failed for model '{name}': version {version} is at {state} state: {code}: {text};",
        hint=hint,
        user_traceback=getattr(error, "user_traceback", ""),
    )
