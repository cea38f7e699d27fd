"""The command ``nbtriton serve``."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nbtriton.backends import SETTINGS_OF_ALL, find_backend
from nbtriton.common import entries
from nbtriton.common.errors import InternalError, InvalidArgumentError, TritonError
from nbtriton.options.repository import REPOSITORY
from nbtriton.options.table import given_options
from nbtriton.runtime.engine import CODE_TEXTS
from nbtriton.serving.frontends import flags
from nbtriton.serving.frontends.logs import LogSettings
from nbtriton.serving.frontends.service import FailedControl

if TYPE_CHECKING:
    from nbtriton.serving.frontends import Endpoints
    from nbtriton.serving.server import Server

_log = logging.getLogger("nbtriton.serve")

# Longest delay of a signal.
_SLICE_S = 0.1
# Interval of the checks for requests in flight.
_POLL_S = 0.02
# Time for the last responses, which report that the server is stopping.
_LAST_RESPONSES_S = 0.5


def serve_command(make_server: Callable[..., Server], argv: Sequence[str]) -> int:
    """Serve until SIGTERM or SIGINT; return the exit status.

    Parameters
    ----------
    make_server : callable
        `nbtriton.Server`.
    argv : sequence of str

    Raises
    ------
    TritonError
        The server cannot be started.
    """
    arguments = flags.parse_flags(argv)
    if arguments.help:
        sys.stdout.write(f"{flags.usage()}\n")
        return 1  # as tritonserver
    # A set, as in Triton.
    directories = sorted({*arguments.model_repository, *arguments.model_store})
    if not directories:
        raise InvalidArgumentError("--model-repository must be specified", hint=flags.HELP)
    if arguments.load_models and arguments.control_mode != "explicit":
        raise InvalidArgumentError(
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."
        )
    log = flags.start_log(arguments)
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
        if name in flags.NO_EFFECT:
            _log.warning("--%s has no effect here: %s", name, flags.NO_EFFECT[name][1])
    options = flags.server_options(arguments)
    _log_without_effect(options["backend_config"])
    ports = {**flags.endpoint_options(arguments), "log": log}
    with _ended_by_signals() as ended:
        return _run_until(ended, make_server(**options), arguments, directories, ports)


def _run_until(
    ended: Sequence[int],
    server: Server,
    arguments: SimpleNamespace,
    directories: Sequence[str],
    ports: dict[str, Any],
) -> int:
    try:
        error = _set_up(server, arguments, directories)
        if error is not None:
            what = f"{CODE_TEXTS[error.status]}{' - ' if arguments.exit_on_error else ': '}{error.message.strip()}"
            if arguments.exit_on_error:
                _log.error("error: creating server: %s", what)
                return 1
            _log.error("%s", what)
        if server.engine.model_control is None:
            ports["control"] = FailedControl(server)
        return 0 if ended else _serve(server, arguments, ports, ended)
    finally:
        server.close(timeout_s=max(0, arguments.exit_timeout_secs))
        _log.info("server stopped")


def _set_up(
    server: Server, arguments: SimpleNamespace, directories: Sequence[str]
) -> TritonError | None:
    """Load the models; return the error at which a strict server exits."""
    for directory in directories:
        if not directory or not Path(directory).exists():
            return InternalError(f"failed to stat file {directory}")
        if not Path(directory).is_dir():
            return InvalidArgumentError("repository path is not a valid directory")
    settings: dict[str, Any] = given_options(arguments, REPOSITORY) | {
        "auto_complete": arguments.auto_complete and not arguments.strict_model_config,
        "exit_on_error": False,
        "load_threads": max(1, arguments.load_threads),
        "load_retries": max(0, arguments.load_retries),
    }
    control = server.load_repository(directories, **settings)
    _log.info("\n%s", model_table(control.index()))
    return control.startup_error


def _serve(
    server: Server, arguments: SimpleNamespace, options: dict[str, Any], ended: Sequence[int]
) -> int:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        endpoints = server.serve(**options)
    for warning in caught:
        _log.warning("%s", warning.message)
    added = {
        name: kind.service_name or f"{kind.title} Service"
        for name, kind in entries.working("endpoints")
    }
    for name, what in {**added, "http": "HTTPService", "metrics": "Metrics Service"}.items():
        if (port := getattr(endpoints, f"{name}_port")) is not None:
            host = options.get(f"{name}_host") or options["host"]
            _log.info("Started %s at %s:%d", what, host, port)
    # Exclude the existing objects from garbage collection: they stay, and requests leave no cycles.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    while not ended:
        sleep(_SLICE_S)
    return _stop(server, endpoints, max(0, arguments.exit_timeout_secs))


def _stop(server: Server, endpoints: Endpoints, timeout_s: int) -> int:
    """Wait for clients and requests; return the exit status: 0, or 1 after a timeout."""
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
    # The end of the interpreter would look through all that hangs: of a load of 100,000 instances for minutes.
    gc.freeze()
    _log.error("failed to stop server: Internal - Exit timeout expired. Exiting immediately.")
    return 1


def _wait_for_requests(server: Server, deadline: float) -> bool:
    """Wait until no version has requests or sequences; False after a timeout.

    Log the versions that still have some once a second.
    """
    logged_s = float("inf")
    while True:
        busy = server.engine.lifecycle.in_flight()
        remaining_s = max(0.0, deadline - monotonic())
        if remaining_s <= logged_s - 1 or not busy:
            logged_s = ceil(remaining_s)
            text = "Timeout %d: Found %d model versions that have in-flight inferences"
            _log.info(text, logged_s, len(busy))
            for name, version, count in busy:
                _log.info(
                    "Model '%s' (version %d) has %d in-flight inferences", name, version, count
                )
        if not busy or not remaining_s:
            return not busy
        sleep(min(_POLL_S, remaining_s))


def model_table(index: Sequence[dict[str, str]]) -> str:
    """Return the table of models, as tritonserver prints it at its start."""
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


@contextmanager
def _ended_by_signals() -> Iterator[list[int]]:
    """Give a list that gets the number of SIGTERM or SIGINT; a second signal ends the process at once.

    A list, not an event: a handler runs between two bytecodes of the main thread, and waits for ever if the main
    thread holds the event's lock there. The earlier handlers are restored: `main` may have been called by a
    program that goes on.
    """
    ended: list[int] = []

    def end(number: int, _: object) -> None:
        if ended:
            os._exit(128 + number)
        ended.append(number)

    earlier = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ended
    finally:
        for number, handler in earlier.items():
            # None: not installed from Python, so it cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


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
