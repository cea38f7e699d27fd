"""Endpoints of a server: KServe v2 over HTTP, shared memory, metrics, and what extensions add (gRPC is one).

`serve` opens ports; the `Endpoints` that it returns closes them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Unpack

from nbtriton.backends.forking import notify_in_children
from nbtriton.common import entries
from nbtriton.common.checks import Kind, check, optional
from nbtriton.common.closing import Closing
from nbtriton.common.errors import UnavailableError
from nbtriton.options.table import read_settings, signed
from nbtriton.runtime.interrupts import interrupts_deferred
from nbtriton.serving.frontends.http1.connection import (
    HttpEndpoint,
    HttpListener,
    RequestResponseCycle,
)
from nbtriton.serving.frontends.http1.handlers import Handlers
from nbtriton.serving.frontends.http1.response import HttpResponse, error_body, unexpected_error
from nbtriton.serving.frontends.listener import Endpoint, Listener
from nbtriton.serving.frontends.logs import LogSettings
from nbtriton.serving.frontends.loop import LoopThread
from nbtriton.serving.frontends.metrics import Metrics, MetricsConfig
from nbtriton.serving.frontends.service import Control, Limits, Service, Tls, forwards_of
from nbtriton.serving.frontends.tracing import OpenTelemetry, Spans, TraceValues, Tracing
from nbtriton.serving.settings import ENDPOINTS, PORT, EndpointSettings, endpoint_ports

if TYPE_CHECKING:
    from nbtriton.runtime.engine import Server

__all__ = [
    "Control",
    "Endpoint",
    "Endpoints",
    "HttpEndpoint",
    "Limits",
    "LogSettings",
    "MetricsConfig",
    "OpenTelemetry",
    "Service",
    "Tls",
    "TraceValues",
    "serve",
]


def _made_by(kind: type) -> Kind:
    return optional(Kind(lambda value: isinstance(value, kind), f"of the type {kind.__name__}"))


_OBJECTS: Mapping[str, Kind] = {
    "limits": _made_by(Limits),
    "trace": _made_by(TraceValues),
    "opentelemetry": _made_by(OpenTelemetry),
    "log": _made_by(LogSettings),
    "metrics": _made_by(MetricsConfig),
    "http_tls": _made_by(Tls),
    "grpc_tls": _made_by(Tls),
}


class Endpoints(Closing):
    """The open ports of one server; a context manager that closes them.

    Attributes
    ----------
    http_port, grpc_port, metrics_port : int or None
        None for a protocol without an open port; ``NAME_port`` of an extension's endpoint likewise.
    is_open : bool
    host : str
        The address that they listen on.

    Examples
    --------
    >>> with server.serve(http_port=0, grpc_port=0, metrics_port=None) as endpoints:
    ...     endpoints.host, endpoints.metrics_port
    ('127.0.0.1', None)
    """

    def __init__(self, service: Service, thread: LoopThread, host: str, *, own_log: bool) -> None:
        self.service = service
        self.host = host
        self._thread = thread
        self._own_log = own_log
        self._in_child = False
        self._open: dict[str, Listener[Any]] = {}
        self._stopping: Future[None] | None = None
        self._closing = threading.Lock()
        notify_in_children(self)

    def in_child(self) -> None:
        """Close a forked process's copies of the ports; the parent keeps its own."""
        self._in_child = True
        for listener in self._open.values():
            listener.in_child()
        self._open.clear()

    def add(self, protocol: str, listener: Listener[Any]) -> None:
        """Add the listener of a protocol; `close` closes it with the others."""
        self._open[protocol] = listener

    @property
    def http_port(self) -> int | None:
        return self._port("http")

    @property
    def grpc_port(self) -> int | None:
        return self._port("grpc")

    @property
    def metrics_port(self) -> int | None:
        return self._port("metrics")

    def __getattr__(self, name: str) -> int | None:
        protocol = name.removesuffix("_port")
        if protocol == name or entries.place_of("endpoints", protocol) is None:
            raise AttributeError(f"'Endpoints' has no attribute '{name}'")
        return self._port(protocol)

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def _port(self, protocol: str) -> int | None:
        endpoint = self._open.get(protocol)
        return None if endpoint is None else endpoint.port

    def wait_for_clients(self, timeout_s: float) -> int:
        """Stop accepting HTTP connections, and answer the open ones until their clients disconnect.

        Parameters
        ----------
        timeout_s : float
            Seconds to wait.

        Returns
        -------
        int
            Connections that are still open.
        """
        http = self._open.get("http")
        return http.wait_for_clients(timeout_s) if isinstance(http, HttpListener) else 0

    def close(self, *, drain_s: float = 0.0) -> None:
        """Close all ports; harmless when repeated.

        Parameters
        ----------
        drain_s : float
            Seconds to wait for requests that are being answered; the others are cancelled.
        """
        if self._in_child:
            return
        with self._closing:
            with interrupts_deferred():
                if self._stopping is None:  # otherwise Ctrl-C ended the wait of an earlier call
                    self._stopping = self._thread.start(self._stop(drain_s))
            self._stopping.result()
            self._thread.stop()
            self.service.trace.close()
            self.service.shared_memory.close()
            if self._own_log:
                self.service.log.close()

    def stop(self) -> None:
        """Close all ports at once, as `stop()` of every object that a magic keeps running."""
        self.close()

    async def _stop(self, drain_s: float) -> None:
        # Concurrently: each protocol may take all of `drain_s`.
        await asyncio.gather(*(listener.stop(drain_s) for listener in self._open.values()))
        self._open.clear()

    def __repr__(self) -> str:
        ports = ", ".join(
            f"{protocol} {endpoint.port}" for protocol, endpoint in self._open.items()
        )
        return f"<nbtriton.Endpoints: {ports or 'closed'}>"


