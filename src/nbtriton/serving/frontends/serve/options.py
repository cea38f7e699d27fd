"""Options of the server and of its endpoints, made from flags."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from nbtriton.backends import BACKEND_DIRECTORY
from nbtriton.common import entries
from nbtriton.common.errors import InvalidArgumentError, nearest
from nbtriton.options.server import SERVER
from nbtriton.options.table import Option
from nbtriton.scheduling import MIN_CACHE_BYTES
from nbtriton.serving.frontends.listener import Tls
from nbtriton.serving.frontends.metrics import MetricsConfig, parse_quantiles
from nbtriton.serving.frontends.serve.flags import CHANNEL
from nbtriton.serving.frontends.serve.logs import LogSettings
from nbtriton.serving.frontends.service import Limits
from nbtriton.serving.frontends.spans import SPAN_NUMBERS, OpenTelemetry
from nbtriton.serving.frontends.tracing import TraceValues, check_values
from nbtriton.serving.settings import ENDPOINTS

_log = logging.getLogger("nbtriton.serve")
_GRPC_PORT = 8001
_COMPRESSION = ("none", "low", "medium", "high")
_METRICS = ("counter_latencies", "summary_latencies", "summary_quantiles")


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
    options = given_options(arguments, SERVER)
    if arguments.backend_directory is not None:
        options["backend_config"].setdefault("", {})[BACKEND_DIRECTORY] = (
            arguments.backend_directory
        )
    summaries, _ = metrics_settings(arguments)
    return {**options, "cache_bytes": cache_bytes(arguments), "summaries": summaries}


def given_options(arguments: SimpleNamespace, table: Mapping[str, Option]) -> dict[str, Any]:
    """Return the options of a table that flags say."""
    found = vars(arguments)
    return {name: one.of_parsed(found[name]) for name, one in table.items() if name in found}


def endpoint_options(arguments: SimpleNamespace) -> dict[str, Any]:
    """Return the arguments of `nbtriton.serving.frontends.serve`, except the log."""
    options = given_options(arguments, ENDPOINTS)
    if options["grpc_port"] is None:
        options["grpc_port"] = _GRPC_PORT
    for protocol in ("http", "grpc", "metrics"):
        if getattr(arguments, f"allow_{protocol}") is False:
            options[f"{protocol}_port"] = None
    for protocol in ("grpc", "metrics"):
        options[f"{protocol}_host"] = options[f"{protocol}_host"] or options["host"]
    trace_path, trace_values, spans = trace_settings(arguments)
    _, metrics = metrics_settings(arguments)
    channel = [
        (name, int(value))
        for flag, (name, *_) in CHANNEL.items()
        if (value := getattr(arguments, f"grpc_{flag.replace('-', '_')}")) is not None
    ]
    level = _COMPRESSION.index(arguments.grpc_infer_response_compression_level)
    added = {
        name: kind
        for name, kind in entries.working("endpoints")
        if getattr(arguments, f"{name}_port", None) is not None
    }
    ports_added = {name: getattr(arguments, f"{name}_port") for name in added}
    host = options["host"]
    check_ports(
        ("HTTP", host, options["http_port"]),
        ("GRPC", options["grpc_host"], options["grpc_port"]),
        ("metrics", options["metrics_host"], options["metrics_port"]),
        *((added[name].title, host, port) for name, port in ports_added.items()),
    )
    return {
        **options,
        **{f"{name}_port": port for name, port in ports_added.items()},
        **{name: kind.options_of(arguments) for name, kind in added.items()},
        "grpc_options": [*channel, ("grpc.default_compression_level", level)],
        "trace_file": trace_path,
        "trace": trace_values,
        "opentelemetry": spans,
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


def cache_bytes(arguments: SimpleNamespace) -> int | None:
    """Return the size of the response cache; None without one."""
    old: int | None = arguments.response_cache_byte_size
    if arguments.cache_config and old is not None:
        raise InvalidArgumentError(
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. "
            "Please provide one or the other."
        )
    if old is not None:
        return _cache_size(str(old))
    if len({name for name, _, _ in arguments.cache_config}) > 1:
        raise InvalidArgumentError(
            "found multiple cache configurations, but only a single cache is currently supported",
            hint="there is local",
        )
    size = None
    for name, setting, value in arguments.cache_config:
        if name != "local":
            raise InvalidArgumentError(
                f"unable to find 'libtritoncache_{name}.so' for cache", hint="there is local"
            )
        if setting == "size":
            size = value
        else:
            _log.warning("--cache-config=%s,%s has no effect here", name, setting)
    if size is None and arguments.cache_config:
        raise InvalidArgumentError(
            "Failed to initialize LocalCache: config didn't contain a valid 'size' field.",
            hint=nearest(arguments.cache_config[0][1], ("size",)),
        )
    return None if size is None else _cache_size(size)


def _cache_size(text: str) -> int:
    if not text.isdecimal() or int(text) < MIN_CACHE_BYTES:
        raise InvalidArgumentError(
            f"Failed to initialize LocalCache: '{text}' is not a number of bytes from {MIN_CACHE_BYTES} on"
        )
    return int(text)


def trace_settings(
    arguments: SimpleNamespace,
) -> tuple[str, TraceValues, OpenTelemetry | None]:
    """Return the trace file, empty for none, the initial trace settings, and the OpenTelemetry options."""
    file = arguments.trace_file or ""
    levels = list(arguments.trace_level)
    numbers: dict[str, Any] = {
        "rate": arguments.trace_rate,
        "count": arguments.trace_count,
        "log_frequency": arguments.trace_log_frequency,
    }
    mode = "triton"
    resource: dict[str, str] = {}
    options: dict[str, Any] = {
        name: int(os.environ[f"OTEL_{name.upper()}"])
        for name in SPAN_NUMBERS
        if os.environ.get(f"OTEL_{name.upper()}", "").isdecimal()
    }
    for kind, name, value in arguments.trace_config:
        if (kind, name) == ("", "mode"):
            mode = value
        elif (kind, name) == ("", "level"):
            levels.append(value)
        elif (kind, name) == ("triton", "file"):
            file = value
        elif (kind, name) in {("", "rate"), ("", "count"), ("triton", "log-frequency")}:
            numbers[name.replace("-", "_")] = value
        elif (kind, name) == ("opentelemetry", "resource"):
            key, separator, text = value.partition("=")
            resource[key] = text if separator else key  # as Triton
        elif kind == "opentelemetry" and name in ("url", *SPAN_NUMBERS):
            options[name] = value
        else:
            _log.warning("--trace-config=%s%s has no effect here", kind and f"{kind},", name)
    level = frozenset[str]() if frozenset() in levels else frozenset[str]().union(*levels)
    given = {name: number for name, number in numbers.items() if number is not None}
    values = TraceValues(level=level, **given)
    spans = OpenTelemetry(resource=resource, **options) if mode == "opentelemetry" else None
    try:
        check_values(values, file, spans=spans is not None)
    except InvalidArgumentError as error:
        # As tritonserver, which starts and traces nothing.
        _log.warning("%s; nothing is traced", error.message)
        values = replace(values, level=frozenset())
    return file, values, spans


def metrics_settings(arguments: SimpleNamespace) -> tuple[bool, MetricsConfig]:
    """Return whether latency summaries are kept, and the metrics' settings."""
    # As in Triton, other spellings have no effect.
    summaries = ("summary_latencies", "true") in arguments.metrics_config
    counters = ("counter_latencies", "false") not in arguments.metrics_config
    config = MetricsConfig(counters, machine=arguments.allow_cpu_metrics)
    for name, value in arguments.metrics_config:
        if name == "summary_quantiles":
            found = parse_quantiles(value)
            config = MetricsConfig(counters, found or config.quantiles, config.machine)
        elif name not in _METRICS:
            _log.warning("--metrics-config=%s has no effect here", name)
        elif value not in ("true", "false"):
            _log.warning("--metrics-config=%s=%s has no effect: true or false", name, value)
    return summaries, config


def check_ports(*ports: tuple[str, str, int | None]) -> None:
    """Refuse two services at one address and port; 0 is any free port.

    Parameters
    ----------
    *ports : tuple of str, str, int or None
        Triton's name of a service, its address and port; None for a service without one.
    """
    for number, (name, address, port) in enumerate(ports):
        for other, *place in ports[number + 1 :]:
            if port and place == [address, port]:
                raise InvalidArgumentError(
                    f"The server cannot listen to {name} requests and {other} requests at the same "
                    f"address and port {address}:{port}"
                )
