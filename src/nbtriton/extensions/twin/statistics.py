"""What cumulative statistics say about a stretch of time: execution times by batch size, and traffic."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import Any

from nbtriton.lab.perf.breakdown import breakdown

_PHASES = ("compute_input", "compute_infer", "compute_output")
# Pieces of the stretch from which a variance is estimated; equally likely times of a distribution.
_LEAST_PIECES = 4
# A piece that is so many median deviations above the median, of which a normal distribution has one in 20,000 (3.9 standard
# deviations), had a stall: one execution was far longer than the others.
_STALLED = 5.8
_QUANTILES = 40

Entry = Mapping[str, Any]  # of Triton's "model_stats"


@dataclass(frozen=True, slots=True)
class Times:
    """The execution times of one batch size.

    Attributes
    ----------
    executions : int
    mean_us : float
    deviation_us : float or None
        The standard deviation; None where the statistics do not tell.
    stalls_us : tuple of float
        Executions that were far longer than it allows, ascending; the others have mean and deviation.
    """

    executions: int
    mean_us: float
    deviation_us: float | None = None
    stalls_us: tuple[float, ...] = ()

    def quantiles_us(self) -> tuple[float, ...]:
        """Return equally likely times, ascending: a log-normal distribution with this mean and deviation."""
        if not self.deviation_us:
            return (self.mean_us,)
        sigma = math.sqrt(math.log1p((self.deviation_us / self.mean_us) ** 2))
        normal = NormalDist()
        raw = [math.exp(sigma * normal.inv_cdf((k + 0.5) / _QUANTILES)) for k in range(_QUANTILES)]
        scale = self.mean_us * _QUANTILES / sum(raw)
        return tuple(scale * each for each in raw)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests to one model in a stretch of time; times are averages per request.

    Attributes
    ----------
    requests, failed : int
    requests_per_s : float
    rows : float
        Of a request.
    batch_size : float
        Of an execution, in rows.
    queue_us, compute_us, request_us : float
        Of an ensemble, `queue_us` and `compute_us` are 0: its composing models have them.
    """

    requests: int
    failed: int
    requests_per_s: float
    rows: float
    batch_size: float
    queue_us: float
    compute_us: float
    request_us: float


def latest_entries(documents: Sequence[Mapping[str, Any]]) -> list[dict[str, Entry]]:
    """Return for each look the statistics of the versions that are the models' highest at the last one."""
    looks = [
        {(str(one["name"]), int(one["version"])): one for one in document["model_stats"]}
        for document in documents
    ]
    latest = dict(sorted(looks[-1]))
    return [
        {name: look[name, number] for name, number in latest.items() if (name, number) in look}
        for look in looks
    ]


def times_of(looks: Sequence[Entry]) -> dict[int, Times]:
    """Return the execution times of a model by batch size.

    Statistics are sums. Two looks give the mean of the executions between them, and several give the spread: where
    the means of pieces with n executions differ, a single execution varies by the square root of n as much.

    Parameters
    ----------
    looks : sequence of mapping
        The model's statistics at several times, ascending.

    Returns
    -------
    mapping of int to Times
        Sizes that were not executed meanwhile have their mean since the model was loaded.
    """
    pieces: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)
    before = _sums(looks[0])
    for look in looks[1:]:
        now = _sums(look)
        for size, (count, ns) in now.items():
            was = before.get(size, (0, 0))
            was = was if was[0] <= count and was[1] <= ns else (0, 0)  # it was loaded again
            if count > was[0]:
                pieces[size].append((count - was[0], (ns - was[1]) / (count - was[0]) / 1000))
        before = now
    found = {size: Times(count, ns / count / 1000) for size, (count, ns) in before.items() if count}
    found |= {size: _pooled(parts) for size, parts in pieces.items()}
    return {size: times for size, times in sorted(found.items()) if times.mean_us > 0}


def traffic_of(first: Entry | None, last: Entry, seconds: float) -> Traffic:
    """Return the traffic of a model between two looks at its statistics."""
    before = {"model_stats": [] if first is None else [first]}
    served = breakdown(before, {"model_stats": [last]}, str(last["name"]))
    failed = _failures(last) - (0 if first is None else _failures(first))
    if failed < 0:  # it was loaded again
        failed = _failures(last)
    if served is None:
        return Traffic(0, failed, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    requests, queue_us = served.success_count, served.queue_us
    rows = served.inference_count / requests if requests else 0.0
    times_us = queue_us, served.accounted_us - queue_us, served.request_us
    return Traffic(requests, failed, requests / seconds, rows, served.mean_batch_size, *times_us)


def _sums(entry: Entry) -> dict[int, tuple[int, int]]:
    """Return by batch size the number of executions and their nanoseconds."""
    return {
        int(batch["batch_size"]): (
            max(int(batch[phase]["count"]) for phase in _PHASES if phase in batch),
            sum(int(batch[phase]["ns"]) for phase in _PHASES if phase in batch),
        )
        for batch in entry.get("batch_stats", ())
    }


def _pooled(parts: Sequence[tuple[int, float]]) -> Times:
    count = sum(n for n, _ in parts)
    mean_us = sum(n * us for n, us in parts) / count
    if len(parts) < _LEAST_PIECES:
        return Times(count, mean_us)
    middle_us = median(us for _, us in parts)
    limit = _STALLED * median(math.sqrt(n) * abs(us - middle_us) for n, us in parts)
    calm = [(n, us) for n, us in parts if math.sqrt(n) * (us - middle_us) <= limit]
    mean_us = sum(n * us for n, us in calm) / sum(n for n, _ in calm)
    variance = sum(n * (us - mean_us) ** 2 for n, us in calm) / max(1, len(calm) - 1)
    # The executions of a piece with a stall but one took the mean.
    stalls_us = sorted(mean_us + n * (us - mean_us) for n, us in parts if (n, us) not in calm)
    return Times(count, mean_us, math.sqrt(variance), tuple(stalls_us))


def _failures(entry: Entry) -> int:
    return int(entry["inference_stats"]["fail"]["count"])


def asked_most(requests: Mapping[str, int], ensembles: Mapping[str, Sequence[str]]) -> str:
    """Return the model to which clients sent most requests.

    Parameters
    ----------
    requests : mapping of str to int
        By model; those of a step include what its ensembles sent, with requests that these have not answered yet.
    ensembles : mapping of str to sequence of str
        The models of the steps of each ensemble.
    """
    own = Counter(requests)
    for name, steps in ensembles.items():
        for step in steps:
            own[step] -= requests[name]
    return max(requests, key=lambda name: own[name])
