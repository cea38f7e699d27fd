"""State and settings that the endpoints of one server share."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nbtriton.common.errors import (
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnavailableError,
    UnsupportedError,
)
from nbtriton.model.config import is_ensemble
from nbtriton.serving.frontends.kserve.shared_memory import SharedMemory
from nbtriton.serving.frontends.logs import LOG_FORMATS, LogSettings, verbose_level
from nbtriton.serving.frontends.tracing import TRACE_LEVELS, Tracing, parse_number

if TYPE_CHECKING:
    from nbtriton.runtime.engine import Server

# Triton's version; clients compare it with theirs.
PROTOCOL_VERSION = "2.51.0"
EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


class Control(Protocol):
    """Loads and unloads models for clients."""

    def index(self, ready: bool) -> list[dict[str, Any]]:
        """Return ``name`` and, if known, ``version``, ``state``, ``reason`` of every model version."""
        ...

    def load(self, name: str, parameters: dict[str, Any]) -> None:
        """Load a model; ``config`` is JSON text, ``file:<path>`` are bytes."""
        ...

    def unload(self, name: str, parameters: dict[str, Any]) -> None:
        """Unload a model; ``unload_dependents`` is a bool."""
        ...

    def is_server_ready(self) -> bool:
        """Return True if no model has failed or is still loading; unloaded models do not count."""
        ...


class NoControl(Control):
    """Triton's ``--model-control-mode=none``: models can only be listed."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def index(self, ready: bool) -> list[dict[str, Any]]:
        return [
            {
                "name": model.name,
                "version": str(model.version),
                "state": model.state,
                **({"reason": model.reason} if model.reason else {}),
            }
            for model in self._server.models()
            if not ready or model.state == "READY"
        ]

    def load(self, name: str, parameters: dict[str, Any]) -> None:  # noqa: ARG002
        raise UnavailableError("explicit model load / unload is not allowed if polling is enabled")

    def unload(self, name: str, parameters: dict[str, Any]) -> None:
        self.load(name, parameters)

    def is_server_ready(self) -> bool:
        return all(model.state == "READY" for model in self._server.models())


class FailedControl(NoControl):
    """Model control of a server whose set-up failed: ``--exit-on-error=false``.

    Parameters
    ----------
    server : Server
        The server refuses every request about a model from now on.
    """

    _REASON = "Server not ready"

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        server.engine.lifecycle.refuse(self._REASON)

    def index(self, ready: bool) -> list[dict[str, Any]]:  # noqa: ARG002
        raise UnavailableError(self._REASON)

    def load(self, name: str, parameters: dict[str, Any]) -> None:  # noqa: ARG002
        raise UnavailableError(self._REASON)

    def is_server_ready(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Limits:
    """Resources that one client may use.

    Parameters
    ----------
    header_bytes : int
        Request line and header fields of one request.
    body_bytes : int
        Body of one request as it is sent; gRPC's limit by default.
    decompressed_bytes : int
        Decompressed size of a body, or of a message over gRPC.
    unread_bytes : int
        Responses that a client has not read; beyond, its connection is aborted.
    head_s : float
        Seconds from the first byte of a request to the end of its header fields.
    idle_s : float
        Seconds without progress, inside a request or while a response waits to be read.
    connections : int
        Connections of all clients together. A further one replaces the oldest connection without a
        request, else the one that has been idle longest.
    calls : int
        Concurrent gRPC calls of one connection (SETTINGS_MAX_CONCURRENT_STREAMS). A client may cancel as
        many, and more as calls are answered, before its connection is closed.

    Examples
    --------
    >>> with server.serve(
    ...     http_port=0, metrics_port=None, limits=Limits(body_bytes=1 << 20)
    ... ) as endpoints:
    ...     endpoints.http_port > 0
    True
    """

    header_bytes: int = 64 << 10
    body_bytes: int = (1 << 31) - 1
    decompressed_bytes: int = 64 << 20
    unread_bytes: int = 64 << 20
    head_s: float = 30.0
    idle_s: float = 60.0
    connections: int = 1000
    calls: int = 1000


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings of a port; all files are PEM.

    Parameters
    ----------
    certificate : str
        File with the server's certificate and the intermediate certificates.
    key : str
        File with its private key, not encrypted.
    root : str
        File with the root certificates that verify clients; needed with `mutual`.
    mutual : bool
        Whether a client needs a certificate.

    Examples
    --------
    >>> Tls("server.crt", "server.key").mutual
    False
    """

    certificate: str
    key: str
    root: str = ""
    mutual: bool = False

    def context(self, protocol: str) -> ssl.SSLContext:
        """Return the context of a port.

        Parameters
        ----------
        protocol : str
            ALPN name: ``"h2"`` or ``"http/1.1"``.

        Raises
        ------
        InvalidArgumentError
            A file is missing, is of the wrong kind, or does not match the other.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([protocol])
        _check_file("the server's certificate", self.certificate)
        _check_file("the server's key", self.key)
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_password)
        except (ssl.SSLError, ValueError) as error:
            raise InvalidArgumentError(
                f"'{self.certificate}' and '{self.key}' are not a certificate and its key in PEM: "
                f"{_reason(error)}"
            ) from None
        if self.mutual:
            _check_file("the root certificate", self.root)
            try:
                context.load_verify_locations(self.root)
            except ssl.SSLError as error:
                raise InvalidArgumentError(
                    f"'{self.root}' holds no certificate in PEM: {_reason(error)}"
                ) from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _check_file(what: str, file: str) -> None:
    if not file:
        raise InvalidArgumentError(f"TLS needs the file of {what}")
    try:
        with Path(file).open("rb"):
            pass
    except OSError as error:
        raise InvalidArgumentError(
            f"{what} cannot be read from '{file}': {error.strerror}"
        ) from None


