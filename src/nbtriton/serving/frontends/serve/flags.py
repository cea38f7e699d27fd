"""Flags of `nbtriton serve`, which are tritonserver's: names, kinds, defaults and help.

The command line, its help and the table in ``docs/configuration.md`` are made from `groups`.
"""

from __future__ import annotations

import getopt
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

from nbtriton.common import entries
from nbtriton.common.errors import InvalidArgumentError, TritonError, nearest
from nbtriton.serving.frontends.serve import kinds
from nbtriton.serving.frontends.serve.kinds import Kind, choice

__all__ = ["HELP", "Flag", "flags_by_name", "groups", "parse_flags", "usage"]

HELP = "see nbtriton serve --help"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    Parameters
    ----------
    name : str
        Without the dashes.
    kind : Kind
        Kind of its value.
    default : object
        Value if the flag is not given; None, for an empty list, if it may be repeated.
    help : str
        Effect of the flag, or the reason why it has none.
    repeated : bool
        Whether every use counts; otherwise the last one does.
    effect : bool
        False for a flag that is accepted, checked and logged as without effect.
    ours : bool
        Whether tritonserver 2.51 lacks the flag.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    repeated: bool = False
    effect: bool = True
    ours: bool = False

    @property
    def attribute(self) -> str:
        """Name in the result of `parse_flags`."""
        return self.name.replace("-", "_")


def _idle(name: str, kind: Kind, why: str, *, repeated: bool = False) -> Flag:
    """Return a flag without effect, with the reason."""
    return Flag(name, kind, None, why, repeated, effect=False)


_POOLS = "pools grow with their use"
_SAGEMAKER = "SageMaker has no endpoint here"
_VERTEX = "Vertex AI has no endpoint here"