@signed(ENDPOINTS | endpoint_ports())
def serve(server: Server, **options: Unpack[EndpointSettings]) -> Endpoints:
    """Open a server's ports to clients.

    Clients are not authenticated: every client that reaches an address may use the models.

    Parameters
    ----------
    server : Server
        Stays open when the endpoints close.
    **options
        See `nbtriton.serving.settings.EndpointSettings`, and of each endpoint that an extension adds ``NAME_port`` and
        ``NAME``, its options.

    Returns
    -------
    Endpoints

    Raises
    ------
    UnavailableError
        A port is in use, or the address is not this machine's; nothing is left open.
    InvalidArgumentError
        A certificate or key cannot be read, or a port is out of range.

    Examples
    --------
    >>> with serve(server, http_port=0, metrics_port=None) as endpoints:
    ...     endpoints.http_port > 0
    True
    """
    given: dict[str, Any] = dict(options)
    added = _added({name: given.pop(name) for name in list(given) if _is_extensions(name)})
    given = read_settings("serve", ENDPOINTS, given)
    check(given, _OBJECTS)
    host, log = given["host"], given["log"]
    if given["grpc_port"] is not None:
        # Triton's, so that its options stand among those of HTTP.
        missing = "nothing that is installed answers gRPC"
        kind = entries.find("endpoints", "grpc", missing, hint="grpc_port=None")
        own = {n.removeprefix("grpc_"): v for n, v in given.items() if n.startswith("grpc_")}
        added = {"grpc": (kind, given["grpc_port"], SimpleNamespace(**own)), **added}
    # Port and address of each protocol, the port None for none.
    places: dict[str, tuple[int | None, str]] = {
        "http": (given["http_port"], host),
        "metrics": (given["metrics_port"], given["metrics_host"] or host),
        **{n: (port, given.get(f"{n}_host") or host) for n, (_, port, _) in added.items()},
    }
    for address in sorted({at for port, at in places.values() if port is not None}):
        if not _is_loopback(address):
            warnings.warn(
                f"nbtriton listens on {address}: everyone who can reach this machine can run its "
                "models",
                stacklevel=2,
            )
    spans = given["opentelemetry"]
    forwards = forwards_of(given["header_forward_pattern"])
    service = Service(
        server,
        given["control"],
        trace=Tracing(
            given["trace_file"], given["trace"], None if spans is None else _spans_of(spans)
        ),
        log=log or LogSettings(),
        limits=given["limits"] or Limits(),
        strict_readiness=given["strict_readiness"],
        restricted=given["restricted"] or {},
        forwards=forwards,
        name=given["name"],
        client_shm=given["client_shm"],
        metrics=Metrics(server, given["metrics"] or MetricsConfig()).text,
        http_tls=given["http_tls"],
    )
    thread = LoopThread("nbtriton-endpoints")
    endpoints = Endpoints(service, thread, host, own_log=log is None)
    protocol = ""
    try:
        handle = Handlers(service, thread.join_batch).handle
        opened: dict[str, Callable[..., Listener[Any]]] = {
            # These first, as in Triton: a client that finds the server ready over HTTP may call it over gRPC.
            **{name: partial(kind.open, options=own) for name, (kind, _, own) in added.items()},
            "http": partial(
                HttpListener, handle, keep_fields=forwards is not None, tls=service.http_tls
            ),
            "metrics": partial(HttpListener, partial(_answer_metrics, service.metrics)),
        }
        for protocol, opener in opened.items():
            port, address = places[protocol]
            if port is not None:
                listener = opener(service=service, thread=thread, host=address, port=port)
                endpoints.add(protocol, listener)
    except UnavailableError as error:
        endpoints.close()
        if not error.hint:  # an address, not a port
            raise
        option = f"{protocol}_port (--{protocol}-port)"
        raise UnavailableError(
            error.message, hint=f"give another {option}, or 0 for any that is free"
        ) from None
    except BaseException:
        endpoints.close()
        raise
    return endpoints


