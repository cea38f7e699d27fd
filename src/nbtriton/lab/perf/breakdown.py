"""Server-side times of a measurement: the difference of two statistics (PA12, PA13).

The input is Triton's statistics JSON, so that local and remote servers are read in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

StatisticsDocument = Mapping[str, Any]  # Triton's {"model_stats": [...]}
_STAGES = ("queue", "compute_input", "compute_infer", "compute_output")


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
        """Inferences per execution; 0 without executions."""
        return self.inference_count / self.execution_count if self.execution_count else 0.0

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
    old = {e["version"]: e for e in before["model_stats"] if e["name"] == model}
    grown = []
    for entry in after["model_stats"]:
        if entry["name"] != model:
            continue
        start = old.get(entry["version"])
        if start is not None and _count(start, "queue") > _count(entry, "queue"):
            start = None
        if _count(entry, "queue") > (0 if start is None else _count(start, "queue")):
            grown.append((start, entry))
    if not grown:
        return None
    start, end = max(grown, key=lambda pair: int(pair[1]["version"]))
    warning = ""
    if len(grown) > 1:
        warning = (
            f"WARNING: Multiple versions of model {model} are serving inference requests. "
            f"The statistics are those of version {end['version']}."
        )
    return _difference(model, start, end, warning)


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


def _count(entry: Mapping[str, Any], stage: str) -> int:
    return int(entry["inference_stats"][stage]["count"])


def _difference(
    model: str, start: Mapping[str, Any] | None, end: Mapping[str, Any], warning: str
) -> ServerBreakdown:
    def plain(key: str) -> int:
        return int(end[key]) - (int(start[key]) if start else 0)

    def stage(key: str) -> tuple[int, int]:
        now = end["inference_stats"][key]
        was = start["inference_stats"][key] if start else {"count": 0, "ns": 0}
        return int(now["count"]) - int(was["count"]), int(now["ns"]) - int(was["ns"])

    def average_us(key: str) -> float:
        count, ns = stage(key)
        return ns / count / 1000 if count else 0.0

    sizes = _executions_by_size(end)
    for size, executions in (_executions_by_size(start) if start else {}).items():
        sizes[size] = sizes.get(size, 0) - executions
    stages = {f"{key}_us": average_us(key) for key in _STAGES}
    request_us = average_us("success")
    return ServerBreakdown(
        model=model,
        version=str(end["version"]),
        success_count=stage("success")[0],
        inference_count=plain("inference_count"),
        execution_count=plain("execution_count"),
        request_us=request_us,
        overhead_us=max(0.0, request_us - sum(stages.values())),
        batch_sizes={size: n for size, n in sorted(sizes.items()) if n > 0},
        warning=warning,
        **stages,
    )


def _executions_by_size(entry: Mapping[str, Any]) -> dict[int, int]:
    return {
        int(row["batch_size"]): int(row["compute_infer"]["count"])
        for row in entry.get("batch_stats", ())
    }
