"""From measured times to the numbers of a profile: pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

import numpy as np
import numpy.typing as npt

__all__ = [
    "added_quantiles",
    "fitted_line",
    "mean",
    "relative_losses",
    "standard_error",
    "trimmed",
    "upper_median",
]

Numbers = Sequence[int] | npt.NDArray[np.float64]

# Number of quantiles that describe a distribution of times.
_PARTS = 100


def mean(values: Sequence[float]) -> float:
    """Return the mean, 0 of nothing."""
    return fmean(values) if values else 0.0


def upper_median(values: Sequence[float]) -> float:
    """Return the upper median, 0 of nothing."""
    return sorted(values)[len(values) // 2] if values else 0.0


def trimmed(values: Sequence[float]) -> list[float]:
    """Leave out the highest hundredth: what other programs of the machine did."""
    ordered = sorted(values)
    return ordered[: max(1, len(ordered) - len(ordered) // 100)]


def standard_error(values: Sequence[int]) -> float:
    """Return the standard error of a mean."""
    return stdev(values) / math.sqrt(len(values))


def relative_losses(
    plain: Sequence[int], crowded: Sequence[int], gather_ns: float
) -> tuple[float, ...]:
    """Return the losses of crowded times against plain ones, by quantile, as factors of the mean loss.

    A plain time plus the loss of the same quantile then has the distribution of the crowded times.
    """
    lost = added_quantiles(crowded, np.asarray(plain) + gather_ns)
    usual = fmean(lost)
    if not usual:
        return (1.0,)
    return tuple(round(each / usual, 3) for each in lost)


def added_quantiles(times: Numbers, plain: Numbers) -> tuple[float, ...]:
    """Return the differences between the quantiles of times and of plain times: equally likely, not below 0.

    A plain time plus the difference of the same quantile then has the distribution of the times.
    """
    at = (np.arange(_PARTS) + 0.5) / _PARTS
    adds = np.maximum(np.quantile(times, at) - np.quantile(plain, at), 0.0)
    return tuple(float(each) for each in adds)


def fitted_line(gaps: Mapping[int, Sequence[int]]) -> tuple[float, float]:
    """Return the slope and the height of a line through gaps by their number of requests."""
    points = [(count, upper_median(found), len(found)) for count, found in gaps.items()]
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
