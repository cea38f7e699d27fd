"""Ratios of paired measurements, with confidence intervals. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Student's t for a two-sided interval of 95%, by degrees of freedom; beyond 30 the next lower row.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_T95_BEYOND = ((120, 1.980), (60, 2.000), (40, 2.021), (31, 2.042))


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """The ratio of the second of a pair to the first, over all rounds.

    Parameters
    ----------
    ratio : float
        Geometric mean of the rounds' ratios; nan without a round.
    low, high : float
        Its 95% confidence interval; 0 and infinity below two rounds.
    rounds : int
    """

    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def differs(self) -> bool:
        """Whether 1, no difference, is outside of the interval."""
        return self.low > 1 or self.high < 1

    def __str__(self) -> str:
        if math.isnan(self.ratio):
            return "\u2013"
        if self.rounds < 2:
            return f"{self.ratio:.2f}x (one round)"
        return f"{self.ratio:.2f}x ({self.low:.2f} to {self.high:.2f})"


def paired_ratio(first: Sequence[float], second: Sequence[float]) -> PairedRatio:
    """Compare two measurements of the same rounds.

    The interval is Student's for the mean of the ratios' logarithms, taken as normal. A drift of the machine
    between rounds cancels out, as it affects both measurements. Rounds with a value that is not positive are
    left out.

    Examples
    --------
    >>> str(paired_ratio([100, 200, 150], [110, 222, 163]))
    '1.10x (1.07 to 1.13)'
    """
    logs = [
        math.log(b / a)
        for a, b in zip(first, second, strict=True)
        if 0 < a < math.inf and 0 < b < math.inf
    ]
    if not logs:
        return PairedRatio(math.nan, 0.0, math.inf, 0)
    middle = statistics.fmean(logs)
    if len(logs) == 1:
        return PairedRatio(math.exp(middle), 0.0, math.inf, 1)
    half = _t95(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return PairedRatio(
        math.exp(middle), math.exp(middle - half), math.exp(middle + half), len(logs)
    )


def _t95(degrees: int) -> float:
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    return next(value for least, value in _T95_BEYOND if degrees >= least)
