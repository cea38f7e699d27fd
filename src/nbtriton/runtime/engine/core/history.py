"""The recorder: what happened to the requests and batches of each model, in rings of fixed size.

The request path adds one `RequestEntry` per answered request and one `Execution` per batch; both are
small, refer to no tensor, and push out the oldest. In addition, a `Moment` is kept for every fifth
of a second in which something happened: the counters at that time, and the deepest queue since the
previous one. A
history belongs to a name and a version and outlives the runtimes that serve it, so that loads,
updates and sweeps do not interrupt it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from operator import attrgetter
from time import monotonic_ns
from typing import Final

from nbtriton.backends.compiling import mypyc_attr
from nbtriton.runtime.engine.core.execution import Execution, RequestDetail, Statistics
from nbtriton.runtime.engine.core.snapshot import Change, Moment

_now_ns: Final = monotonic_ns

# Length of a moment: a view of half a minute has 150 of them.
_MOMENT_NS: Final = 200_000_000
# Two minutes of continuous activity; some 0.5 MB per model.
_MOMENTS: Final = 600
_CHANGES: Final = 100
# At most this many entries are collected before they go to the ring: appending to a list is faster.
_NOTED: Final = 64
# Histories of unloaded models are dropped beyond this many, the oldest first.
_MODELS: Final = 256


@mypyc_attr(acyclic=True)
class RequestEntry:
    """One answered request, in numbers: times are on the clock of `time.monotonic_ns`.

    A request that was alone in its batch has none: its `Execution` has the same fields.

    Attributes
    ----------
    number : int
        Number of the request, unique in the process.
    caller : int
        The number of the request that led to it: the ensemble's, or the first one of the batch whose
        model called; 0 for a client's own.
    step : int
        The step of the ensemble.
    size : int
        Its rows.
    start_ns, enqueued_ns : int
        Times of its arrival and of its acceptance by the scheduler (0 if it was refused).
    answered_ns : int
        Time of its final response; for an ensemble's step, the end of its execution.
    request_id : str
        The client's.
    execution : Execution or None
        Its batch; None if it was never executed, and for an ensemble.
    detail : RequestDetail or None
    """

    __slots__ = (
        "answered_ns", "caller", "detail", "enqueued_ns", "execution", "number", "request_id", "size",
        "start_ns", "step",
    )  # fmt: skip

    def __init__(
        self, number: int, caller: int, step: int, size: int, start_ns: int, enqueued_ns: int,
        answered_ns: int, request_id: str, execution: Execution | None, detail: RequestDetail | None,
    ) -> None:  # fmt: skip
        self.number = number
        self.caller = caller
        self.step = step
        self.size = size
        self.start_ns = start_ns
        self.enqueued_ns = enqueued_ns
        self.answered_ns = answered_ns
        self.request_id = request_id
        self.execution = execution
        self.detail = detail


class Meter:
    """The busy time of one instance.

    Attributes
    ----------
    key : tuple of (str, str, int)
        Its name, kind and device.
    busy_ns, executions : int
        Totals of the executions that have ended.
    started_ns : int
        When the running execution began; 0 while the instance is idle.
    """

    __slots__ = ("busy_ns", "executions", "key", "started_ns")

    def __init__(self, key: tuple[str, str, int]) -> None:
        self.key = key
        self.busy_ns = 0
        self.executions = 0
        self.started_ns = 0

    def busy_until(self, at_ns: int) -> int:
        """Return the busy time up to a time that is not before the end of the last execution."""
        started_ns = self.started_ns
        return self.busy_ns + (max(0, at_ns - started_ns) if started_ns else 0)


class ModelHistory:
    """The history of one version of one model, across the runtimes that have served it.

    Parameters
    ----------
    name : str
    version : int
    capacity : int
        How many requests and how many batches are kept.

    Attributes
    ----------
    batches : deque of Execution
        Batches that have ended, except those that `Statistics` has not added up yet.
    depth : int
        How many requests are waiting, or for an ensemble, in flight.
    due_ns : int
        When the moment ends.
    """

    def __init__(self, name: str, version: int, capacity: int) -> None:
        self.name = name
        self.version = version
        self.batches: deque[Execution] = deque(maxlen=capacity)
        self._noted: list[RequestEntry] = []
        self._requests: deque[RequestEntry] = deque(maxlen=capacity)
        self._changes: deque[Change] = deque(maxlen=_CHANGES)
        self._moments: deque[Moment] = deque(maxlen=_MOMENTS)
        # The runtimes that contribute: their statistics, and what returns the meters of their instances.
        self._sources: dict[Statistics, Callable[[], list[Meter]]] = {}
        # Totals of runtimes and instances that no longer exist.
        self._past_counts = (0, 0, 0, 0, 0, 0)
        self._past_sizes: Counter[int] = Counter()
        self._past_busy: Counter[tuple[str, str, int]] = Counter()
        self._lock = threading.Lock()
        self.depth = 0
        self._deepest = 0
        self.due_ns = 0

    # -- what the request path reports ---------------------------------------------------------------

    def advance(self, now_ns: int) -> None:
        """End the moment if its time is over, before anything that happens now is counted."""
        if now_ns >= self.due_ns:
            self._end_moment(now_ns)

    def note_depth(self, now_ns: int, depth: int) -> None:
        """Record how many requests are waiting, or for an ensemble, in flight; called whenever that changes."""
        if now_ns >= self.due_ns:
            self._end_moment(now_ns)
        self._deepest = max(self._deepest, depth)
        self.depth = depth

    def note(self, entry: RequestEntry) -> None:
        """Keep a request that was not alone in its batch."""
        noted = self._noted
        noted.append(entry)
        if len(noted) >= _NOTED:
            with self._lock:
                self._move()

    # -- what the lifecycle reports --------------------------------------------------------------------

    def attach(
        self, statistics: Statistics, meters: Callable[[], list[Meter]], summary: str
    ) -> None:
        """Add a runtime that is about to serve.

        Parameters
        ----------
        statistics : Statistics
        meters : callable
            Returns the meters of its instances.
        summary : str
            Its configuration in a few words.
        """
        now_ns = _now_ns()
        statistics.batches = self.batches
        with self._lock:
            if not self._sources:
                summary = f"loaded{' again' if self._changes else ''}: {summary}"
            self._changes.append(Change(now_ns, summary))
            self._sources[statistics] = meters
            if not self.due_ns:
                self._moments.append(self._moment(now_ns, 0))
                self.due_ns = now_ns - now_ns % _MOMENT_NS + _MOMENT_NS

    def changed(self, summary: str) -> None:
        """Record that the instances of a runtime have changed."""
        self._changes.append(Change(_now_ns(), summary))

    def retire(self, meter: Meter) -> None:
        """Keep the busy time of an instance that is removed."""
        with self._lock:
            self._past_busy[meter.key] += meter.busy_ns

    def detach(self, statistics: Statistics) -> None:
        """Keep the counts of a runtime that has ended."""
        with self._lock:
            meters = self._sources.get(statistics)
            if meters is not None:
                # Before it leaves: who reads `executions` meanwhile adds up those that are still here.
                self._past_counts = _sum(self._past_counts, statistics.totals())
                self._past_sizes.update(statistics.sizes())
                for meter in meters():
                    self._past_busy[meter.key] += meter.busy_ns
                del self._sources[statistics]

    @property
    def is_attached(self) -> bool:
        """True while a runtime adds to it."""
        return bool(self._sources)

    # -- what readers ask ----------------------------------------------------------------------------

    def moments(self) -> tuple[Moment, ...]:
        """Return the moments that are kept and this one, oldest first."""
        now_ns = _now_ns()
        self.advance(now_ns)
        with self._lock:
            now = self._moment(now_ns, max(self.depth, self._deepest))
            return (*self._moments, now)

    def changes(self) -> tuple[Change, ...]:
        """Return when its configuration changed, and to what."""
        return tuple(self._changes)

    def requests(self) -> list[RequestEntry]:
        """Return the requests that were not alone in their batch, in the order of their answers."""
        with self._lock:
            self._move()
            return list(self._requests)

    def executions(self) -> list[Execution]:
        """Return the batches that are kept, oldest first."""
        for statistics in list(self._sources):
            statistics.flush()
        return list(self.batches)

    # -- internals -----------------------------------------------------------------------------------

    def _move(self) -> None:
        """Move the collected entries into the ring; the lock is held."""
        noted = self._noted[:]
        self._requests.extend(noted)
        del self._noted[: len(noted)]

    def _end_moment(self, now_ns: int) -> None:
        with self._lock:
            due_ns = self.due_ns
            if not due_ns or now_ns < due_ns:  # another thread was faster, or nothing is attached
                return
            self._keep(self._moment(due_ns, self._deepest))
            begin_ns = now_ns - now_ns % _MOMENT_NS
            if begin_ns > due_ns:  # nothing happened in between
                self._keep(self._moment(begin_ns, self.depth))
            self._deepest = self.depth
            self.due_ns = begin_ns + _MOMENT_NS

    def _keep(self, moment: Moment) -> None:
        """Add a moment; of a period in which nothing happens, only the first and the last are kept."""
        moments = self._moments
        if len(moments) > 1 and moments[-2][1:] == moments[-1][1:] == moment[1:]:
            moments[-1] = moment
        else:
            moments.append(moment)

    def _moment(self, at_ns: int, deepest: int) -> Moment:
        """Return the counters at a moment; the lock is held."""
        counts = self._past_counts
        sizes, busy = self._past_sizes.copy(), self._past_busy.copy()
        for statistics, meters in self._sources.items():
            counts = _sum(counts, statistics.totals())
            sizes.update(statistics.sizes())
            for meter in meters():
                busy[meter.key] += meter.busy_until(at_ns)
        return Moment(at_ns, deepest, *counts, dict(sizes), dict(busy))


_Counts = tuple[int, int, int, int, int, int]


def _sum(one: _Counts, other: _Counts) -> _Counts:
    a, b, c, d, e, f = [x + y for x, y in zip(one, other, strict=True)]
    return a, b, c, d, e, f


class Recorder:
    """The histories of a server's models.

    Parameters
    ----------
    capacity : int
        How many requests and how many batches of each model version are kept.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._histories: dict[tuple[str, int], ModelHistory] = {}
        self._lock = threading.Lock()

    def history(self, name: str, version: int) -> ModelHistory:
        """Return the history of a version; it begins with the first call."""
        with self._lock:
            found = self._histories.get((name, version))
            if found is None:
                if len(self._histories) >= _MODELS:
                    ended = [key for key, one in self._histories.items() if not one.is_attached]
                    for key in ended[:1]:
                        del self._histories[key]
                found = self._histories[name, version] = ModelHistory(name, version, self.capacity)
            return found

    def find(self, name: str = "", version: int = -1) -> list[ModelHistory]:
        """Return the histories of a model, or of all, by name and version; -1 for all versions."""
        with self._lock:
            found = [
                history
                for key, history in self._histories.items()
                if name in ("", key[0]) and version in (-1, key[1])
            ]
        return sorted(found, key=attrgetter("name", "version"))

    def forget(self, name: str) -> None:
        """Drop the history of a model."""
        with self._lock:
            for key in [key for key in self._histories if key[0] == name]:
                del self._histories[key]
