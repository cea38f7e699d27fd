"""Building of the versions of one polled model, with Triton's error texts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from nbtriton.common.errors import ConfigError, EngineStoppedError, LoadError, TritonError
from nbtriton.runtime.engine import Server
from nbtriton.runtime.engine.core.instance_set import InstanceUpdate
from nbtriton.runtime.engine.core.runtime import Runtime
from nbtriton.serving.repository.polling import (
    LOADS,
    UNLOADED,
    ModelRecord,
    PolledModel,
    load_error,
    load_reason,
)
from nbtriton.serving.repository.reader import directories_without_version

__all__ = ["build_versions", "check"]

_log = logging.getLogger(LOADS)


def check(server: Server, records: Mapping[str, ModelRecord], model: PolledModel) -> None:
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
        server.engine.lifecycle.record_no_versions(name)
        raise load_error(
            name,
            ConfigError(
                "at least one version must be available under the version policy of model "
                f"'{name}'",
                field="version_policy",
            ),
        )
    for step in model.config.ensemble_scheduling.step:
        _check_member(server, records, name, str(step.model_name), int(step.model_version))


def _check_member(
    server: Server, records: Mapping[str, ModelRecord], name: str, member: str, version: int
) -> None:
    if not server.is_ready(member):
        record = records.get(member)
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
    record: ModelRecord,
    model: PolledModel,
    *,
    keep: Collection[int],
    auto_complete: bool,
    retries: int,
) -> tuple[list[Runtime], list[InstanceUpdate]]:
    """Build all versions, and new instances of the versions to `keep`; all or none (L3).

    A version that fails is tried `retries` more times.

    Raises
    ------
    LoadError
        With the reasons of all failed versions; `record` has them too.
    """
    name = model.name
    serving = {served.version for served in server.models() if served.name == name}
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
                        server.engine.lifecycle.prepare_update(name, version, model.config)
                    )
                    continue
                build = partial(
                    server.engine.lifecycle.builder.build,
                    model.config,
                    model.source(version),
                    version,
                    auto_complete=auto_complete,
                    directory=model.directory,
                )
                runtimes.append(_with_retries(build, name, version, retries))
            except TritonError as error:
                failed[version] = error
                _log_failed(name, version, error)
    except BaseException:
        record.states = before
        _discard(runtimes, updates)
        raise
    if not failed:
        record.states = {v: s for v, s in record.states.items() if v not in model.versions}
        return runtimes, updates
    _discard(runtimes, updates)
    first = next(iter(failed.values()))
    if model.is_ensemble and isinstance(first, ConfigError):
        record.states = before  # the model has never had a version
        raise load_error(name, first)
    # A version that could not be updated still serves; its entry in the index has the reason.
    reasons = {
        version: ("READY" if version in keep else "UNAVAILABLE", load_reason(name, version, error))
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
    reason = load_reason(name, version, error) + f" ({error.hint})" * bool(error.hint)
    _log.error("failed to load '%s' version %d: %s", name, version, reason)


def _discard(runtimes: Sequence[Runtime], updates: Sequence[InstanceUpdate]) -> None:
    for runtime in runtimes:
        runtime.drain()
    for update in updates:
        update.runtime.discard_update(update)
