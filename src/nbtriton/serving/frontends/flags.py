"""Flags of `nbtriton serve`, which are tritonserver's: names, kinds, defaults, help, and the options that they set.

The command line, its help and the table in ``docs/configuration.md`` are made from `groups`.
"""

from __future__ import annotations

import getopt
import logging
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

from nbtriton.backends import BACKEND_DIRECTORY
from nbtriton.common import entries
from nbtriton.common.errors import InvalidArgumentError, TritonError, nearest
from nbtriton.options import triton as kinds
from nbtriton.options.repository import REPOSITORY
from nbtriton.options.server import SERVER
from nbtriton.options.table import Option, given_options
from nbtriton.options.triton import Kind, choice
from nbtriton.scheduling import MIN_CACHE_BYTES
from nbtriton.serving.frontends import tracing
from nbtriton.serving.frontends.logs import LogSettings
from nbtriton.serving.frontends.metrics import MetricsConfig, parse_quantiles
from nbtriton.serving.frontends.service import Limits, Tls
from nbtriton.serving.settings import ENDPOINTS

HELP = "see nbtriton serve --help"


def flag(
    name: str, kind: Kind, default: Any, what: str, repeated: bool = False, *, ours: bool = False
) -> Option:
    """Return a flag; `ours` says that tritonserver 2.51 lacks it."""
    action = "append" if repeated else ""
    return Option(f"--{name}", what, kind.shown, kind.read, default, action=action, ours=ours)


def flag_of(option: Option) -> Option:
    """Return the flag of an option that Python has too."""
    if option.choices:
        kind = choice(option.long[0], *option.choices)
        option = replace(option, value=kind.shown, read=kind.read)
    return replace(option, flags=f"--{option.long[0]}")


def tls_flags(protocol: str, *, ours: bool) -> tuple[Option, ...]:
    """Return the flags of a protocol's TLS settings, which `tls_of` reads."""
    return (
        flag(f"{protocol}-use-ssl", kinds.BOOLEAN, False, "answer over TLS", ours=ours),
        flag(f"{protocol}-use-ssl-mutual", kinds.BOOLEAN, False, "and only clients with a certificate", ours=ours),
        flag(f"{protocol}-server-cert", kinds.TEXT, "", "the server's certificate, a file in PEM", ours=ours),
        flag(f"{protocol}-server-key", kinds.TEXT, "", "its private key, a file in PEM", ours=ours),
        flag(f"{protocol}-root-cert", kinds.TEXT, "", "what clients' certificates are judged by, a file in PEM", ours=ours),
    )  # fmt: skip


_POOLS = "pools grow with their use"
_SAGEMAKER = "SageMaker has no endpoint here"
_VERTEX = "Vertex AI has no endpoint here"
# tritonserver's flags that change nothing here: the kind of their values, and the reason. Pairs are not looked into.
NO_EFFECT: Mapping[str, tuple[Kind, str]] = {
    "model-namespacing": (kinds.BOOLEAN, "a name stands for one model"),
    "enable-peer-access": (kinds.BOOLEAN, "PyTorch decides how GPUs copy from each other"),
    "reuse-http-port": (kinds.BOOLEAN, "a port belongs to one server"),
    "http-thread-count": (kinds.INTEGER, "one thread serves all connections"),
    "reuse-grpc-port": (kinds.BOOLEAN, "a port belongs to one server"),
    "grpc-infer-allocation-pool-size": (kinds.INTEGER, "Python reuses memory itself"),
    "allow-sagemaker": (kinds.BOOLEAN, _SAGEMAKER),
    "sagemaker-port": (kinds.INTEGER, _SAGEMAKER),
    "sagemaker-safe-port-range": (kinds.TEXT, _SAGEMAKER),
    "sagemaker-thread-count": (kinds.INTEGER, _SAGEMAKER),
    "allow-vertex-ai": (kinds.BOOLEAN, _VERTEX),
    "vertex-ai-port": (kinds.INTEGER, _VERTEX),
    "vertex-ai-thread-count": (kinds.INTEGER, _VERTEX),
    "vertex-ai-default-model": (kinds.TEXT, _VERTEX),
    "allow-gpu-metrics": (kinds.BOOLEAN, "GPUs have no metrics here"),
    "metrics-interval-ms": (kinds.FLOAT, "metrics are made for each request"),
    "repoagent-directory": (kinds.TEXT, "repository agents are built in"),
    "cache-directory": (kinds.TEXT, "the cache is built in"),
    "pinned-memory-pool-byte-size": (kinds.COUNT, _POOLS),
    "cuda-memory-pool-byte-size": (kinds.TEXT, _POOLS),
    "cuda-virtual-address-size": (kinds.TEXT, _POOLS),
    "min-supported-compute-capability": (kinds.FLOAT, "PyTorch decides which GPUs it can use"),
    "buffer-manager-thread-count": (kinds.INTEGER, "instances copy for themselves"),
    "model-load-gpu-limit": (kinds.TEXT, "a model is refused that does not fit into what is left"),
}  # fmt: skip