def _no_password() -> str:
    raise ValueError("the key asks for a password")


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)


@dataclass(slots=True)
class Service:
    """One server with the settings of its endpoints.

    Parameters
    ----------
    server : Server
    given_control : Control or None
        Model control; by default that of the server's last repository.
    strict_readiness : bool
        Whether a model that failed makes the server not ready, as in Triton by default.
    restricted : mapping
        API category (``"inference"``, ``"model-repository"``, …) to the header field and the value
        that a client must send.
    forwards : callable, optional
        Which header fields become request parameters.
    name : str
        Name in the server's metadata; Triton's ``--id``.
    client_shm : bool
        Whether clients may register and unregister shared memory.
    metrics : callable
        Returns the text of ``/metrics``.
    http_tls : Tls, optional
        Enables TLS for HTTP.
    """

    server: Server
    given_control: Control | None
    shared_memory: SharedMemory = field(default_factory=SharedMemory)
    trace: Tracing = field(default_factory=Tracing)
    log: LogSettings = field(default_factory=LogSettings)
    limits: Limits = field(default_factory=Limits)
    strict_readiness: bool = True
    restricted: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    forwards: Forwards | None = None
    name: str = "triton"
    client_shm: bool = True
    metrics: Callable[[], bytes] = bytes
    http_tls: Tls | None = None

    @property
    def control(self) -> Control:
        """Model control: a repository may be loaded, or loaded again, while the ports are open."""
        last: Any = self.server.engine.model_control
        found: Control = last or NoControl(self.server)
        return found if self.given_control is None else self.given_control

    def clients_memory(self) -> SharedMemory:
        """Return the regions of shared memory, for a client that registers or unregisters one.

        Raises
        ------
        UnsupportedError
            Clients may not register shared memory.
        """
        if not self.client_shm:
            raise UnsupportedError(
                "Client shared memory is disabled. Start the server with "
                "'--allow-client-shm=true' to enable."
            )
        return self.shared_memory

    def metadata(self) -> dict[str, Any]:
        """Return Triton's server metadata."""
        return {"name": self.name, "version": PROTOCOL_VERSION, "extensions": list(EXTENSIONS)}

    def is_live(self) -> bool:
        """Return True unless the server's set-up failed.

        Raises
        ------
        UnavailableError
            The server is stopping.
        """
        self._check_staying()
        return not isinstance(self.control, FailedControl)

    def is_ready(self) -> bool:
        """Return True if the server is live, and with strict readiness its models are ready.

        Raises
        ------
        UnavailableError
            The server is stopping.
        """
        self._check_staying()
        if not self.strict_readiness:
            return self.is_live()
        return self.control.is_server_ready()

    def _check_staying(self) -> None:
        if self.server.engine.registry.stopping:
            raise UnavailableError("Server exiting")

    def statistics(self, name: str, version: int) -> dict[str, Any]:
        """Return Triton's statistics of a model, or of all for an empty name.

        Raises
        ------
        InvalidArgumentError
            No such version is ready.
        UnavailableError
            The server's set-up failed, or it stops.
        """
        self.server.engine.inspection.check_answering()
        try:
            return self.server.statistics(name, version)
        except (NotFoundError, UnavailableError):
            known = self.server.is_ready(name)
        raise InvalidArgumentError(
            f"requested model version is not available for model '{name}'"
            if known
            else f"requested model '{name}' is not available"
        )

    def labels(self, name: str, version: int, output: str) -> tuple[str, ...]:
        """Return the class labels of an output; none without a label file."""
        try:
            config = self.server.config(name, version)
            directory = self.server.engine.inspection.directory(name, version)
        except TritonError:  # unloaded since
            return ()
        wanted = next((t.label_filename for t in config.output if t.name == output), "")
        if is_ensemble(config) and not wanted:
            for step in config.ensemble_scheduling.step:
                for inner, outer in step.output_map.items():
                    if outer == output:
                        return self.labels(step.model_name, step.model_version, inner)
            return ()
        if directory is None or not wanted:
            return ()
        file = directory / wanted
        try:
            return _read_labels(file, file.stat().st_mtime_ns)
        except OSError:
            return ()


