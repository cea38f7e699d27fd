"""Settings made from flags: cache, backends, metrics, traces, restricted APIs and ports."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from nbtriton.backends import BACKEND_DIRECTORY
from nbtriton.common.errors import InvalidArgumentError, nearest
from nbtriton.scheduling import MIN_CACHE_BYTES
from nbtriton.serving.frontends.metrics import MetricsConfig, parse_quantiles
from nbtriton.serving.frontends.spans import SPAN_NUMBERS, OpenTelemetry
from nbtriton.serving.frontends.tracing import TraceValues, check_values

__all__ = [
    "backend_config",
    "cache_bytes",
    "check_ports",
    "host_policies",
    "metrics_settings",
    "restricted_apis",
    "trace_settings",
]

_log = logging.getLogger("nbtriton.serve")
_METRICS = ("counter_latencies", "summary_latencies", "summary_quantiles")


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


def backend_config(arguments: SimpleNamespace) -> dict[str, dict[str, str]]:
    """Return the settings by backend; the empty name is for all backends."""
    found: dict[str, dict[str, str]] = {}
    for backend, name, value in arguments.backend_config:
        found.setdefault(backend, {})[name] = value
    if arguments.backend_directory is not None:
        found.setdefault("", {})[BACKEND_DIRECTORY] = arguments.backend_directory
    return found


def host_policies(arguments: SimpleNamespace) -> dict[str, dict[str, str]]:
    """Return the settings by host policy."""
    found: dict[str, dict[str, str]] = {}
    for policy, name, value in arguments.host_policy:
        found.setdefault(policy, {})[name] = value
    return found


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


def restricted_apis(
    given: Iterable[tuple[tuple[str, ...], str, str]], flag: str, what: str
) -> dict[str, tuple[str, str]]:
    """Return header and value by category.

    Raises
    ------
    InvalidArgumentError
        A category is restricted twice.
    """
    found: dict[str, tuple[str, str]] = {}
    for names, header, value in given:
        for name in names:
            if name in found:
                raise InvalidArgumentError(
                    f"Bad option: \"--{flag}\".\nrestricted {what} '{name}' can not be specified in "
                    "multiple config groups"
                )
            found[name] = (header, value)
    return found


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
