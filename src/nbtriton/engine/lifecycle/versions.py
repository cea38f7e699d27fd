"""Which versions serve: how they come, replace each other and leave (L2, L15 to L20)."""

from __future__ import annotations

import contextlib
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn, TypeVar, cast

from nbtriton.backends import BackendSettings
from nbtriton.backends.base import ServerHandle
from nbtriton.config import ModelConfig, ignored_fields, validate_ensemble
from nbtriton.engine.core.cache import ResponseCache
from nbtriton.engine.core.ensemble_runtime import EnsembleRuntime
from nbtriton.engine.core.instance_update import InstanceUpdate
from nbtriton.engine.core.limiter import Limiter
from nbtriton.engine.core.model_runtime import ModelRuntime
from nbtriton.engine.core.registry import Entry, Registry, Slot, versions_to_keep
from nbtriton.engine.core.runtime import Runtime
from nbtriton.engine.core.scheduler_thread import SchedulerThread
from nbtriton.engine.core.summaries import LatencySummaries
from nbtriton.engine.diagnostics.inspection import Inspection
from nbtriton.engine.forks import elsewhere, keep_for_good, tell_children
from nbtriton.engine.interrupts import interrupts_deferred
from nbtriton.engine.lifecycle.closing import STOPPING, close_at_exit, drop, end, runtimes_of
from nbtriton.engine.lifecycle.devices import visible_gpus
from nbtriton.engine.lifecycle.loading import build_ensemble, build_model, is_light, update_model
from nbtriton.engine.lifecycle.options import ServerOptions
from nbtriton.errors import ConfigError, EngineStoppedError, LoadError, TritonError

__all__ = ["UNLOADED", "Versions"]

# Why a version that left does not serve: the repository index says so too.
UNLOADED = "unloaded"

_R = TypeVar("_R", bound=Runtime)


