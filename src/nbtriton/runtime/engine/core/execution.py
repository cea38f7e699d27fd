"""One execution of a batch: its times, its completion, the result of a request, and statistics.

`Execution` has the times; `Statistics` adds them up in Triton's fields (T1 to T9, integers only);
`InferenceResult` is what a caller gets.

A `Completion` determines on which thread the consequences of responses are handled. It is an argument of every call
between an execution and its last response, and one of two: an instance's thread answers a batch (`BatchCompletion`), or
the thread that waits for a request executes it itself (`InlineCompletion`). None means neither.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nbtriton.backends.base import BatchTimer
from nbtriton.backends.compiling import mypyc_attr, own_caches
from nbtriton.common.errors import nearest
from nbtriton.model.tensors import Array, datatype_of, format_shape, shape_of, to_kind
from nbtriton.runtime.engine.core.snapshot import BatchRecord
from nbtriton.scheduling import RunBatch, Ticket

if TYPE_CHECKING:
    import pandas as pd

    from nbtriton.runtime.engine.core.summaries import LatencySummaries


# The engine's clock. Final, for the compiled core: it looks a name of a module that is not compiled
# up in a dictionary at each use (8 times in a step of an ensemble), but keeps a final one in a C
# variable.
now_ns: Final = monotonic_ns


@mypyc_attr(acyclic=True)
class RequestDetail:
    """Details that few requests have: a refusal, an error, responses before the final one, a sequence.

    Attributes
    ----------
    outcome : str
        Why it was never executed: a key of `REASONS`, or ``"cache_hit"``; empty otherwise.
    status, error : str
        Triton's status and message if it failed, else empty.
    first_ns, responses : int
        The time of its first response before the final one, and how many of these it had.
    sequence : int or str
        Its correlation id, or 0.
    begins : bool
        Whether it is the first request of its sequence (START).
    """

    __slots__ = ("begins", "error", "first_ns", "outcome", "responses", "sequence", "status")

    def __init__(
        self,
        outcome: str,
        status: str,
        error: str,
        first_ns: int,
        responses: int,
        sequence: int | str,
        begins: bool,
    ) -> None:
        self.outcome = outcome
        self.status = status
        self.error = error
        self.first_ns = first_ns
        self.responses = responses
        self.sequence = sequence
        self.begins = begins


@mypyc_attr(acyclic=True)
class Execution(BatchTimer):
    """Times of one execution, on the clock of `time.monotonic_ns`; 0 until they are reached.

    All requests of the batch refer to it, so their common values are stored once. It outlives them
    in the statistics and in the recorder, so it keeps only numbers (and the garbage collector need
    not walk the compiled object).

    It also has the recorder's fields for the only request of a batch: together with the sums they
    are a whole `RequestEntry`, and a second object in a ring would cost a thirtieth of an
    ensemble's step.

    Attributes
    ----------
    batch_size : int
    instance : str
        Its name.
    number, count : int
        The number of its first request, and how many it has.
    reason : str
        Why the batch was closed at this size, as a key of `REASONS`.
    formed_ns, waiting : int
        When the scheduler released it, and how many requests it left waiting.
    start_ns, infer_start_ns, infer_end_ns, end_ns : int
        compute_input is between the first two, compute_infer between those in the middle, and
        compute_output between the last two (T9).
    longest_ns : int
        The longest wait among the requests.
    failed : bool
        It answered none of its requests successfully.
    reached : bool
        It reached the model, so it counts as an execution.
    first : bool
        It is the first to end since the load, warmup included.
    inferences, queue_ns, total_ns : int
        Sums over the requests: their batch sizes, how long they waited, and how long each took
        until the end.
    answered_ns, caller, step, request_id, detail
        The fields of `RequestEntry` for the only request; 0 until its final response.
    """

    __slots__ = (
        "answered_ns", "batch_size", "caller", "count", "detail", "end_ns", "failed", "first", "formed_ns",
        "infer_end_ns", "infer_start_ns", "inferences", "instance", "longest_ns", "number",
        "queue_ns", "reached", "reason", "request_id", "start_ns", "step", "total_ns", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        batch_size: int,
        instance: str = "",
        number: int = 0,
        count: int = 0,
        reason: str = "",
        formed_ns: int = 0,
        waiting: int = 0,
    ) -> None:
        self.batch_size = batch_size
        self.instance = instance
        self.number = number
        self.count = count
        self.reason = reason
        self.formed_ns = formed_ns
        self.waiting = waiting
        self.longest_ns = 0
        self.failed = False
        self.reached = True
        self.first = False
        self.inferences = 0
        self.queue_ns = 0
        self.total_ns = 0
        self.start_ns = now_ns()
        self.infer_start_ns = 0
        self.infer_end_ns = 0
        self.end_ns = 0
        self.answered_ns = 0
        self.caller = 0
        self.step = 0
        self.request_id = ""
        self.detail: RequestDetail | None = None

    def inputs_ready(self) -> None:
        """compute_input ends, compute_infer begins."""
        self.infer_start_ns = now_ns()

    def infer_done(self) -> None:
        """compute_infer ends, compute_output begins."""
        self.infer_end_ns = now_ns()

    def marked(self, inputs_ready_ns: int, infer_done_ns: int) -> None:
        """Set both marks, as measured by the model's process."""
        self.infer_start_ns = inputs_ready_ns
        self.infer_end_ns = infer_done_ns

    def end(self) -> None:
        """compute_output ends; marks that the backend did not set are set to the end."""
        self.end_ns = end_ns = now_ns()
        if not self.infer_start_ns:
            self.infer_start_ns = end_ns
        if not self.infer_end_ns:
            self.infer_end_ns = end_ns

    def times(self) -> tuple[int, int, int]:
        """Return compute_input, compute_infer and compute_output so far."""
        end = self.end_ns or now_ns()
        infer_start = self.infer_start_ns or end
        infer_end = self.infer_end_ns or end
        return infer_start - self.start_ns, infer_end - infer_start, end - infer_end

    def record(self, model: str, version: int, requests: tuple[int, ...]) -> BatchRecord:
        """Return it as a record, once it has ended, with the numbers of its requests."""
        return BatchRecord(
            model, version, self.instance, requests, self.batch_size, self.reason,
            self.longest_ns, self.start_ns, self.end_ns, self.failed, self.formed_ns, self.waiting,
            self.infer_start_ns, self.infer_end_ns,
        )  # fmt: skip


