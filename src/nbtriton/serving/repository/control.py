"""Model control: loading and unloading of repository models (L4 to L22).

Texts and statuses are Triton's (L4, L9). A text that Triton only logs is the hint of the error.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from nbtriton.common.checks import DIRECTORY, Kind, absolute, check, listed
from nbtriton.common.closing import Closing
from nbtriton.common.errors import (
    InternalError,
    InvalidArgumentError,
    LoadError,
    NotFoundError,
    TritonError,
    UnavailableError,
)
from nbtriton.drawing.table import TableView
from nbtriton.model.config import ModelConfig, to_json
from nbtriton.options.repository import REPOSITORY, RepositorySettings
from nbtriton.options.table import read_settings, signed
from nbtriton.runtime.engine import Server
from nbtriton.runtime.engine.core.model_runtime import ModelRuntime
from nbtriton.runtime.engine.core.threads import blocked_here
from nbtriton.runtime.engine.lifecycle.model_lifecycle import UNLOADED
from nbtriton.serving.repository import polling
from nbtriton.serving.repository.loader import ModelLoader

_log = logging.getLogger("nbtriton.serving.repository")
_NOT_EXPLICIT = "explicit model load / unload is not allowed if polling is enabled"
_WILDCARD = "Wildcard model name '*' must be the ONLY startup model if specified at all."
_DIRECTORIES = Kind(
    lambda given: DIRECTORY.accepts(given) or listed(DIRECTORY).accepts(given),
    "a directory or a list of them",
)
_COLUMNS = ("model", "version", "state", "reason")


@signed(REPOSITORY)
class ModelControl(Closing, TableView):
    """Model control of one or more repositories for a server, as in Triton.

    Parameters
    ----------
    server : Server
    directories : path or sequence of paths
        The model repositories.
    **options
        See `nbtriton.options.repository.RepositorySettings`.

    Raises
    ------
    NotFoundError
        A repository does not exist.
    InvalidArgumentError
        The mode is unknown, or ``"*"`` is beside other names.
    InternalError, InvalidArgumentError
        With `exit_on_error`, the error with which tritonserver exits.

    Attributes
    ----------
    startup_error : TritonError or None
        The error at which a server with ``--exit-on-error`` exits.
    """

    def __init__(
        self,
        server: Server,
        directories: str | Path | Sequence[str | Path],
        **options: Unpack[RepositorySettings],
    ) -> None:
        given = read_settings("a repository", REPOSITORY, options)
        mode, load_models, poll_s = given["control_mode"], given["load_models"], given["poll_s"]
        everything = tuple(load_models) == ("*",)
        if "*" in load_models and not everything:
            raise InvalidArgumentError(_WILDCARD)
        if load_models and mode != "explicit":
            raise InvalidArgumentError(
                f"models to load are named, but in mode '{mode}' all are loaded",
                hint="control_mode='explicit' loads those alone",
            )
        if isinstance(directories, Iterator):
            directories = list(directories)
        check({"directories": directories}, {"directories": _DIRECTORIES})
        if isinstance(directories, str | PathLike):
            directories = [directories]
        if not all(map(str, directories)):
            # For example an unset shell variable: it does not mean the current directory.
            raise NotFoundError("failed to open model repository '': no such directory")
        self.server = server
        self.directories = tuple(map(absolute, directories))
        self.mode = mode
        self.strict_readiness = given["strict_readiness"]
        self._loader = ModelLoader(server, self.directories, given)
        self._closed = threading.Event()
        self._poller: threading.Thread | None = None
        names = list(polling.directories_of(self.directories))
        if mode == "explicit" and not everything:
            names = sorted(set(load_models))
        for name, error in self._loader.load(names).items():
            self._loader.failed(name, error)
        self.startup_error = self._startup_error(names, named=bool(load_models) and not everything)
        if given["exit_on_error"] and self.startup_error is not None:
            raise self.startup_error
        if mode == "poll" and poll_s > 0:
            arguments = (weakref.ref(self), self._closed, poll_s)
            self._poller = threading.Thread(
                target=_poll, args=arguments, name="nbtriton-poll", daemon=True
            )
            self._poller.start()

    def close(self, *, timeout_s: float | None = None) -> None:
        """Stop polling; loaded models still serve.

        Parameters
        ----------
        timeout_s : float, optional
            Timeout for a poll in progress; none by default.
        """
        self._closed.set()
        poller = self._poller
        if poller is not None and poller is not threading.current_thread():
            poller.join(timeout_s)

    def clean_up(self) -> None:
        """Remove the files of overrides, once their models are unloaded."""
        self._loader.clean_up()

    # -- calls by endpoints ----------------------------------------------------------------------

    def load(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Load a model, or load it again if its files have changed.

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
            The model failed to load; versions that served before still serve.
        """
        override = polling.Override.of(parameters or {})
        self._check_explicit()
        errors = self._loader.load([name], {} if override is None else {name: override})
        if name in errors:
            raise errors[name]
        if not blocked_here():  # perhaps by the model's own code
            self._wait_updated(name)

    def _wait_updated(self, name: str) -> None:
        """Wait until removed instances are gone, as Triton does for models without a sequence batcher (L16)."""
        entry = self.server.engine.registry.entries.get(name)
        for slot in () if entry is None else entry.slots.values():
            if isinstance(slot.runtime, ModelRuntime) and slot.runtime.sequences is None:
                slot.runtime.wait_updated()

    def holds(self, name: str) -> bool:
        """Return True if the serving versions of a model are from its repository."""
        record = self._records.get(name)
        if record is None or record.loaded is None:
            return False
        entry = self.server.engine.registry.entries.get(name)
        sources = (
            slot.runtime.source
            for slot in (() if entry is None else entry.slots.values())
            if isinstance(slot.runtime, ModelRuntime)  # an ensemble has no code
        )
        return entry is not None and all(
            isinstance(source, Path) and source.is_relative_to(record.loaded.directory)
            for source in sources
        )

    def reconfigure(self, name: str, config: ModelConfig) -> None:
        """Load a model again with a configuration other than its file's, in any mode.

        It applies to all versions; versions that its version policy adds are loaded from the directory.

        Parameters
        ----------
        name : str
        config : ModelConfig

        Raises
        ------
        InternalError, InvalidArgumentError, LoadError
            As `load`.
        """
        errors = self._loader.load([name], {name: polling.Override(to_json(config))})
        if name in errors:
            raise errors[name]

    def unload(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Unload a model after its accepted requests; an unknown model is ignored. Loads in progress are waited for.

        Parameters
        ----------
        name : str
        parameters : mapping, optional
            ``unload_dependents``: also unload an ensemble's composing models that were not loaded
            explicitly and that no other ensemble uses.

        Raises
        ------
        UnavailableError
            The mode is not explicit.
        """
        self._check_explicit()
        dependents = bool((parameters or {}).get("unload_dependents", False))
        self._loader.unload(name, dependents=dependents)

    def index(self, ready: bool = False) -> list[dict[str, str]]:
        """Return the repository index in Triton's form: one entry per version.

        Parameters
        ----------
        ready : bool
            Whether to return only ready versions.

        Returns
        -------
        list of dict
            ``name``, and for every model that has been loaded ``version``, ``state`` and ``reason``.
            As in Triton, a model whose version policy leaves no version is left out.
        """
        states = self._states()
        places = self._places()
        entries = []
        for name in sorted({*places, *(n for n in states if n not in self._records)}):
            if len(places.get(name, ())) > 1:
                entries.append({"name": name, "state": "UNAVAILABLE", "reason": polling.DUPLICATE})
                continue
            for version, (state, reason) in sorted(states.get(name, {}).items()):
                if not ready or state == "READY":
                    entry = {"name": name, "version": str(version), "state": state}
                    entries.append(entry | ({"reason": reason} if reason else {}))
            if not ready and not self.server.engine.inspection.is_known(name):
                entries.append({"name": name})
        return entries

    def is_server_ready(self) -> bool:
        """Return True if every version is ready, or unloaded on purpose (L7)."""
        if not self.strict_readiness:
            return True
        for name, states in self._states().items():
            if not states and self.server.engine.inspection.has_no_version(name):
                return False
            if not all(state == "READY" or why == UNLOADED for state, why in states.values()):
                return False
        return True

    @property
    def errors(self) -> dict[str, TritonError]:
        """Errors by name, for models that are not loaded, or not as the repository has them."""
        return {
            name: record.error
            for name, record in sorted(self._records.items())
            if record.error is not None
        }

    @property
    def kept(self) -> dict[str, TritonError]:
        """The `errors` whose model still serves as it was loaded before, from here or elsewhere."""
        entries = self.server.engine.registry.entries
        return {
            name: error
            for name, error in self.errors.items()
            if (entry := entries.get(name)) is not None
            and entry.user_config is self._records[name].kept
        }

    def poll_now(self) -> None:
        """Poll now: load new and changed models, and unload removed ones (L6).

        Raises
        ------
        UnavailableError
            The mode is not poll.
        """
        if self.mode != "poll":
            raise UnavailableError("only a control in mode 'poll' polls")
        present = polling.directories_of(self.directories)
        for name, record in list(self._records.items()):
            # A model in two repositories is ambiguous and counts as missing.
            if record.loaded is not None and len(present.get(name, ())) != 1:
                self._loader.unload(name)
        self._loader.load(present)

    # -- states ----------------------------------------------------------------------------------

    @property
    def _records(self) -> dict[str, polling.ModelRecord]:
        return self._loader.records

    def _startup_error(self, names: Sequence[str], *, named: bool) -> TritonError | None:
        errors = self.errors
        loads = [errors[name] for name in names if isinstance(errors.get(name), LoadError)]
        hint = next((error.hint or error.message for error in errors.values()), "")
        if self.mode == "explicit" and loads and named:
            return InvalidArgumentError("".join(error.message for error in loads), hint=hint)
        return InternalError("failed to load all models", hint=hint) if errors else None

    def _check_explicit(self) -> None:
        if self.mode != "explicit":
            raise UnavailableError(
                _NOT_EXPLICIT, hint='load_repository(…, control_mode="explicit") allows it'
            )

    def _states(self) -> dict[str, dict[int, polling.VersionState]]:
        """Return the states of all versions by model, models loaded without the control included."""
        serving: dict[str, dict[int, polling.VersionState]] = {}
        for model in self.server.models():
            # An ensemble without its composing models counts as unloaded (L20).
            reason = "" if model.state == "READY" else UNLOADED
            serving.setdefault(model.name, {})[model.version] = (model.state, reason)
        unloading: dict[str, set[int]] = {}
        for name, version in self.server.engine.lifecycle.unloading():
            unloading.setdefault(name, set()).add(version)
        return {
            name: self._records.get(name, polling.ModelRecord(name)).version_states(
                serving.get(name, {}), unloading.get(name, ())
            )
            for name in {*serving, *self._records}
        }

    def _places(self) -> dict[str, list[Path]]:
        """Return the directories of each model; a missing repository has no models."""
        places: dict[str, list[Path]] = {}
        for root in self.directories:
            with suppress(TritonError):
                for name, found in polling.directories_of([root]).items():
                    places.setdefault(name, []).extend(found)
        return places

    def _table(self) -> tuple[Sequence[str], Sequence[Sequence[object]], str]:
        errors, kept = self.errors, self.kept
        # Models of the notebook, which are not in these repositories.
        own = {*self._places(), *self._records}
        rows = []
        for entry in self.index():
            name, reason = entry["name"], entry.get("reason", "")
            if name not in own:
                continue
            error = errors.get(name)
            state = entry.get("state", "not loaded")
            if name in kept:
                reason = kept_reason(name, kept[name])
            elif error is not None and not reason and state != "READY":
                reason = _reason(name, error)
            reason = reason.partition("\n")[0]
            failed = kept.get(name, error if state != "READY" else None)
            if reason and failed is not None and failed.hint and failed.hint not in reason:
                reason += f" ({failed.hint})"
            rows.append((name, entry.get("version", ""), state, reason))
        shown = {row[0] for row in rows}
        for name, error in errors.items():  # requested models that are in no repository
            if name not in shown:
                reason = (error.hint or error.message).partition("\n")[0]
                rows.append((name, "", "not loaded", reason))
        return _COLUMNS, rows, f"{', '.join(map(str, self.directories))} ({self.mode})"


def kept_reason(name: str, error: TritonError) -> str:
    """Return why a model still serves as it was loaded before."""
    return f"what was loaded before serves, as this load failed: {_reason(name, error)}"


def _reason(name: str, error: TritonError) -> str:
    # The text of a poll failure has no reason.
    text = error.hint if isinstance(error, InternalError) else error.message
    return text.removeprefix(f"load failed for model '{name}': ")


def _poll(control: weakref.ref[ModelControl], closed: threading.Event, poll_s: float) -> None:
    """Poll until the control is closed or collected; the thread holds no reference to it."""
    while not closed.wait(poll_s):
        pollable = control()
        if pollable is None:
            return
        try:
            pollable.poll_now()
        except Exception as error:  # such as a repository that is missing for a while
            _log.warning("a poll of %s failed: %r", pollable.directories, error)
        del pollable
