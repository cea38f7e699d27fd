"""Metrics endpoint: Triton's metric names over the server's statistics (docs/rules/protocol.md)."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import attrgetter, itemgetter
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from nbtriton.backends.python.api.metrics import Family, MetricKind, Sample, families_of
from nbtriton.common.errors import TritonError

if TYPE_CHECKING:
    from nbtriton.model.config import ModelConfig
    from nbtriton.runtime.engine import Server

_log = logging.getLogger("nbtriton.metrics")
# The beginning of a text that C++'s `stod` reads.
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,2})?", re.IGNORECASE)

_COUNTS = (
    ("nv_inference_count", "Number of inferences performed", "inference_count"),
    ("nv_inference_exec_count", "Number of model executions performed", "execution_count"),
)
# Part of the metric's name, field of the statistics, words of the help text, whether cache hits count.
_STAGES = (
    ("request", "success", "inference request", True),
    ("queue", "queue", "inference queuing", True),
    ("compute_input", "compute_input", "compute input", False),
    ("compute_infer", "compute_infer", "compute inference", False),
    ("compute_output", "compute_output", "inference compute output", False),
)
_CACHED = {True: "(includes cached requests)", False: "(does not include cached requests)"}
_LOOKUPS = (("hit", "hits", "hit"), ("miss", "misses", "miss (insert+lookup)"))
# Triton's default quantiles, each with its permitted error.
DEFAULT_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
_KINDS = {
    MetricKind.COUNTER: "counter",
    MetricKind.GAUGE: "gauge",
    MetricKind.HISTOGRAM: "histogram",
}
Labels = Iterable[tuple[str, str]]
# A suffix of the family's name, labels and a value.
_Samples = Iterable[tuple[str, Labels, float]]
_Stats = list[tuple[list[tuple[str, str]], Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Triton's ``--metrics-config``.

    Parameters
    ----------
    counter_latencies : bool
        Whether sums of latencies are reported.
    quantiles : tuple of float
        Quantiles of the latency summaries, where the server keeps summaries.
    machine : bool
        Whether CPU and memory are reported: ``--allow-cpu-metrics``.

    Examples
    --------
    >>> MetricsConfig(quantiles=(0.5, 0.99)).quantiles
    (0.5, 0.99)
    """

    counter_latencies: bool = True
    quantiles: tuple[float, ...] = DEFAULT_QUANTILES
    machine: bool = True


def parse_quantiles(text: str) -> tuple[float, ...]:
    """Read ``QUANTILE:ERROR,…`` as Triton does: a wrong pair is logged and left out.

    The errors have no effect: the quantiles are always within one percent.
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
        self._cpu = (0, 0)  # busy and total ticks at the last call

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        server, lines = self._server, _Lines()
        stats = [
            (self._labels(entry["name"], entry["version"]), entry)
            for entry in server.statistics()["model_stats"]
        ]
        self._requests(lines, stats)
        pending = [
            ("", self._labels(model.name, str(model.version)), model.queued)
            for model in server.models()
            if model.state == "READY"
        ]
        text = "Instantaneous number of pending requests awaiting execution per-model."
        lines.family("nv_inference_pending_request_count", text, "gauge", pending)
        self._machine(lines)
        self._cache(lines)
        if server.options.summaries:
            self._summaries(lines, stats)
        for family in families_of(server.engine.model_server):
            _custom(lines, family)
        return lines.text()

    def _config_of(self, name: str, version: str) -> ModelConfig | None:
        try:
            return self._server.config(name, int(version))
        except TritonError:  # not ready, but its counts remain
            return None

    def _labels(self, name: str, version: str) -> list[tuple[str, str]]:
        """Return the labels of a version, with those that its configuration adds."""
        config = self._config_of(name, version)
        tags = {} if config is None else config.metric_tags
        return sorted({**tags, "model": name, "version": version}.items())

    def _requests(self, lines: _Lines, stats: _Stats) -> None:
        def counters(
            name: str, text: str, read: Callable[[Mapping[str, Any]], int], of: _Stats = stats
        ) -> None:
            lines.family(name, text, "counter", [("", labels, read(entry)) for labels, entry in of])

        text = "Number of successful inference requests, all batch sizes"
        counters("nv_inference_request_success", text, partial(_count, "success"))
        inspection = self._server.engine.inspection
        failed = [
            ("", sorted([*labels, ("reason", reason)]), count)
            for labels, entry in stats
            for reason, count in sorted(
                inspection.failures(entry["name"], int(entry["version"])).items()
            )
        ]
        text = "Number of failed inference requests, all batch sizes"
        lines.family("nv_inference_request_failure", text, "counter", failed)
        for name, text, field in _COUNTS:
            counters(name, f"{text} {_CACHED[False]}", itemgetter(field))
        if not self._config.counter_latencies:
            return
        for stage, field, words, with_cached in _STAGES:
            text = f"Cumulative {words} duration in microseconds {_CACHED[with_cached]}"
            name = f"nv_inference_{stage}_duration_us"
            counters(name, text, partial(_microseconds, field))
        # Models that enable the cache, even if the server has none.
        cached = [
            (labels, entry)
            for labels, entry in stats
            if (config := self._config_of(entry["name"], entry["version"])) is not None
            and config.response_cache.enable
        ]
        for kind, plural, words in _LOOKUPS:
            text = f"Number of cache {plural} per model"
            read = partial(_count, f"cache_{kind}")
            counters(f"nv_cache_num_{plural}_per_model", text, read, cached)
            text = f"Total cache {words} duration per model, in microseconds"
            read = partial(_microseconds, f"cache_{kind}")
            counters(f"nv_cache_{kind}_duration_per_model", text, read, cached)

    def _summaries(self, lines: _Lines, stats: _Stats) -> None:
        now_ns = monotonic_ns()
        inspection = self._server.engine.inspection
        kept = [
            (labels, found.of)
            for labels, entry in stats
            if (found := inspection.summaries(entry["name"], int(entry["version"])))
        ]

        def samples(stage: str) -> Iterator[tuple[str, Labels, float]]:
            for labels, of in kept:
                if stage not in of:
                    continue
                reading = of[stage].read(now_ns)
                yield "_count", labels, reading.count
                yield "_sum", labels, reading.total
                for rank in self._config.quantiles:
                    yield "", (*labels, ("quantile", _number(rank))), reading.quantile(rank)

        for stage, _, words, cached in _STAGES:
            begin = "Summary of" if cached else "Cumulative"
            text = f"{begin} {words} duration in microseconds {_CACHED[cached]}"
            lines.family(f"nv_inference_{stage}_summary_us", text, "summary", samples(stage))
        for kind, _, _ in _LOOKUPS:
            text = f"Summary of cache {kind} counts/durations per model, in microseconds."
            name = f"nv_cache_{kind}_summary_per_model"
            lines.family(name, text, "summary", samples(f"cache_{kind}"))

    def _cache(self, lines: _Lines) -> None:
        cache = self._server.engine.lifecycle.builder.cache
        if cache is None:
            return
        stats = cache.statistics()
        for name, text, value in (
            ("util", "Cache utilization [0.0 - 1.0]", stats.used_bytes / stats.size_bytes),
            ("num_entries", "Number of responses stored in response cache", stats.entries),
            ("num_lookups", "Number of cache lookups in response cache", stats.hits + stats.misses),
            ("num_hits", "Number of cache hits in response cache", stats.hits),
            ("num_misses", "Number of cache misses in response cache", stats.misses),
            ("num_evictions", "Number of cache evictions in response cache", stats.evictions),
            ("lookup_duration", "Total cache lookup duration (hit and miss), in microseconds",
             stats.lookup_ns // 1000),
            ("insertion_duration", "Total cache insertion duration, in microseconds",
             stats.insertion_ns // 1000),
        ):  # fmt: skip
            lines.gauge(f"nv_cache_{name}", text, value)

    def _machine(self, lines: _Lines) -> None:
        for what, text in (("total", "total memory size"), ("used", "used memory size")):
            name = f"nv_pinned_memory_pool_{what}_bytes"
            lines.gauge(name, f"Pinned memory pool {text}, in bytes", 0)
        if self._config.machine:
            total, used = _memory()
            lines.gauge(
                "nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", self._utilization()
            )
            lines.gauge("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", total)
            lines.gauge("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", used)

    def _utilization(self) -> float:
        """Return the share of the machine's time that was busy since the last call."""
        busy, total = _ticks()
        with self._lock:
            before_busy, before_total = self._cpu
            self._cpu = (busy, total)
        passed = total - before_total
        return (busy - before_busy) / passed if passed > 0 else 0.0