_GROUPS: Mapping[str, tuple[Option, ...]] = {
    "": (flag("help", kinds.SWITCH, False, "print this"),),
    "Server": (
        flag_of(ENDPOINTS["name"]),
        flag("exit-timeout-secs", kinds.INTEGER, 30, "seconds for running requests at the end"),
        flag("max-decompressed-size", kinds.COUNT, 64 << 20, "bytes that a compressed request may unpack "
             "to, over HTTP and gRPC", ours=True),
        flag_of(ENDPOINTS["client_shm"]),
    ),
    "Model repository": (
        flag("model-repository", kinds.TEXT, None, "a directory of models", True),
        flag("model-store", kinds.TEXT, None, "the same as --model-repository", True),
        replace(REPOSITORY["exit_on_error"], default=True),
        *(flag_of(REPOSITORY[name]) for name in ("auto_complete", "strict_readiness", "control_mode")),
        replace(REPOSITORY["poll_s"], flags="--repository-poll-secs", value=kinds.INTEGER.shown, read=kinds.INTEGER.read),
        *(flag_of(REPOSITORY[name]) for name in ("load_models", "config_name", "load_threads", "load_retries")),
    ),
    "HTTP": (
        flag("allow-http", kinds.BOOLEAN, True, "answer over HTTP"),
        *(flag_of(ENDPOINTS[name]) for name in ("host", "http_port", "header_forward_pattern", "restricted")),
        *tls_flags("http", ours=True),
    ),
    "Metrics": (
        flag("allow-metrics", kinds.BOOLEAN, True, "answer Prometheus"),
        flag("allow-cpu-metrics", kinds.BOOLEAN, True, "with those of the processor and its memory"),
        flag_of(ENDPOINTS["metrics_host"]),
        flag_of(ENDPOINTS["metrics_port"]),
        flag("metrics-config", kinds.METRICS_SETTING, None, "counter_latencies (true), summary_latencies "
             "(false), summary_quantiles (0.5:0.05,0.9:0.01,…)", True),
    ),
    "Log": (
        flag("log-verbose", kinds.LEVEL, 0, "above 0: more messages"),
        flag("log-info", kinds.BOOLEAN, True, "log information"),
        flag("log-warning", kinds.BOOLEAN, True, "log warnings"),
        flag("log-error", kinds.BOOLEAN, True, "log errors"),
        flag("log-format", choice("log-format", "default", "ISO8601", any_case=False), "default",
             "of the time in the log"),
        flag("log-file", kinds.TEXT, "", "a file for the log instead of the terminal"),
    ),
    "Tracing": (
        flag("trace-config", kinds.TRACE_SETTING, None, "level (TIMESTAMPS, TENSORS, OFF; may be "
             "repeated), rate, count; triton,file=PATH; triton,log-frequency=N; mode=opentelemetry, "
             "opentelemetry,url=URL, resource=KEY=VALUE, bsp_schedule_delay=MS", True),
    ),
    "Backends": (
        flag("backend-directory", kinds.TEXT, None, "each NAME/model.py in it is a Python-based backend"),
        flag_of(SERVER["backend_config"]),
        replace(SERVER["stand_in"], value="", read=bool),
        flag_of(SERVER["gpus"]),
        flag_of(SERVER["recorder"]),
    ),
    "Response cache": (
        flag("cache-config", kinds.CACHE_SETTING, None, "local,size=BYTES: keep responses", True),
    ),
    "Workers": tuple(flag_of(SERVER[name]) for name in ("isolation", "ray", "worker_timeout_s", "host_policies")),
    "Rate limiter": tuple(flag_of(SERVER[name]) for name in ("rate_limit", "rate_limit_resources")),
    "Old names": (
        flag("strict-model-config", kinds.BOOLEAN, None, "true: as --disable-auto-complete-config"),
        flag("response-cache-byte-size", kinds.COUNT, None, "as --cache-config local,size=BYTES"),
        flag("trace-file", kinds.TEXT, None, "as --trace-config triton,file=PATH"),
        flag("trace-level", kinds.TRACE_LEVEL, None, "as --trace-config level=LEVEL", True),
        flag("trace-rate", kinds.INTEGER, None, "as --trace-config rate=N"),
        flag("trace-count", kinds.INTEGER, None, "as --trace-config count=N"),
        flag("trace-log-frequency", kinds.INTEGER, None, "as --trace-config triton,log-frequency=N"),
    ),
}  # fmt: skip


