"""Options of the server and of its endpoints, made from flags."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any

from nbtriton.common import entries
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.serving.frontends.listener import Tls
from nbtriton.serving.frontends.serve.flag_settings import (
    backend_config,
    cache_bytes,
    check_ports,
    host_policies,
    metrics_settings,
    restricted_apis,
    trace_settings,
)
from nbtriton.serving.frontends.serve.logs import LogSettings
from nbtriton.serving.frontends.service import Limits

__all__ = ["endpoint_options", "server_options", "start_log"]

_GRPC_PORT = 8001
_COMPRESSION = ("none", "low", "medium", "high")
_CHANNEL_ARGUMENTS = {
    "grpc.keepalive_time_ms": "grpc_keepalive_time",
    "grpc.keepalive_timeout_ms": "grpc_keepalive_timeout",
    "grpc.keepalive_permit_without_calls": "grpc_keepalive_permit_without_calls",
    "grpc.http2.max_pings_without_data": "grpc_http2_max_pings_without_data",
    "grpc.http2.min_ping_interval_without_data_ms":
        "grpc_http2_min_recv_ping_interval_without_data",
    "grpc.http2.max_ping_strikes": "grpc_http2_max_ping_strikes",
    "grpc.max_connection_age_ms": "grpc_max_connection_age",
    "grpc.max_connection_age_grace_ms": "grpc_max_connection_age_grace",
}  # fmt: skip


def start_log(arguments: SimpleNamespace) -> LogSettings:
    """Start the log as the flags say; `LogSettings.close` ends it."""
    try:
        file = arguments.log_file
        handler = logging.FileHandler(file) if file else logging.StreamHandler(sys.stderr)
    except OSError as error:
        raise InvalidArgumentError(f"--log-file {file}: {error.strerror}") from None
    names = ("log_file", "log_info", "log_warning", "log_error", "log_format")
    values = {name: getattr(arguments, name) for name in names}
    return LogSettings(handler, log_verbose_level=arguments.log_verbose, **values)


def server_options(arguments: SimpleNamespace) -> dict[str, Any]:
    """Return the arguments of `nbtriton.Server`."""
    summaries, _ = metrics_settings(arguments)
    return {
        "cache_bytes": cache_bytes(arguments),
        "summaries": summaries,
        "rate_limit": arguments.rate_limit,
        "rate_limit_resources": arguments.rate_limit_resource,
        "backend_config": backend_config(arguments),
        "isolation": arguments.isolation,
        "worker_timeout_s": arguments.worker_timeout,
        "host_policies": host_policies(arguments),
        "stand_in": arguments.stand_in,
        "gpus": arguments.gpus,
    }


def endpoint_options(arguments: SimpleNamespace) -> dict[str, Any]:
    """Return the arguments of `nbtriton.serving.frontends.serve`, except the log."""
    grpc_port = _GRPC_PORT if arguments.grpc_port is None else arguments.grpc_port
    if arguments.allow_grpc is False:
        grpc_port = None
    trace_path, trace_values, spans = trace_settings(arguments)
    _, metrics = metrics_settings(arguments)
    channel = [
        (name, int(value))
        for name, flag in _CHANNEL_ARGUMENTS.items()
        if (value := getattr(arguments, flag)) is not None
    ]
    level = _COMPRESSION.index(arguments.grpc_infer_response_compression_level)
    channel.append(("grpc.default_compression_level", level))
    http_port = arguments.http_port if arguments.allow_http else None
    metrics_port = arguments.metrics_port if arguments.allow_metrics else None
    host = arguments.http_address
    grpc_host = arguments.grpc_address or host
    metrics_host = arguments.metrics_address or host
    added = {
        name: kind
        for name, kind in entries.working("endpoints")
        if getattr(arguments, f"{name}_port", None) is not None
    }
    ports_added = {name: getattr(arguments, f"{name}_port") for name in added}
    check_ports(
        ("HTTP", host, http_port),
        ("GRPC", grpc_host, grpc_port),
        ("metrics", metrics_host, metrics_port),
        *((added[name].title, host, port) for name, port in ports_added.items()),
    )
    return {
        "http_port": http_port,
        "grpc_port": grpc_port,
        "metrics_port": metrics_port,
        **{f"{name}_port": port for name, port in ports_added.items()},
        **{name: kind.options_of(arguments) for name, kind in added.items()},
        "host": host,
        "grpc_host": grpc_host,
        "metrics_host": metrics_host,
        "name": arguments.id,
        "strict_readiness": arguments.strict_readiness,
        "restricted": restricted_apis(arguments.http_restricted_api, "http-restricted-api", "api"),
        "grpc_restricted": restricted_apis(
            arguments.grpc_restricted_protocol, "grpc-restricted-protocol", "protocol"
        ),
        "grpc_options": channel,
        "header_forward_pattern": arguments.http_header_forward_pattern,
        "grpc_header_forward_pattern": arguments.grpc_header_forward_pattern,
        "trace_file": trace_path,
        "trace": trace_values,
        "opentelemetry": spans,
        "client_shm": arguments.allow_client_shm,
        "limits": _limits(arguments),
        "metrics": metrics,
        "http_tls": _tls(arguments, "http"),
        "grpc_tls": _tls(arguments, "grpc"),
    }


def _limits(arguments: SimpleNamespace) -> Limits:
    size = arguments.max_decompressed_size
    if size <= 0:
        raise InvalidArgumentError(f"--max-decompressed-size={size}: it must be greater than 0")
    return Limits(decompressed_bytes=size)


def _tls(arguments: SimpleNamespace, protocol: str) -> Tls | None:
    """Return the TLS settings of a protocol; None without TLS."""

    def given(name: str) -> Any:
        return getattr(arguments, f"{protocol}_{name}")

    mutual = given("use_ssl_mutual")
    if not (mutual or given("use_ssl")):
        return None
    return Tls(given("server_cert"), given("server_key"), given("root_cert"), mutual)
