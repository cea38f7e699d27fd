"""``nbtriton serve``: a server from the command line, until a signal ends it."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nbtriton.backends import SETTINGS_OF_ALL, find_backend
from nbtriton.engine import CODE_TEXTS
from nbtriton.errors import InternalError, InvalidArgumentError, TritonError
from nbtriton.frontends.openai.chat import chat_template_of
from nbtriton.frontends.openai.endpoint import OpenAiOptions
from nbtriton.frontends.serve.flag_settings import (
    backend_config,
    cache_bytes,
    check_ports,
    host_policies,
    metrics_settings,
    restricted_apis,
    trace_settings,
)
from nbtriton.frontends.serve.flags import FLAGS, HELP, parse_flags, usage
from nbtriton.frontends.serve.logs import LogSettings
from nbtriton.frontends.service import FailedControl, Limits
from nbtriton.frontends.tls import Tls

if TYPE_CHECKING:
    from nbtriton.api import Server
    from nbtriton.frontends import Endpoints

__all__ = ["model_table", "serve_command"]

_log = logging.getLogger("nbtriton.serve")

_GRPC_PORT = 8001
# Longest delay of a signal that comes just before the main thread waits: it sets a flag that is checked
# between bytecodes, and interrupts only a wait that has begun. One in 50 did, on a busy machine.
_SLICE_S = 0.2
# Time between two checks for requests in flight.
_POLL_S = 0.02
# Time for the last responses, which say that the server stops.
_LAST_RESPONSES_S = 0.5
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


def serve_command(make_server: Callable[..., Server], argv: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status.

    Parameters
    ----------
    make_server : callable
        `nbtriton.Server`, which has repositories and these endpoints.
    argv : sequence of str

    Raises
    ------
    TritonError
        The server cannot be started.
    """
    arguments = parse_flags(argv)
    if arguments.help:
        sys.stdout.write(f"{usage()}\n")
        return 1  # as tritonserver's
    # Triton has a set of them.
    directories = sorted({*arguments.model_repository, *arguments.model_store})
    if not directories:
        raise InvalidArgumentError("--model-repository must be specified", hint=HELP)
    if arguments.load_model and arguments.model_control_mode != "explicit":
        raise InvalidArgumentError(
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."
        )
    log = _start_log(arguments)
    try:
        return _run(make_server, arguments, directories, log)
    finally:
        log.close()


def _run(
    make_server: Callable[..., Server],
    arguments: SimpleNamespace,
    directories: Sequence[str],
    log: LogSettings,
) -> int:
    for name in sorted(arguments.given):
        if not FLAGS[name].effect:
            _log.warning("--%s has no effect here: %s", name, FLAGS[name].help)
    settings = backend_config(arguments)
    _log_without_effect(settings)
    size = cache_bytes(arguments)
    summaries, metrics = metrics_settings(arguments)
    options = {**_endpoint_options(arguments), "log": log, "metrics": metrics}
    ended = _on_signals()
    server = make_server(
        cache_bytes=size,
        summaries=summaries,
        rate_limit=arguments.rate_limit,
        rate_limit_resources=arguments.rate_limit_resource,
        backend_config=settings,
        isolation=arguments.isolation,
        worker_timeout_s=arguments.worker_timeout,
        host_policies=host_policies(arguments),
        stand_in=arguments.stand_in,
        gpus=arguments.gpus,
    )
    try:
        error = _set_up(server, arguments, directories)
        if error is not None:
            what = f"{CODE_TEXTS[error.status]}{' - ' if arguments.exit_on_error else ': '}{error.message.strip()}"
            if arguments.exit_on_error:
                _log.error("error: creating server: %s", what)
                return 1
            _log.error("%s", what)
        if server.engine.model_control is None:
            options["control"] = FailedControl(server)
        return 0 if ended.is_set() else _serve(server, arguments, options, ended)
    finally:
        server.close(timeout_s=max(0, arguments.exit_timeout_secs))
        _log.info("server stopped")


def _set_up(
    server: Server, arguments: SimpleNamespace, directories: Sequence[str]
) -> TritonError | None:
    """Load the models; return the error with which a strict server would end."""
    for directory in directories:
        if not Path(directory).exists():
            return InternalError(f"failed to stat file {directory}")
        if not Path(directory).is_dir():
            return InvalidArgumentError("repository path is not a valid directory")
    control = server.load_repository(
        directories,
        control_mode=arguments.model_control_mode,
        load_models=arguments.load_model,
        poll_s=arguments.repository_poll_secs,
        auto_complete=not (arguments.disable_auto_complete_config or arguments.strict_model_config),
        config_name=arguments.model_config_name,
        strict_readiness=arguments.strict_readiness,
        load_threads=max(1, arguments.model_load_thread_count),
        load_retries=max(0, arguments.model_load_retry_count),
    )
    _log.info("\n%s", model_table(control.index()))
    return control.startup_error


