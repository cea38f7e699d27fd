"""Loading and unloading of repository models in a server, with dependent ensembles and Triton's error texts."""

from __future__ import annotations

import logging
import queue
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nbtriton.common.closing import ScratchFolder
from nbtriton.common.errors import (
    ConfigError,
    EngineStoppedError,
    InternalError,
    LoadError,
    NotFoundError,
    TritonError,
)
from nbtriton.runtime.engine import Server
from nbtriton.runtime.engine.core.instance_set import InstanceUpdate
from nbtriton.runtime.engine.core.runtime import Runtime
from nbtriton.runtime.engine.core.threads import starting_here
from nbtriton.runtime.engine.lifecycle.model_lifecycle import UNLOADED, discard
from nbtriton.runtime.interrupts import interrupts_deferred
from nbtriton.serving.repository import polling
from nbtriton.serving.repository.reader import directories_without_version, is_folder_name

_log = logging.getLogger("nbtriton.serving.repository")
_loads = logging.getLogger(polling.LOADS)


class ModelLoader:
    """Loader of repository models, with a record of each.

    Parameters
    ----------
    server : Server
    directories : sequence of Path
        The repositories.
    settings : mapping
        Of `nbtriton.options.repository.RepositorySettings`.

    Attributes
    ----------
    records : dict of str to ModelRecord
    """

    def __init__(
        self, server: Server, directories: Sequence[Path], settings: Mapping[str, Any]
    ) -> None:
        self.records: dict[str, polling.ModelRecord] = {}
        self._server = server
        self._directories = directories
        self._settings = settings
        self._lock = threading.Lock()
        self._ended = threading.Condition()
        # Models of loads that have not ended, and of unloads that wait for them.
        self._loading: Counter[str] = Counter()
        self._unloading: Counter[str] = Counter()
        # The files that came with load requests.
        self._scratch: ScratchFolder | None = None

    def clean_up(self) -> None:
        """Remove the files that came with load requests."""
        with self._lock:
            scratch, self._scratch = self._scratch, None
        if scratch is not None:
            scratch.close()

    def _scratch_folder(self) -> Path:
        with self._lock:
            if self._scratch is None:
                self._scratch = ScratchFolder("nbtriton-model-")
            return self._scratch.path

    def record(self, name: str) -> polling.ModelRecord:
        """Return the record of a model, created on first use."""
        with self._lock:
            return self.records.setdefault(name, polling.ModelRecord(name))

    def load(
        self, names: Iterable[str], overrides: Mapping[str, polling.Override] | None = None
    ) -> dict[str, TritonError]:
        """Load models and their composing models; return the errors of failed models.

        Raises
        ------
        InvalidArgumentError
            A model asks for it while it is loaded itself, and one of them waits for that.
        """
        requested = list(dict.fromkeys(names))
        polled, errors = self._poll(requested, overrides or {})
        with self._server.engine.lifecycle.asking(polled), self._in_progress([*polled]):
            self._load_polled(requested, polled, errors)
        return errors

    @contextmanager
    def _in_progress(self, names: Sequence[str]) -> Iterator[None]:
        """Make unloads of these models wait, after those that are already waiting."""
        with self._ended:
            if not starting_here():  # an unload may wait for the load that waits here
                self._ended.wait_for(lambda: not any(self._unloading[name] for name in names))
            self._loading.update(names)
        try:
            yield
        finally:
            with self._ended:
                self._loading -= Counter(names)  # without those that are 0
                self._ended.notify_all()

    def _load_polled(
        self,
        requested: Sequence[str],
        polled: Mapping[str, polling.PolledModel],
        errors: dict[str, TritonError],
    ) -> None:
        for name in requested:
            if name in polled:
                self.record(name).explicit = True
        changed: set[str] = set()
        load = partial(self._load_one, errors, changed)
        in_parallel(
            load,
            [model for model in polled.values() if not model.is_ensemble],
            self._settings["load_threads"],
        )
        ensembles = {name: model for name, model in polled.items() if model.is_ensemble}
        ordered, cyclic = polling.by_dependency({n: model.config for n, model in ensembles.items()})
        for name, cycle in cyclic.items():
            errors[name] = polling.load_error(name, cycle)
            self.failed(name, errors[name])
            _loads.error("failed to load '%s': %s", name, polling.with_hint(errors[name]))
        for name in ordered:
            # A changed composing model requires a rebuild of the ensemble (L11).
            load(ensembles[name], force=not changed.isdisjoint(ensembles[name].members))
        self._load_dependents(changed, set(polled))

    def failed(self, name: str, error: TritonError) -> None:
        """Record the error of a load, and what still serves."""
        record, entry = self.record(name), self._server.engine.registry.entries.get(name)
        record.error, record.kept = error, None if entry is None else entry.user_config

    def unload(self, name: str, *, dependents: bool = False) -> None:
        """Unload a model, once its loads that have begun have ended.

        With `dependents`, also unload composing models that no other model uses.
        """
        with self._ended:
            if not starting_here():
                self._unloading[name] += 1
                try:
                    self._ended.wait_for(lambda: not self._loading[name])
                finally:
                    self._unloading -= Counter([name])
                    self._ended.notify_all()
            record = self.records.get(name)
            serving = [model.version for model in self._server.models() if model.name == name]
            self._server.unload(name)
            if record is None:
                return
            record.explicit = False
            record.waiting = None
            record.set_unloaded(serving)
            unloaded, record.loaded = record.loaded, None
            self._remove_files(unloaded)
        if unloaded is None or not dependents:
            return
        used = {
            member
            for other in list(self.records.values())
            if other.loaded is not None
            for member in other.loaded.members
        }
        for member in unloaded.members:
            composing = self.records.get(member)
            if composing is not None and not composing.explicit and member not in used:
                self.unload(member, dependents=True)  # L19

    def _poll(
        self, names: Sequence[str], overrides: Mapping[str, polling.Override]
    ) -> tuple[dict[str, polling.PolledModel], dict[str, TritonError]]:
        """Poll models and their composing models."""
        polled: dict[str, polling.PolledModel] = {}
        errors: dict[str, TritonError] = {}
        polled_names = set(names)
        waiting = list(names)
        while waiting:
            name = waiting.pop(0)
            try:
                model = polling.poll_model(
                    self._directories, name, override=overrides.get(name), scratch=self._scratch_folder,
                    config_name=self._settings["config_name"],
                    auto_complete=self._settings["auto_complete"],
                )  # fmt: skip
            except Exception as error:  # also of a name that is not UTF-8: other models load
                if name in names:
                    errors[name] = self._poll_failed(name, error)
                continue  # a composing model: reported by the check of the ensemble
            polled[name] = model
            waiting += [member for member in model.members if member not in polled_names]
            polled_names.update(model.members)
        return polled, errors

    def _poll_failed(self, name: str, error: Exception) -> TritonError:
        text = error.message if isinstance(error, TritonError) else str(error)
        reported = InternalError(
            f"failed to load '{name}', failed to poll from model repository", hint=text
        )
        record = self.records.get(name)
        folder = is_folder_name(name)
        if record is None and folder and any((root / name).is_dir() for root in self._directories):
            record = self.record(name)
        if record is None or record.polled_error != text:
            if isinstance(error, NotFoundError):
                _loads.error("%s", text)
            else:
                _loads.error("Poll failed for model directory '%s': %s", name, text)
        if record is not None:
            record.polled_error = text
            self.failed(name, reported)
        return reported

    def _load_one(
        self,
        errors: dict[str, TritonError],
        changed: set[str],
        model: polling.PolledModel,
        *,
        force: bool = False,
    ) -> None:
        name, record = model.name, self.record(model.name)
        record.polled_error = ""
        with record.busy, interrupts_deferred():  # what is installed is recorded too
            if not force and self._is_current(record, model):
                record.error = None
                return
            served = self._server.engine.registry.entries.get(name)
            try:
                self._install(record, model)
            except EngineStoppedError:
                raise
            except TritonError as error:
                if model.is_ensemble or not model.versions:  # otherwise logged for each version
                    _loads.error("failed to load '%s': %s", name, polling.with_hint(error))
                errors[name] = error
                self.failed(name, error)
                record.waiting = model if model.is_ensemble else None
                if record.waiting is None:
                    self._remove_files(model)
                return
            self._remove_files(record.loaded)
            before = () if record.loaded is None else record.loaded.versions
            removed = {*before, *record.states} - set(model.versions)
            record.loaded, record.error, record.waiting, record.states = model, None, None, {}
            record.set_unloaded(removed)
            _loads.info("successfully loaded '%s'", name)
            for _, text in self._server.engine.lifecycle.remarks(name, served):
                _log.warning("model '%s': %s", name, text)
            changed.add(name)

    def _install(self, record: polling.ModelRecord, model: polling.PolledModel) -> None:
        lifecycle = self._server.engine.lifecycle
        self._check(model)
        keep: set[int] = set()
        if record.loaded is not None:
            # The notebook may have replaced a version loaded here.
            keep = {
                version
                for version in model.unchanged_since(record.loaded)
                if lifecycle.can_update(model.name, version, model.config)
            }
        with lifecycle.loading(model.name) as begun:
            runtimes, updates = self._build(record, model, keep)
            record.set_unloaded([runtime.version for runtime in runtimes])  # until it is installed
            lifecycle.install(model.name, model.given, runtimes, begun, updates=updates)

    def _check(self, model: polling.PolledModel) -> None:
        """Check a model before creating instances.

        Raises
        ------
        LoadError
            No version is left, or a composing model is not loaded, with Triton's text.
        """
        name = model.name
        for folder, reason in directories_without_version(model.directory):
            _log.warning("ignore version directory '%s' which %s", folder, reason)
        if not model.versions:
            self._server.engine.registry.record_absent(name, {})
            raise polling.load_error(
                name,
                ConfigError(
                    "at least one version must be available under the version policy of model "
                    f"'{name}'",
                    field="version_policy",
                ),
            )
        for step in model.config.ensemble_scheduling.step:
            self._check_member(name, str(step.model_name), int(step.model_version))

    def _check_member(self, name: str, member: str, version: int) -> None:
        if not self._server.is_ready(member):
            record = self.records.get(member)
            if record is None or not isinstance(record.error, LoadError):
                return  # not in the repository: reported by the validation of the ensemble
            error = record.error
            reason = error.message.removeprefix(f"load failed for model '{member}': ").rstrip("\n")
            text = (
                f"ensemble '{name}' depends on '{member}' which has no loaded version. Model "
                f"'{member}' loading failed with error: {reason}"
            )
            if not record.states:  # an ensemble that does not fit its composing models
                text = (
                    f"ensemble '{name}' depends on '{member}' which is not valid. Model "
                    f"'{member}' failed with error: {reason}"
                )
            raise polling.load_error(name, ConfigError(text, hint=error.hint))  # V113, V114
        if version != -1 and not self._server.is_ready(member, version):
            raise polling.load_error(
                name,
                ConfigError(
                    f"ensemble '{name}' depends on '{member}' whose required version {version} "
                    "is not loaded."
                ),
            )  # V115

    def _build(
        self, record: polling.ModelRecord, model: polling.PolledModel, keep: Collection[int]
    ) -> tuple[list[Runtime], list[InstanceUpdate]]:
        """Build all versions, and new instances of the versions to `keep`; all or none (L3).

        A version that fails is tried again as often as ``load_retries`` says.

        Raises
        ------
        LoadError
            With the reasons of all failed versions; `record` has them too.
        """
        name = model.name
        serving = {served.version for served in self._server.models() if served.name == name}
        fresh = [version for version in model.versions if version not in serving]
        before = record.states
        record.states = before | dict.fromkeys(fresh, ("LOADING", ""))
        for version in model.versions:
            _log.info("loading: %s:%d", name, version)
        runtimes: list[Runtime] = []
        updates: list[InstanceUpdate] = []
        failed: dict[int, TritonError] = {}
        try:
            for version in model.versions:
                try:
                    if version in keep:
                        updates.append(
                            self._server.engine.lifecycle.prepare_update(
                                name, version, model.config
                            )
                        )
                        continue
                    build = partial(
                        self._server.engine.lifecycle.builder.build,
                        model.config,
                        model.source(version),
                        version,
                        auto_complete=self._settings["auto_complete"],
                        directory=model.directory,
                    )
                    runtimes.append(
                        _with_retries(build, name, version, self._settings["load_retries"])
                    )
                except TritonError as error:
                    failed[version] = error
                    _log_failed(name, version, error)
        except BaseException:
            record.states = before
            discard(runtimes, updates)
            raise
        if not failed:
            record.states = {v: s for v, s in record.states.items() if v not in model.versions}
            return runtimes, updates
        discard(runtimes, updates)
        first = next(iter(failed.values()))
        if model.is_ensemble and isinstance(first, ConfigError):
            record.states = before  # the model has never had a version
            raise polling.load_error(name, first)
        # A version that could not be updated still serves; its entry in the index has the reason.
        reasons = {
            version: (
                "READY" if version in keep else "UNAVAILABLE",
                polling.load_reason(name, version, error),
            )
            for version, error in failed.items()
        }
        dropped = dict.fromkeys(fresh, ("UNAVAILABLE", UNLOADED))
        states = {v: state for v, state in reasons.items() if v in keep or v not in serving}
        record.states = before | dropped | states
        raise LoadError(
            f"load failed for model '{name}': "
            + "".join(
                f"version {version} is at {state} state: {reason};"
                for version, (state, reason) in reasons.items()
            )
            + "\n",
            hint=first.hint,
            user_traceback=getattr(first, "user_traceback", ""),
        )

    def _remove_files(self, model: polling.PolledModel | None) -> None:
        """Remove the files that came with a load request, behind the last requests to what was made of them."""
        if model is None or not model.is_override:
            return
        users = [
            runtime
            for runtime in self._server.engine.lifecycle.runtimes()
            if runtime.directory == model.directory
        ]
        threading.Thread(
            target=_remove, args=(model.directory, users), name="nbtriton-files", daemon=True
        ).start()

    def _is_current(self, record: polling.ModelRecord, model: polling.PolledModel) -> bool:
        return (
            record.loaded is not None
            and not model.is_override
            and self._server.is_ready(model.name)
            and model.mtime_ns <= record.loaded.mtime_ns
        )

    def _load_dependents(self, changed: set[str], done: set[str]) -> None:
        """Rebuild ensembles whose composing models changed or are new (L11, L20)."""
        if not changed:
            return
        serving = {model.name for model in self._server.models()}
        ensembles = {}
        for name, record in list(self.records.items()):
            model = record.waiting or (record.loaded if name in serving else None)
            if model is not None and name not in done and model.is_ensemble:
                ensembles[name] = model
        ordered, _ = polling.by_dependency({n: model.config for n, model in ensembles.items()})
        for name in ordered:
            if not changed.isdisjoint(ensembles[name].members):
                self._load_one({}, changed, ensembles[name], force=True)


