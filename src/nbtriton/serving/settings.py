"""The options of endpoints: `nbtriton.Server.serve`, ``%triton_serve`` and ``nbtriton serve`` have them from here."""

# Annotations are evaluated: the table is read from them.
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, TypedDict

from nbtriton.common import entries
from nbtriton.common.checks import MAPPING, PATH, SWITCH, Kind, is_whole, optional
from nbtriton.options.table import Option, table_of
from nbtriton.options.triton import BOOLEAN, RESTRICTED_API, RESTRICTED_PROTOCOL, restricted_apis
from nbtriton.options.triton import PORT as NUMBER

if TYPE_CHECKING:
    from nbtriton.serving.frontends.logs import LogSettings
    from nbtriton.serving.frontends.metrics import MetricsConfig
    from nbtriton.serving.frontends.service import Control, Limits, Tls
    from nbtriton.serving.frontends.tracing import OpenTelemetry, TraceValues

PORT = optional(
    Kind(
        lambda value: is_whole(value) and 0 <= value < 1 << 16,
        "from 0 to 65535, or None for no port",
    )
)
_TEXT = Kind(lambda value: isinstance(value, str), "a text")


def _port(protocol: str, what: str, default: int | None) -> Option:
    return Option(
        f"--{protocol}-port", what, value="PORT", read=NUMBER.read, default=default, kind=PORT,
        off="none", unset="no port",
    )  # fmt: skip


def _text(flags: str, what: str, default: str | None) -> Option:
    return Option(
        flags, what, value="TEXT", default=default, kind=_TEXT if default is not None else optional(_TEXT)
    )  # fmt: skip


def _switch(flags: str, what: str, *, ours: bool = False) -> Option:
    return Option(
        flags, what, value=BOOLEAN.shown, read=BOOLEAN.read, default=True, kind=SWITCH, ours=ours
    )


class EndpointSettings(TypedDict, total=False):
    """Options of the open ports of a server."""

    http_port: Annotated["int | None", _port("http", "0 for any that is free", 8000)]
    grpc_port: Annotated["int | None", _port("grpc", "0 for any that is free; nbtriton serve has 8001 by default", None)]  # fmt: skip
    metrics_port: Annotated["int | None", _port("metrics", "0 for any that is free", 8002)]
    host: Annotated[str, _text(
        "--http-address --host",
        "where to listen; by default only this machine: every client that reaches the address may use the models",
        "127.0.0.1")]  # fmt: skip
    grpc_host: Annotated["str | None", _text("--grpc-address", "by default as --http-address", None)]  # fmt: skip
    metrics_host: Annotated["str | None", _text("--metrics-address", "by default as --http-address", None)]  # fmt: skip
    name: Annotated[str, _text("--id", "the server's name in its metadata", "triton")]
    strict_readiness: Annotated[bool, _switch(
        "--strict-readiness", "the server is ready only if every model is, by default")]  # fmt: skip
    client_shm: Annotated[bool, _switch("--allow-client-shm", "clients may register shared memory", ours=True)]  # fmt: skip
    header_forward_pattern: Annotated[str, _text(
        "--http-header-forward-pattern", "headers that become request parameters, a regular expression in RE2's syntax",
        "")]  # fmt: skip
    grpc_header_forward_pattern: Annotated["str | None", _text(
        "--grpc-header-forward-pattern", "headers that become request parameters; as over HTTP by default", None)]  # fmt: skip
    restricted: Annotated["Mapping[str, tuple[str, str]] | None", Option(
        "--http-restricted-api", "only clients that send this header may use it", RESTRICTED_API.shown, RESTRICTED_API.read,
        action="append", off="none", unset="all may use it",
        join=lambda given: restricted_apis(given, "http-restricted-api", "api"), kind=optional(MAPPING))]  # fmt: skip
    grpc_restricted: Annotated["Mapping[str, tuple[str, str]] | None", Option(
        "--grpc-restricted-protocol", "as --http-restricted-api; the header begins with triton-grpc-protocol-",
        RESTRICTED_PROTOCOL.shown, RESTRICTED_PROTOCOL.read, action="append", off="none", unset="all may use it",
        join=lambda given: restricted_apis(given, "grpc-restricted-protocol", "protocol"), kind=optional(MAPPING))]  # fmt: skip
    # Of Python alone: objects, which flags of `nbtriton serve` make.
    control: Annotated["Control | None", Option(
        "", "lets clients load and unload models; by default that of the repository")]  # fmt: skip
    limits: Annotated["Limits | None", Option("", "resources that one client may use")]
    trace_file: Annotated[str, Option(
        "", "as --trace-config triton,file=PATH; clients can only read it", default="", kind=PATH)]  # fmt: skip
    trace: Annotated["TraceValues | None", Option(
        "", "trace settings at the start, off by default; clients may change them")]  # fmt: skip
    opentelemetry: Annotated["OpenTelemetry | None", Option("", "traces are sent as spans, not written to a file")]  # fmt: skip
    grpc_options: Annotated["Sequence[tuple[str, int | str]]", Option(
        "", "gRPC's channel arguments, such as ('grpc.keepalive_time_ms', 7200000)", default=())]  # fmt: skip
    log: Annotated["LogSettings | None", Option(
        "", "the log's settings, Triton's by default; clients' changes apply to the loggers under nbtriton until the "
        "endpoints close")]  # fmt: skip
    metrics: Annotated["MetricsConfig | None", Option("", "which metrics there are, as --metrics-config says")]  # fmt: skip
    http_tls: Annotated["Tls | None", Option("", "TLS settings")]
    grpc_tls: Annotated["Tls | None", Option("", "TLS settings for gRPC")]


ENDPOINTS = table_of(EndpointSettings)


def endpoint_port(name: str) -> Option:
    """Return the port of an endpoint that an extension adds."""
    if f"{name}_port" in ENDPOINTS:
        return ENDPOINTS[f"{name}_port"]
    option = _port(name, f"of the endpoint '{name}' of an extension", None)
    return replace(option, name=f"{name}_port", type="int | None")


def endpoint_ports() -> dict[str, Option]:
    """Return the ports of the endpoints of nbtriton's own extensions, by their names in Python."""
    return {f"{name}_port": endpoint_port(name) for name in entries.own_places("endpoints")}