class _Lines:
    """Prometheus' text format; a family without samples is left out, as in Triton."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, text: str, kind: str, samples: _Samples) -> None:
        found = [_sample(name + suffix, labels, value) for suffix, labels, value in samples]
        if found:
            # A line break in a model's own description would begin a line of our text.
            safe = text.replace("\\", "\\\\").replace("\n", "\\n")
            self._lines += (f"# HELP {name} {safe}", f"# TYPE {name} {kind}", *found)

    def gauge(self, name: str, text: str, value: float) -> None:
        self.family(name, text, "gauge", [("", (), value)])

    def text(self) -> bytes:
        # A model's labels may hold half of a surrogate pair.
        return "".join(f"{line}\n" for line in self._lines).encode(errors="replace")


def _count(field: str, entry: Mapping[str, Any]) -> int:
    return int(entry["inference_stats"][field]["count"])


def _microseconds(field: str, entry: Mapping[str, Any]) -> int:
    return int(entry["inference_stats"][field]["ns"]) // 1000


def _sample(name: str, labels: Labels, value: float) -> str:
    text = ",".join(f'{label}="{_escaped(content)}"' for label, content in labels)
    return f"{name}{{{text}}} {_number(value)}" if text else f"{name} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if value != value:  # noqa: PLR0124 - not a number
        return "Nan"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


def _custom(lines: _Lines, family: Family) -> None:
    """Report a family defined by models: `pb_utils.MetricFamily`."""
    samples: list[tuple[str, Labels, float]] = []
    # All at once: models add samples meanwhile.
    found = [sample for ref in family.samples.valuerefs() if (sample := ref()) is not None]
    for sample in sorted(found, key=attrgetter("labels")):
        if family.kind is MetricKind.HISTOGRAM:
            samples += _histogram(sample)
        else:
            samples.append(("", sample.labels, sample.value))
    lines.family(family.name, family.description, _KINDS[family.kind], samples)


def _histogram(sample: Sample) -> Iterator[tuple[str, Labels, float]]:
    with sample.lock:
        count, total, buckets = sample.count, sample.total, list(sample.buckets)
    yield "_count", sample.labels, count
    yield "_sum", sample.labels, total
    bounds = (*sample.bounds, float("inf"))
    for bound, up_to in zip(bounds, accumulate(buckets), strict=True):
        yield "_bucket", [*sample.labels, ("le", _number(bound))], up_to


def _memory() -> tuple[int, int]:
    """Return the machine's total and used memory in bytes; zeros on systems other than Linux."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0, 0
    kib = {line.partition(":")[0]: line.partition(":")[2].split()[0] for line in lines}
    total = int(kib["MemTotal"]) * 1024
    return total, total - int(kib.get("MemAvailable", kib["MemFree"])) * 1024


def _ticks() -> tuple[int, int]:
    """Return the machine's busy and total clock ticks since it started."""
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