def _remove(directory: Path, users: Sequence[Runtime]) -> None:
    for runtime in users:
        runtime.wait_drained(None)
    shutil.rmtree(directory, ignore_errors=True)


ItemT = TypeVar("ItemT")


def in_parallel(
    work: Callable[[ItemT], None],
    items: Sequence[ItemT],
    threads: int,
    on_end: Callable[[], None] = lambda: None,
) -> None:
    """Call `work` for all items concurrently; an interrupt does not wait for running calls.

    `on_end` is called on this thread after each call.

    Raises
    ------
    BaseException
        The first error, once all calls have ended.
    """
    if len(items) == 1:
        work(items[0])
        on_end()
        return
    waiting: queue.SimpleQueue[ItemT] = queue.SimpleQueue()
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    for item in items:
        waiting.put(item)

    def run() -> None:
        with suppress(queue.Empty):
            while True:
                item = waiting.get_nowait()
                try:
                    work(item)
                except BaseException as error:
                    ended.put(error)
                else:
                    ended.put(None)

    for _ in range(min(threads, len(items))):
        threading.Thread(target=run, name="nbtriton-load", daemon=True).start()
    try:
        errors = []
        for _ in items:
            errors.append(ended.get())
            on_end()
    except BaseException:
        with suppress(queue.Empty):
            while True:
                waiting.get_nowait()
        raise
    for error in errors:
        if error is not None:
            raise error


def _with_retries(build: Callable[[], Runtime], name: str, version: int, retries: int) -> Runtime:
    for _ in range(retries):
        try:
            return build()
        except EngineStoppedError:
            raise
        except TritonError as error:
            _log_failed(name, version, error)
    return build()


def _log_failed(name: str, version: int, error: TritonError) -> None:
    reason = polling.load_reason(name, version, error) + f" ({error.hint})" * bool(error.hint)
    _log.error("failed to load '%s' version %d: %s", name, version, reason)
