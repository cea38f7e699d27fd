"""Server-side times of a measurement: the difference of two statistics (PA12, PA13).

The input is Triton's statistics JSON, so that local and remote servers are read in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nbtriton.drawing.numbers import mean_size

StatisticsDocument = Mapping[str, Any]  # Triton's {"model_stats": [...]}
_STAGES = ("queue", "compute_input", "compute_infer", "compute_output")
# The statistics of a version that has served nothing.
_NOTHING: Mapping[str, Any] = {
    "inference_count": 0,
    "execution_count": 0,
    "inference_stats": {key: {"count": 0, "ns": 0} for key in (*_STAGES, "success")},
}


@dataclass(frozen=True, slots=True)
class ServerBreakdown:
    """The difference of a model's statistics between two times; averages per request.

    Parameters
    ----------
    model : str
    version : str
        The version whose queue count grew; the highest of several.
    success_count, inference_count, execution_count : int
        Successful requests, inferences (the sum of batch sizes), executions.
    request_us : float
        From the request to its response.
    queue_us, compute_input_us, compute_infer_us, compute_output_us : float
        Parts of it. For an ensemble these are the sums over the composing models, as in
        perf_analyzer's own report.
    overhead_us : float
        ``request_us`` less its parts, at least 0.
    batch_sizes : mapping of int to int
        Executions by total batch size.
    warning : str
        Set when several versions served requests.
    """

    model: str
    version: str
    success_count: int
    inference_count: int
    execution_count: int
    request_us: float
    queue_us: float
    compute_input_us: float
    compute_infer_us: float
    compute_output_us: float
    overhead_us: float
    batch_sizes: Mapping[int, int]
    warning: str = ""

    @property
    def mean_batch_size(self) -> float:
        """Rows per execution, of those that failed too; 0 without executions."""
        return mean_size(self.batch_sizes)

    @property
    def accounted_us(self) -> float:
        """Queue and compute time together."""
        return (
            self.queue_us + self.compute_input_us + self.compute_infer_us + self.compute_output_us
        )


def breakdown(
    before: StatisticsDocument, after: StatisticsDocument, model: str
) -> ServerBreakdown | None:
    """Return the breakdown of `model` between two statistics, None if no version served.

    Statistics that restarted in between (the model was reloaded) count from zero.
    """
    old = {entry["version"]: entry for entry in before["model_stats"] if entry["name"] == model}
    grown = []
    for end in after["model_stats"]:
        if end["name"] == model:
            start = old.get(end["version"], _NOTHING)
            if _change(start, end, "queue", "count") < 0:
                start = _NOTHING
            if _change(start, end, "queue", "count"):
                grown.append((start, end))
    if not grown:
        return None
    start, end = max(grown, key=lambda pair: int(pair[1]["version"]))
    warning = ""
    if len(grown) > 1:
        warning = (
            f"WARNING: Multiple versions of model {model} are serving inference requests. "
            f"The statistics are those of version {end['version']}."
        )

    def average_us(key: str) -> float:
        count = _change(start, end, key, "count")
        return _change(start, end, key, "ns") / count / 1000 if count else 0.0

    sizes = Counter(_executions_by_size(end))
    sizes.subtract(_executions_by_size(start))
    stages = {f"{key}_us": average_us(key) for key in _STAGES}
    request_us = average_us("success")
    return ServerBreakdown(
        model=model,
        version=str(end["version"]),
        success_count=_change(start, end, "success", "count"),
        inference_count=int(end["inference_count"]) - int(start["inference_count"]),
        execution_count=int(end["execution_count"]) - int(start["execution_count"]),
        request_us=request_us,
        overhead_us=max(0.0, request_us - sum(stages.values())),
        batch_sizes={size: n for size, n in sorted(sizes.items()) if n > 0},
        warning=warning,
        **stages,
    )


def with_composing(
    ensemble: ServerBreakdown, composing: Sequence[ServerBreakdown]
) -> ServerBreakdown:
    """Return the ensemble's breakdown with the sums of its steps' queue and compute times.

    A step that runs twice per request counts twice. The sum of parallel steps can exceed the request's time;
    the overhead is then 0.
    """
    if not composing or not ensemble.success_count:
        return ensemble
    sums = {
        f"{stage}_us": sum(getattr(step, f"{stage}_us") * step.success_count for step in composing)
        / ensemble.success_count
        for stage in _STAGES
    }
    whole = replace(ensemble, **sums)
    return replace(whole, overhead_us=max(0.0, whole.request_us - whole.accounted_us))


def network_us(client_avg_us: float, server: ServerBreakdown | None) -> float:
    """Return the client latency outside of the server's own times, at least 0 (PA13).

    In the kernel it is the hand-over between threads, where perf_analyzer has the network.
    """
    return max(0.0, client_avg_us - (server.accounted_us if server else 0.0))


def _change(start: Mapping[str, Any], end: Mapping[str, Any], stage: str, what: str) -> int:
    old, new = (int(entry["inference_stats"][stage][what]) for entry in (start, end))
    return new - old


def _executions_by_size(entry: Mapping[str, Any]) -> dict[int, int]:
    return {
        int(row["batch_size"]): int(row["compute_infer"]["count"])
        for row in entry.get("batch_stats", ())
    }
