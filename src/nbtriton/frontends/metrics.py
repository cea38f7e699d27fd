"""What Prometheus reads: Triton's metric names over this server's books (KS81, KS82)."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from nbtriton.backends.python.api.metrics import Family, MetricKind, Sample, families_of
from nbtriton.errors import TritonError

if TYPE_CHECKING:
    from nbtriton.engine import Server

__all__ = ["DEFAULT_QUANTILES", "Metrics", "MetricsConfig", "parse_quantiles"]

_log = logging.getLogger("nbtriton.metrics")
# What C++'s `stod` takes of a text; the rest of it is not looked at.
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,2})?", re.IGNORECASE)

_COUNTERS = (
    ("nv_inference_request_success", "Number of successful inference requests, all batch sizes"),
    ("nv_inference_request_failure", "Number of failed inference requests, all batch sizes"),
    ("nv_inference_count", "Number of inferences performed (does not include cached requests)"),
    (
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
    ),
    (
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
    ),
)
_DURATIONS = {
    "nv_inference_request_duration_us": "success",
    "nv_inference_queue_duration_us": "queue",
    "nv_inference_compute_input_duration_us": "compute_input",
    "nv_inference_compute_infer_duration_us": "compute_infer",
    "nv_inference_compute_output_duration_us": "compute_output",
}
# Triton's when none are given; each with the error that its estimate may have.
DEFAULT_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
_SUMMARIES = (
    (
        "request",
        "nv_inference_request_summary_us",
        "Summary of inference request duration in microseconds (includes cached requests)",
    ),
    (
        "queue",
        "nv_inference_queue_summary_us",
        "Summary of inference queuing duration in microseconds (includes cached requests)",
    ),
    (
        "compute_input",
        "nv_inference_compute_input_summary_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
    ),
    (
        "compute_infer",
        "nv_inference_compute_infer_summary_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
    ),
    (
        "compute_output",
        "nv_inference_compute_output_summary_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
    ),
    (
        "cache_hit",
        "nv_cache_hit_summary_per_model",
        "Summary of cache hit counts/durations per model, in microseconds.",
    ),
    (
        "cache_miss",
        "nv_cache_miss_summary_per_model",
        "Summary of cache miss counts/durations per model, in microseconds.",
    ),
)
_PER_MODEL_CACHE = (
    ("nv_cache_num_hits_per_model", "Number of cache hits per model", "cache_hit", "count"),
    (
        "nv_cache_hit_duration_per_model",
        "Total cache hit duration per model, in microseconds",
        "cache_hit",
        "ns",
    ),
    ("nv_cache_num_misses_per_model", "Number of cache misses per model", "cache_miss", "count"),
    (
        "nv_cache_miss_duration_per_model",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        "cache_miss",
        "ns",
    ),
)
_KINDS = {
    MetricKind.COUNTER: "counter",
    MetricKind.GAUGE: "gauge",
    MetricKind.HISTOGRAM: "histogram",
}
Labels = Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Triton's ``--metrics-config``.

    Parameters
    ----------
    counter_latencies : bool
        Whether there are sums of latencies.
    quantiles : tuple of float
        Of the latency summaries, where the server keeps them.
    machine : bool
        Whether there are those of the processor and its memory: ``--allow-cpu-metrics``.
    """

    counter_latencies: bool = True
    quantiles: tuple[float, ...] = DEFAULT_QUANTILES
    machine: bool = True


def parse_quantiles(text: str) -> tuple[float, ...]:
    """Read ``QUANTILE:ERROR,…`` as Triton does: a pair that is none is logged and left out.

    The errors are read and not needed: ours are always below one percent.
    """
    found = []
    for pair in text.split(","):
        rank, colon, error = pair.partition(":")
        if not colon:
            _log.error(
                "Invalid option: [%s]. No ':' delimiter found. Expected format is <quantile>:<error>",
                pair,
            )
            continue
        numbers = [_NUMBER.match(part) for part in (rank, error)]
        if numbers[0] is None or numbers[1] is None:
            _log.error("Invalid option: [%s]. Error: stod", pair)
            continue
        found.append(float(numbers[0][0]))
    return tuple(found)