@lru_cache(maxsize=64)
def _read_labels(file: Path, _changed: int) -> tuple[str, ...]:
    return tuple(
        line.rstrip("\r") for line in file.read_text("utf-8", errors="replace").split("\n")
    )


_log = logging.getLogger("nbtriton.serving.frontends")

# True if a field of this name is forwarded.
Forwards = Callable[[bytes], bool]


def forwards_of(pattern: str) -> Forwards | None:
    """Return the predicate of a ``--http-header-forward-pattern``; None if it forwards nothing.

    As in Triton the syntax is RE2's, case is ignored, any part of the name may match, and a wrong
    pattern is logged and forwards nothing.
    """
    if not pattern:
        return None
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(b"(?i)" + pattern.encode("utf-8", "surrogateescape"), options)
    except re2.error as error:
        said = error.args[0] if error.args else b""
        reason = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        _log.error("no header is forwarded: '%s' is not an RE2 pattern: %s", pattern, reason)
        return None
    return lambda name: compiled.search(name) is not None


_TRACE_NUMBERS = ("trace_rate", "trace_count", "log_frequency")
_LOG_KINDS = {
    "log_info": bool,
    "log_warning": bool,
    "log_error": bool,
    "log_verbose_level": int,
    "log_format": str,
}


def trace_changes(
    settings: Mapping[str, Any],
    levels: Callable[[Any], Sequence[str] | None],
    number: Callable[[str, Any], str | None],
    *,
    got: str,
) -> dict[str, Any]:
    """Return the changes of `Tracing.update`; None for a setting that is cleared.

    Parameters
    ----------
    settings : mapping
        As sent by the client, by Triton's names.
    levels, number : callable
        ``levels(value)`` and ``number(name, value)`` read a value of the protocol; None clears it.
    got : str
        Text before a wrong count in the error.

    Raises
    ------
    TritonError
        With Triton's text.
    """
    changes: dict[str, Any] = {}
    if "trace_file" in settings:
        raise UnsupportedError("trace file location can not be updated through network protocol")
    if "trace_level" in settings:
        found = levels(settings["trace_level"])
        if found is not None and "OFF" in found and len(found) > 1:
            raise InvalidArgumentError("Expect only one trace level 'OFF' is specified")
        changes["level"] = None if found is None else frozenset(found).intersection(TRACE_LEVELS)
    for name in _TRACE_NUMBERS:
        if name not in settings:
            continue
        text = number(name, settings[name])
        value = None if text is None else parse_number(name, text)
        if name == "trace_count" and value is not None and value < -1:
            raise InvalidArgumentError(
                f"Unable to parse 'trace_count'. Expecting value >= -1, {got}{text}"
            )
        changes[name.removeprefix("trace_")] = value
    return changes


def log_changes(
    settings: Mapping[str, Any],
    read: Callable[[str, type, Any], bool | int | str],
    wrong_format: Callable[[str], TritonError],
) -> dict[str, bool | int | str]:
    """Return the changes of `LogSettings.update`.

    Parameters
    ----------
    settings : mapping
        As sent by the client, by Triton's names.
    read : callable
        ``read(name, kind, value)`` reads a bool, an int or a str of the protocol.
    wrong_format : callable
        Returns the error for an unknown format.

    Raises
    ------
    TritonError
        With Triton's text.
    """
    if "log_file" in settings:
        raise UnsupportedError("log file location can not be updated through network protocol")
    changes = {
        name: read(name, kind, settings[name])
        for name, kind in _LOG_KINDS.items()
        if name in settings
    }
    if "log_verbose_level" in changes:
        changes["log_verbose_level"] = verbose_level(int(changes["log_verbose_level"]))
    if changes.get("log_format", LOG_FORMATS[0]) not in LOG_FORMATS:
        raise wrong_format(str(changes["log_format"]))
    return changes
