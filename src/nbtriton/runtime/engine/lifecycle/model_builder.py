"""Versions of models, made as a load asks for them and with the options of a server."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from nbtriton.backends import BackendSettings, find_backend
from nbtriton.backends.base import WAY_OUT, ModelContext, ServerHandle
from nbtriton.backends.devices.device_set import DeviceSet
from nbtriton.common.errors import ConfigError, InvalidArgumentError, LoadError, TritonError
from nbtriton.model.config import (
    ModelConfig,
    copy_config,
    ignored_fields,
    is_ensemble,
    normalize,
    plan_instances,
    validate,
)
from nbtriton.runtime.engine.core.cache import ResponseCache
from nbtriton.runtime.engine.core.custom_batching import find_strategy
from nbtriton.runtime.engine.core.dispatch import Registry
from nbtriton.runtime.engine.core.ensemble_runtime import EnsembleRuntime
from nbtriton.runtime.engine.core.history import Recorder
from nbtriton.runtime.engine.core.instance_set import InstanceUpdate, Limiter
from nbtriton.runtime.engine.core.model_runtime import ModelRuntime
from nbtriton.runtime.engine.core.runtime import Runtime
from nbtriton.runtime.engine.core.summaries import LatencySummaries
from nbtriton.runtime.engine.core.threads import Finalizer, SchedulerThread
from nbtriton.runtime.engine.lifecycle.isolation import choose_isolation, start_early
from nbtriton.runtime.engine.lifecycle.loading import (
    changes_only_instances,
    check_ensemble,
    complete_model,
    load_failure,
    model_directory,
    resolve_instances,
    settings_of,
)
from nbtriton.runtime.engine.lifecycle.options import ServerOptions
from nbtriton.runtime.interrupts import interrupts_allowed
from nbtriton.runtime.workers.environment import Environments
from nbtriton.runtime.workers.resources import WorkerOptions


def latest_mtime_ns(directory: Path) -> int:
    """Return the latest modification time of a directory and everything below it (L8)."""
    latest = directory.stat().st_mtime_ns
    for folder, folders, files in os.walk(directory):
        for child in (*folders, *files):
            try:
                latest = max(latest, os.stat(os.path.join(folder, child)).st_mtime_ns)  # noqa: PTH116, PTH118 - a walk of thousands of files
            except OSError:  # removed while we walked
                continue
    return latest


def source_mtime_ns(source: object) -> int:
    """Return when a model's file, or its version's directory, was modified; 0 without either."""
    if not isinstance(source, Path):
        return 0
    place = source.parent if source.parent.name.isdigit() else source
    try:
        return latest_mtime_ns(place)
    except OSError:
        return 0


def take_instances(config: ModelConfig, of: ModelConfig) -> None:
    """Give a configuration the instances and the version policy of another one (L16)."""
    for field in ("instance_group", "version_policy"):
        config.ClearField(field)
    config.instance_group.extend(of.instance_group)
    if of.HasField("version_policy"):
        config.version_policy.CopyFrom(of.version_policy)


# The parts that a change of options makes anew: by which options, and how.
_PARTS: Final[Mapping[str, tuple[Sequence[str], Callable[[ServerOptions], Any]]]] = {
    "cache": (["cache_bytes"], ServerOptions.make_cache),
    "limiter": (["rate_limit", "rate_limit_resources"], ServerOptions.make_limiter),
    "recorder": (["recorder"], ServerOptions.make_recorder),
    "devices": (["gpus"], ServerOptions.make_devices),
}


@dataclass(slots=True, frozen=True)
class ModelBuilder:
    """Makes versions of models; `changed` gives the builder for other options.

    Parameters
    ----------
    registry : Registry
    server : ServerHandle
        The part of the server that model code gets.
    scheduler_thread : SchedulerThread
    options : ServerOptions
        For every version that is made.
    cache : ResponseCache or None
        For the versions that want one.
    limiter : Limiter or None
        Where rates are limited.
    recorder : Recorder or None
        Where it is on.
    environments : Environments
        Of models that have their own.
    workers : WorkerOptions
        For instances in processes.
    devices : DeviceSet
        The GPUs that models may use.
    """

    registry: Registry
    server: ServerHandle
    scheduler_thread: SchedulerThread
    options: ServerOptions
    cache: ResponseCache | None
    limiter: Limiter | None
    recorder: Recorder | None
    environments: Environments
    workers: WorkerOptions
    devices: DeviceSet

    @classmethod
    def of(
        cls,
        registry: Registry,
        server: ServerHandle,
        thread: SchedulerThread,
        options: ServerOptions,
    ) -> ModelBuilder:
        """Return the builder of a new server."""
        made = {part: make(options) for part, (_, make) in _PARTS.items()}
        workers = options.worker_options(None)
        start_early(options.isolation)
        return cls(
            registry, server, thread, options, environments=Environments(), workers=workers, **made
        )

    def changed(self, options: ServerOptions) -> ModelBuilder:
        """Return the builder for other options; cache, limiter and recorder stay where theirs are the same."""
        made = {
            part: make(options)
            for part, (names, make) in _PARTS.items()
            if any(options.values[name] != self.options.values[name] for name in names)
        }
        workers = options.worker_options(self.workers.budget)
        start_early(options.isolation)
        return replace(self, options=options, workers=workers, **made)

    @property
    def settings(self) -> BackendSettings:
        """The settings of backends."""
        return self.options.backend_config or {}

    def build(
        self,
        config: ModelConfig,
        source: object,
        version: int,
        *,
        example: object = None,
        batching: object = None,
        auto_complete: bool = True,
        directory: Path | None = None,
    ) -> Runtime:
        """Make one version that no request finds yet: to be installed, or to be drained.

        Several threads may build at once. An ensemble has no source, nor has a model of a backend
        that needs none; `directory` is the ensemble's own in a repository.

        Raises
        ------
        ConfigError, LoadError
            As `nbtriton.Server.load`.
        """
        registry = self.registry
        runtime: Runtime
        ensemble = source is None and not config.backend and config.platform in ("", "ensemble")
        if not ensemble:  # which begins once its members fit
            registry.record_loading(config.name, version)
        try:
            if ensemble:
                completed = check_ensemble(
                    config, version, registry.configs(), registry.versions(), directory
                )
                runtime = EnsembleRuntime(completed, version, registry.resolve, directory)
                self._summarize(runtime)
            else:
                runtime = self._build_model(
                    config, source, version, example, batching, auto_complete
                )
        except TritonError as error:
            if not ensemble or isinstance(error, LoadError):
                registry.record_absent(config.name, {version: error.message.strip()})
            raise
        if runtime.config.response_cache.enable:
            runtime.cache = self.cache
        if self.recorder is not None:
            runtime.record_in(self.recorder.history(runtime.name, version))
        return runtime

    def _build_model(
        self,
        config: ModelConfig,
        source: object,
        version: int,
        example: object,
        batching: object,
        auto_complete: bool,
    ) -> ModelRuntime:
        """Complete and check a configuration, and create the instances.

        `batching` is the custom batching that the caller wants; None for the model's own.
        """
        mtime_ns = source_mtime_ns(source)
        gpus = self.devices.ids
        isolation = choose_isolation(
            config, self.options.isolation, source, self._serving(config.name, version)
        )
        backend, completed = interrupts_allowed(
            complete_model, config, source, version,
            example=example, gpus=gpus, auto_complete=auto_complete, settings=self.settings,
            stand_in=self.options.stand_in, environments=self.environments,
            isolation=isolation.chosen, workers=self.workers,
        )  # fmt: skip
        context = ModelContext(
            completed.name,
            version,
            completed,
            source,
            model_directory(source),
            self.server,
            example,
            settings_of(self.settings, backend.name),
            self.devices.managed,
            self.devices.ledger,
        )
        try:
            try:
                # Where the caller gives functions, those of the model are not asked for.
                own = interrupts_allowed(backend.batching, context) if batching is None else None
                strategy = interrupts_allowed(find_strategy, context, batching, own)
                interrupts_allowed(backend.open, context)
                runtime = ModelRuntime(
                    context, backend, plan_instances(completed, gpus=gpus), self.scheduler_thread,
                    self.limiter, strategy,
                )  # fmt: skip
            except BaseException:  # what it has begun is not to stay
                Finalizer("", backend.close).run()
                raise
            runtime.isolation_asked = isolation.asked
            runtime.batching = batching
            runtime.given.CopyFrom(config)
            runtime.auto_complete = auto_complete
            runtime.mtime_ns = mtime_ns
            self._summarize(runtime)  # its warmup counts (W5)
            runtime.start()
        except Exception as error:
            raise load_failure(config.name, version, error) from error
        return runtime

    def _summarize(self, runtime: Runtime) -> None:
        """Keep summaries of a version's latencies, if the server does."""
        if self.options.summaries:
            cached = runtime.config.response_cache.enable
            runtime.statistics.summaries = LatencySummaries(cached=cached)

    def _serving(self, name: str, version: int) -> ModelRuntime | None:
        """Return the version that a new one will take the place of, or the latest."""
        entry = self.registry.entries.get(name)
        if entry is None:
            return None
        slot = entry.slots.get(version)
        runtime = slot.runtime if slot is not None else entry.latest
        return runtime if isinstance(runtime, ModelRuntime) else None

    def rebuild(self, runtime: ModelRuntime) -> Runtime:
        """Make a version anew, with the instances that it was updated to (L16)."""
        return self.build(
            runtime.given,
            runtime.source,
            runtime.version,
            example=runtime.example,
            batching=runtime.batching,
            auto_complete=runtime.auto_complete,
        )

    def updated_config(self, runtime: ModelRuntime, config: ModelConfig) -> ModelConfig:
        """Return a version's configuration with the instances and version policy of another one.

        Raises
        ------
        ConfigError
            An instance group is wrong.
        """
        wanted = normalize(config, name=runtime.name)
        changed = copy_config(runtime.config)
        take_instances(changed, wanted)
        validate(changed)
        return resolve_instances(changed, runtime.backend, self.devices.ids)

    def update(self, runtime: ModelRuntime, config: ModelConfig) -> InstanceUpdate:
        """Make the instances by which a version that goes on must grow (L16).

        Raises
        ------
        ConfigError
            An instance group is wrong.
        LoadError
            A new instance failed, with Triton's text; the version serves as before.
        """
        changed = self.updated_config(runtime, config)
        try:
            return runtime.prepare_update(changed, plan_instances(changed, gpus=self.devices.ids))
        except Exception as error:
            raise load_failure(runtime.name, runtime.version, error, state="READY") from error

    def ignored_fields(
        self, user_config: ModelConfig, runtimes: Sequence[Runtime], *, agents: bool
    ) -> list[tuple[str, str]]:
        """Return the fields of a configuration that have no effect on this server, with the reasons."""
        config = copy_config(user_config)
        config.backend = next((runtime.config.backend for runtime in runtimes), config.backend)
        isolations = {one.backend.isolation for one in runtimes if isinstance(one, ModelRuntime)}
        return ignored_fields(
            config,
            whole_batches=any(
                not isinstance(getattr(runtime, "source", None), type | Path | None)
                for runtime in runtimes
            ),
            agents=agents,
            labels=any(runtime.directory is not None for runtime in runtimes),
            cache=self.cache is not None,
            limiter=self.limiter is not None,
            policies=bool(self.options.host_policies) and "process" in isolations,
            actors="ray" in isolations,
        )


