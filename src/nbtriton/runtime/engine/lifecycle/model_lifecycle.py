"""The versions that serve: loading, replacing and unloading them (L1 to L22)."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, TypeVar, Unpack

from nbtriton.backends.base import ServerHandle
from nbtriton.common.checks import check, optional, whole
from nbtriton.common.errors import (
    ConfigError,
    EngineStoppedError,
    InvalidArgumentError,
    LoadError,
    TritonError,
    UnavailableError,
)
from nbtriton.model.config import (
    Difference,
    Dumpable,
    ModelConfig,
    ReadyModel,
    as_config,
    copy_config,
    differences,
    validate_ensemble,
)
from nbtriton.options.server import ServerSettings
from nbtriton.runtime.engine.core.dispatch import (
    Entry,
    Registry,
    Slot,
    checked_name,
    versions_to_keep,
)
from nbtriton.runtime.engine.core.ensemble_runtime import EnsembleRuntime
from nbtriton.runtime.engine.core.instance_set import InstanceUpdate
from nbtriton.runtime.engine.core.model_runtime import ModelRuntime
from nbtriton.runtime.engine.core.runtime import Runtime
from nbtriton.runtime.engine.core.threads import SchedulerThread, starting_here
from nbtriton.runtime.engine.lifecycle.closing import STOPPING, drop, end
from nbtriton.runtime.engine.lifecycle.loading import changes_only_instances
from nbtriton.runtime.engine.lifecycle.model_builder import (
    LoadRequest,
    ModelBuilder,
    take_instances,
)
from nbtriton.runtime.engine.lifecycle.options import ServerOptions
from nbtriton.runtime.interrupts import interrupts_deferred


def model_name(config: ModelConfig, name: str | None) -> str:
    """Return the name of the model that a configuration, or the caller, names.

    Raises
    ------
    ConfigError
        Neither does, or they differ.
    InvalidArgumentError
        The caller's is no text.
    """
    if name is not None:
        checked_name(name)
    if name and config.name and config.name != name:
        raise ConfigError(
            f"unexpected name '{config.name}' in the configuration of model '{name}'",
            hint="leave 'name' out of the configuration, or make the two equal",
            field="name",
        )
    found = name or str(config.name)
    if not found:
        raise ConfigError("model configuration must specify 'name'", field="name")
    return found


# Why a version that was unloaded does not serve: the repository index says so too.
UNLOADED = "unloaded"

_AS_LOADED = (
    "options are for the models as they are loaded: load a changed configuration first (%triton_load, "
    "%%triton_config)"
)

_R = TypeVar("_R", bound=Runtime)


class ModelLifecycle:
    """The versions of a `nbtriton.Server`'s models: made, installed, drained.

    One change at a time, under a lock that no request takes: readers see the registry before a
    change or after it.

    Parameters
    ----------
    registry : Registry
    options : ServerOptions
    server : ServerHandle
        The part of the server that model code gets.

    Attributes
    ----------
    builder : ModelBuilder
        Makes versions with the options of the server.
    """

    def __init__(self, registry: Registry, options: ServerOptions, server: ServerHandle) -> None:
        self._registry = registry
        self._lock = threading.RLock()
        self._thread = SchedulerThread()
        self._draining: list[Runtime] = []
        # Loads that have begun: of which model, and which. An unload ends them (L18).
        self._begun: set[tuple[str, object]] = set()
        # Loads that models ask for while they are loaded: who, and what.
        self._asked: Counter[tuple[str, str]] = Counter()
        self._changing = False  # the options, in some thread
        self.builder = ModelBuilder.of(registry, server, self._thread, options)
        self._dropped = weakref.finalize(self, drop, registry, self._draining, self._thread)
        self._dropped.atexit = False

    def load(
        self,
        config: str | Mapping[str, Any] | ModelConfig | Dumpable | None = None,
        model: object = None,
        *,
        name: str | None = None,
        version: int | None = None,
        example: object = None,
        batching: object = None,
    ) -> tuple[str, list[tuple[str, str]]]:
        """Load a model or replace one; see `nbtriton.Server.load`.

        Returns
        -------
        name : str
        remarks : list of (str, str)
            As `remarks`.
        """
        with self._lock:
            self._registry.check_open()
            check({"version": version}, {"version": optional(whole(0))})
            if isinstance(model, ReadyModel):
                config, model = model.configured(config), model.source
            wanted = ModelConfig() if config is None else as_config(config)
            name = model_name(wanted, name)
            entry = self._registry.entries.get(name)
            if config is None and entry is not None:
                wanted.CopyFrom(entry.user_config)
            wanted.name = name
            user_config = copy_config(wanted)
            slots = {} if entry is None else entry.slots
            latest = None if entry is None else entry.latest
            if model is None and version is None and len(slots) > 1:
                # A configuration is that of the model: each version gets it, with its own code.
                kept = sorted(versions_to_keep(wanted, slots))
                if not kept:
                    raise _no_version(name)
                requests = [
                    LoadRequest(wanted, None, number, example, batching, runtime, runtime)
                    for number in kept
                    for runtime in (slots[number].runtime,)
                ]
            else:
                number = max(slots, default=1) if version is None else int(version)
                serving = slots[number].runtime if number in slots else None
                requests = [LoadRequest(wanted, model, number, example, batching, serving, latest)]
        # Not under the lock: the model's own code may load others, or close the server.
        with self.asking([name]), self.loading(name) as begun:
            runtimes, updates = self._make(requests)
            with self._lock:
                before = self._registry.entries.get(name)
                self._put(name, user_config, runtimes, updates, begun)
                return name, self.remarks(name, before)

    def remarks(self, name: str, before: Entry | None) -> list[tuple[str, str]]:
        """Return what is to be said of a model that was loaded, with what that is about.

        Its fields that have no effect here; and the differences of Triton 2.51 that it did not
        have `before`, so that they are said once.
        """
        entry = self._registry.entries[name]
        ignored = [(path, f"{path} has no effect here: {reason}") for path, reason in entry.ignored]
        cache = self.builder.cache is not None
        told = {} if before is None else _differences(before, cache)
        found = _differences(entry, cache).items()
        return ignored + [(name, str(one)) for name, one in found if name not in told]

    @contextlib.contextmanager
    def asking(self, names: Iterable[str]) -> Iterator[None]:
        """Load models, perhaps for one that is being loaded in this thread, and waits for them.

        Raises
        ------
        InvalidArgumentError
            One of them waits for that one in turn.
        """
        asker = starting_here()
        asked = Counter((asker, name) for name in names if asker)
        with self._lock:
            for _, name in asked:
                if path := _path(self._asked, name, asker):
                    raise InvalidArgumentError(
                        f"model '{name}' is being loaded, by this very call",
                        hint=f"models that load each other: {' -> '.join([asker, *path])}",
                    )
            self._asked += asked
        try:
            yield
        finally:
            with self._lock:
                self._asked -= asked

    @contextlib.contextmanager
    def loading(self, name: str) -> Iterator[object]:
        """Begin a load of a model; what is yielded is for `install`, which an unload refuses then."""
        begun = (name, object())
        with self._lock:
            self._begun.add(begun)
        try:
            with (
                interrupts_deferred()
            ):  # but in the slow parts: what is made has an owner at each moment
                yield begun
        finally:
            with self._lock:
                self._begun.discard(begun)

    def _make(self, requests: Sequence[LoadRequest]) -> tuple[list[Runtime], list[InstanceUpdate]]:
        """Make new versions, or the instances of those that go on; all of them or none."""
        runtimes: list[Runtime] = []
        updates: list[InstanceUpdate] = []
        try:
            for request in requests:
                if request.updatable(self.builder) is not None:
                    updates.append(
                        self.prepare_update(request.config.name, request.version, request.config)
                    )
                else:
                    runtimes.append(request.build(self.builder))
        except BaseException:
            discard(runtimes, updates)
            raise
        return runtimes, updates

    def set_options(self, **changes: Unpack[ServerSettings]) -> tuple[str, ...]:
        """Change options and load the models anew; see `nbtriton.Server.set_options`."""
        with interrupts_deferred():
            with self._lock:
                self._registry.check_open()
                before = self.builder
                options = before.options.changed(**changes)
                if options == before.options:
                    return ()
                if self._changing:
                    raise UnavailableError("the options are being changed by another caller")
                self.builder = before.changed(options)
                self._changing = True
                self._begun.clear()  # loads that have begun with the options before
            # Not under the lock: the models' own code may load others, or close the server.
            made: list[tuple[Runtime, ModelConfig, Runtime]] = []
            try:
                for model in self._serving(ModelRuntime):
                    made.append((model, model.config, self.builder.rebuild(model)))  # noqa: PERF401 - drained on an error
                with self._lock:
                    models = self._exchange(made)
            except BaseException as error:
                if isinstance(error, ConfigError):
                    error.hint = "; ".join(filter(None, (error.hint, _AS_LOADED)))
                with self._lock:
                    self.builder = before
                    self._begun.clear()
                for _, _, runtime in made:
                    runtime.drain()
                raise
            finally:
                self._changing = False
            with self._lock:
                for ensemble in self._serving(EnsembleRuntime):
                    # One that no longer fits its members stays, out of service and with the reason.
                    with contextlib.suppress(ConfigError):
                        made_anew = self.builder.build(
                            ensemble.config, None, ensemble.version, directory=ensemble.directory
                        )
                        models |= self._exchange([(ensemble, ensemble.config, made_anew)])
                return tuple(models)

    def _serving(self, kind: type[_R]) -> list[_R]:
        return [runtime for runtime in self._registry.runtimes() if isinstance(runtime, kind)]

    def _exchange(
        self, made: Sequence[tuple[Runtime, ModelConfig, Runtime]]
    ) -> dict[str, list[Runtime]]:
        """Let versions take the place of others that still serve; `LoadError` if one of those was updated meanwhile."""
        found: dict[str, list[Runtime]] = {}
        for old, config, new in made:
            slot = self._slots(old.name).get(old.version)
            if slot is None or slot.runtime is not old:
                new.drain()
            elif old.config != config:
                raise _outdated(old.name)
            else:
                found.setdefault(old.name, []).append(new)
        self._registry.check_open()
        for name, runtimes in found.items():
            slots = {**self._slots(name), **{one.version: Slot(one) for one in runtimes}}
            entry = self._registry.entries[name]
            self._publish(name, entry.user_config, slots, runtimes, (), agents=True)
        return found

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
        return self.builder.update(runtime, config)

    def can_update(self, name: str, version: int, config: ModelConfig) -> bool:
        """Return True if a version serves, and a configuration asks of it for no more than L16."""
        try:
            runtime = self._registry.resolve(name, version)
        except TritonError:
            return False
        return isinstance(runtime, ModelRuntime) and changes_only_instances(runtime, config)

    def install(
        self,
        name: str,
        user_config: ModelConfig,
        runtimes: Sequence[Runtime],
        begun: object,
        *,
        updates: Sequence[InstanceUpdate] = (),
    ) -> None:
        """Let exactly these versions serve a model; those that did so before are unloaded (L17).

        Versions that are updated go on, with what they counted and what their code holds (L16).
        `begun` is of `loading`.

        Raises
        ------
        EngineStoppedError
            The server is closed; what was made is released.
        LoadError
            The model was unloaded meanwhile, or one of the updated versions replaced; likewise.
        """
        with self._lock:
            kept = self._check_current(name, runtimes, updates, begun)
            slots = kept | {runtime.version: Slot(runtime) for runtime in runtimes}
            self._publish(name, user_config, slots, runtimes, updates, agents=True)

    def _put(
        self,
        name: str,
        user_config: ModelConfig,
        runtimes: Sequence[Runtime],
        updates: Sequence[InstanceUpdate],
        begun: object,
    ) -> None:
        """Let versions serve, or go on with other instances, as the version policy allows."""
        updated = self._check_current(name, runtimes, updates, begun)
        slots = {**self._slots(name), **updated, **{one.version: Slot(one) for one in runtimes}}
        config = runtimes[0].config if runtimes else updates[0].config
        kept = versions_to_keep(config, slots)
        for runtime in runtimes:
            if runtime.version not in kept:
                self._unpublish(runtime)
                self._registry.record_unwanted(name, runtime.version)
        if not kept:
            discard((), updates)
            raise _no_version(name)
        slots = {number: slot for number, slot in slots.items() if number in kept}
        self._publish(name, user_config, slots, runtimes, updates, agents=False)

    def _slots(self, name: str) -> Mapping[int, Slot]:
        entry = self._registry.entries.get(name)
        return entry.slots if entry is not None else {}

    def _check_current(
        self,
        name: str,
        runtimes: Sequence[Runtime],
        updates: Sequence[InstanceUpdate],
        begun: object,
    ) -> dict[int, Slot]:
        """Return the slots of the updated versions; on an error release what was made."""
        before = self._slots(name)
        try:
            self._registry.check_open()
            if begun not in self._begun:
                self._registry.record_absent(name, {one.version: UNLOADED for one in runtimes})
                raise _outdated(name)
            return {update.runtime.version: _updated(before, update) for update in updates}
        except TritonError:  # another load was faster, perhaps the model's own
            discard(runtimes, updates)
            raise

    def _publish(
        self,
        name: str,
        user_config: ModelConfig,
        slots: Mapping[int, Slot],
        runtimes: Sequence[Runtime],
        updates: Sequence[InstanceUpdate],
        *,
        agents: bool,
    ) -> None:
        """Let these slots be the model's; versions that are in none of them are unloaded."""
        before = self._slots(name)
        for update in updates:
            update.runtime.apply_update(update)
            assert isinstance(update.runtime, ModelRuntime)
            take_instances(update.runtime.given, user_config)  # as it is to be made anew
        made = [*runtimes, *(update.runtime for update in updates)]
        ignored = self.builder.ignored_fields(user_config, made, agents=agents)
        self._registry.entries[name] = Entry(slots, user_config, ignored)
        for number, slot in before.items():
            if number not in slots or slots[number].runtime is not slot.runtime:
                self._unload(slot.runtime)
        self._check_dependents(name)

    def _unload(self, runtime: Runtime) -> None:
        self._registry.record_absent(runtime.name, {runtime.version: UNLOADED})
        self._unpublish(runtime)

    def _unpublish(self, runtime: Runtime) -> None:
        self._draining[:] = [old for old in self._draining if not old.wait_drained(0)]
        self._draining.append(runtime)
        runtime.unpublish()

    def _check_dependents(self, name: str) -> None:
        """Take ensembles out of service with their composing models, and back again (E18)."""
        for ensemble in self._registry.dependents(name):
            entry = self._registry.entries[ensemble]
            for number, slot in entry.slots.items():
                if not isinstance(slot.runtime, EnsembleRuntime):
                    continue
                slot.runtime.members_changed()
                changed = Slot(slot.runtime)
                try:
                    validate_ensemble(slot.runtime.config, self._registry.configs())
                except ConfigError as error:
                    changed = Slot(slot.runtime, "UNAVAILABLE", error.message)
                entry = entry.with_slot(number, changed)
            self._registry.entries[ensemble] = entry

    def unload(
        self, name: str, unload_dependents: bool = False, *, timeout_s: float | None = 0.0
    ) -> bool:
        """Unload all versions of a model; see `nbtriton.Server.unload`."""
        with self._lock, interrupts_deferred():
            entry = self._registry.entries.pop(checked_name(name), None)
            self._begun = {one for one in self._begun if one[0] != name}
            if entry is None:
                return True
            runtimes = [slot.runtime for slot in entry.slots.values()]
            for runtime in runtimes:
                self._unload(runtime)
            self._check_dependents(name)
            if unload_dependents:
                for member in entry.members:
                    if not self._registry.dependents(member):
                        self.unload(member, unload_dependents=True)
        deadline = None if timeout_s is None else monotonic() + timeout_s
        return all(
            runtime.wait_drained(None if deadline is None else max(0.0, deadline - monotonic()))
            for runtime in runtimes
        )

    def unloading(self) -> set[tuple[str, int]]:
        """Return name and version of what is unloaded and not yet finished."""
        draining = list(self._draining)  # others unload meanwhile
        return {(old.name, old.version) for old in draining if not old.wait_drained(0)}

    def runtimes(self) -> list[Runtime]:
        """Return every version of every model, those that finish their last requests among them."""
        return [*self._registry.runtimes(), *self._draining]

    def refuse(self, reason: str) -> None:
        """Answer no question about a model from now on, as a server that could not be set up."""
        self._registry.refusal = reason

    def stop_accepting(self) -> None:
        """Refuse what clients begin from now on; what they have begun goes on.

        For endpoints that are about to close: a request of a sequence that has begun is taken, and
        the steps and calls of requests that were accepted before are no new ones.
        """
        self._registry.stopping = True

    def in_flight(self) -> list[tuple[str, int, int]]:
        """Return name, version and number of the requests, or sequences, that versions have."""
        found = [(one.name, one.version, one.in_flight()) for one in self.runtimes()]
        return [one for one in found if one[2]]

    def fail_all(self) -> None:
        """Answer all that clients wait for with UNAVAILABLE; models may go on, unheard."""
        for runtime in self.runtimes():
            runtime.fail_pending(STOPPING)
            runtime.fail_running(STOPPING)

    def close(self, *, timeout_s: float) -> None:
        """Unload everything and end all threads; see `nbtriton.Server.close`."""
        with interrupts_deferred():
            with self._lock:
                self._registry.closed = _closed
                self.detach()
                runtimes = self.runtimes()
                self._registry.entries.clear()
                self._draining.clear()
            try:
                end(runtimes, self._thread, timeout_s)
            finally:
                self.builder.environments.close()

    def detach(self) -> None:
        """Do nothing when this is dropped."""
        self._dropped.detach()


