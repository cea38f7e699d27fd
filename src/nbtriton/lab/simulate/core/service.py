"""Service times: drawn from a profile's measurements, interpolated and extrapolated."""

from __future__ import annotations

from random import Random

# Levels of contention are rounded to a quarter of an execution.
_PARTS = 4


class ServiceTimes:
    """Execution times of a model by rows and by number of concurrent executions.

    Parameters
    ----------
    rows : list of int
        Measured batch sizes, ascending.
    levels : list of int
        Measured numbers of concurrent executions, ascending, from 1.
    quantiles : list of list of list of float
        By level and size: equally likely execution times in nanoseconds, ascending, of equal number
        everywhere.
    gather_ns : float
        Additional time of each further request of a batch, apart from its rows.
    idle_ns : list of (float, list of float)
        Idle times of an instance, ascending, with the equally likely additions to the next execution, of
        equal number everywhere.
    between_stalls_ns, stalls_ns : float, list of float
        Execution time between two stalls, and the equally likely times that they add.
    """

    __slots__ = (
        "_between_stalls_ns", "_drawn", "_gather_ns", "_idle_ns", "_levels", "_means", "_quantiles", "_rows", "_stalls_ns",
    )  # fmt: skip

    def __init__(
        self,
        rows: list[int],
        levels: list[int],
        quantiles: list[list[list[float]]],
        gather_ns: float = 0.0,
        idle_ns: list[tuple[float, list[float]]] | None = None,
        between_stalls_ns: float = 0.0,
        stalls_ns: list[float] | None = None,
    ) -> None:
        self._rows = rows
        self._levels = levels
        self._quantiles = quantiles
        self._gather_ns = gather_ns
        self._idle_ns = idle_ns or []
        self._between_stalls_ns = between_stalls_ns
        self._stalls_ns = stalls_ns or []
        self._drawn: dict[int, list[float]] = {}
        self._means: dict[int, float] = {}

    def draw(self, rows: int, requests: int, level: float, chance: float) -> int:
        """Return an execution time; ``chance`` in [0, 1) selects the quantile."""
        values = self._of(rows, int(level * _PARTS + 0.5))
        value = values[int(chance * len(values))]
        if requests > 1:
            value += self._gather_ns * (requests - 1)
        return int(value)

    def after_idle(self, idle_ns: int, chance: float) -> int:
        """Return the addition to an execution after an idle time; ``chance`` as for `draw`."""
        below, added = 0.0, 0.0
        for measured, values in self._idle_ns:
            adds = values[int(chance * len(values))]
            if idle_ns < measured:
                return int(added + (adds - added) * (idle_ns - below) / (measured - below))
            below, added = measured, adds
        return int(added)

    def stall(self, execution_ns: int, random: Random) -> int:
        """Return what a stall adds to an execution, mostly 0."""
        stalls = self._stalls_ns
        if not stalls or random.random() * self._between_stalls_ns >= execution_ns:
            return 0
        return int(stalls[int(random.random() * len(stalls))])

    def mean(self, rows: int, level: float) -> float:
        """Return the mean execution time of one request with this number of rows."""
        part = int(level * _PARTS + 0.5)
        key = rows << 16 | part
        found = self._means.get(key, -1.0)
        if found < 0:
            values = self._of(rows, part)
            found = self._means[key] = sum(values) / len(values)
        return found

    def _of(self, rows: int, part: int) -> list[float]:
        key = rows << 16 | part
        values = self._drawn.get(key)
        if values is None:
            values = self._drawn[key] = self._between_levels(rows, part / _PARTS)
        return values

    def _between_levels(self, rows: int, level: float) -> list[float]:
        levels = self._levels
        index = _below([float(each) for each in levels], level)
        low = self._between_rows(self._quantiles[index], rows)
        if index + 1 == len(levels):
            return low
        high = self._between_rows(self._quantiles[index + 1], rows)
        return _mixed(low, high, (level - levels[index]) / (levels[index + 1] - levels[index]))

    def _between_rows(self, quantiles: list[list[float]], rows: int) -> list[float]:
        sizes = self._rows
        index = _below([float(each) for each in sizes], float(rows))
        if index + 1 == len(sizes):
            return quantiles[index]
        share = (rows - sizes[index]) / (sizes[index + 1] - sizes[index])
        return _mixed(quantiles[index], quantiles[index + 1], share)


def _below(points: list[float], value: float) -> int:
    """Return the index of the interval's lower end; beyond the ends, of the last interval."""
    index = 0
    while index + 2 < len(points) and points[index + 1] <= value:
        index += 1
    return index


def _mixed(low: list[float], high: list[float], share: float) -> list[float]:
    """Interpolate between two lists of quantiles; extrapolate beyond shares of [0, 1], not below 0."""
    return [max(1.0, a + (b - a) * share) for a, b in zip(low, high, strict=False)]