@mypyc_attr(acyclic=True)
class StepTimes:
    """Times of the steps of an ensemble's request: sums in nanoseconds (T4).

    It outlives the request until the statistics have added it up.

    Attributes
    ----------
    first : bool
        It is the first request answered since the load.
    size, total_ns, end_ns : int
        The rows of the request, how long it took, and when it was answered; 0 until then.
    """

    __slots__ = (
        "end_ns", "first", "infer_ns", "input_ns", "output_ns", "queue_ns", "size", "total_ns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.first = False
        self.size = 0
        self.total_ns = 0
        self.end_ns = 0
        self.queue_ns = 0
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0

    def add(self, queue_ns: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """Add the times of one more step."""
        self.queue_ns += queue_ns
        self.input_ns += input_ns
        self.infer_ns += infer_ns
        self.output_ns += output_ns


class Executor:
    """The part of an instance that a completion uses.

    Attributes
    ----------
    any_thread : bool
        The model's code may run on any thread.
    """

    any_thread: bool

    @abstractmethod
    def put(self, batch: RunBatch) -> None:
        """Execute a batch on the instance's own thread."""

    @abstractmethod
    def execute(self, batch: RunBatch, inline: InlineCompletion | None = None) -> None:
        """Execute a batch on this thread, which is the caller's with an ``inline``."""


class Completion:
    """Deferred work of a thread that delivers responses."""

    @abstractmethod
    def defer(self, function: Callable[[], object]) -> None:
        """Call a function once after the last response, however often it is deferred.

        It is called on this thread once the instance is free again, and must not raise.
        """


class BatchCompletion(Completion):
    """Completion of a batch: consequences of its responses wait until all responses are delivered.

    An endpoint that is called for each response of a batch would wake its own thread for each; called
    once at the end, it handles them together. The next steps of an ensemble would reach their model
    one by one, the first of them alone in a batch; together they are a batch again.

    Parameters
    ----------
    unblock_instance : callable, optional
        Lets the instance execute its next batch before this thread is done.

    Attributes
    ----------
    answer_remaining : callable or None
        ``answer_remaining(completion)`` delivers the remaining responses. The completion is an
        argument, because a stored one would be a reference cycle, which only the garbage collector
        frees.
    """

    __slots__ = ("_deferred", "_gathered", "_unblock_instance", "answer_remaining")

    def __init__(self, unblock_instance: Callable[[], object] | None = None) -> None:
        self.answer_remaining: Callable[[Completion], object] | None = None
        self._unblock_instance = unblock_instance
        self._deferred: list[Callable[[], object]] = []
        self._gathered: dict[
            Any, tuple[Callable[[Any, list[Any], Completion], object], list[Any]]
        ] = {}

    def defer(self, function: Callable[[], object]) -> None:
        if function not in self._deferred:
            self._deferred.append(function)

    def gather(
        self, function: Callable[[Any, list[Any], Completion], object], key: Any, item: Any
    ) -> None:
        """Keep an item for ``function(key, items, completion)``, with all others of its key.

        A key belongs to one function.
        """
        found = self._gathered.get(key)
        if found is None:
            found = self._gathered[key] = (function, [])
        found[1].append(item)

    def flush(self) -> None:
        """Do the gathered and deferred work, and the work that follows from it."""
        # One by one: a callback that waits flushes the rest, or it might wait for it.
        while self._gathered:
            key = next(iter(self._gathered))
            function, items = self._gathered.pop(key)
            function(key, items, self)
        while self._deferred:
            self._deferred.pop(0)()

    def flush_before_wait(self) -> None:
        """Deliver and flush everything before a callback waits on this thread, perhaps for part of it."""
        if self.answer_remaining is not None:
            self.answer_remaining(self)
        self.flush()
        if self._unblock_instance is not None:
            self._unblock_instance()


class InlineCompletion(Completion):
    """Completion on the thread that waits for a request: it executes its batches, one by one.

    Parameters
    ----------
    root : Ticket
        The request. Batches of its steps are accepted too, one at a time, so that independent
        branches of an ensemble still run in parallel.
    """

    __slots__ = ("_batch", "_executor", "_root")

    def __init__(self, root: Ticket) -> None:
        self._root = root
        self._executor: Executor | None = None
        self._batch: RunBatch | None = None

    def defer(self, function: Callable[[], object]) -> None:
        function()

    def accept(self, executor: Executor, batch: RunBatch, root: Ticket) -> bool:
        """Accept a batch of one request; ``root`` is the caller's request, which it is or which it is a step of."""
        if root is not self._root or self._executor is not None or not executor.any_thread:
            return False
        self._executor = executor
        self._batch = batch
        return True

    def execute(self) -> None:
        """Execute the accepted batches, and those accepted while they run."""
        while self._executor is not None:
            executor, batch = self._executor, self._batch
            assert batch is not None
            self._executor = self._batch = None
            executor.execute(batch, self)

    def hand_over(self) -> None:
        """Leave the accepted batches to the instance: this thread was interrupted."""
        executor, batch = self._executor, self._batch
        if executor is not None and batch is not None:
            self._executor = self._batch = None
            executor.put(batch)


class RequestTiming(NamedTuple):
    """The durations of one request's phases, in nanoseconds (T9).

    ``batch_size`` is the size of its batch, and ``first`` is true if no execution of this version
    ended before: the times then include one-time work of the model. For an ensemble the compute
    times are sums over its steps, which may run in parallel.
    """

    total_ns: int = 0
    queue_ns: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0
    batch_size: int = 0
    first: bool = False


class InferenceResult(Mapping[str, Array]):
    """The output tensors of one response by name, and its model, id, parameters and times.

    Tensors are of the caller's kind (numpy in, numpy out; torch or CuPy in, same kind out); a
    tensor on a device is copied to the host only when it is accessed.

    Attributes
    ----------
    model_name : str
    model_version : int
    request_id : str
    parameters : mapping
        Response parameters.

    Examples
    --------
    >>> result = server.infer("double", {"IN": ones})
    >>> list(result), result["OUT"].shape, result.timing.batch_size
    (['OUT'], (1, 4), 1)
    """

    __slots__ = (
        "_kind", "_outputs", "_timing", "model_name", "model_version", "parameters", "request_id",
    )  # fmt: skip

    def __init__(
        self,
        outputs: Mapping[str, Array],
        kind: str,
        model_name: str,
        model_version: int,
        request_id: str,
        parameters: Mapping[str, bool | int | str],
        timing: tuple[int, int, int, int, int, int, bool],
    ) -> None:
        self._outputs = dict(outputs)
        self._kind = kind
        self.model_name = model_name
        self.model_version = model_version
        self.request_id = request_id
        self.parameters = parameters
        self._timing = timing

    @property
    def timing(self) -> RequestTiming:
        """How the time of the request was spent."""
        return RequestTiming(*self._timing)

    def __reduce__(self) -> tuple[object, ...]:
        return InferenceResult, (
            dict(self), self._kind, self.model_name, self.model_version, self.request_id,
            dict(self.parameters), self._timing,
        )  # fmt: skip

    def __getitem__(self, name: str) -> Array:
        value = self.raw(name)
        converted = to_kind(value, "numpy" if datatype_of(value) == "BYTES" else self._kind)
        self._outputs[name] = converted
        return converted

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)

    def raw(self, name: str) -> Array:
        """Return a tensor as the model made it, on its device.

        Examples
        --------
        >>> server.infer("double", {"IN": ones}).raw("OUT").shape
        (1, 4)
        """
        try:
            return self._outputs[name]
        except KeyError:
            raise KeyError(self._unknown(name)) from None

    def __contains__(self, name: object) -> bool:
        return name in self._outputs

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._outputs)

    def _unknown(self, name: object) -> str:
        present = ", ".join(self._outputs) or "none"
        close = nearest(str(name), self._outputs)
        hint = f", {close}" if close.startswith("did") else ""
        return f"the response of '{self.model_name}' has no output '{name}'; it has {present}{hint}"

    def to_frame(self) -> pd.DataFrame:
        """Return the outputs as a pandas DataFrame, one row for each row of the batch.

        A tensor with one value per row becomes a column of values, a wider one a column of lists;
        strings are decoded if they are UTF-8. If the outputs do not share the first dimension, all
        of them are one row.

        Examples
        --------
        >>> server.infer("double", {"IN": ones}).to_frame()["OUT"].tolist()
        [[2.0, 2.0, 2.0, 2.0]]
        """
        from nbtriton.model.tensors.coerce import frame_of

        return frame_of(self)

    def describe(self) -> list[tuple[str, str, str, str]]:
        """Return (name, datatype, shape, place) of each tensor, without moving any.

        Examples
        --------
        >>> server.infer("double", {"IN": ones}).describe()
        [('OUT', 'FP32', '[1,4]', 'cpu')]
        """
        return [
            (name, datatype_of(value), format_shape(shape_of(value)), _place(value))
            for name, value in self._outputs.items()
        ]

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        from nbtriton.runtime.engine.shown import show_result

        return show_result(
            f"{self.model_name} v{self.model_version}",
            self.timing._asdict(),
            self.describe(),
            list(self._outputs.values()),
        )

    def __repr__(self) -> str:
        tensors = ", ".join(f"{name}: {kind}{shape}" for name, kind, shape, _ in self.describe())
        return (
            f"<{self.model_name} v{self.model_version} -> {tensors}"
            f" | {self.timing.total_ns / 1000:.0f} µs, batch of {self.timing.batch_size}>"
        )