def groups() -> dict[str, tuple[Option, ...]]:
    """Return the flags by group, with those of the endpoints that extensions add."""
    added = {kind.title: kind.flags for _, kind in entries.working("endpoints") if kind.flags}
    idle = tuple(flag(name, kind, None, why) for name, (kind, why) in NO_EFFECT.items())
    return {**_GROUPS, **added, "Without effect": idle}


@cache
def flags_by_name() -> Mapping[str, Option]:
    """Return all flags by name."""
    return {one.long[0]: one for flags in groups().values() for one in flags}


def parse_flags(argv: Sequence[str]) -> SimpleNamespace:
    """Parse a command line as tritonserver does: GNU's rules, with unique prefixes of names.

    Parameters
    ----------
    argv : sequence of str
        ``--name=value`` or ``--name value``.

    Returns
    -------
    SimpleNamespace
        The values by `Option.parameter`, and in ``given`` the names of the given flags.

    Raises
    ------
    InvalidArgumentError
        A flag is unknown or a value is wrong, with tritonserver's text.
    """
    known = flags_by_name()
    try:
        found, rest = getopt.gnu_getopt(
            list(argv), "", [name + "=" * bool(one.value) for name, one in known.items()]
        )
    except getopt.GetoptError as error:
        raise _unreadable(error.opt, argv) from None
    values: dict[str, Any] = {
        one.parameter: [] if one.action == "append" else one.default for one in known.values()
    }
    given = set()
    for written, text in found:
        name = written.removeprefix("--")
        option = known[name]
        given.add(name)
        try:
            value = option.read(text) if option.value else option.action != "store_false"
        except TritonError as error:
            raise InvalidArgumentError(
                f'Bad option: "--{name}".\n{error.message}', hint=error.hint or HELP
            ) from None
        values[option.parameter] = (
            [*values[option.parameter], value] if option.action == "append" else value
        )
    if rest:
        raise InvalidArgumentError(f"Unexpected argument: {rest[0]}", hint=HELP)
    return SimpleNamespace(**values, given=given)


