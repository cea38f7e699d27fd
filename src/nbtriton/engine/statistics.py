"""The books of one model version, in Triton's fields (scheduling.md §18). Integers only."""

from __future__ import annotations

import threading
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from nbtriton.engine.summaries import LatencySummaries

__all__ = ["FAILURES", "Statistics"]

# Why a request failed, in the words of Triton's metrics (T8): it waited too long, its caller gave it
# up, its execution failed, anything else.
FAILURES: Final = ("BACKEND", "CANCELED", "OTHER", "REJECTED")

_COMPUTE = ("compute_input", "compute_infer", "compute_output")


class _Executions:
    """What all executions with one batch size took."""

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
        "_by_size", "_executed", "_fail_ns", "_hit_ns", "_hits", "_infer_ns", "_input_ns", "_last_ns",
        "_lock", "_miss_ns", "_misses", "_output_ns", "_queue_ns", "_success_ns", "execution_count",
        "failures", "inference_count", "summaries",
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
        self.inference_count = 0
        self.execution_count = 0
        self._last_ns = 0
        self._by_size: dict[int, _Executions] = {}

    @property
    def counts(self) -> dict[str, int]:
        """Requests by what was measured of them."""
        answered = self._executed + self._hits
        return {
            "success": answered,
            "fail": sum(self.failures.values()),
            "queue": answered,
            **dict.fromkeys(_COMPUTE, self._executed),
            "cache_hit": self._hits,
            "cache_miss": self._misses,
        }

    @property
    def ns(self) -> dict[str, int]:
        """Nanoseconds by what was measured."""
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

    def execution(
        self, batch_size: int, input_ns: int, infer_ns: int, output_ns: int,
        requests: int = 0, inferences: int = 0, total_ns: int = 0, queue_ns: int = 0,
    ) -> None:  # fmt: skip
        """One call of execute that reached the model, and the requests that it answered well.

        ``total_ns`` and ``queue_ns`` are sums over the requests; the compute times count for each.
        """
        with self._lock:
            self.execution_count += 1
            self._last_ns = time_ns()
            same = self._by_size.get(batch_size)
            if same is None:
                same = self._by_size[batch_size] = _Executions()
            same.count += 1
            same.input_ns += input_ns
            same.infer_ns += infer_ns
            same.output_ns += output_ns
            if requests:
                self._executed += requests
                self.inference_count += inferences
                self._success_ns += total_ns
                self._queue_ns += queue_ns
                self._input_ns += requests * input_ns
                self._infer_ns += requests * infer_ns
                self._output_ns += requests * output_ns

    def failure(self, requests: int, total_ns: int, reason: str) -> None:
        """Accepted requests that failed; `reason` is one of `FAILURES`."""
        with self._lock:
            self.failures[reason] += requests
            self._fail_ns += total_ns

    def cache_hit(self, total_ns: int, queue_ns: int, lookup_ns: int) -> None:
        """A request answered from the response cache: a success without an execution (K9)."""
        with self._lock:
            self._hits += 1
            self._success_ns += total_ns
            self._queue_ns += queue_ns
            self._hit_ns += lookup_ns
        if self.summaries is not None:
            self.summaries.observe((("queue", queue_ns), ("cache_hit", lookup_ns)))

    def cache_miss(self, lookup_and_insert_ns: int) -> None:
        """An answer that was not in the cache and now is; its cost counts as part of success."""
        with self._lock:
            self._misses += 1
            self._miss_ns += lookup_and_insert_ns
            self._success_ns += lookup_and_insert_ns
        if self.summaries is not None:
            self.summaries.observe((("cache_miss", lookup_and_insert_ns),))

    def sizes(self) -> dict[int, int]:
        """Executions per total batch size."""
        with self._lock:
            return {size: same.count for size, same in sorted(self._by_size.items())}

    def to_dict(self, name: str, version: int) -> dict[str, Any]:
        """Return the entry that Triton's statistics endpoint gives for this version."""
        with self._lock:
            counts, ns = self.counts, self.ns
            return {
                "name": name,
                "version": str(version),
                "last_inference": self._last_ns // 1_000_000,
                "inference_count": self.inference_count,
                "execution_count": self.execution_count,
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
