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

_DURATIONS = (
    "success", "fail", "queue", "compute_input", "compute_infer", "compute_output",
    "cache_hit", "cache_miss",
)  # fmt: skip
_SUCCESS, _FAIL, _QUEUE, _INPUT, _INFER, _OUTPUT, _HIT, _MISS = range(len(_DURATIONS))
_COMPUTE = _DURATIONS[_INPUT : _OUTPUT + 1]


class Statistics:
    """Counts and nanoseconds since the version was loaded.

    A request of a batch is charged the whole batch's compute times (T1). ``execution_count`` and
    the batch statistics also count executions that failed (T2, T3).
    """

    __slots__ = (
        "_executed", "_hits", "_lock", "_misses", "_ns", "batch_sizes", "execution_count",
        "failures", "inference_count", "last_inference_ms", "summaries",
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
        self._ns = [0] * len(_DURATIONS)
        self.inference_count = 0
        self.execution_count = 0
        self.last_inference_ms = 0
        # batch size -> [executions, compute_input ns, compute_infer ns, compute_output ns]
        self.batch_sizes: dict[int, list[int]] = {}

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
        return dict(zip(_DURATIONS, self._ns, strict=True))

    def execution(
        self, batch_size: int, input_ns: int, infer_ns: int, output_ns: int,
        requests: int = 0, inferences: int = 0, total_ns: int = 0, queue_ns: int = 0,
    ) -> None:  # fmt: skip
        """One call of execute that reached the model, and the requests that it answered well.

        ``total_ns`` and ``queue_ns`` are sums over the requests; the compute times count for each.
        """
        with self._lock:
            self.execution_count += 1
            self.last_inference_ms = time_ns() // 1_000_000
            entry = self.batch_sizes.get(batch_size)
            if entry is None:
                entry = self.batch_sizes[batch_size] = [0, 0, 0, 0]
            entry[0] += 1
            entry[1] += input_ns
            entry[2] += infer_ns
            entry[3] += output_ns
            if requests:
                self._executed += requests
                self.inference_count += inferences
                ns = self._ns
                ns[_SUCCESS] += total_ns
                ns[_QUEUE] += queue_ns
                ns[_INPUT] += requests * input_ns
                ns[_INFER] += requests * infer_ns
                ns[_OUTPUT] += requests * output_ns

    def failure(self, requests: int, total_ns: int, reason: str) -> None:
        """Accepted requests that failed; `reason` is one of `FAILURES`."""
        with self._lock:
            self.failures[reason] += requests
            self._ns[_FAIL] += total_ns

    def cache_hit(self, total_ns: int, queue_ns: int, lookup_ns: int) -> None:
        """A request answered from the response cache: a success without an execution (K9)."""
        with self._lock:
            self._hits += 1
            self._ns[_SUCCESS] += total_ns
            self._ns[_QUEUE] += queue_ns
            self._ns[_HIT] += lookup_ns
        if self.summaries is not None:
            self.summaries.observe((("queue", queue_ns), ("cache_hit", lookup_ns)))

    def cache_miss(self, lookup_and_insert_ns: int) -> None:
        """An answer that was not in the cache and now is; its cost counts as part of success."""
        with self._lock:
            self._misses += 1
            self._ns[_MISS] += lookup_and_insert_ns
            self._ns[_SUCCESS] += lookup_and_insert_ns
        if self.summaries is not None:
            self.summaries.observe((("cache_miss", lookup_and_insert_ns),))

    def sizes(self) -> dict[int, int]:
        """Executions per total batch size."""
        with self._lock:
            return {size: entry[0] for size, entry in sorted(self.batch_sizes.items())}

    def to_dict(self, name: str, version: int) -> dict[str, Any]:
        """Return the entry that Triton's statistics endpoint gives for this version."""
        with self._lock:
            counts, ns = self.counts, self.ns
            durations = {field: {"count": counts[field], "ns": ns[field]} for field in _DURATIONS}
            return {
                "name": name,
                "version": str(version),
                "last_inference": self.last_inference_ms,
                "inference_count": self.inference_count,
                "execution_count": self.execution_count,
                "inference_stats": durations,
                "response_stats": {},
                "batch_stats": [
                    {
                        "batch_size": size,
                        **{
                            field: {"count": entry[0], "ns": entry[at]}
                            for at, field in enumerate(_COMPUTE, start=1)
                        },
                    }
                    for size, entry in sorted(self.batch_sizes.items())
                ],
                "memory_usage": [],
            }
