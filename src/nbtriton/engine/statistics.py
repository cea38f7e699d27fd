"""The books of one model version, in Triton's fields (scheduling.md §18). Integers only."""

from __future__ import annotations

import threading
import time
from typing import Any

__all__ = ["Statistics"]

_DURATIONS = (
    "success", "fail", "queue", "compute_input", "compute_infer", "compute_output",
    "cache_hit", "cache_miss",
)  # fmt: skip
_COMPUTE = _DURATIONS[3:6]


class Statistics:
    """Counts and nanoseconds since the version was loaded.

    A request of a batch is charged the whole batch's compute times (T1). ``execution_count`` and
    the batch statistics also count executions that failed (T2, T3).
    """

    __slots__ = (
        "_lock", "batch_sizes", "counts", "execution_count", "inference_count",
        "last_inference_ms", "ns",
    )  # fmt: skip

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts = dict.fromkeys(_DURATIONS, 0)
        self.ns = dict.fromkeys(_DURATIONS, 0)
        self.inference_count = 0
        self.execution_count = 0
        self.last_inference_ms = 0
        # batch size -> [executions, compute_input ns, compute_infer ns, compute_output ns]
        self.batch_sizes: dict[int, list[int]] = {}

    def execution(self, batch_size: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """One call of execute that reached the model, failed or not."""
        with self._lock:
            self.execution_count += 1
            self.last_inference_ms = time.time_ns() // 1_000_000
            entry = self.batch_sizes.get(batch_size)
            if entry is None:
                entry = self.batch_sizes[batch_size] = [0, 0, 0, 0]
            entry[0] += 1
            entry[1] += input_ns
            entry[2] += infer_ns
            entry[3] += output_ns

    def success(
        self, requests: int, inferences: int, total_ns: int, queue_ns: int,
        input_ns: int, infer_ns: int, output_ns: int,
    ) -> None:  # fmt: skip
        """Requests of one execution that succeeded; durations are sums over the requests."""
        with self._lock:
            self.inference_count += inferences
            counts, ns = self.counts, self.ns
            counts["success"] += requests
            counts["queue"] += requests
            counts["compute_input"] += requests
            counts["compute_infer"] += requests
            counts["compute_output"] += requests
            ns["success"] += total_ns
            ns["queue"] += queue_ns
            ns["compute_input"] += input_ns
            ns["compute_infer"] += infer_ns
            ns["compute_output"] += output_ns

    def failure(self, requests: int, total_ns: int) -> None:
        """Accepted requests that failed."""
        with self._lock:
            self.counts["fail"] += requests
            self.ns["fail"] += total_ns

    def cache_hit(self, total_ns: int, queue_ns: int, lookup_ns: int) -> None:
        """A request answered from the response cache: a success without an execution (K9)."""
        with self._lock:
            for field, duration in (
                ("success", total_ns), ("queue", queue_ns), ("cache_hit", lookup_ns),
            ):  # fmt: skip
                self.counts[field] += 1
                self.ns[field] += duration

    def cache_miss(self, lookup_and_insert_ns: int) -> None:
        """An answer that was not in the cache and now is; its cost counts as part of success."""
        with self._lock:
            self.counts["cache_miss"] += 1
            self.ns["cache_miss"] += lookup_and_insert_ns
            self.ns["success"] += lookup_and_insert_ns

    def sizes(self) -> dict[int, int]:
        """Executions per total batch size."""
        with self._lock:
            return {size: entry[0] for size, entry in sorted(self.batch_sizes.items())}

    def to_dict(self, name: str, version: int) -> dict[str, Any]:
        """Return the entry that Triton's statistics endpoint gives for this version."""
        with self._lock:
            durations = {
                field: {"count": self.counts[field], "ns": self.ns[field]} for field in _DURATIONS
            }
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
