"""Pure functions from measured times to the numbers of a profile."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Time = TypeVar("Time", int, float)
Numbers = Sequence[int] | npt.NDArray[np.float64]

# Number of quantiles that describe a distribution of times.
_PARTS = 100


def mean(values: Sequence[float]) -> float:
    """Return the mean, 0 for an empty sequence."""
    return fmean(values) if values else 0.0


def upper_median(values: Sequence[float]) -> float:
    """Return the upper median, 0 for an empty sequence."""
    return sorted(values)[len(values) // 2] if values else 0.0


def trimmed(values: Sequence[float]) -> list[float]:
    """Return the values without the highest hundredth, the effect of other programs."""
    ordered = sorted(values)
    return ordered[: max(1, len(ordered) - len(ordered) // 100)]


def without_stalls(values: Sequence[Time]) -> tuple[list[Time], list[Time]]:
    """Return the values, and those that were left out: the highest tenth, where they exceed twice the median.

    A thread that has lost its core to another program waits for it for milliseconds, which adds to the few
    executions of a profile what it does not add to the thousands of a load.
    """
    ordered = sorted(values)
    limit = 2 * upper_median(ordered)
    keep = max(bisect_right(ordered, limit), len(ordered) - max(1, len(ordered) // 10))
    return ordered[:keep], ordered[keep:]


def standard_error(values: Sequence[int]) -> float:
    """Return the standard error of a mean."""
    return stdev(values) / math.sqrt(len(values))


def relative_losses(
    plain: Sequence[int], crowded: Sequence[int], gather_ns: float
) -> tuple[float, ...]:
    """Return the losses under contention by quantile, as factors of the mean loss.

    A plain time plus the loss of the same quantile has the distribution of the crowded times.
    """
    lost = added_quantiles(crowded, np.asarray(plain) + gather_ns)
    usual = fmean(lost)
    if not usual:
        return (1.0,)
    return tuple(round(each / usual, 3) for each in lost)


def added_quantiles(times: Numbers, plain: Numbers) -> tuple[float, ...]:
    """Return the differences between the quantiles of times and of plain times, not below 0.

    A plain time plus the difference of the same quantile has the distribution of the times.
    """
    shares = (np.arange(_PARTS) + 0.5) / _PARTS
    adds = np.maximum(np.quantile(times, shares) - np.quantile(plain, shares), 0.0)
    return tuple(float(each) for each in adds)


def fitted_line(gaps: Mapping[int, Sequence[int]]) -> tuple[float, float]:
    """Return the slope and the intercept of a line through the gaps by number of requests."""
    points = [(count, upper_median(gaps_ns), len(gaps_ns)) for count, gaps_ns in gaps.items()]
    weight = sum(each for _, _, each in points)
    if not weight:
        return 0.0, 0.0
    x = sum(count * each for count, _, each in points) / weight
    y = sum(gap * each for _, gap, each in points) / weight
    spread = sum((count - x) ** 2 * each for count, _, each in points)
    if not spread:
        return y / (x + 1), y / (x + 1)
    slope = sum((count - x) * (gap - y) * each for count, gap, each in points) / spread
    slope = min(max(slope, 0.0), y / x)
    return slope, y - slope * x
