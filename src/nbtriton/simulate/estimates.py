"""From measured times to the numbers of a profile: pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

import numpy as np
import numpy.typing as npt

__all__ = ["error", "line", "longer", "mean", "middle", "trimmed", "uneven"]

Numbers = Sequence[int] | npt.NDArray[np.float64]

# So many values say how times are distributed.
_PARTS = 100


def mean(values: Sequence[float]) -> float:
    """Return the mean, 0 of nothing."""
    return fmean(values) if values else 0.0


def middle(values: Sequence[float]) -> float:
    """Return the upper median, 0 of nothing."""
    return sorted(values)[len(values) // 2] if values else 0.0


def trimmed(values: Sequence[float]) -> list[float]:
    """Leave out the highest hundredth: what other programs of the machine did."""
    ordered = sorted(values)
    return ordered[: max(1, len(ordered) - len(ordered) // 100)]


def error(values: Sequence[int]) -> float:
    """Return the standard error of a mean."""
    return stdev(values) / math.sqrt(len(values))


def uneven(plain: Sequence[int], crowded: Sequence[int], gather_ns: float) -> tuple[float, ...]:
    """Return by what factors of the mean the crowded ones lost against the plain ones, by quantile.

    A plain time and what it loses, of one chance, then have the distribution of the crowded times.
    """
    lost = longer(crowded, np.asarray(plain) + gather_ns)
    usual = fmean(lost)
    if not usual:
        return (1.0,)
    return tuple(round(each / usual, 3) for each in lost)


def longer(times: Numbers, plain: Numbers) -> tuple[float, ...]:
    """Return by how much times exceed plain ones, from quantile to quantile: equally likely, not below 0.

    A plain time and what is added to it, of one chance, then have the distribution of the times.
    """
    at = (np.arange(_PARTS) + 0.5) / _PARTS
    adds = np.maximum(np.quantile(times, at) - np.quantile(plain, at), 0.0)
    return tuple(float(each) for each in adds)


def line(gaps: Mapping[int, Sequence[int]]) -> tuple[float, float]:
    """Return the slope and the height of a line through gaps by their number of requests."""
    points = [(count, middle(found), len(found)) for count, found in gaps.items()]
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