def _place(array: Array) -> str:
    return str(getattr(array, "device", "cpu"))


# Why a request failed, in the words of Triton's metrics (T8): its execution failed, its caller
# cancelled it, anything else, it waited too long.
FAILURES: Final = ("BACKEND", "CANCELED", "OTHER", "REJECTED")

# At most this many executions are noted until they are added up: some 50 us at once.
_NOTED: Final = 100


class _Executions:
    """Count and times of all executions with one batch size."""

    __slots__ = ("count", "infer_ns", "input_ns", "output_ns")

    def __init__(self) -> None:
        self.count = 0
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0


class Statistics:
    """Counts and nanoseconds since the version was loaded.

    A request of a batch is charged the whole batch's compute times (T1). ``execution_count`` and
    the batch statistics also count executions that failed (T2, T3).
    """

    __slots__ = (
        "_by_size", "_executed", "_executions", "_fail_ns", "_hit_ns", "_hits", "_infer_ns",
        "_inferences", "_input_ns", "_last_ms", "_last_ns", "_lock", "_miss_ns", "_misses", "_noted",
        "_noted_steps", "_output_ns", "_queue_ns", "_shown_ns", "_success_ns", "batches", "failures", "summaries",
    )  # fmt: skip

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Requests answered by an execution: each counts in all fields except those of failures and the cache.
        self._executed = 0
        self._hits = 0
        self._misses = 0
        # By reason.
        self.failures = dict.fromkeys(FAILURES, 0)
        # Set by the server before the first request if it keeps them.
        self.summaries: LatencySummaries | None = None
        self._success_ns = 0
        self._fail_ns = 0
        self._queue_ns = 0
        self._input_ns = 0
        self._infer_ns = 0
        self._output_ns = 0
        self._hit_ns = 0
        self._miss_ns = 0
        self._inferences = 0
        self._executions = 0
        self._last_ns = 0  # on the engine's clock
        # The time of day of one such time, kept: two clocks that are read once more give another one.
        self._shown_ns = self._last_ms = 0
        self._by_size: dict[int, _Executions] = {}
        # Executions that are not added up yet. A thread that executes only adds to the list, which is
        # atomic with and without a GIL: no lock, and 2% of a step of an ensemble less.
        self._noted: list[Execution] = []
        # For an ensemble: its answered requests, likewise.
        self._noted_steps: list[StepTimes] = []
        # The recorder's history, which keeps every execution that was added up.
        self.batches: deque[Execution] | None = None

    def record_execution(self, execution: Execution) -> None:
        """Record the end of a call of execute that reached the model."""
        # Without the lock: while executions are added up, some count twice.
        execution.first = not self._executions and not self._noted
        self._noted.append(execution)
        if len(self._noted) >= _NOTED:
            with self._lock:
                self._flush()

    def record_ensemble_request(self, times: StepTimes) -> None:
        """Record a request that went through an ensemble, once it is answered."""
        times.first = not self._executions and not self._noted_steps
        self._noted_steps.append(times)
        if len(self._noted_steps) >= _NOTED:
            with self._lock:
                self._flush()

    def record_warmup(self, execution: Execution) -> None:
        """Record the execution of a warmup sample (W5)."""
        with self._lock:
            self._add(execution)
        if self.summaries is not None:
            total_ns = execution.end_ns - execution.start_ns
            for _ in range(execution.inferences):
                self.summaries.record_execution(total_ns, 0, *execution.times())

    def flush(self) -> None:
        """Add the noted executions to the sums, and to the recorder."""
        with self._lock:
            self._flush()

    def totals(self) -> tuple[int, int, int, int, int, int]:
        """Return requests that succeeded and failed, inferences, executions, queue and compute ns."""
        with self._lock:
            self._flush()
            return (
                self._executed + self._hits, sum(self.failures.values()), self._inferences,
                self._executions, self._queue_ns,
                self._input_ns + self._infer_ns + self._output_ns,
            )  # fmt: skip

    def _flush(self) -> None:
        """Add the noted executions to the sums; the lock is held."""
        noted = self._noted[:]
        for execution in noted:
            self._add(execution)
        if self.batches is not None:
            self.batches.extend(noted)
        del self._noted[: len(noted)]
        answered = self._noted_steps[:]
        for times in answered:
            input_ns, infer_ns, output_ns = times.input_ns, times.infer_ns, times.output_ns
            self._last_ns = max(self._last_ns, times.end_ns)
            self._add_execution(times.size, input_ns, infer_ns, output_ns)
            self._add_requests(1, times.size, times.total_ns, 0, input_ns, infer_ns, output_ns)
        del self._noted_steps[: len(answered)]

    def _add(self, execution: Execution) -> None:
        input_ns, infer_ns, output_ns = execution.times()
        self._last_ns = max(self._last_ns, execution.end_ns)
        self._add_execution(execution.batch_size, input_ns, infer_ns, output_ns)
        if not execution.failed:
            self._add_requests(
                execution.count, execution.inferences, execution.total_ns,
                execution.queue_ns, input_ns, infer_ns, output_ns,
            )  # fmt: skip

    def _add_execution(self, batch_size: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        self._executions += 1
        same = self._by_size.get(batch_size)
        if same is None:
            same = self._by_size[batch_size] = _Executions()
        same.count += 1
        same.input_ns += input_ns
        same.infer_ns += infer_ns
        same.output_ns += output_ns

    def _add_requests(
        self, count: int, inferences: int, total_ns: int, queue_ns: int,
        input_ns: int, infer_ns: int, output_ns: int,
    ) -> None:  # fmt: skip
        """Add requests that one execution answered; ``total_ns`` and ``queue_ns`` are sums."""
        self._executed += count
        self._inferences += inferences
        self._success_ns += total_ns
        self._queue_ns += queue_ns
        self._input_ns += count * input_ns
        self._infer_ns += count * infer_ns
        self._output_ns += count * output_ns

    def record_failure(self, requests: int, total_ns: int, reason: str) -> None:
        """Record accepted requests that failed; `reason` is one of `FAILURES`."""
        with self._lock:
            self.failures[reason] += requests
            self._fail_ns += total_ns

    def record_cache_hit(self, total_ns: int, queue_ns: int, lookup_ns: int) -> None:
        """Record a request answered from the response cache: a success without an execution (K9)."""
        with self._lock:
            self._hits += 1
            self._success_ns += total_ns
            self._queue_ns += queue_ns
            self._hit_ns += lookup_ns
        if self.summaries is not None:
            self.summaries.observe((("queue", queue_ns), ("cache_hit", lookup_ns)))

    def record_cache_miss(self, lookup_and_insert_ns: int) -> None:
        """Record a response that was not in the cache and now is; its cost counts as part of success."""
        with self._lock:
            self._misses += 1
            self._miss_ns += lookup_and_insert_ns
            self._success_ns += lookup_and_insert_ns
        if self.summaries is not None:
            self.summaries.observe((("cache_miss", lookup_and_insert_ns),))

    def sizes(self) -> dict[int, int]:
        """Executions per total batch size."""
        with self._lock:
            self._flush()
            return {size: same.count for size, same in sorted(self._by_size.items())}

    def to_dict(self, name: str, version: int) -> dict[str, Any]:
        """Return the entry that Triton's statistics endpoint gives for this version."""
        with self._lock:
            self._flush()
            executed, answered = self._executed, self._executed + self._hits
            fields = {
                "success": (answered, self._success_ns),
                "fail": (sum(self.failures.values()), self._fail_ns),
                "queue": (answered, self._queue_ns),
                "compute_input": (executed, self._input_ns),
                "compute_infer": (executed, self._infer_ns),
                "compute_output": (executed, self._output_ns),
                "cache_hit": (self._hits, self._hit_ns),
                "cache_miss": (self._misses, self._miss_ns),
            }
            if self._shown_ns != self._last_ns:
                self._shown_ns = self._last_ns
                self._last_ms = (time_ns() - now_ns() + self._last_ns) // 1_000_000
            return {
                "name": name,
                "version": str(version),
                "last_inference": self._last_ms,
                "inference_count": self._inferences,
                "execution_count": self._executions,
                "inference_stats": {
                    field: {"count": count, "ns": ns} for field, (count, ns) in fields.items()
                },
                "response_stats": {},
                "batch_stats": [
                    {
                        "batch_size": size,
                        "compute_input": {"count": same.count, "ns": same.input_ns},
                        "compute_infer": {"count": same.count, "ns": same.infer_ns},
                        "compute_output": {"count": same.count, "ns": same.output_ns},
                    }
                    for size, same in sorted(self._by_size.items())
                ],
                "memory_usage": [],
            }


own_caches(InferenceResult)
