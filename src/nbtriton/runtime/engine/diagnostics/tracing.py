"""Traces of sampled requests: the times of their activities, and of the requests that they cause.

A trace is made from the request's records for the statistics, once the request has ended. A request
without a trace only costs two checks.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from nbtriton.model.tensors import bits_of, datatype_of, shape_of, to_numpy

if TYPE_CHECKING:
    from nbtriton.backends.base import Response
    from nbtriton.runtime.engine.core.execution import Execution


_ids = itertools.count(1)
_log = logging.getLogger("nbtriton.runtime.engine")


class Activity(NamedTuple):
    """A named moment, on the clock of `time.monotonic_ns`."""

    name: str
    ns: int


class TensorActivity(NamedTuple):
    """A tensor of an input or an output; ``array`` is a separate numpy array, of BF16 the bits as INT16."""

    name: str
    tensor: str
    datatype: str
    shape: tuple[int, ...]
    array: Any


class SpanContext(NamedTuple):
    """The identity of a span and its trace, as W3C's Trace Context passes it on.

    Parameters
    ----------
    trace_id, span_id : int
        Of 128 and of 64 bits, neither of them 0.
    flags : int
        Bit 0: the trace is recorded.
    state : str
        State of other tracing systems, passed on unchanged.
    """

    trace_id: int
    span_id: int
    flags: int = 1
    state: str = ""

    def child(self) -> SpanContext:
        """Return the identity of a new span of the same trace."""
        return self._replace(span_id=_random_id(8))

    def headers(self) -> dict[str, str]:
        """Return the fields ``traceparent`` and, if it is not empty, ``tracestate``."""
        parent = f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"
        return {"traceparent": parent, **({"tracestate": self.state} if self.state else {})}

    @classmethod
    def new(cls) -> SpanContext:
        """Return the identity of the first span of a new trace."""
        return cls(_random_id(16), _random_id(8))


def _random_id(size: int) -> int:
    return int.from_bytes(os.urandom(size), "big") or 1


class TracedRequest(Protocol):
    """The part of the engine's request that its trace uses."""

    trace: Trace | None
    execution: Execution | None

    @property
    def inputs(self) -> Mapping[str, Any]: ...
    @property
    def request_id(self) -> str: ...
    @property
    def start_ns(self) -> int: ...
    @property
    def enqueued_ns(self) -> int: ...
    @property
    def runtime(self) -> TracedVersion | None: ...