class Versions(Inspection, ABC):
    """The versions of a `nbtriton.Server`'s models, made, installed and retired.

    One change at a time, under a lock that no request takes: readers see the registry before a
    change or after it.

    Parameters
    ----------
    options : ServerOptions
        They hold for every version that is made.

    Attributes
    ----------
    cache : ResponseCache or None
        Given to the versions that want one.
    limiter : Limiter or None
        Where rates are limited.
    """

    def __init__(self, options: ServerOptions) -> None:
        super().__init__(Registry())
        self._options = options
        self.limiter: Limiter | None = options.make_limiter()
        self.cache: ResponseCache | None = options.make_cache()
        self._changing = threading.RLock()
        self._clock = SchedulerThread()
        self._leaving: list[Runtime] = []
        self._closed = False
        # In a child process: what the parent had.
        self._parents: object = None
        tell_children(self)
        self._dropped = weakref.finalize(self, drop, self._registry, self._leaving, self._clock)
        self._dropped.atexit = False
        close_at_exit(self)

    @property
    @abstractmethod
    def models_view(self) -> ServerHandle:
        """What model code gets of this server; its models' own metrics are kept under it."""

    @property
    def options(self) -> ServerOptions:
        """The options of this server; `set_options` changes them."""
        return self._options

    @property
    def keeps_summaries(self) -> bool:
        """True if versions keep latency summaries."""
        return self._options.summaries

    @property
    def _settings(self) -> BackendSettings:
        return self._options.backend_config or {}

    def set_options(self, **changes: Any) -> tuple[str, ...]:
        """Change options of this server; its models are loaded anew with them.

        As with `load`, a version serves until its successor is ready, and no request is lost; what
        its code held and counted begins anew. Options that are the same change nothing.

        Parameters
        ----------
        **changes
            Those of `nbtriton.Server`; what is not named stays as it is.

        Returns
        -------
        tuple of str
            The models that were loaded anew.

        Raises
        ------
        InvalidArgumentError
            An option that does not exist or cannot be.
        ConfigError, LoadError
            A model cannot be loaded with them; nothing has changed.
        """
        with self._changing:
            self._check_open()
            options = self._options.changed(**changes)
            if options == self._options:
                return ()
            before = (self._options, self.cache, self.limiter)
            if options.cache_bytes != self._options.cache_bytes:
                self.cache = options.make_cache()
            limits = (options.rate_limit, options.rate_limit_resources)
            if limits != (self._options.rate_limit, self._options.rate_limit_resources):
                self.limiter = options.make_limiter()
            self._options = options
        # Not under the lock: the models' own code may load others, or close the server.
        made: dict[str, list[Runtime]] = {}
        try:
            for name, model in self._models_of(ModelRuntime):
                made.setdefault(name, []).append(self._anew(model))
        except BaseException:
            with self._changing:
                self._options, self.cache, self.limiter = before
            for runtimes in made.values():
                for runtime in runtimes:
                    runtime.drain()
            raise
        with self._changing:
            for name, runtimes in made.items():
                self.install(name, self._registry.entries[name].user_config, runtimes)
            ensembles: dict[str, list[Runtime]] = {}
            for name, ensemble in self._models_of(EnsembleRuntime):
                # One that does not fit its members any more stays, out of service and with the reason.
                with contextlib.suppress(ConfigError):
                    ensembles.setdefault(name, []).append(
                        self.build(
                            ensemble.config, None, ensemble.version, directory=ensemble.directory
                        )
                    )
            for name, runtimes in ensembles.items():
                self.install(name, self._registry.entries[name].user_config, runtimes)
        return (*made, *ensembles)

    def _models_of(self, kind: type[_R]) -> list[tuple[str, _R]]:
        return [
            (name, slot.runtime)
            for name, entry in self._registry.entries.items()
            for slot in entry.slots.values()
            if isinstance(slot.runtime, kind)
        ]

    def _anew(self, runtime: ModelRuntime) -> Runtime:
        # One that was updated has other instances than it was made with (L16).
        latest = self._registry.entries[runtime.name].user_config
        return self.build(
            latest if is_light(runtime, latest) else runtime.given,
            runtime.source,
            runtime.version,
            example=runtime.example,
            batching=runtime.batching,
            auto_complete=runtime.auto_complete,
        )

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
        """Make one version that no request finds yet: for `install`, or to be retired.

        Several threads may build at once. An ensemble has no source, nor has a model of a backend
        that needs none; `directory` is the ensemble's own in a repository.

        Raises
        ------
        ConfigError, LoadError
            As `load`.
        """
        runtime: Runtime
        ensemble = source is None and not config.backend
        if not ensemble:  # which begins once its members fit
            self._registry.begin(config.name, version)
        try:
            if ensemble:
                runtime = build_ensemble(
                    config,
                    version,
                    self._registry.configs(),
                    self._registry.versions(),
                    self._registry.resolve,
                    directory,
                )
            else:
                runtime = build_model(
                    config,
                    source,
                    version,
                    example=example,
                    gpus=self._usable_gpus(),
                    server=self.models_view,
                    clock=self._clock,
                    limiter=self.limiter,
                    batching=batching,
                    auto_complete=auto_complete,
                    settings=self._settings,
                )
        except TritonError as error:
            if not ensemble or isinstance(error, LoadError):
                self._registry.miss(config.name, {version: error.message.strip()})
            raise
        if runtime.config.response_cache.enable:
            runtime.cache = self.cache
        if self.keeps_summaries:
            cached = bool(runtime.config.response_cache.enable)
            runtime.statistics.summaries = LatencySummaries(cached=cached)
        return runtime

    def _usable_gpus(self) -> tuple[int, ...]:
        gpus = self._options.gpus
        return visible_gpus() if gpus is None else tuple(gpus)

    def prepare_update(self, name: str, version: int, config: ModelConfig) -> InstanceUpdate:
        """Make the instances by which a version that goes on must grow: for `install` (L16).

        Raises
        ------
        NotFoundError, UnavailableError
            The version does not serve any more.
        ConfigError, LoadError
            As `load`; the version serves as before.
        """
        runtime = self._registry.resolve(name, version)
        assert isinstance(runtime, ModelRuntime), "an ensemble has no instances"
        return update_model(runtime, config, gpus=self._usable_gpus())

    def can_update(self, name: str, version: int, config: ModelConfig) -> bool:
        """Return True if a version serves, and a configuration asks of it for no more than L16."""
        try:
            runtime = self._registry.resolve(name, version)
        except TritonError:
            return False
        return isinstance(runtime, ModelRuntime) and is_light(runtime, config)

    def install(
        self,
        name: str,
        user_config: ModelConfig,
        runtimes: Sequence[Runtime],
        *,
        updates: Sequence[InstanceUpdate] = (),
    ) -> None:
        """Let exactly these versions serve a model; those that did so before leave (L17).

        Versions that are updated go on, with what they counted and what their code holds (L16).

        Raises
        ------
        EngineStoppedError
            The server is closed; what was made is given back.
        LoadError
            One of the updated versions was replaced or unloaded meanwhile; likewise.
        """
        with self._changing, interrupts_deferred():
            old = self._registry.entries.get(name)
            before = old.slots if old is not None else {}
            try:
                self._check_open()
                kept = {update.runtime.version: _updated(before, update) for update in updates}
            except TritonError:
                for runtime in runtimes:
                    runtime.drain()
                for update in updates:
                    update.runtime.discard_update(update)
                raise
            for update in updates:
                update.runtime.apply_update(update)
            self._registry.entries[name] = Entry(
                kept | {runtime.version: Slot(runtime) for runtime in runtimes},
                user_config,
                self._ignored(user_config, [*runtimes, *(u.runtime for u in updates)], agents=True),
            )
            for version, slot in before.items():
                if version not in kept:
                    self._retire(slot.runtime)
            self._check_dependents(name)

    def leaving(self) -> set[tuple[str, int]]:
        """Return name and version of what is unloaded and not yet finished."""
        return {(old.name, old.version) for old in self._leaving if not old.wait_drained(0)}

    def _put(
        self,
        name: str,
        user_config: ModelConfig,
        runtime: Runtime,
        update: InstanceUpdate | None = None,
    ) -> None:
        """Let a version serve, or go on with other instances, as its version policy allows."""
        before: Mapping[int, Slot] = {}
        try:
            self._check_open()
            old = self._registry.entries.get(name)
            before = old.slots if old is not None else {}
            if update is not None:
                _updated(before, update)
        except TritonError:  # somebody was faster, perhaps the model itself
            if update is None:
                runtime.drain()
            else:
                update.runtime.discard_update(update)
            raise
        slots = {**before, runtime.version: Slot(runtime)}
        kept = versions_to_keep(runtime.config if update is None else update.config, slots)
        if update is None and runtime.version not in kept:
            self._see_off(runtime)
            self._registry.leave_out(name, runtime.version)
        if not kept:
            if update is not None:
                update.runtime.discard_update(update)
            raise ConfigError(
                f"at least one version must be available under the version policy of model '{name}'",
                field="version_policy",
            )
        if update is not None:
            update.runtime.apply_update(update)
        self._registry.entries[name] = Entry(
            {number: slot for number, slot in slots.items() if number in kept},
            user_config,
            self._ignored(user_config, [runtime], agents=False),
        )
        for number, slot in before.items():
            if number not in kept or (update is None and number == runtime.version):
                self._retire(slot.runtime)
        self._check_dependents(name)

    def _ignored(
        self, user_config: ModelConfig, runtimes: Sequence[Runtime], *, agents: bool
    ) -> list[tuple[str, str]]:
        """Return what a configuration sets in vain on this server, with the reasons."""
        config = ModelConfig()
        config.CopyFrom(user_config)
        config.backend = next((runtime.config.backend for runtime in runtimes), config.backend)
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
        )

    def found_none(self, name: str) -> None:
        """Note that the version policy of a model left none to be built."""
        self._registry.miss(name, {})

    def refuse(self, reason: str) -> None:
        """Answer no question about a model from now on, as a server that could not be set up."""
        self._registry.refusal = reason

    def stop_accepting(self) -> None:
        """Refuse what clients begin from now on; what they have begun goes on.

        For endpoints that are about to close: a request of a sequence that has begun is taken, and
        the steps and calls of requests that were accepted before are no new ones.
        """
        self._stopping = True

    def in_flight(self) -> list[tuple[str, int, int]]:
        """Return name, version and number of the requests, or sequences, that versions have."""
        runtimes = [*runtimes_of(self._registry), *self._leaving]
        found = [(runtime.name, runtime.version, runtime.in_flight()) for runtime in runtimes]
        return [one for one in found if one[2]]

    def give_up(self) -> None:
        """Answer all that clients wait for with UNAVAILABLE; models may go on, unheard."""
        for runtime in [*runtimes_of(self._registry), *self._leaving]:
            runtime.fail_pending(STOPPING)
            runtime.fail_running(STOPPING)

    def _retire(self, runtime: Runtime) -> None:
        self._registry.miss(runtime.name, {runtime.version: UNLOADED})
        self._see_off(runtime)

    def _see_off(self, runtime: Runtime) -> None:
        self._leaving[:] = [old for old in self._leaving if not old.wait_drained(0)]
        self._leaving.append(runtime)
        runtime.unpublish()

    def _check_dependents(self, name: str) -> None:
        """Ensembles follow their composing models: out of service, and back again (E18)."""
        for ensemble in self._registry.dependents(name):
            entry = self._registry.entries[ensemble]
            for number, slot in entry.slots.items():
                if not isinstance(slot.runtime, EnsembleRuntime):
                    continue
                slot.runtime.members_changed()
                try:
                    validate_ensemble(slot.runtime.config, self._registry.configs())
                except ConfigError as error:
                    changed = Slot(slot.runtime, "UNAVAILABLE", error.message)
                else:
                    changed = Slot(slot.runtime)
                entry = entry.with_slot(number, changed)
            self._registry.entries[ensemble] = entry

    def unload(
        self, name: str, unload_dependents: bool = False, *, timeout_s: float | None = 0.0
    ) -> bool:
        """Unload all versions of a model.

        New requests are refused at once; those that were accepted are finished (L18). Unloading
        what is not loaded succeeds, as in Triton.

        Parameters
        ----------
        name : str
        unload_dependents : bool
            For an ensemble: unload its composing models too, unless another ensemble uses them.
        timeout_s : float or None
            Seconds to wait until the last request is finished; 0 does not wait, None has no limit.

        Returns
        -------
        bool
            True once nothing of the model is left.
        """
        with self._changing, interrupts_deferred():
            entry = self._registry.entries.pop(name, None)
            if entry is None:
                return True
            runtimes = [slot.runtime for slot in entry.slots.values()]
            members = {
                step.model_name
                for runtime in runtimes
                for step in runtime.config.ensemble_scheduling.step
            }
            for runtime in runtimes:
                self._retire(runtime)
            self._check_dependents(name)
            if unload_dependents:
                for member in members:
                    if not self._registry.dependents(member):
                        self.unload(member, unload_dependents=True)
        deadline = None if timeout_s is None else monotonic() + timeout_s
        return all(
            runtime.wait_drained(None if deadline is None else max(0.0, deadline - monotonic()))
            for runtime in runtimes
        )

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Stop: finish what runs, answer what waits, end all threads. Harmless when repeated.

        Parameters
        ----------
        timeout_s : float
            Seconds to wait for requests that are executing. Those that still wait in a queue are
            answered with `EngineStoppedError` at once, and those that still run when the time is
            up, likewise. A model or a callback that closes the server waits for nothing.
        """
        if self._parents is not None:
            return
        with self._changing, interrupts_deferred():
            self._closed = True
            self._dropped.detach()
            runtimes = [*runtimes_of(self._registry), *self._leaving]
            self._registry.entries.clear()
            self._leaving.clear()
        end(runtimes, self._clock, timeout_s)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a server cannot be sent to another process: its models run in threads of this one. "
            "Make an nbtriton.Server() there, or ask this one over HTTP (server.serve())"
        )

    def in_child(self) -> None:
        """Say to everybody who asks that the server is in the parent process."""
        self._parents = keep_for_good(self._registry, self._changing)
        self._dropped.detach()
        self._registry = cast("Registry", _Elsewhere())
        self._changing = threading.RLock()  # another thread may have held it
        self._closed = True

    def _check_open(self) -> None:
        if self._parents is not None:
            raise elsewhere()
        if self._closed:
            raise EngineStoppedError("the server is closed", hint="make a new nbtriton.Server()")


class _Elsewhere:
    """Stands for the registry in a child process."""

    def __getattr__(self, name: str) -> NoReturn:
        raise elsewhere()


def _updated(slots: Mapping[int, Slot], update: InstanceUpdate) -> Slot:
    """Return the slot of an updated version, if that serves as it did when it was prepared."""
    runtime = update.runtime
    slot = slots.get(runtime.version)
    if slot is None or slot.runtime is not runtime or not runtime.is_current(update):
        raise LoadError(
            f"load failed for model '{runtime.name}': Newer operation has been applied to the model "
            "lifecycle, current load operation is out-dated.",
            hint="somebody else loaded or unloaded the model meanwhile",
        )
    return slot