class Metrics:
    """The text of the metrics endpoint.

    Parameters
    ----------
    server : Server
    config : MetricsConfig
    """

    def __init__(self, server: Server, config: MetricsConfig) -> None:
        self._server = server
        self._config = config
        self._lock = threading.Lock()
        self._cpu = (0, 0)  # busy and total ticks when last asked

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        lines: list[str] = []
        stats = [
            {**entry, "tags": self._tags(entry["name"], int(entry["version"]))}
            for entry in self._server.statistics()["model_stats"]
        ]
        for name, what in _COUNTERS:
            if name in _DURATIONS and not self._config.counter_latencies:
                continue
            _family(lines, name, what, "counter")
            for entry in stats:
                if name == "nv_inference_request_failure":
                    self._failures(lines, entry)
                else:
                    _sample(lines, name, _labels(entry), _counter(name, entry))
        if self._config.counter_latencies:
            self._cached_models(lines, stats)
        name = "nv_inference_pending_request_count"
        _family(lines, name, "Instantaneous number of pending requests awaiting execution per-model.", "gauge")  # fmt: skip
        for model in self._server.models():
            if model.state != "READY":
                continue
            tags = self._tags(model.name, model.version)
            entry = {"name": model.name, "version": str(model.version), "tags": tags}
            _sample(lines, name, _labels(entry), model.queued)
        self._machine(lines)
        self._cache(lines)
        if self._server.keeps_summaries:
            self._summaries(lines, stats)
        for family in families_of(self._server.models_view):
            _custom(lines, family)
        return "".join(f"{line}\n" for line in _with_samples(lines)).encode()

    def _tags(self, name: str, version: int) -> dict[str, str]:
        """Return the labels that a model's configuration adds to its metrics."""
        try:
            return dict(self._server.config(name, version).metric_tags)
        except TritonError:  # not ready: it still has its counts
            return {}

    def _failures(self, lines: list[str], entry: Mapping[str, Any]) -> None:
        failures = self._server.failures(entry["name"], int(entry["version"]))
        for reason, count in sorted(failures.items()):
            labels = sorted([*_labels(entry), ("reason", reason)])
            _sample(lines, "nv_inference_request_failure", labels, count)

    def _cached_models(self, lines: list[str], stats: Iterable[Mapping[str, Any]]) -> None:
        """A model that wants a cache has its samples, also where the server has none for it."""
        cached = [entry for entry in stats if self._wants_cache(entry)]
        for name, what, field, unit in _PER_MODEL_CACHE:
            _family(lines, name, what, "counter")
            for entry in cached:
                value = entry["inference_stats"][field][unit]
                _sample(lines, name, _labels(entry), value // 1000 if unit == "ns" else value)

    def _wants_cache(self, entry: Mapping[str, Any]) -> bool:
        try:
            config = self._server.config(entry["name"], int(entry["version"]))
        except TritonError:  # not ready
            return False
        return bool(config.response_cache.enable)

    def _summaries(self, lines: list[str], stats: Sequence[Mapping[str, Any]]) -> None:
        now_ns = monotonic_ns()
        kept = [
            (_labels(entry), found.of)
            for entry in stats
            if (found := self._server.summaries(entry["name"], int(entry["version"])))
        ]
        for stage, name, what in _SUMMARIES:
            _family(lines, name, what, "summary")
            for labels, of in kept:
                if stage not in of:
                    continue
                reading = of[stage].read(now_ns)
                _sample(lines, f"{name}_count", labels, reading.count)
                _sample(lines, f"{name}_sum", labels, reading.total)
                for rank in self._config.quantiles:
                    ranked = (*labels, ("quantile", _number(rank)))
                    _sample(lines, name, ranked, reading.quantile(rank))

    def _cache(self, lines: list[str]) -> None:
        cache = self._server.cache
        if cache is None:
            return
        books = cache.statistics()
        for name, what, value in (
            ("nv_cache_util", "Cache utilization [0.0 - 1.0]", books.used_bytes / books.size_bytes),
            ("nv_cache_num_entries", "Number of responses stored in response cache", books.entries),
            ("nv_cache_num_lookups", "Number of cache lookups in response cache", books.hits + books.misses),
            ("nv_cache_num_hits", "Number of cache hits in response cache", books.hits),
            ("nv_cache_num_misses", "Number of cache misses in response cache", books.misses),
            ("nv_cache_num_evictions", "Number of cache evictions in response cache", books.evictions),
            ("nv_cache_lookup_duration", "Total cache lookup duration (hit and miss), in microseconds",
             books.lookup_ns // 1000),
            ("nv_cache_insertion_duration", "Total cache insertion duration, in microseconds",
             books.insertion_ns // 1000),
        ):  # fmt: skip
            _family(lines, name, what, "gauge")
            _sample(lines, name, (), value)

    def _machine(self, lines: list[str]) -> None:
        values: list[tuple[str, str, float]] = [
            ("nv_pinned_memory_pool_total_bytes", "Pinned memory pool total memory size, in bytes", 0),
            ("nv_pinned_memory_pool_used_bytes", "Pinned memory pool used memory size, in bytes", 0),
        ]  # fmt: skip
        if self._config.machine:
            total, used = _memory()
            values += [
                ("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", self._utilization()),
                ("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", total),
                ("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", used),
            ]
        for name, what, value in values:
            _family(lines, name, what, "gauge")
            _sample(lines, name, (), value)

    def _utilization(self) -> float:
        """Return the share of the machine's time that was busy since the last question."""
        busy, total = _ticks()
        with self._lock:
            before_busy, before_total = self._cpu
            self._cpu = (busy, total)
        passed = total - before_total
        return (busy - before_busy) / passed if passed > 0 else 0.0


def _labels(entry: Mapping[str, Any]) -> Labels:
    return sorted({**entry["tags"], "model": entry["name"], "version": entry["version"]}.items())


def _counter(name: str, entry: Mapping[str, Any]) -> int:
    durations = entry["inference_stats"]
    if name in _DURATIONS:
        return int(durations[_DURATIONS[name]]["ns"]) // 1000
    if name == "nv_inference_request_success":
        return int(durations["success"]["count"])
    return int(entry["inference_count" if name == "nv_inference_count" else "execution_count"])


def _with_samples(lines: Sequence[str]) -> Iterator[str]:
    """Leave out the families without samples, as Triton does."""
    head: list[str] = []
    for line in lines:
        if line.startswith("# HELP"):
            head = [line]
        elif line.startswith("#"):
            head.append(line)
        else:
            yield from head
            head = []
            yield line


def _family(lines: list[str], name: str, what: str, kind: str) -> None:
    # A line break in a model's own description would begin a line of our text.
    safe = what.replace("\\", "\\\\").replace("\n", "\\n")
    lines += (f"# HELP {name} {safe}", f"# TYPE {name} {kind}")


def _sample(lines: list[str], name: str, labels: Labels, value: float) -> None:
    text = ",".join(f'{label}="{_escaped(content)}"' for label, content in labels)
    lines.append(f"{name}{{{text}}} {_number(value)}" if text else f"{name} {_number(value)}")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if value != value:  # noqa: PLR0124 - not a number
        return "Nan"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


def _custom(lines: list[str], family: Family) -> None:
    """A family of the models' own: `pb_utils.MetricFamily`."""
    _family(lines, family.name, family.description, _KINDS[family.kind])
    samples = [sample for _, sample in sorted(family.samples.items())]
    for sample in samples:
        if family.kind is MetricKind.HISTOGRAM:
            _histogram(lines, family.name, sample)
        else:
            _sample(lines, family.name, sample.labels, sample.value)


def _histogram(lines: list[str], name: str, sample: Sample) -> None:
    with sample.lock:
        count, total, buckets = sample.count, sample.total, list(sample.buckets)
    _sample(lines, f"{name}_count", sample.labels, count)
    _sample(lines, f"{name}_sum", sample.labels, total)
    so_far = 0
    for bound, number in zip((*sample.bounds, float("inf")), buckets, strict=True):
        so_far += number
        _sample(lines, f"{name}_bucket", [*sample.labels, ("le", _number(bound))], so_far)


def _memory() -> tuple[int, int]:
    """Return the machine's memory and what of it is used, in bytes; zeros where Linux is missing."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0, 0
    kib = {line.partition(":")[0]: line.partition(":")[2].split()[0] for line in lines}
    total = int(kib["MemTotal"]) * 1024
    return total, total - int(kib.get("MemAvailable", kib["MemFree"])) * 1024


def _ticks() -> tuple[int, int]:
    """Return the busy and all clock ticks of the machine since it started."""
    try:
        fields = [
            int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        ]
    except OSError:
        times = os.times()
        busy = int((times.user + times.system) * 100)
        return busy, int(times.elapsed * 100) * (os.cpu_count() or 1)
    idle = fields[3] + fields[4]
    return sum(fields[:8]) - idle, sum(fields[:8])
