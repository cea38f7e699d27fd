"""Model control: which models of a repository are loaded, and when (L4 to L22).

The texts and statuses are Triton's (L4, L9); what Triton only writes to its log is the
error's hint here.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nbtriton.config import is_ensemble
from nbtriton.drawing import table_html, table_text
from nbtriton.engine import Server
from nbtriton.errors import (
    EngineStoppedError,
    InternalError,
    InvalidArgumentError,
    LoadError,
    NotFoundError,
    TritonError,
    UnavailableError,
    nearest,
)
from nbtriton.repository.building import build_versions, check, in_parallel
from nbtriton.repository.known import (
    LOADS,
    UNLOADED,
    Known,
    by_dependency,
    load_error,
    with_hint,
)
from nbtriton.repository.poller import start_polling
from nbtriton.repository.polling import DUPLICATE, Override, Polled, directories_of, poll_model

__all__ = ["MODES", "ModelControl"]

MODES = ("none", "explicit", "poll")

_NOT_EXPLICIT = "explicit model load / unload is not allowed if polling is enabled"
_WILDCARD = "Wildcard model name '*' must be the ONLY startup model if specified at all."
_log = logging.getLogger("nbtriton.repository")
_loads = logging.getLogger(LOADS)


class ModelControl:
    """The models of one or more repositories, loaded into a server as Triton would.

    Parameters
    ----------
    server : Server
    directories : path or sequence of paths
        The model repositories.
    mode : {"none", "explicit", "poll"}
        Triton's ``--model-control-mode``. With ``"none"`` all models are loaded now and never
        again; ``"explicit"`` loads `load_models` now and others by `load`; ``"poll"`` looks every
        `poll_s` seconds for what changed.
    load_models : sequence of str
        ``--load-model``; ``"*"`` alone for all.
    poll_s : float
        ``--repository-poll-secs``; 0 or less for no polls but those of `poll_now`.
    auto_complete : bool
        False is ``--disable-auto-complete-config``.
    config_name : str
        ``--model-config-name``: ``configs/<name>.pbtxt`` is preferred to ``config.pbtxt``.
    strict_readiness : bool
        ``--strict-readiness``: the server is ready only if every model is.
    exit_on_error : bool
        ``--exit-on-error``: raise if a model fails to load now. By default the others serve, and
        `errors` says what is wrong.
    load_threads : int
        ``--model-load-thread-count``: so many models load at a time.
    load_retries : int
        ``--model-load-retry-count``: so many times more a version that fails is tried.

    Raises
    ------
    NotFoundError
        A repository is not there.
    InvalidArgumentError
        An unknown mode; ``"*"`` beside other names.
    InternalError, InvalidArgumentError
        With `exit_on_error`, what tritonserver says before it ends.

    Attributes
    ----------
    startup_error : TritonError or None
        Why a server that tolerates nothing would not have started.
    """

    def __init__(
        self,
        server: Server,
        directories: str | Path | Sequence[str | Path],
        *,
        mode: str = "none",
        load_models: Sequence[str] = (),
        poll_s: float = 15.0,
        auto_complete: bool = True,
        config_name: str = "",
        strict_readiness: bool = True,
        exit_on_error: bool = False,
        load_threads: int = 4,
        load_retries: int = 0,
    ) -> None:
        if mode not in MODES:
            raise InvalidArgumentError(
                f"unknown model control mode '{mode}'", hint=nearest(mode, MODES)
            )
        if "*" in load_models and len(load_models) > 1:
            raise InvalidArgumentError(_WILDCARD)
        if isinstance(directories, str | Path):
            directories = [directories]
        self.server = server
        self.directories = tuple(Path(directory).absolute() for directory in directories)
        self.mode = mode
        self._named = bool(load_models) and tuple(load_models) != ("*",)
        self.strict_readiness = strict_readiness
        self._auto_complete = auto_complete
        self._config_name = config_name
        self._threads = load_threads
        self._retries = load_retries
        self._known: dict[str, Known] = {}
        self._lock = threading.Lock()
        self._scratch: dict[Path, Any] = {}  # directories of overrides, and what removes them
        self._ended = threading.Event()
        self._poller: threading.Thread | None = None
        names = self._start_up(load_models)
        for name, error in self._load(names, explicit=True).items():
            self._of(name).error = error
        self.startup_error = self._failed(names)
        if exit_on_error and self.startup_error is not None:
            raise self.startup_error
        if mode == "poll" and poll_s > 0:
            self._poller = start_polling(weakref.ref(self), self._ended, poll_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self, *, timeout_s: float | None = None) -> None:
        """End the polling. What is loaded goes on serving.

        Parameters
        ----------
        timeout_s : float, optional
            How long to wait for a poll that is under way; no limit by default.
        """
        self._ended.set()
        poller = self._poller
        if poller is not None and poller is not threading.current_thread():
            poller.join(timeout_s)

    def clean_up(self) -> None:
        """Remove the files that came with load requests, once their models are gone."""
        for remove in self._scratch.values():
            remove()
        self._scratch.clear()

    # -- what a front end asks -------------------------------------------------------------------

    def load(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Load a model, or load it anew if its files have changed.

        Parameters
        ----------
        name : str
        parameters : mapping, optional
            ``config``: JSON text in place of the configuration file. ``file:<path>``: bytes (or
            base64 text) in place of the model's whole directory; needs ``config``.

        Raises
        ------
        UnavailableError
            The mode is not explicit.
        InternalError
            The repository has no such model, or its configuration cannot be read.
        LoadError
            The model failed to load; what served before still does.
        """
        override = Override.of(parameters or {})
        self._check_explicit()
        overrides = {} if override is None else {name: override}
        error = self._load([name], explicit=True, overrides=overrides).get(name)
        if error is not None:
            raise error

    def unload(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Unload a model; requests that it accepted are finished. An unknown one is no error.

        Parameters
        ----------
        name : str
        parameters : mapping, optional
            ``unload_dependents``: of an ensemble, unload the composing models too that nobody
            loaded explicitly and no other ensemble uses.

        Raises
        ------
        UnavailableError
            The mode is not explicit.
        """
        self._check_explicit()
        self._unload(name, dependents=bool((parameters or {}).get("unload_dependents", False)))

    def index(self, ready: bool = False) -> list[dict[str, str]]:
        """Return the repository index: one entry a version, in Triton's form.

        Parameters
        ----------
        ready : bool
            Only versions that are ready.

        Returns
        -------
        list of dict
            ``name``, and for what was ever loaded ``version``, ``state`` and a ``reason``. A model
            whose version policy leaves no version is not there, as in Triton.
        """
        serving = self._serving()
        leaving = self.server.leaving()
        places = self._places()
        foreign = {name for name in serving if name not in self._known}
        entries = []
        for name in sorted({*places, *foreign}):
            if len(places.get(name, ())) > 1:
                entries.append({"name": name, "state": "UNAVAILABLE", "reason": DUPLICATE})
                continue
            states = self._states(name, serving, leaving)
            for version, (state, reason) in sorted(states.items()):
                if not ready or state == "READY":
                    entry = {"name": name, "version": str(version), "state": state}
                    entries.append(entry | ({"reason": reason} if reason else {}))
            if not ready and not self.server.was_begun(name):
                entries.append({"name": name})
        return entries

    def is_server_ready(self) -> bool:
        """Return True if every version is ready, or unloaded on purpose (L7)."""
        if not self.strict_readiness:
            return True
        serving, leaving = self._serving(), self.server.leaving()
        for name in {*serving, *self._known}:
            states = self._states(name, serving, leaving)
            if not states and self.server.has_no_version(name):
                return False
            if not all(state == "READY" or why == UNLOADED for state, why in states.values()):
                return False
        return True

    @property
    def errors(self) -> dict[str, TritonError]:
        """Why models are not loaded, or not as the repository has them now, by name."""
        return {
            name: known.error
            for name, known in sorted(self._known.items())
            if known.error is not None
        }

    def poll_now(self) -> None:
        """Look for new, changed and removed models at once, as every poll does (L6).

        Raises
        ------
        UnavailableError
            The mode is not poll.
        """
        if self.mode != "poll":
            raise UnavailableError("only a control in mode 'poll' polls")
        present = directories_of(self.directories)
        gone = [
            name
            for name, known in list(self._known.items())
            # Of two there is none that could be meant.
            if known.loaded is not None and len(present.get(name, ())) != 1
        ]
        for name in gone:
            self._unload(name)
        self._load(list(present), explicit=True)

    # -- loading ---------------------------------------------------------------------------------

    def _start_up(self, load_models: Sequence[str]) -> list[str]:
        present = directories_of(self.directories)
        if self.mode != "explicit" or tuple(load_models) == ("*",):
            return list(present)
        return sorted(set(load_models))

    def _failed(self, names: Sequence[str]) -> TritonError | None:
        """Return why a server that tolerates nothing would not start."""
        errors = self.errors
        loads = [errors[name] for name in names if isinstance(errors.get(name), LoadError)]
        hint = next((error.hint or error.message for error in errors.values()), "")
        if self.mode == "explicit" and loads and self._named:
            return InvalidArgumentError("".join(error.message for error in loads), hint=hint)
        return InternalError("failed to load all models", hint=hint) if errors else None

    def _check_explicit(self) -> None:
        if self.mode != "explicit":
            raise UnavailableError(
                _NOT_EXPLICIT, hint='load_repository(…, control_mode="explicit") allows it'
            )

    def _of(self, name: str) -> Known:
        with self._lock:
            return self._known.setdefault(name, Known(name))

    def _load(
        self,
        names: Iterable[str],
        *,
        explicit: bool,
        overrides: Mapping[str, Override] | None = None,
    ) -> dict[str, TritonError]:
        """Load models and what they compose; return why some of them failed."""
        wanted = list(dict.fromkeys(names))
        polled, errors = self._poll(wanted, overrides or {})
        for name in wanted:
            if name in polled:
                self._of(name).explicit |= explicit
        single = [found for found in polled.values() if not is_ensemble(found.config)]
        ensembles = {name: found for name, found in polled.items() if is_ensemble(found.config)}
        changed: set[str] = set()
        load = partial(self._load_one, errors, changed)
        in_parallel(load, single, self._threads)
        ordered, circles = by_dependency(ensembles)
        for name, circle in circles.items():
            errors[name] = self._of(name).error = load_error(name, circle)
            _loads.error("failed to load '%s': %s", name, with_hint(errors[name]))
        for name in ordered:
            # A changed composing model is a reason to make the ensemble anew (L11).
            load(ensembles[name], force=not changed.isdisjoint(ensembles[name].members))
        self._load_dependents(changed, set(polled))
        return errors

    def _poll(
        self, names: Sequence[str], overrides: Mapping[str, Override]
    ) -> tuple[dict[str, Polled], dict[str, TritonError]]:
        polled: dict[str, Polled] = {}
        errors: dict[str, TritonError] = {}
        seen = set(names)
        front = list(names)
        while front:
            name = front.pop(0)
            try:
                found = poll_model(
                    self.directories,
                    name,
                    override=overrides.get(name),
                    config_name=self._config_name,
                    auto_complete=self._auto_complete,
                )
            except (TritonError, OSError) as error:
                if name in names:
                    errors[name] = self._poll_failed(name, error)
                continue  # of a composing model: the ensemble's own check tells
            if found.is_override:
                self._scratch[found.directory] = weakref.finalize(
                    self, _remove, found.directory, os.getpid()
                )
            polled[name] = found
            front += [member for member in found.members if member not in seen]
            seen.update(found.members)
        return polled, errors

    def _poll_failed(self, name: str, error: TritonError | OSError) -> TritonError:
        text = error.message if isinstance(error, TritonError) else str(error)
        told = InternalError(
            f"failed to load '{name}', failed to poll from model repository", hint=text
        )
        known = self._known.get(name)
        if known is None and any((root / name).is_dir() for root in self.directories if name):
            known = self._of(name)
        if known is not None:
            known.error = told
        if known is None or known.polled_error != text:
            if isinstance(error, NotFoundError):
                _loads.error("%s", text)
            else:
                _loads.error("Poll failed for model directory '%s': %s", name, text)
        if known is not None:
            known.polled_error = text
        return told

    def _load_one(
        self,
        errors: dict[str, TritonError],
        changed: set[str],
        found: Polled,
        *,
        force: bool = False,
    ) -> None:
        known = self._of(found.name)
        known.polled_error = ""
        with known.busy:
            if not force and self._is_current(known, found):
                known.error = None
                return
            try:
                check(self.server, self._known, found)
                keep = self._kept(known, found)
                runtimes, updates = build_versions(
                    self.server, known, found, keep=keep,
                    auto_complete=self._auto_complete, retries=self._retries,
                )  # fmt: skip
                self.server.install(found.name, found.given, runtimes, updates=updates)
            except EngineStoppedError:
                raise
            except TritonError as error:
                if is_ensemble(found.config) or not found.versions:  # else each version was told
                    _loads.error("failed to load '%s': %s", found.name, with_hint(error))
                known.error = errors[found.name] = error
                known.waiting = found if is_ensemble(found.config) else None
                return
            before, known.loaded, known.error = known.loaded, found, None
            known.waiting = None
            _loads.info("successfully loaded '%s'", found.name)
            for path, reason in self.server.ignored(found.name).items():
                _log.warning("model '%s': %s has no effect here: %s", found.name, path, reason)
            kept = set(found.versions)
            left = before.versions if before is not None else ()
            gone = {*left, *known.states} - kept
            known.states = dict.fromkeys(gone, ("UNAVAILABLE", UNLOADED))
            changed.add(found.name)

    def _kept(self, known: Known, found: Polled) -> set[int]:
        """Return the versions that go on as they are."""
        if known.loaded is None:
            return set()
        # The notebook may have replaced what we had loaded.
        return {
            version
            for version in found.unchanged_since(known.loaded)
            if self.server.can_update(found.name, version, found.config)
        }

    def _is_current(self, known: Known, found: Polled) -> bool:
        return (
            known.loaded is not None
            and not found.is_override
            and self.server.is_ready(found.name)
            and found.stamp_ns <= known.loaded.stamp_ns
        )

    def _load_dependents(self, changed: set[str], done: set[str]) -> None:
        """Make the ensembles anew whose composing models were (L11, L20).

        Those too that were asked for when a composing model was not there.
        """
        if not changed:
            return
        serving = self._serving()
        ensembles = {}
        for name, known in list(self._known.items()):
            found = known.waiting or (known.loaded if name in serving else None)
            if found is not None and name not in done and is_ensemble(found.config):
                ensembles[name] = found
        ordered, _ = by_dependency(ensembles)
        for name in ordered:
            if not changed.isdisjoint(ensembles[name].members):
                self._load_one({}, changed, ensembles[name], force=True)

    def _unload(self, name: str, *, dependents: bool = False) -> None:
        known = self._known.get(name)
        serving = self._serving().get(name, {})
        self.server.unload(name)
        if known is None:
            return
        known.explicit = False
        known.waiting = None
        known.states = known.states | dict.fromkeys(serving, ("UNAVAILABLE", UNLOADED))
        found, known.loaded = known.loaded, None
        if found is None or not dependents:
            return
        used = {
            member
            for other in list(self._known.values())
            if other.loaded is not None
            for member in other.loaded.members
        }
        for member in found.members:
            composing = self._known.get(member)
            if composing is not None and not composing.explicit and member not in used:
                self._unload(member, dependents=True)  # L19

    # -- what is there ---------------------------------------------------------------------------

    def _serving(self) -> dict[str, dict[int, tuple[str, str]]]:
        found: dict[str, dict[int, tuple[str, str]]] = {}
        for model in self.server.models():
            # An ensemble without its composing models counts as unloaded (L20).
            reason = "" if model.state == "READY" else UNLOADED
            found.setdefault(model.name, {})[model.version] = (model.state, reason)
        return found

    def _states(
        self,
        name: str,
        serving: Mapping[str, Mapping[int, tuple[str, str]]],
        leaving: set[tuple[str, int]],
    ) -> dict[int, tuple[str, str]]:
        known = self._known.get(name)
        told = known.states if known is not None else {}
        states = {version: state for version, state in told.items() if state[0] != "READY"}
        if known is not None and known.loaded is not None:
            # Unloaded past us, by `Server.unload`.
            for version in known.loaded.versions:
                states.setdefault(version, ("UNAVAILABLE", UNLOADED))
        for version, (_, reason) in states.items():
            if reason == UNLOADED and (name, version) in leaving:
                states[version] = ("UNLOADING", "")
        for version, state in serving.get(name, {}).items():
            failed = told.get(version, state)  # READY with the reason of an update that failed
            states[version] = failed if failed[0] == state[0] == "READY" else state
        return states

    def _places(self) -> dict[str, list[Path]]:
        """Return where the directories have each model; one that is away has none."""
        places: dict[str, list[Path]] = {}
        for root in self.directories:
            with suppress(TritonError):
                for name, found in directories_of([root]).items():
                    places.setdefault(name, []).extend(found)
        return places

    # -- how it looks ----------------------------------------------------------------------------

    def __repr__(self) -> str:
        return table_text(_COLUMNS, self._rows(), caption=self._caption())

    def _repr_mimebundle_(
        self,
        include: object = None,  # noqa: ARG002 - IPython's protocol
        exclude: object = None,  # noqa: ARG002
    ) -> dict[str, str]:
        rows, caption = self._rows(), self._caption()
        return {
            "text/plain": table_text(_COLUMNS, rows, caption=caption),
            "text/html": table_html(_COLUMNS, rows, caption=caption),
        }

    def _caption(self) -> str:
        return f"{', '.join(map(str, self.directories))} ({self.mode})"

    def _rows(self) -> list[tuple[str, str, str, str]]:
        errors = self.errors
        # What the notebook has loaded besides is none of this repository's.
        own = {*self._places(), *self._known}
        rows = []
        for entry in self.index():
            name, reason = entry["name"], entry.get("reason", "")
            if name not in own:
                continue
            error = errors.get(name)
            known = self._known.get(name)
            if entry.get("state") == "READY" and (known is None or known.loaded is None):
                error = None  # it serves what somebody else has loaded
            if error is not None and (not reason or entry.get("state") == "READY"):
                polled = isinstance(error, InternalError)
                reason = error.hint if polled else error.message
                reason = reason.removeprefix(f"load failed for model '{name}': ")
            state = entry.get("state", "not loaded")
            rows.append((name, entry.get("version", ""), state, reason.partition("\n")[0]))
        return rows


def _remove(directory: Path, process: int) -> None:
    """Remove a directory of this process; a forked child that exits leaves its parent's alone."""
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)


_COLUMNS = ("model", "version", "state", "reason")
