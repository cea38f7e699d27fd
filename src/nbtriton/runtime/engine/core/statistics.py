"""Statistics of one model version, in Triton's fields (T1 to T9). Integers only."""

from __future__ import annotations

import threading
from collections import deque
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

from nbtriton.runtime.engine.core.execution import now_ns

if TYPE_CHECKING:
    from nbtriton.runtime.engine.core.execution import Execution, StepTimes
    from nbtriton.runtime.engine.core.summaries import LatencySummaries

__all__ = ["FAILURES", "Statistics"]

# Why a request failed, in the words of Triton's metrics (T8): its execution failed, its caller
# cancelled it, anything else, it waited too long.
FAILURES: Final = ("BACKEND", "CANCELED", "OTHER", "REJECTED")

_COMPUTE = ("compute_input", "compute_infer", "compute_output")
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
        "_inferences", "_input_ns", "_last_ns", "_lock", "_miss_ns", "_misses", "_noted",
        "_noted_steps", "_output_ns", "_queue_ns", "_success_ns", "batches", "failures", "summaries",
    )  # fmt: skip

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Requests that an execution answered: each counts in all fields but those of failures and the cache.
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
        self._by_size: dict[int, _Executions] = {}
        # Executions that are not added up yet. A thread that executes only adds to the list, which is
        # atomic with and without a GIL: no lock, and 2% of a step of an ensemble less.
        self._noted: list[Execution] = []
        # Of an ensemble: its answered requests, likewise.
        self._noted_steps: list[StepTimes] = []
        # Of the recorder, which keeps every execution that was added up.
        self.batches: deque[Execution] | None = None

    @property
    def inference_count(self) -> int:
        """Inferences, that is rows of batches, that succeeded."""
        with self._lock:
            self._flush()
            return self._inferences

    @property
    def execution_count(self) -> int:
        """Calls of execute that reached the model."""
        with self._lock:
            self._flush()
            return self._executions

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of requests by field of Triton's inference statistics."""
        with self._lock:
            self._flush()
            return self._counts()

    @property
    def ns(self) -> dict[str, int]:
        """Nanoseconds by field of Triton's inference statistics."""
        with self._lock:
            self._flush()
            return self._durations()

    def _counts(self) -> dict[str, int]:
        answered = self._executed + self._hits
        return {
            "success": answered,
            "fail": sum(self.failures.values()),
            "queue": answered,
            **dict.fromkeys(_COMPUTE, self._executed),
            "cache_hit": self._hits,
            "cache_miss": self._misses,
        }

    def _durations(self) -> dict[str, int]:
        return {
            "success": self._success_ns,
            "fail": self._fail_ns,
            "queue": self._queue_ns,
            "compute_input": self._input_ns,
            "compute_infer": self._infer_ns,
            "compute_output": self._output_ns,
            "cache_hit": self._hit_ns,
            "cache_miss": self._miss_ns,
        }

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
        """Record an answer that was not in the cache and now is; its cost counts as part of success."""
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
            counts, ns = self._counts(), self._durations()
            last_ns = self._last_ns and time_ns() - now_ns() + self._last_ns
            return {
                "name": name,
                "version": str(version),
                "last_inference": last_ns // 1_000_000,
                "inference_count": self._inferences,
                "execution_count": self._executions,
                "inference_stats": {
                    field: {"count": counts[field], "ns": ns[field]} for field in counts
                },
                "response_stats": {},
                "batch_stats": [
                    {
                        "batch_size": size,
                        **{
                            field: {"count": same.count, "ns": took}
                            for field, took in zip(
                                _COMPUTE,
                                (same.input_ns, same.infer_ns, same.output_ns),
                                strict=True,
                            )
                        },
                    }
                    for size, same in sorted(self._by_size.items())
                ],
                "memory_usage": [],
            }