@dataclass(slots=True, frozen=True)
class LoadRequest:
    """The arguments of a load, and the version that serves now.

    Parameters
    ----------
    config : ModelConfig
        As given, with the model's name.
    model : object
        The code, None to keep that of the latest version.
    version : int
    example, batching : object
        As for `nbtriton.Server.load`.
    serving : Runtime, optional
        The version that is to be replaced.
    latest : Runtime, optional
        The latest version.
    """

    config: ModelConfig
    model: object
    version: int
    example: object
    batching: object
    serving: Runtime | None
    latest: Runtime | None

    def updatable(self, builder: ModelBuilder) -> ModelRuntime | None:
        """Return the version that can go on, perhaps with other instances; None without one (L16)."""
        runtime, model = self.serving, self.model
        if not isinstance(runtime, ModelRuntime) or not changes_only_instances(
            runtime, self.config
        ):
            return None
        source = runtime.source
        if model is None:  # then the code is that of the latest version
            same = isinstance(self.latest, ModelRuntime) and self.latest.source is source
        else:
            # The same code with the same configuration is a fresh start.
            given = Path(model) if isinstance(model, str) else model
            same = given is source or (isinstance(given, Path) and given == source)
            same = same and builder.updated_config(runtime, self.config) != runtime.config
        same = (
            same
            and source_mtime_ns(source) == runtime.mtime_ns
            and (self.example is None or self.example is runtime.example)
            and (self.batching is None or self.batching is runtime.batching)
        )
        return runtime if same else None

    def build(self, builder: ModelBuilder) -> Runtime:
        """Make the version, with the code of the latest one if no other is given.

        Raises
        ------
        ConfigError, LoadError, InvalidArgumentError
            As `nbtriton.Server.load`.
        """
        config, model, example, batching = self.config, self.model, self.example, self.batching
        if model is None and (is_ensemble(config) or config.platform == "ensemble"):
            if batching is not None:
                raise ConfigError(
                    f"the ensemble '{config.name}' forms no batches of its own",
                    hint="give the custom batching to one of its models",
                    field="batching",
                )
            directory = None if self.latest is None else self.latest.directory  # with its labels
            return builder.build(config, None, self.version, directory=directory)
        auto_complete = True
        if model is None and isinstance(self.latest, ModelRuntime):
            model = self.latest.source
            auto_complete = self.latest.auto_complete
            example = self.latest.example if example is None else example
            if batching is None and config.HasField("dynamic_batching"):
                batching = self.latest.batching
        if (
            model is None
            and not builder.options.stand_in
            and (not config.backend or find_backend(config.backend, builder.settings).needs_source)
        ):
            raise InvalidArgumentError(
                f"no code for model '{config.name}'",
                hint="give model=…: a class, a torch module, a function or the path of a file; "
                'an ensemble has platform: "ensemble" and ensemble_scheduling; '
                f"{WAY_OUT}",
            )
        if isinstance(model, str):
            model = Path(model)
        return builder.build(
            config, model, self.version,
            example=example, batching=batching, auto_complete=auto_complete,
        )  # fmt: skip