_GROUPS: Mapping[str, tuple[Flag, ...]] = {
    "": (Flag("help", kinds.SWITCH, False, "print this"),),
    "Server": (
        Flag("id", kinds.TEXT, "triton", "the server's name in its metadata"),
        Flag("exit-timeout-secs", kinds.INTEGER, 30, "seconds for running requests at the end"),
        Flag("max-decompressed-size", kinds.COUNT, 64 << 20, "bytes that a compressed request may unpack "
             "to, over HTTP and gRPC", ours=True),
        Flag("allow-client-shm", kinds.BOOLEAN, True, "clients may register shared memory", ours=True),
    ),
    "Model repository": (
        Flag("model-repository", kinds.TEXT, None, "a directory of models", True),
        Flag("model-store", kinds.TEXT, None, "the same as --model-repository", True),
        Flag("exit-on-error", kinds.BOOLEAN, True, "end if a model cannot be loaded at the start"),
        Flag("disable-auto-complete-config", kinds.SWITCH, False, "take configurations as they are"),
        Flag("strict-readiness", kinds.BOOLEAN, True, "ready only if every model is"),
        Flag("model-control-mode", choice("model-control-mode", "none", "poll", "explicit"), "none",
             "who loads models: none (all at the start), poll (the repository is read again and "
             "again), explicit (clients may)"),
        Flag("repository-poll-secs", kinds.INTEGER, 15, "seconds between two polls; 0 for none"),
        Flag("load-model", kinds.TEXT, None, "with explicit control, load this one; * for all", True),
        Flag("model-config-name", kinds.NAME, "", "prefer configs/NAME.pbtxt to config.pbtxt"),
        Flag("model-load-thread-count", kinds.INTEGER, 4, "models that load at a time"),
        Flag("model-load-retry-count", kinds.INTEGER, 0, "times that a version that failed is tried again"),
        _idle("model-namespacing", kinds.BOOLEAN, "a name stands for one model"),
        _idle("enable-peer-access", kinds.BOOLEAN, "PyTorch decides how GPUs copy from each other"),
    ),
    "HTTP": (
        Flag("allow-http", kinds.BOOLEAN, True, "answer over HTTP"),
        Flag("http-address", kinds.TEXT, "127.0.0.1", "where to listen; by default only this machine"),
        Flag("http-port", kinds.PORT, 8000, "0 for any that is free"),
        _idle("reuse-http-port", kinds.BOOLEAN, "a port belongs to one server"),
        Flag("http-header-forward-pattern", kinds.TEXT, "", "headers that become request parameters"),
        _idle("http-thread-count", kinds.INTEGER, "one thread serves all connections"),
        Flag("http-restricted-api", kinds.RESTRICTED_API, None, "only clients that send this header may use it", True),
        Flag("http-use-ssl", kinds.BOOLEAN, False, "answer over TLS", ours=True),
        Flag("http-use-ssl-mutual", kinds.BOOLEAN, False, "and only clients with a certificate", ours=True),
        Flag("http-server-cert", kinds.TEXT, "", "the server's certificate, a file in PEM", ours=True),
        Flag("http-server-key", kinds.TEXT, "", "its private key, a file in PEM", ours=True),
        Flag("http-root-cert", kinds.TEXT, "", "what clients' certificates are judged by, a file in PEM",
             ours=True),
    ),
    "gRPC": (
        Flag("allow-grpc", kinds.BOOLEAN, None, "answer over gRPC"),
        Flag("grpc-address", kinds.TEXT, None, "by default as --http-address"),
        Flag("grpc-port", kinds.PORT, None, "8001 by default; 0 for any that is free"),
        _idle("reuse-grpc-port", kinds.BOOLEAN, "a port belongs to one server"),
        Flag("grpc-header-forward-pattern", kinds.TEXT, "", "headers that become request parameters"),
        _idle("grpc-infer-allocation-pool-size", kinds.INTEGER, "Python reuses memory itself"),
        Flag("grpc-use-ssl", kinds.BOOLEAN, False, "answer over TLS"),
        Flag("grpc-use-ssl-mutual", kinds.BOOLEAN, False, "and only clients with a certificate"),
        Flag("grpc-server-cert", kinds.TEXT, "", "the server's certificate, a file in PEM"),
        Flag("grpc-server-key", kinds.TEXT, "", "its private key, a file in PEM"),
        Flag("grpc-root-cert", kinds.TEXT, "", "what clients' certificates are judged by, a file in PEM"),
        Flag("grpc-infer-response-compression-level",
             choice("grpc_infer_response_compression_level", "none", "low", "medium", "high"),
             "none", "of responses"),
        Flag("grpc-keepalive-time", kinds.INTEGER, 7200000, "milliseconds without a call before a ping"),
        Flag("grpc-keepalive-timeout", kinds.INTEGER, 20000, "milliseconds to wait for its answer"),
        Flag("grpc-keepalive-permit-without-calls", kinds.BOOLEAN, False, "ping idle connections too"),
        Flag("grpc-http2-max-pings-without-data", kinds.INTEGER, 2, "pings in a row without data"),
        Flag("grpc-http2-min-recv-ping-interval-without-data", kinds.INTEGER, 300000,
             "milliseconds between a client's pings"),
        Flag("grpc-http2-max-ping-strikes", kinds.INTEGER, 2, "bad pings before a client is cut off"),
        Flag("grpc-max-connection-age", kinds.INTEGER, None, "milliseconds a connection may live"),
        Flag("grpc-max-connection-age-grace", kinds.INTEGER, None, "and those for its last calls"),
        Flag("grpc-restricted-protocol", kinds.RESTRICTED_PROTOCOL, None, "as --http-restricted-api; the "
             "header begins with triton-grpc-protocol-", True),
    ),
    "SageMaker": (
        _idle("allow-sagemaker", kinds.BOOLEAN, _SAGEMAKER),
        _idle("sagemaker-port", kinds.INTEGER, _SAGEMAKER),
        _idle("sagemaker-safe-port-range", kinds.PORT_RANGE, _SAGEMAKER),
        _idle("sagemaker-thread-count", kinds.INTEGER, _SAGEMAKER),
    ),
    "Vertex AI": (
        _idle("allow-vertex-ai", kinds.BOOLEAN, _VERTEX),
        _idle("vertex-ai-port", kinds.INTEGER, _VERTEX),
        _idle("vertex-ai-thread-count", kinds.INTEGER, _VERTEX),
        _idle("vertex-ai-default-model", kinds.TEXT, _VERTEX),
    ),
    "Metrics": (
        Flag("allow-metrics", kinds.BOOLEAN, True, "answer Prometheus"),
        _idle("allow-gpu-metrics", kinds.BOOLEAN, "GPUs have no metrics here"),
        Flag("allow-cpu-metrics", kinds.BOOLEAN, True, "with those of the processor and its memory"),
        Flag("metrics-address", kinds.TEXT, None, "by default as --http-address"),
        Flag("metrics-port", kinds.PORT, 8002, "0 for any that is free"),
        _idle("metrics-interval-ms", kinds.FLOAT, "metrics are made for each request"),
        Flag("metrics-config", kinds.METRICS_SETTING, None, "counter_latencies (true), summary_latencies "
             "(false), summary_quantiles (0.5:0.05,0.9:0.01,…)", True),
    ),
    "Log": (
        Flag("log-verbose", kinds.LEVEL, 0, "above 0: more messages"),
        Flag("log-info", kinds.BOOLEAN, True, "log information"),
        Flag("log-warning", kinds.BOOLEAN, True, "log warnings"),
        Flag("log-error", kinds.BOOLEAN, True, "log errors"),
        Flag("log-format", choice("log-format", "default", "ISO8601", any_case=False), "default",
             "of the time in the log"),
        Flag("log-file", kinds.TEXT, "", "a file for the log instead of the terminal"),
    ),
    "Tracing": (
        Flag("trace-config", kinds.TRACE_SETTING, None, "level (TIMESTAMPS, TENSORS, OFF; may be "
             "repeated), rate, count; triton,file=PATH; triton,log-frequency=N; mode=opentelemetry, "
             "opentelemetry,url=URL, resource=KEY=VALUE, bsp_schedule_delay=MS", True),
    ),
    "Backends": (
        Flag("backend-directory", kinds.TEXT, None, "each NAME/model.py in it is a Python-based backend"),
        Flag("backend-config", kinds.BACKEND_SETTING, None, "a setting of one backend, or of all", True),
        Flag("stand-in", kinds.SWITCH, False, "a model whose backend or file is missing runs as a "
             "stand-in of its shapes", ours=True),
        Flag("gpus", kinds.GPUS, None, "ids of the GPUs that models may use, such as 0,1; or simulated ones, "
             "such as simulated:2; all by default", ours=True),
    ),
    "Repository agents": (
        _idle("repoagent-directory", kinds.TEXT, "repository agents are built in"),
    ),
    "Response cache": (
        Flag("cache-config", kinds.CACHE_SETTING, None, "local,size=BYTES: keep responses", True),
        _idle("cache-directory", kinds.TEXT, "the cache is built in"),
    ),
    "Workers": (
        Flag("isolation", choice("isolation", "thread", "process", "auto"), "thread",
             "where instances live whose model has no parameter INSTANCE_ISOLATION: in threads, each in a "
             "process of its own, or in processes from the next load on where they waited for the "
             "interpreter", ours=True),
        Flag("worker-timeout", kinds.SECONDS, None, "seconds that one execution in a process may take "
             "before the process is ended and restarted", ours=True),
        Flag("host-policy", kinds.HOST_POLICY, None, "cpu-cores=FIRST-LAST or numa-node=N: processes of "
             "instances with this host_policy are bound to them", True),
    ),
    "Rate limiter": (
        Flag("rate-limit", choice("rate-limit", "off", "execution_count"), "off",
             "how executions are limited"),
        Flag("rate-limit-resource", kinds.RESOURCE, None, "the amount of a resource", True),
    ),
    "Memory and devices": (
        _idle("pinned-memory-pool-byte-size", kinds.COUNT, _POOLS),
        _idle("cuda-memory-pool-byte-size", kinds.NUMBER_BY_DEVICE, _POOLS, repeated=True),
        _idle("cuda-virtual-address-size", kinds.NUMBER_BY_DEVICE, _POOLS, repeated=True),
        _idle("min-supported-compute-capability", kinds.FLOAT, "PyTorch decides which GPUs it can use"),
        _idle("buffer-manager-thread-count", kinds.INTEGER, "instances copy for themselves"),
        _idle("model-load-gpu-limit", kinds.FRACTION_BY_DEVICE, "a model is refused that does not fit into what is left",
              repeated=True),
    ),
    "Old names": (
        Flag("strict-model-config", kinds.BOOLEAN, None, "true: as --disable-auto-complete-config"),
        Flag("response-cache-byte-size", kinds.COUNT, None, "as --cache-config local,size=BYTES"),
        Flag("trace-file", kinds.TEXT, None, "as --trace-config triton,file=PATH"),
        Flag("trace-level", kinds.TRACE_LEVEL, None, "as --trace-config level=LEVEL", True),
        Flag("trace-rate", kinds.INTEGER, None, "as --trace-config rate=N"),
        Flag("trace-count", kinds.INTEGER, None, "as --trace-config count=N"),
        Flag("trace-log-frequency", kinds.INTEGER, None, "as --trace-config triton,log-frequency=N"),
    ),
}  # fmt: skip


