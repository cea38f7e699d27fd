"""The flags of tritonserver that `nbtriton serve` takes: their names, kinds and meanings."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nbtriton.backends import BACKEND_DIRECTORY
from nbtriton.errors import InvalidArgumentError, nearest
from nbtriton.frontends.metrics import DEFAULT_QUANTILES, MetricsConfig
from nbtriton.frontends.tracing import TraceValues

__all__ = [
    "WITHOUT_EFFECT",
    "add_flags",
    "backend_config",
    "cache_bytes",
    "metrics_settings",
    "parse_flags",
    "restricted_apis",
    "trace_settings",
]

_TRACE_LEVELS = {
    **dict.fromkeys(("off", "false"), frozenset[str]()),
    **dict.fromkeys(("timestamps", "min", "max", "on", "true"), frozenset({"TIMESTAMPS"})),
    "tensors": frozenset({"TENSORS"}),
}
_TRUE = ("true", "on", "1", "yes")
_FALSE = ("false", "off", "0", "no")


def _boolean(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise argparse.ArgumentTypeError(f"'{text}' is neither true nor false")


def _port(text: str) -> int:
    try:
        port = int(text)
    except ValueError:
        port = -1
    if not 0 <= port < 1 << 16:
        raise argparse.ArgumentTypeError(f"'{text}' is no port")
    return port


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of 0 or more")
    return int(text)


@dataclass(frozen=True, slots=True)
class _Flag:
    name: str
    kind: Any  # what makes a value of the text; None for a flag without one
    default: Any
    help: str
    repeated: bool = False
    choices: tuple[str, ...] | None = None


_GROUPS: dict[str, tuple[_Flag, ...]] = {
    "models": (
        _Flag("model-repository", str, None, "a directory of models; may be repeated", True),
        _Flag("model-store", str, None, "an old name of --model-repository", True),
        _Flag(
            "model-control-mode", str, "none", "who loads models: none (all at the start), poll "
            "(the repository is looked at again and again), explicit (clients may)",
            choices=("none", "poll", "explicit"),
        ),
        _Flag("load-model", str, None, "with explicit control, load this one; * for all", True),
        _Flag("repository-poll-secs", _natural, 15, "seconds between two looks"),
        _Flag("strict-model-config", _boolean, None, "true: as --disable-auto-complete-config"),
        _Flag("disable-auto-complete-config", None, False, "take configurations as they are"),
        _Flag("model-config-name", str, "", "prefer configs/NAME.pbtxt to config.pbtxt"),
        _Flag("strict-readiness", _boolean, True, "ready only if every model is"),
        _Flag("exit-on-error", _boolean, True, "end if a model cannot be loaded at the start"),
        _Flag("exit-timeout-secs", _natural, 30, "seconds for running requests at the end"),
        _Flag("rate-limit", str, "off", "how executions are limited",
              choices=("off", "execution_count")),
        _Flag("rate-limit-resource", str, None, "NAME:COUNT[:DEVICE]; may be repeated", True),
        _Flag("cache-config", str, None, "local,size=BYTES: keep responses", True),
        _Flag("response-cache-byte-size", _natural, None, "an old name of --cache-config"),
        _Flag("backend-config", str, None, "BACKEND,SETTING=VALUE, or SETTING=VALUE for all", True),
        _Flag("backend-directory", str, None, "each NAME/model.py in it is a Python-based backend"),
        _Flag("id", str, "triton", "the server's name in its metadata"),
        _Flag("allow-client-shm", _boolean, True, "clients may register shared memory"),
    ),
    "HTTP": (
        _Flag("allow-http", _boolean, True, "answer over HTTP"),
        _Flag("http-address", str, "127.0.0.1", "where to listen; by default only this machine"),
        _Flag("http-port", _port, 8000, "0 for any that is free"),
        _Flag("http-header-forward-pattern", str, "", "headers that become request parameters"),
        _Flag("http-restricted-api", str, None, "API[,API…]:HEADER=VALUE; may be repeated", True),
    ),
    "gRPC": (
        _Flag("allow-grpc", _boolean, None, "answer over gRPC; needs grpcio"),
        _Flag("grpc-address", str, None, "as --http-address"),
        _Flag("grpc-port", _port, None, "8001 by default; 0 for any that is free"),
        _Flag("grpc-header-forward-pattern", str, "", "as for HTTP, and the same"),
        _Flag("grpc-restricted-protocol", str, None, "as --http-restricted-api", True),
        _Flag("grpc-infer-response-compression-level", str, "none", "of responses",
              choices=("none", "low", "medium", "high")),
        _Flag("grpc-keepalive-time", int, 7200000, "milliseconds without a call before a ping"),
        _Flag("grpc-keepalive-timeout", int, 20000, "milliseconds to wait for its answer"),
        _Flag("grpc-keepalive-permit-without-calls", _boolean, False, "ping idle connections too"),
        _Flag("grpc-http2-max-pings-without-data", int, 2, "pings in a row without data"),
        _Flag("grpc-http2-min-recv-ping-interval-without-data", int, 300000,
              "milliseconds between a client's pings"),
        _Flag("grpc-http2-max-ping-strikes", int, 2, "bad pings before a client is cut off"),
        _Flag("grpc-max-connection-age", int, None, "milliseconds a connection may live"),
        _Flag("grpc-max-connection-age-grace", int, None, "and those for its last calls"),
    ),
    "metrics": (
        _Flag("allow-metrics", _boolean, True, "answer Prometheus"),
        _Flag("metrics-address", str, None, "as --http-address"),
        _Flag("metrics-port", _port, 8002, "0 for any that is free"),
        _Flag("metrics-config", str, None, "SETTING=VALUE of counter_latencies (true), "
              "summary_latencies (false), summary_quantiles (0.5:0.05,0.9:0.01)", True),
    ),
    "log and trace": (
        _Flag("log-verbose", _natural, 0, "above 0: tell more"),
        _Flag("log-info", _boolean, True, "tell what happens"),
        _Flag("log-warning", _boolean, True, "tell warnings"),
        _Flag("log-error", _boolean, True, "tell errors"),
        _Flag("log-format", str, "default", "of the time in the log",
              choices=("default", "ISO8601")),
        _Flag("log-file", str, "", "write there instead of to the terminal"),
        _Flag("trace-config", str, None, "SETTING=VALUE of level (TIMESTAMPS, TENSORS, OFF; may be "
              "repeated), rate, count; triton,file=PATH; triton,log-frequency=N", True),
        _Flag("trace-file", str, None, "an old name of --trace-config triton,file"),
        _Flag("trace-level", str, None, "an old name of --trace-config level", True),
        _Flag("trace-rate", _natural, None, "an old name of --trace-config rate"),
        _Flag("trace-count", int, None, "an old name of --trace-config count"),
        _Flag("trace-log-frequency", _natural, None,
              "an old name of --trace-config triton,log-frequency"),
    ),
    "taken and without effect here": (
        _Flag("cache-directory", str, None, "the cache is built in"),
        _Flag("repoagent-directory", str, None, "there are no repository agents"),
        _Flag("http-thread-count", _natural, None, "one thread serves all connections"),
        _Flag("grpc-infer-allocation-pool-size", _natural, None, "Python reuses memory itself"),
        _Flag("pinned-memory-pool-byte-size", _natural, None, "pools grow with their use"),
        _Flag("cuda-memory-pool-byte-size", str, None, "pools grow with their use", True),
        _Flag("buffer-manager-thread-count", _natural, None, "instances copy for themselves"),
        _Flag("model-load-thread-count", _natural, None, "four load at a time"),
        _Flag("metrics-interval-ms", _natural, None, "metrics are read when asked for"),
        _Flag("allow-cpu-metrics", _boolean, None, "metrics are read when asked for"),
        _Flag("allow-gpu-metrics", _boolean, None, "metrics are read when asked for"),
    ),
}  # fmt: skip
_FLAGS = {flag.name: flag for flags in _GROUPS.values() for flag in flags}
WITHOUT_EFFECT = tuple(flag.name for flag in _GROUPS["taken and without effect here"])


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Give a parser the flags, in groups for its help."""
    for title, flags in _GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            if flag.kind is None:
                group.add_argument(f"--{flag.name}", action="store_true", help=flag.help)
                continue
            group.add_argument(
                f"--{flag.name}",
                type=flag.kind,
                default=[] if flag.repeated else flag.default,
                action="append" if flag.repeated else "store",
                choices=flag.choices,
                metavar=None if flag.choices else "true|false" if flag.kind is _boolean else "…",
                help=flag.help.replace("%", "%%"),
            )