def _serve(
    server: Server, arguments: SimpleNamespace, options: dict[str, Any], ended: threading.Event
) -> int:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        endpoints = server.serve(**options)
    for warning in caught:
        _log.warning("%s", warning.message)
    for what, port, host in (
        ("GRPCInferenceService", endpoints.grpc_port, options["grpc_host"]),
        ("HTTPService", endpoints.http_port, options["host"]),
        ("OpenAI Service", endpoints.openai_port, options["host"]),
        ("Metrics Service", endpoints.metrics_port, options["metrics_host"]),
    ):
        if port is not None:
            _log.info("Started %s at %s:%d", what, host, port)
    # Objects that exist now stay; those of requests need no collector.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    while not ended.wait(_SLICE_S):
        pass
    return _stop(server, endpoints, max(0, arguments.exit_timeout_secs))


def _stop(server: Server, endpoints: Endpoints, timeout_s: int) -> int:
    """Wait for clients and requests; return the exit status, 1 after a timeout."""
    deadline = monotonic() + timeout_s
    clients = endpoints.wait_for_clients(0)
    for second in range(timeout_s, 0, -1):
        if not clients:
            break
        _log.info("Timeout %d: Found %d HTTP service connections", second, clients)
        clients = endpoints.wait_for_clients(1)
    _log.info("Waiting for in-flight requests to complete.")
    server.engine.lifecycle.stop_accepting()
    if not _wait_for_requests(server, deadline):
        server.engine.lifecycle.fail_all()
    endpoints.close(drain_s=max(_LAST_RESPONSES_S, deadline - monotonic()))
    server.close(timeout_s=max(0.0, deadline - monotonic()))
    if monotonic() < deadline:
        return 0
    _log.error("failed to stop server: Internal - Exit timeout expired. Exiting immediately.")
    return 1


def _wait_for_requests(server: Server, deadline: float) -> bool:
    """Wait until no version has requests or sequences; False after a timeout.

    Logs each second which versions still have some.
    """
    logged_s = float("inf")
    while True:
        busy = server.engine.lifecycle.in_flight()
        left = max(0.0, deadline - monotonic())
        if left <= logged_s - 1 or not busy:
            logged_s = ceil(left)
            text = "Timeout %d: Found %d model versions that have in-flight inferences"
            _log.info(text, logged_s, len(busy))
            for name, version, count in busy:
                _log.info(
                    "Model '%s' (version %d) has %d in-flight inferences", name, version, count
                )
        if not busy or not left:
            return not busy
        sleep(min(_POLL_S, left))


def _endpoint_options(arguments: SimpleNamespace) -> dict[str, Any]:
    grpc_port = _GRPC_PORT if arguments.grpc_port is None else arguments.grpc_port
    if arguments.allow_grpc is False:
        grpc_port = None
    trace_path, trace_values, spans = trace_settings(arguments)
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
    check_ports(
        ("HTTP", host, http_port),
        ("GRPC", grpc_host, grpc_port),
        ("metrics", metrics_host, metrics_port),
        ("OpenAI", host, arguments.openai_port),
    )
    return {
        "http_port": http_port,
        "grpc_port": grpc_port,
        "metrics_port": metrics_port,
        "openai_port": arguments.openai_port,
        "openai": _openai(arguments),
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
        "http_tls": _tls(arguments, "http"),
        "grpc_tls": _tls(arguments, "grpc"),
    }


def _openai(arguments: SimpleNamespace) -> OpenAiOptions | None:
    if arguments.openai_port is None:
        return None
    template = chat_template_of(arguments.tokenizer, arguments.chat_template)
    return OpenAiOptions(template, arguments.default_max_tokens)


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


def model_table(index: Sequence[dict[str, str]]) -> str:
    """Return the table of models that tritonserver prints at its start."""
    rows = [("Model", "Version", "Status")]
    for entry in index:
        if "state" in entry:
            reason = " ".join(entry.get("reason", "").split())
            state = entry["state"] + (f": {reason}" if reason else "")
            rows.append((entry["name"], entry.get("version", ""), state))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    line = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = [
        "|" + "|".join(f" {cell:<{width}} " for cell, width in zip(row, widths, strict=True)) + "|"
        for row in rows
    ]
    return "\n".join([line, lines[0], line, *lines[1:], line])


def _on_signals() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set; the second signal ends the process at once."""
    ended = threading.Event()

    def end(number: int, _: object) -> None:
        if ended.is_set():
            os._exit(128 + number)
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    return ended


def _log_without_effect(settings: Mapping[str, Mapping[str, str]]) -> None:
    for backend, values in settings.items():
        try:
            known = find_backend(backend, settings).settings if backend else SETTINGS_OF_ALL
        except TritonError:
            known = ()
        for name in values:
            if name not in known:
                where = f"{backend},{name}" if backend else name
                _log.info("--backend-config=%s has no effect here", where)


def _start_log(arguments: SimpleNamespace) -> LogSettings:
    try:
        file = arguments.log_file
        handler = logging.FileHandler(file) if file else logging.StreamHandler(sys.stderr)
    except OSError as error:
        raise InvalidArgumentError(f"--log-file {file}: {error.strerror}") from None
    names = ("log_file", "log_info", "log_warning", "log_error", "log_format")
    values = {name: getattr(arguments, name) for name in names}
    return LogSettings(handler, log_verbose_level=arguments.log_verbose, **values)