def groups() -> dict[str, tuple[Flag, ...]]:
    """Return the flags by group, with those of the endpoints that extensions add."""
    added = {kind.title: kind.flags for _, kind in entries.working("endpoints") if kind.flags}
    return {**_GROUPS, **added}


@cache
def flags_by_name() -> Mapping[str, Flag]:
    """Return all flags by name."""
    return {flag.name: flag for flags in groups().values() for flag in flags}


def parse_flags(argv: Sequence[str]) -> SimpleNamespace:
    """Parse a command line as tritonserver does: GNU's rules, with unique prefixes of names.

    Parameters
    ----------
    argv : sequence of str
        ``--name=value`` or ``--name value``.

    Returns
    -------
    SimpleNamespace
        The values by `Flag.attribute`, and in ``given`` the names of the given flags.

    Raises
    ------
    InvalidArgumentError
        A flag is unknown or a value is wrong, with tritonserver's text.
    """
    names = [flag.name + "=" * bool(flag.kind.shown) for flag in flags_by_name().values()]
    try:
        found, rest = getopt.gnu_getopt(list(argv), "", names)
    except getopt.GetoptError as error:
        raise _unreadable(error.opt, argv) from None
    values = SimpleNamespace(given=set())
    for flag in flags_by_name().values():
        setattr(values, flag.attribute, [] if flag.repeated else flag.default)
    for option, text in found:
        flag = flags_by_name()[option.removeprefix("--")]
        values.given.add(flag.name)
        try:
            value = flag.kind.read(text) if flag.kind.shown else True
        except TritonError as error:
            raise InvalidArgumentError(
                f'Bad option: "--{flag.name}".\n{error.message}', hint=error.hint or HELP
            ) from None
        if flag.repeated:
            getattr(values, flag.attribute).append(value)
        else:
            setattr(values, flag.attribute, value)
    if rest:
        raise InvalidArgumentError(f"Unexpected argument: {rest[0]}", hint=HELP)
    return values


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
    if flags_by_name()[candidates[0]].kind.shown:
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
        for flag in flags:
            lines.append(f"  --{flag.name} {flag.kind.shown}".rstrip())
            text = flag.help if flag.effect else f"no effect: {flag.help}"
            text += "; may be repeated" * flag.repeated
            lines += textwrap.wrap(text, 90, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines)