def _is_extensions(argument: str) -> bool:
    """Return whether an argument is the port or the options of an endpoint that an extension adds."""
    name = argument.removesuffix("_port")
    # First: an entry that is not nbtriton's own is looked for among all that is installed.
    own = argument in ENDPOINTS or f"{name}_port" in ENDPOINTS
    return not own and bool(entries.place_of("endpoints", name))


def _added(given: Mapping[str, Any]) -> dict[str, tuple[type[Endpoint], int, Any]]:
    """Return class, port and options of each endpoint of an extension that is to be opened.

    Raises
    ------
    InvalidArgumentError
        A port or options have the wrong type.
    """
    found = {}
    for name in {argument.removesuffix("_port") for argument in given}:
        kind: type[Endpoint] = entries.load(entries.places("endpoints")[name])
        port, options = given.get(f"{name}_port"), given.get(name)
        check(
            {f"{name}_port": port, name: options},
            {f"{name}_port": PORT, name: _made_by(kind.options_type)},
        )
        if port is not None:
            found[name] = (kind, port, kind.options_type() if options is None else options)
    return found


def _answer_metrics(text: Callable[[], bytes], cycles: Sequence[RequestResponseCycle]) -> None:
    """Answer requests to the metrics port: other paths get an empty 200, as in Triton (KS1)."""
    for cycle in cycles:
        response = HttpResponse(200, b"text/plain; charset=utf-8")
        if cycle.head.method != "GET":
            response = HttpResponse(405, parts=(error_body("Method Not Allowed"),))
        elif cycle.head.path in ("/metrics", "/metrics/"):
            try:
                response.parts = (text(),)
            except Exception as error:  # of a model's own metrics
                response = unexpected_error(error, cycle.head.path)
        cycle.respond(response)


def _spans_of(options: OpenTelemetry) -> Spans:
    missing = "nothing that is installed exports OpenTelemetry spans"
    found: Spans = entries.find("tracers", "opentelemetry", missing)(options)
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
