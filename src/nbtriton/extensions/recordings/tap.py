"""`nbtriton.record`: recording of the requests that arrive at a server."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import blake2b
from operator import index
from pathlib import Path
from time import monotonic_ns
from typing import Any

from nbtriton.backends.base import RequestOptions
from nbtriton.common.checks import NAMES, PATH, SERVER, SWITCH, check, number, optional, whole
from nbtriton.common.closing import Stopping
from nbtriton.common.errors import InvalidArgumentError, NotFoundError, TritonError, nearest
from nbtriton.lab.perf.recording import (
    RecordedInputs,
    RecordedRequest,
    RecordedTensor,
    Recording,
    RecordingWriter,
    open_recording,
)
from nbtriton.model.config import format_pbtxt
from nbtriton.model.tensors import datatype_of, shape_of
from nbtriton.runtime.engine import InferenceRequest
from nbtriton.runtime.interrupts import wait_in_slices
from nbtriton.scheduling import SEQUENCE_END, SEQUENCE_START
from nbtriton.serving.clients.base import tensor_bytes
from nbtriton.serving.server import Server

_log = logging.getLogger("nbtriton.extensions.recordings")

# Limit of requests waiting to be written; the sender that reaches it writes all of them, at some 5 us
# each.
_CHUNK = 256


def record(
    server: Server,
    path: str | Path,
    *,
    models: str | Sequence[str] | None = None,
    inputs: bool = False,
    duration_s: float | None = None,
    request_count: int | None = None,
) -> TrafficTap:
    """Record the requests that clients send to a server in a file, for `nbtriton.replay`.

    The file has the arrival time, model, version, shapes, priority, timeout, sequence, parameters and
    id of each request. Requests by ensembles and by models' own calls are not recorded: a replay
    causes them again.

    Parameters
    ----------
    server : Server
    path : path
        An existing file is replaced; a name that ends in ``.gz`` gives a compressed file.
    models : str or sequence of str, optional
        Only requests for these models; all by default.
    inputs : bool
        Record the contents of inputs too, each distinct set of tensors once. Otherwise a replay
        generates random inputs of the same shapes.
    duration_s : float, optional
        Record for this time, then return; Ctrl-C ends it earlier.
    request_count : int, optional
        Record this number of requests, then return.

    Returns
    -------
    TrafficTap
        Recording until ``stop()``, the end of a ``with`` block or of the server, unless `duration_s` or
        `request_count` is given.

    Raises
    ------
    InvalidArgumentError
        The options are inconsistent, or the file cannot be written.
    NotFoundError
        No such model.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "traffic.jsonl"
    >>> tap = nt.record(server, path, inputs=True)
    >>> _ = server.infer("double", {"IN": ones}, priority=1)
    >>> tap.stop().requests[0].options
    {'priority': 1}
    """
    chosen = [models] if isinstance(models, str) else models
    check(
        {"server": server, "path": path, "models": chosen, "inputs": inputs,
         "duration_s": duration_s, "request_count": request_count},
        {"server": SERVER, "path": PATH, "models": optional(NAMES), "inputs": SWITCH,
         "duration_s": optional(number(above=0)), "request_count": optional(whole(1))},
    )  # fmt: skip
    known = [model.name for model in server.models()]
    for name in chosen or ():
        if name not in known:
            raise NotFoundError(
                f"model '{name}' is not loaded, so its requests cannot be recorded",
                hint=nearest(name, known),
            )
    place = Path(path).expanduser()
    for tap in server.engine.dispatcher.listeners:
        if isinstance(tap, TrafficTap) and tap.path.resolve() == place.resolve():
            raise InvalidArgumentError(
                f"a recording to '{place}' is being made", hint="stop it, or record to another file"
            )
    tap = TrafficTap(server, path, chosen, inputs=inputs, limit=request_count)
    server.engine.dispatcher.listen(tap)
    if duration_s is not None or request_count is not None:
        try:
            wait_in_slices(tap.ended.wait, duration_s)
        except KeyboardInterrupt:  # the recorded requests stay
            tap.interrupted = True
        tap.stop()
    return tap


class TrafficTap(Stopping):
    """A recording in progress; a context manager that ends it.

    >>> import tempfile
    >>> with nt.record(server, f"{tempfile.mkdtemp()}/traffic.jsonl") as tap:
    ...     _ = server.infer("double", {"IN": ones})
    >>> tap.requests
    1

    Parameters
    ----------
    server : Server
    path : path
    models : sequence of str or None
    inputs : bool
    limit : int, optional
        Number of requests after which it ends.

    Attributes
    ----------
    path : Path
    requests : int
        Number of recorded requests.
    left_out : int
        Requests of sequences that began before the recording; a server would refuse them.
    interrupted : bool
        Whether Ctrl-C ended it before `duration_s` or `request_count`.
    ended : threading.Event
    error : Exception or None
        The error that ended it, such as a full disk.
    """

    def __init__(
        self,
        server: Server,
        path: str | Path,
        models: Sequence[str] | None = None,
        *,
        inputs: bool = False,
        limit: int | None = None,
    ) -> None:
        self.path = Path(path).expanduser()
        self.requests = 0
        self.left_out = 0
        self.interrupted = False
        self.ended = threading.Event()
        self.error: Exception | None = None
        self._server = server
        self._models = None if models is None else frozenset(models)
        self._with_data = inputs
        self._limit = limit
        texts = {
            name: format_pbtxt(config)
            for name, config in server.engine.registry.configs().items()
            if self._models is None or name in self._models
        }
        began = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._writer = RecordingWriter(open_recording(self.path), texts, began)
        self._began_ns = monotonic_ns()
        self._last_ns = 0
        self._waiting: deque[tuple[int, str, int, RecordedInputs, dict[str, Any]]] = deque()
        self._writing = threading.Lock()
        self._numbers: dict[Any, int] = {}
        self._sequences: set[tuple[str, int | str]] = set()

    def __call__(
        self, request: InferenceRequest, version: int, options: RequestOptions
    ) -> TritonError | None:
        """Add a request; its inputs are copied at once, as the model may write to them."""
        if self._models is not None and request.model_name not in self._models:
            return None
        try:
            self._waiting.append(
                (
                    request.start_ns, request.model_name, request.batch_size,
                    self._inputs_of(request), _options_of(request, version, options),
                )
            )  # fmt: skip
            self._write()
        except Exception as error:  # the request itself must not fail
            self._fail(error)
        return None

    def close(self) -> None:
        """End the recording: its server has ended."""
        self._finish()

    def stop(self) -> Recording:
        """End the recording and return it, read from the file; may be called again.

        Raises
        ------
        Exception
            Writing failed; the file has the requests written before.

        Examples
        --------
        >>> import tempfile, pathlib
        >>> tap = nt.record(server, pathlib.Path(tempfile.mkdtemp()) / "traffic.jsonl")
        >>> _ = server.infer("double", {"IN": ones})
        >>> tap.stop().counts
        {'double': 1}
        """
        self._finish()
        if self.error is not None:
            raise self.error
        return Recording.load(self.path)

    def __repr__(self) -> str:
        state = "ended" if self.ended.is_set() else "recording"
        words = f"{self.path}: {state}, {self.requests + len(self._waiting)} requests"
        if self.left_out:
            words += f", {self.left_out} of sequences that had begun before left out"
        return f"<TrafficTap {words}{', interrupted' if self.interrupted else ''}>"

    def _inputs_of(self, request: InferenceRequest) -> RecordedInputs:
        return {
            name: RecordedTensor(
                datatype_of(value),
                shape_of(value),
                tensor_bytes(value) if self._with_data else None,
            )
            for name, value in request.inputs.items()
        }

    def _write(self) -> None:
        """Write the waiting requests in order of arrival if they are enough, unless another thread is writing."""
        # Those that come while this thread writes are its too: nobody else may come after them.
        while self._are_enough() and self._writing.acquire(blocking=False):
            try:
                if not self.ended.is_set():
                    self._write_waiting()
            finally:
                self._writing.release()

    def _are_enough(self) -> bool:
        enough = min(_CHUNK, (self._limit or math.inf) - self.requests)
        return not self.ended.is_set() and len(self._waiting) >= enough

    def _write_waiting(self) -> None:
        waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        waiting.sort(key=lambda each: each[0])
        for start_ns, model, rows, inputs, options in waiting:
            if self._limit is not None and self.requests >= self._limit:
                break
            if not self._is_whole(model, options):
                self.left_out += 1
                continue
            # In order of time: a thread may have slept between reading the clock and adding the request.
            self._last_ns = max(self._last_ns, start_ns - self._began_ns)
            number = self._number_of(inputs)
            self._writer.add(RecordedRequest(self._last_ns, model, number, rows, options))
            self.requests += 1
        if self._limit is not None and self.requests >= self._limit:
            self._end()

    def _is_whole(self, model: str, options: dict[str, Any]) -> bool:
        """Return False for a request of a sequence whose start was not recorded."""
        if "sequence_id" not in options:
            return True
        key = (model, options["sequence_id"])
        if options.get("sequence_start"):
            self._sequences.add(key)
        known = key in self._sequences
        if options.get("sequence_end"):
            self._sequences.discard(key)
        return known

    def _number_of(self, inputs: RecordedInputs) -> int:
        key = tuple(
            (name, one.datatype, one.shape, one.data and blake2b(one.data, digest_size=16).digest())
            for name, one in inputs.items()
        )
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._writer.add_inputs(inputs)
        return number

    def _finish(self) -> None:
        self._server.engine.dispatcher.stop_listening(self)
        with self._writing:
            if self.ended.is_set():
                return
            try:
                self._write_waiting()
                if not self.ended.is_set():
                    self._end()
            except Exception as error:
                self._fail(error)

    def _end(self) -> None:
        """Write the last line; the lock is held."""
        duration_ns = max(self._last_ns, monotonic_ns() - self._began_ns)
        with self._writer:
            self._writer.end(duration_ns)
        self.ended.set()
        self._waiting.clear()

    def _fail(self, error: Exception) -> None:
        """End the recording because of an error."""
        _log.error("recording to '%s' has failed: %s", self.path, error)
        self.error = self.error or error
        self._server.engine.dispatcher.stop_listening(self)
        with suppress(OSError):  # the disk is full
            self._writer.close()
        self.ended.set()


def _options_of(request: InferenceRequest, version: int, options: RequestOptions) -> dict[str, Any]:
    """Return a request's options that are not the default."""
    sequence_id = options.correlation_id
    found: dict[str, Any] = {
        "version": int(version) if version != -1 else None,
        "outputs": list(options.outputs),
        "request_id": options.request_id,
        "priority": index(options.priority),
        "timeout_us": index(options.timeout_us),
        "sequence_id": sequence_id if isinstance(sequence_id, str) else index(sequence_id),
        "sequence_start": bool(request.flags & SEQUENCE_START),
        "sequence_end": bool(request.flags & SEQUENCE_END),
        "parameters": dict(options.parameters or {}),
    }
    return {name: value for name, value in found.items() if value}