class TracedVersion(Protocol):
    """The part of the answering version that the trace uses."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...


class TraceSample:
    """One sampled request and all requests that follow from it; complete when the last of them is.

    A later call by one of a model's own threads belongs to no sample.

    Parameters
    ----------
    levels : frozenset of str
        ``"TIMESTAMPS"``, ``"TENSORS"`` or both.
    on_complete : callable
        Called once with the sample, on the thread that ended the last trace.
    span : SpanContext, optional
        The span of the client's request, if the traces become spans.

    Attributes
    ----------
    start_ns : int
        On the clock of `time.monotonic_ns`.
    """

    def __init__(
        self,
        levels: frozenset[str],
        on_complete: Callable[[TraceSample], object],
        span: SpanContext | None = None,
    ) -> None:
        self.span = span
        self.start_ns = monotonic_ns()
        self.timestamps = "TIMESTAMPS" in levels
        self.tensors = "TENSORS" in levels
        self.traces: list[Trace] = []
        self._on_complete = on_complete
        self._lock = threading.Lock()
        self._open = 0
        self._complete = False

    def begin(self, parent: Trace | None = None) -> Trace:
        """Open a trace."""
        with self._lock:
            self._open += 1
            trace = Trace(self, next(_ids), parent.id if parent is not None else 0)
            self.traces.append(trace)
        return trace

    def acquire(self) -> None:
        """Keep the sample open for activities after its requests."""
        with self._lock:
            self._open += 1

    def release(self) -> None:
        """End one trace or one `acquire`."""
        with self._lock:
            self._open -= 1
            complete = not self._open and not self._complete
            self._complete = self._complete or complete
        if complete:
            try:
                self._on_complete(self)
            except Exception:  # others of the batch wait for this thread
                _log.exception("a trace was not taken")


def _copied(name: str, tensor: str, value: Any) -> TensorActivity:
    kind = datatype_of(value)
    array = bits_of(value) if kind == "BF16" else to_numpy(value)
    return TensorActivity(name, tensor, kind, shape_of(value), array.copy())


class Trace:
    """The trace of one request.

    Attributes
    ----------
    id, parent_id : int
        Unique in the process; 0 for a request that a client sent.
    model, version, request_id : str, int, str
        Set when the request has ended.
    before, activities, after : list
        Activities of the endpoint that received the request, of the request, and of the endpoint that answers.
    span : SpanContext or None
        The span of this request, if its sample has one.
    """

    __slots__ = (
        "_answered_ns", "_closing", "_delivered", "activities", "after", "before", "id", "model",
        "parent_id", "request_id", "sample", "span", "version",
    )  # fmt: skip

    def __init__(self, sample: TraceSample, number: int, parent_id: int) -> None:
        self.sample = sample
        self.span = None if sample.span is None else sample.span.child()
        self.id = number
        self.parent_id = parent_id
        self.model = ""
        self.version = 0
        self.request_id = ""
        self.before: list[Activity] = []
        self.activities: list[Activity | TensorActivity] = []
        self.after: list[Activity] = []
        self._answered_ns = 0
        self._delivered = False
        # Popping is atomic with and without a GIL: the thread that gets the item closes the trace.
        self._closing = [None]

    def follow(self, request: TracedRequest) -> None:
        """Trace an admitted request that was not submitted yet."""
        request.trace = self
        self.activities = []  # the request was not accepted: its version has just been unloaded
        self.tensors("TENSOR_QUEUE_INPUT", request.inputs)

    @property
    def context(self) -> str | None:
        """The request's span as JSON of the fields that pass it on; None without one."""
        return None if self.span is None else json.dumps(self.span.headers())

    def child(self) -> Trace:
        """Open the trace of a request that this one makes: a step of an ensemble, a call."""
        return self.sample.begin(self)

    def received(self, first: str, last: str, received_ns: tuple[int, int]) -> None:
        """Record when a client's request arrived: now, if the endpoint did not record it."""
        if self.sample.timestamps:
            now = monotonic_ns()
            first_ns, last_ns = received_ns
            self.before += [Activity(first, first_ns or now), Activity(last, last_ns or now)]

    def answered(self, name: str) -> None:
        """Record an activity of the endpoint that answers."""
        if self.sample.timestamps:
            self.after.append(Activity(name, monotonic_ns()))

    def tensors(self, name: str, tensors: Mapping[str, Any]) -> None:
        """Record tensors; they are copied, as their memory may be used again."""
        if self.sample.tensors:
            try:
                self.activities += [_copied(name, *one) for one in tensors.items()]
            except Exception:  # such as no memory for them: the request goes on
                _log.exception("tensors of a request are not in its trace")

    def refused(self) -> None:
        """End without a request: it was not accepted."""
        self.sample.release()

    def answering(self, response: Response | None, *, final: bool) -> None:
        """Record a response before its delivery."""
        if response is not None and response.outputs:
            self.tensors("TENSOR_BACKEND_OUTPUT", response.outputs)
        if final:
            # Consequences of the response, such as the next step of an ensemble, come after it.
            self._answered_ns = monotonic_ns()

    def delivered(self, request: TracedRequest) -> None:
        """Record that the final response was delivered."""
        self._delivered = True
        self.executed(request)

    def executed(self, request: TracedRequest) -> None:
        """Close if the request has ended: a model may send its final response before it returns."""
        execution = request.execution
        if not self._delivered or (execution is not None and not execution.end_ns):
            return
        try:
            self._closing.pop()
        except IndexError:
            return
        self._close(request)

    def _close(self, request: TracedRequest) -> None:
        """Copy the request's records."""
        runtime = request.runtime
        assert runtime is not None
        self.model, self.version, self.request_id = (
            runtime.name,
            runtime.version,
            request.request_id,
        )
        if self.sample.timestamps:
            queued = request.enqueued_ns or request.start_ns  # a cache hit does not enter the queue
            head = [Activity("REQUEST_START", request.start_ns), Activity("QUEUE_START", queued)]
            computed = []
            execution = request.execution
            through = self._answered_ns
            if execution is not None:
                computed = [
                    Activity("COMPUTE_START", execution.start_ns),
                    Activity("COMPUTE_INPUT_END", execution.infer_start_ns),
                    Activity("COMPUTE_OUTPUT_START", execution.infer_end_ns),
                    Activity("COMPUTE_END", execution.end_ns),
                ]
                through = max(through, execution.end_ns)
            end = Activity("REQUEST_END", through)
            self.activities = [*head, *self.activities, *computed, end]
        self.sample.release()