def _unreadable(option: str, argv: Sequence[str]) -> InvalidArgumentError:
    """Return the error of a flag that cannot be read, with the text of C's ``getopt_long``."""
    if f"--{option}" not in {text.partition("=")[0] for text in argv}:
        return InvalidArgumentError(f"invalid option -- '{option}'", hint=HELP)
    candidates = (
        [option]
        if option in flags_by_name()
        else [name for name in flags_by_name() if name.startswith(option)]
    )
    if not candidates:
        near = nearest(option, flags_by_name())
        hint = near.replace("'", "'--", 1) if near.startswith("did") else HELP
        return InvalidArgumentError(f"unrecognized option '--{option}'", hint=hint)
    if len(candidates) > 1:
        others = " ".join(f"'--{name}'" for name in candidates)
        return InvalidArgumentError(f"option '--{option}' is ambiguous; possibilities: {others}")
    if flags_by_name()[candidates[0]].value:
        return InvalidArgumentError(f"option '--{candidates[0]}' requires an argument", hint=HELP)
    return InvalidArgumentError(f"option '--{candidates[0]}' doesn't allow an argument", hint=HELP)


def usage() -> str:
    """Return the help: every flag, in groups."""
    lines = [
        "Usage: nbtriton serve --model-repository DIR [options]",
        "",
        "Serve a model repository over HTTP and gRPC, with tritonserver's flags, until SIGTERM or SIGINT.",
    ]
    for title, flags in groups().items():
        lines += ["", f"{title}:"] if title else [""]
        for one in flags:
            lines.append(f"  --{one.long[0]} {one.value}".rstrip())
            text = one.help + "; may be repeated" * (one.action == "append")
            lines += textwrap.wrap(text, 90, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines)


_log = logging.getLogger("nbtriton.serve")
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


def endpoint_options(arguments: SimpleNamespace) -> dict[str, Any]:
    """Return the arguments of `nbtriton.serving.frontends.serve`, except the log."""
    options = given_options(arguments, ENDPOINTS)
    added = dict(entries.working("endpoints"))
    ports = {name: _port(arguments, name) for name in ("http", *added, "metrics")}
    for name, kind in added.items():
        if ports[name] is not None:
            options |= kind.options_of(arguments)
    check_ports(
        *(
            (
                name if name == "metrics" else name.upper(),
                options.get(f"{name}_host") or options["host"],
                port,
            )
            for name, port in ports.items()
        )
    )
    trace_path, trace_values, spans = trace_settings(arguments)
    _, metrics = metrics_settings(arguments)
    return {
        **options,
        **{f"{name}_port": port for name, port in ports.items()},
        "trace_file": trace_path,
        "trace": trace_values,
        "opentelemetry": spans,
        "limits": _limits(arguments),
        "metrics": metrics,
        "http_tls": tls_of(arguments, "http"),
    }


def _port(arguments: SimpleNamespace, protocol: str) -> int | None:
    """Return the port of a protocol; None for one that is not answered."""
    found = vars(arguments)
    return found.get(f"{protocol}_port") if found.get(f"allow_{protocol}", True) else None


def _limits(arguments: SimpleNamespace) -> Limits:
    size = arguments.max_decompressed_size
    if size <= 0:
        raise InvalidArgumentError(f"--max-decompressed-size={size}: it must be greater than 0")
    return Limits(decompressed_bytes=size)


def tls_of(arguments: SimpleNamespace, protocol: str) -> Tls | None:
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
) -> tuple[str, tracing.TraceValues, tracing.OpenTelemetry | None]:
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
        for name in tracing.SPAN_NUMBERS
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
        elif kind == "opentelemetry" and name in ("url", *tracing.SPAN_NUMBERS):
            options[name] = value
        else:
            _log.warning("--trace-config=%s%s has no effect here", kind and f"{kind},", name)
    level = frozenset[str]() if frozenset() in levels else frozenset[str]().union(*levels)
    given = {name: number for name, number in numbers.items() if number is not None}
    values = tracing.TraceValues(level=level, **given)
    spans = tracing.OpenTelemetry(resource=resource, **options) if mode == "opentelemetry" else None
    try:
        tracing.check_values(values, file, spans=spans is not None)
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
