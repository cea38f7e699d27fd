"""Make the versions of one polled model, or say with Triton's words why that cannot be."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

from nbtriton.config import is_ensemble
from nbtriton.engine import Server
from nbtriton.engine.core.instance_update import InstanceUpdate
from nbtriton.engine.core.runtime import Runtime
from nbtriton.errors import ConfigError, EngineStoppedError, LoadError, TritonError
from nbtriton.repository.known import LOADS, UNLOADED, Known, load_error, load_reason
from nbtriton.repository.polling import Polled
from nbtriton.repository.reader import directories_without_version

__all__ = ["build_versions", "check", "in_parallel"]

_log = logging.getLogger(LOADS)


def check(server: Server, models: Mapping[str, Known], found: Polled) -> None:
    """Check what is known before anything is created.

    Raises
    ------
    LoadError
        No version is left, or a composing model is not there, with Triton's text.
    """
    name = found.name
    for folder, reason in directories_without_version(found.directory):
        _log.warning("ignore version directory '%s' which %s", folder, reason)
    if not found.versions:
        server.found_none(name)
        raise load_error(
            name,
            ConfigError(
                "at least one version must be available under the version policy of model "
                f"'{name}'",
                field="version_policy",
            ),
        )
    for step in found.config.ensemble_scheduling.step:
        _check_member(server, models, name, str(step.model_name), int(step.model_version))


def _check_member(
    server: Server, models: Mapping[str, Known], name: str, member: str, version: int
) -> None:
    if not server.is_ready(member):
        known = models.get(member)
        if known is None or not isinstance(known.error, LoadError):
            return  # not in the repository: the validation of the ensemble says so
        error = known.error
        reason = error.message.removeprefix(f"load failed for model '{member}': ").rstrip("\n")
        text = (
            f"ensemble '{name}' depends on '{member}' which has no loaded version. Model "
            f"'{member}' loading failed with error: {reason}"
        )
        if not known.states:  # an ensemble that does not fit its own members
            text = (
                f"ensemble '{name}' depends on '{member}' which is not valid. Model "
                f"'{member}' failed with error: {reason}"
            )
        raise load_error(name, ConfigError(text, hint=error.hint))  # V113, V114
    if version != -1 and not server.is_ready(member, version):
        raise load_error(
            name,
            ConfigError(
                f"ensemble '{name}' depends on '{member}' whose required version {version} "
                "is not loaded."
            ),
        )  # V115


def build_versions(
    server: Server,
    known: Known,
    found: Polled,
    *,
    keep: Collection[int],
    auto_complete: bool,
    retries: int,
) -> tuple[list[Runtime], list[InstanceUpdate]]:
    """Make all versions, and the new instances of those to `keep`; or nothing and say why (L3).

    A version that fails is tried so many times more as `retries` says.

    Raises
    ------
    LoadError
        With the reasons of all versions that failed; `known` has them too.
    """
    name = found.name
    serving = {model.version for model in server.models() if model.name == name}
    fresh = [version for version in found.versions if version not in serving]
    before = known.states
    known.states = before | dict.fromkeys(fresh, ("LOADING", ""))
    for version in found.versions:
        _log.info("loading: %s:%d", name, version)
    runtimes: list[Runtime] = []
    updates: list[InstanceUpdate] = []
    failed: dict[int, TritonError] = {}
    try:
        for version in found.versions:
            try:
                if version in keep:
                    updates.append(server.prepare_update(name, version, found.config))
                    continue
                build = partial(
                    server.build,
                    found.config,
                    found.source(version),
                    version,
                    auto_complete=auto_complete,
                    directory=found.directory,
                )
                runtimes.append(_with_retries(build, name, version, retries))
            except TritonError as error:
                failed[version] = error
                _tell_failed(name, version, error)
    except BaseException:
        known.states = before
        _give_back(runtimes, updates)
        raise
    if not failed:
        known.states = {v: s for v, s in known.states.items() if v not in found.versions}
        return runtimes, updates
    _give_back(runtimes, updates)
    first = next(iter(failed.values()))
    if is_ensemble(found.config) and isinstance(first, ConfigError):
        known.states = before  # it never came so far as to have a version
        raise load_error(name, first)
    # What could not be updated serves on, and its entry in the index says why it was not.
    reasons = {
        version: ("READY" if version in keep else "UNAVAILABLE", load_reason(name, version, error))
        for version, error in failed.items()
    }
    dropped = dict.fromkeys(fresh, ("UNAVAILABLE", UNLOADED))
    states = {v: told for v, told in reasons.items() if v in keep or v not in serving}
    known.states = before | dropped | states
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


def _with_retries(build: Callable[[], Runtime], name: str, version: int, retries: int) -> Runtime:
    for _ in range(retries):
        try:
            return build()
        except EngineStoppedError:
            raise
        except TritonError as error:
            _tell_failed(name, version, error)
    return build()


def _tell_failed(name: str, version: int, error: TritonError) -> None:
    reason = load_reason(name, version, error) + f" ({error.hint})" * bool(error.hint)
    _log.error("failed to load '%s' version %d: %s", name, version, reason)


def _give_back(runtimes: Sequence[Runtime], updates: Sequence[InstanceUpdate]) -> None:
    for runtime in runtimes:
        runtime.drain()
    for update in updates:
        update.runtime.discard_update(update)


def in_parallel(work: Callable[[Polled], None], items: Sequence[Polled], threads: int) -> None:
    """Do the work for all items, several at a time; an interrupt does not wait for those begun.

    Raises
    ------
    BaseException
        What the first that failed raised; all others are done.
    """
    if len(items) == 1:
        work(items[0])
        return
    todo: queue.SimpleQueue[Polled] = queue.SimpleQueue()
    done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    for item in items:
        todo.put(item)

    def run() -> None:
        while True:
            try:
                item = todo.get_nowait()
            except queue.Empty:
                return
            try:
                work(item)
            except BaseException as error:
                done.put(error)
            else:
                done.put(None)

    for _ in range(min(threads, len(items))):
        threading.Thread(target=run, name="nbtriton-load", daemon=True).start()
    try:
        errors = [done.get() for _ in items]
    except BaseException:
        with suppress(queue.Empty):
            while True:
                todo.get_nowait()
        raise
    for error in errors:
        if error is not None:
            raise error