def parse_flags(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; one flag too many is refused by its name.

    Parameters
    ----------
    parser : ArgumentParser
        That `add_flags` was given.
    argv : sequence of str
        ``--name=value`` or ``--name value``.
    """
    arguments, rest = parser.parse_known_args(argv)
    for text in rest:
        if text.startswith("-"):
            name = text.partition("=")[0]
            hint = nearest(name.lstrip("-"), _FLAGS)
            hint = re.sub("'(.+)'", r"'--\1'", hint) if hint.startswith("did") else "see --help"
            parser.error(f"unrecognized option '{name}'; {hint}")
        parser.error(f"unexpected argument '{text}'")
    return arguments


def cache_bytes(arguments: argparse.Namespace) -> int | None:
    """Return the size of the response cache; None without one."""
    settings = dict(_pair(text, "--cache-config", "local") for text in arguments.cache_config)
    unknown = settings.keys() - {"size"}
    if unknown:
        raise InvalidArgumentError(
            f"--cache-config: unknown setting '{min(unknown)}'",
            hint=nearest(min(unknown), {"size"}),
        )
    if settings:
        return _natural_of(settings["size"], "--cache-config local,size")
    found: int | None = arguments.response_cache_byte_size
    return found or None


def backend_config(arguments: argparse.Namespace) -> dict[str, dict[str, str]]:
    """Return the settings by backend; those for all under the empty name."""
    found: dict[str, dict[str, str]] = {}
    for text in arguments.backend_config:
        backend, comma, setting = text.partition(",")
        if not comma:
            backend, setting = "", text
        name, equals, value = setting.partition("=")
        if not (name and equals and value) or (comma and not backend):
            raise InvalidArgumentError(
                "--backend-config option format is '<backend name>,<setting>=<value>'. Got " + text
            )
        found.setdefault(backend, {})[name] = value
    if arguments.backend_directory is not None:
        found.setdefault("", {})[BACKEND_DIRECTORY] = arguments.backend_directory
    return found


def trace_settings(arguments: argparse.Namespace) -> tuple[str, TraceValues]:
    """Return where traces go, empty for nowhere, and what is traced at the start."""
    file = arguments.trace_file or ""
    levels = list(arguments.trace_level)
    numbers = {
        "rate": arguments.trace_rate,
        "count": arguments.trace_count,
        "log-frequency": arguments.trace_log_frequency,
    }
    for text in arguments.trace_config:
        kind, comma, rest = text.partition(",") if "," in text.partition("=")[0] else ("", "", text)
        name, equals, value = rest.partition("=")
        if comma and kind != "triton":
            raise InvalidArgumentError(
                f"--trace-config {text}: '{kind}' is no mode of tracing here",
                hint="there is triton",
            )
        known = ("file", "log-frequency") if comma else ("level", "rate", "count", "mode")
        if not (equals and value) or name not in known:
            raise InvalidArgumentError(
                f"--trace-config: unknown setting '{name}'", hint=nearest(name, known)
            )
        if name == "file":
            file = value
        elif name == "level":
            levels.append(value)
        elif name == "mode":
            if value.lower() != "triton":
                raise InvalidArgumentError(
                    f"--trace-config {text}: '{value}' is no mode of tracing here",
                    hint="there is triton",
                )
        else:
            digits = value.removeprefix("-") if name == "count" else value
            _natural_of(digits, f"--trace-config {rest.partition('=')[0]}")
            numbers[name] = int(value)
    given = {
        name.replace("-", "_"): number for name, number in numbers.items() if number is not None
    }
    return file, TraceValues(level=_trace_levels(levels), **given)


def metrics_settings(arguments: argparse.Namespace) -> tuple[bool, MetricsConfig]:
    """Return whether latency summaries are kept, and what is shown."""
    summaries, counters = False, True
    quantiles: tuple[float, ...] = DEFAULT_QUANTILES
    known = ("counter_latencies", "summary_latencies", "summary_quantiles")
    for text in arguments.metrics_config:
        name, equals, value = text.rpartition(",")[2].partition("=")
        if text.startswith("summary_quantiles="):  # its commas are its own
            name, equals, value = text.partition("=")
        if name not in known or not equals:
            raise InvalidArgumentError(
                f"--metrics-config: unknown setting '{name}'", hint=nearest(name, known)
            )
        if name == "summary_quantiles":
            quantiles = tuple(_quantile(pair) for pair in value.split(","))
            continue
        if value.lower() not in ("true", "false"):
            raise InvalidArgumentError(f"--metrics-config {text}: expected true or false")
        on = value.lower() == "true"
        summaries, counters = (on, counters) if name == "summary_latencies" else (summaries, on)
    return summaries, MetricsConfig(counters, quantiles)


def _quantile(pair: str) -> float:
    """Read ``QUANTILE:ERROR``; the error is ours to keep, and always half a percent or less."""
    try:
        rank, _, error = pair.partition(":")
        if 0 <= float(rank) <= 1 and float(error) >= 0:
            return float(rank)
    except ValueError:
        pass
    raise InvalidArgumentError(
        f"--metrics-config summary_quantiles: '{pair}' is not QUANTILE:ERROR",
        hint="such as 0.5:0.05",
    )


def _trace_levels(texts: Sequence[str]) -> frozenset[str]:
    found: set[str] = set()
    for text in texts:
        names = _TRACE_LEVELS.get(text.lower())
        if names is None:
            raise InvalidArgumentError(
                f"invalid value for trace level option: {text}",
                hint=nearest(text.upper(), ("OFF", "TIMESTAMPS", "TENSORS")),
            )
        if not names:
            return frozenset()
        found |= names
    return frozenset(found)


def restricted_apis(texts: Sequence[str], flag: str) -> dict[str, tuple[str, str]]:
    """Read ``API[,API…]:HEADER=VALUE`` into category to header and value."""
    known = (
        "health", "metadata", "inference", "shared-memory", "model-config", "model-repository",
        "statistics", "trace", "logging",
    )  # fmt: skip
    found: dict[str, tuple[str, str]] = {}
    for text in texts:
        names, _, rest = text.partition(":")
        header, equals, value = rest.partition("=")
        if not (header and equals and value):
            raise InvalidArgumentError(f"{flag} {text}: expected API[,API…]:HEADER=VALUE")
        for name in names.split(","):
            if name not in known:
                raise InvalidArgumentError(
                    f"{flag}: unknown API '{name}'", hint=nearest(name, known)
                )
            if name in found:
                raise InvalidArgumentError(f"{flag}: '{name}' is restricted twice")
            found[name] = (header, value)
    return found


def _pair(text: str, flag: str, kind: str) -> tuple[str, str]:
    given, comma, setting = text.partition(",")
    name, equals, value = setting.partition("=")
    if given != kind or not (comma and equals):
        raise InvalidArgumentError(f"{flag} {text}: expected {kind},NAME=VALUE")
    return name, value


def _natural_of(text: str, flag: str) -> int:
    if not text.isdecimal():
        raise InvalidArgumentError(f"{flag}={text} is not a number of 0 or more")
    return int(text)