def _path(edges: Iterable[tuple[str, str]], start: str, end: str) -> list[str]:
    """Return the nodes of a directed graph on the shortest way from one to another; none without a way."""
    ways = [[start]]
    for way in ways:
        if way[-1] == end:
            return way
        ways += [[*way, to] for at, to in edges if at == way[-1] and to not in way]
    return []


def _closed() -> EngineStoppedError:
    return EngineStoppedError("the server is closed", hint="make a new nbtriton.Server()")


def _updated(slots: Mapping[int, Slot], update: InstanceUpdate) -> Slot:
    """Return the slot of an updated version, if that serves as it did when it was prepared."""
    runtime = update.runtime
    slot = slots.get(runtime.version)
    if slot is None or slot.runtime is not runtime or not runtime.is_current(update):
        raise _outdated(runtime.name)
    return slot


def _outdated(name: str) -> LoadError:
    return LoadError(
        f"load failed for model '{name}': Newer operation has been applied to the model "
        "lifecycle, current load operation is out-dated.",
        hint="another caller loaded or unloaded the model, or changed the server's options, meanwhile",
    )


def _differences(entry: Entry, cache: bool) -> dict[str, Difference]:
    configs = [slot.runtime.config for slot in entry.slots.values()]
    return {one.name: one for config in configs for one in differences(config, cache=cache)}


def discard(runtimes: Iterable[Runtime], updates: Iterable[InstanceUpdate]) -> None:
    """Release versions and instances that will not serve."""
    for runtime in runtimes:
        runtime.drain()
    for update in updates:
        update.runtime.discard_update(update)


def _no_version(name: str) -> ConfigError:
    return ConfigError(
        f"at least one version must be available under the version policy of model '{name}'",
        field="version_policy",
    )
