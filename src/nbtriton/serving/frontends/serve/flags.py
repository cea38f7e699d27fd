"""Flags of `nbtriton serve`, which are tritonserver's: names, kinds, defaults and help.

The command line, its help and the table in ``docs/configuration.md`` are made from `groups`.
"""

from __future__ import annotations

import getopt
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

from nbtriton.common import entries
from nbtriton.common.errors import InvalidArgumentError, TritonError, nearest
from nbtriton.options import triton as kinds
from nbtriton.options.repository import REPOSITORY
from nbtriton.options.server import SERVER
from nbtriton.options.table import Option
from nbtriton.options.triton import Kind, choice
from nbtriton.serving.settings import ENDPOINTS

HELP = "see nbtriton serve --help"


def flag(
    name: str, kind: Kind, default: Any, what: str, repeated: bool = False, *, ours: bool = False
) -> Option:
    """Return a flag; `ours` says that tritonserver 2.51 lacks it."""
    action = "append" if repeated else ""
    return Option(f"--{name}", what, kind.shown, kind.read, default, action=action, ours=ours)


def _of(option: Option) -> Option:
    """Return the flag of an option that Python has too."""
    if option.choices:
        kind = choice(option.long[0], *option.choices)
        option = replace(option, value=kind.shown, read=kind.read)
    return replace(option, flags=f"--{option.long[0]}")


def _tls(protocol: str, *, ours: bool) -> tuple[Option, ...]:
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
# tritonserver's flags that change nothing here: the kind of their values, which are checked, and the reason.
NO_EFFECT: Mapping[str, tuple[Kind, str]] = {
    "model-namespacing": (kinds.BOOLEAN, "a name stands for one model"),
    "enable-peer-access": (kinds.BOOLEAN, "PyTorch decides how GPUs copy from each other"),
    "reuse-http-port": (kinds.BOOLEAN, "a port belongs to one server"),
    "http-thread-count": (kinds.INTEGER, "one thread serves all connections"),
    "reuse-grpc-port": (kinds.BOOLEAN, "a port belongs to one server"),
    "grpc-infer-allocation-pool-size": (kinds.INTEGER, "Python reuses memory itself"),
    "allow-sagemaker": (kinds.BOOLEAN, _SAGEMAKER),
    "sagemaker-port": (kinds.INTEGER, _SAGEMAKER),
    "sagemaker-safe-port-range": (kinds.PORT_RANGE, _SAGEMAKER),
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
    "cuda-memory-pool-byte-size": (kinds.NUMBER_BY_DEVICE, _POOLS),
    "cuda-virtual-address-size": (kinds.NUMBER_BY_DEVICE, _POOLS),
    "min-supported-compute-capability": (kinds.FLOAT, "PyTorch decides which GPUs it can use"),
    "buffer-manager-thread-count": (kinds.INTEGER, "instances copy for themselves"),
    "model-load-gpu-limit": (kinds.FRACTION_BY_DEVICE, "a model is refused that does not fit into what is left"),
}  # fmt: skip

# Flags of gRPC's channel arguments, without `grpc-`: the argument, the kind, the default and what it says.
CHANNEL: Mapping[str, tuple[str, Kind, Any, str]] = {
    "keepalive-time": ("grpc.keepalive_time_ms", kinds.INTEGER, 7200000, "milliseconds without a call before a ping"),
    "keepalive-timeout": ("grpc.keepalive_timeout_ms", kinds.INTEGER, 20000, "milliseconds to wait for its answer"),
    "keepalive-permit-without-calls": ("grpc.keepalive_permit_without_calls", kinds.BOOLEAN, False,
                                       "ping idle connections too"),
    "http2-max-pings-without-data": ("grpc.http2.max_pings_without_data", kinds.INTEGER, 2, "pings in a row without data"),
    "http2-min-recv-ping-interval-without-data": ("grpc.http2.min_ping_interval_without_data_ms", kinds.INTEGER, 300000,
                                                  "milliseconds between a client's pings"),
    "http2-max-ping-strikes": ("grpc.http2.max_ping_strikes", kinds.INTEGER, 2, "bad pings before a client is cut off"),
    "max-connection-age": ("grpc.max_connection_age_ms", kinds.INTEGER, None, "milliseconds a connection may live"),
    "max-connection-age-grace": ("grpc.max_connection_age_grace_ms", kinds.INTEGER, None, "and those for its last calls"),
}  # fmt: skip

_GROUPS: Mapping[str, tuple[Option, ...]] = {
    "": (flag("help", kinds.SWITCH, False, "print this"),),
    "Server": (
        _of(ENDPOINTS["name"]),
        flag("exit-timeout-secs", kinds.INTEGER, 30, "seconds for running requests at the end"),
        flag("max-decompressed-size", kinds.COUNT, 64 << 20, "bytes that a compressed request may unpack "
             "to, over HTTP and gRPC", ours=True),
        _of(ENDPOINTS["client_shm"]),
    ),
    "Model repository": (
        flag("model-repository", kinds.TEXT, None, "a directory of models", True),
        flag("model-store", kinds.TEXT, None, "the same as --model-repository", True),
        replace(REPOSITORY["exit_on_error"], default=True),
        *(_of(REPOSITORY[name]) for name in ("auto_complete", "strict_readiness", "control_mode")),
        replace(REPOSITORY["poll_s"], flags="--repository-poll-secs", value=kinds.INTEGER.shown, read=kinds.INTEGER.read),
        *(_of(REPOSITORY[name]) for name in ("load_models", "config_name", "load_threads", "load_retries")),
    ),
    "HTTP": (
        flag("allow-http", kinds.BOOLEAN, True, "answer over HTTP"),
        *(_of(ENDPOINTS[name]) for name in ("host", "http_port", "header_forward_pattern", "restricted")),
        *_tls("http", ours=True),
    ),
    "gRPC": (
        flag("allow-grpc", kinds.BOOLEAN, None, "answer over gRPC"),
        *(_of(ENDPOINTS[name]) for name in ("grpc_host", "grpc_port", "grpc_header_forward_pattern", "grpc_restricted")),
        *_tls("grpc", ours=False),
        flag("grpc-infer-response-compression-level",
             choice("grpc_infer_response_compression_level", "none", "low", "medium", "high"),
             "none", "of responses"),
        *(flag(f"grpc-{name}", kind, default, what) for name, (_, kind, default, what) in CHANNEL.items()),
    ),
    "Metrics": (
        flag("allow-metrics", kinds.BOOLEAN, True, "answer Prometheus"),
        flag("allow-cpu-metrics", kinds.BOOLEAN, True, "with those of the processor and its memory"),
        _of(ENDPOINTS["metrics_host"]),
        _of(ENDPOINTS["metrics_port"]),
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
        _of(SERVER["backend_config"]),
        replace(SERVER["stand_in"], value="", read=bool),
        _of(SERVER["gpus"]),
        _of(SERVER["recorder"]),
    ),
    "Response cache": (
        flag("cache-config", kinds.CACHE_SETTING, None, "local,size=BYTES: keep responses", True),
    ),
    "Workers": tuple(_of(SERVER[name]) for name in ("isolation", "worker_timeout_s", "host_policies")),
    "Rate limiter": tuple(_of(SERVER[name]) for name in ("rate_limit", "rate_limit_resources")),
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
