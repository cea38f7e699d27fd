"""Service times: drawn from what a profile measured, between and beyond the measured points."""

from __future__ import annotations

__all__ = ["ServiceTimes"]

# Levels of contention are distinguished to a quarter of an execution.
_PARTS = 4


class ServiceTimes:
    """Execution times of a model by rows and by how many executions run at once.

    Parameters
    ----------
    rows : list of int
        Measured batch sizes, ascending.
    levels : list of int
        Measured numbers of executions at once, ascending, from 1.
    quantiles : list of list of list of float
        By level and size: equally likely execution times in nanoseconds, ascending, the same number
        everywhere.
    gather_ns : float
        What each further request of a batch adds, beside its rows.
    idle_ns : list of (float, list of float)
        Idle times of an instance, ascending, and what each adds to the execution after it: equally
        likely, the same number everywhere.
    """

    __slots__ = ("_drawn", "_gather_ns", "_idle_ns", "_levels", "_means", "_quantiles", "_rows")

    def __init__(
        self,
        rows: list[int],
        levels: list[int],
        quantiles: list[list[list[float]]],
        gather_ns: float = 0.0,
        idle_ns: list[tuple[float, list[float]]] | None = None,
    ) -> None:
        self._rows = rows
        self._levels = levels
        self._quantiles = quantiles
        self._gather_ns = gather_ns
        self._idle_ns = idle_ns or []
        self._drawn: dict[int, list[float]] = {}
        self._means: dict[int, float] = {}

    def draw(self, rows: int, requests: int, level: float, chance: float) -> int:
        """Return an execution time; ``chance`` in [0, 1) says which of the equally likely ones."""
        values = self._of(rows, int(level * _PARTS + 0.5))
        value = values[int(chance * len(values))]
        if requests > 1:
            value += self._gather_ns * (requests - 1)
        return int(value)

    def after_idle(self, idle_ns: int, chance: float) -> int:
        """Return what an execution takes longer after so long an idle time; ``chance`` as for `draw`."""
        below, added = 0.0, 0.0
        for measured, values in self._idle_ns:
            adds = values[int(chance * len(values))]
            if idle_ns < measured:
                return int(added + (adds - added) * (idle_ns - below) / (measured - below))
            below, added = measured, adds
        return int(added)

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
        at = _below([float(each) for each in levels], level)
        low = self._between_rows(self._quantiles[at], rows)
        if at + 1 == len(levels):
            return low
        high = self._between_rows(self._quantiles[at + 1], rows)
        return _mixed(low, high, (level - levels[at]) / (levels[at + 1] - levels[at]))

    def _between_rows(self, quantiles: list[list[float]], rows: int) -> list[float]:
        sizes = self._rows
        at = _below([float(each) for each in sizes], float(rows))
        if at + 1 == len(sizes):
            return quantiles[at]
        share = (rows - sizes[at]) / (sizes[at + 1] - sizes[at])
        return _mixed(quantiles[at], quantiles[at + 1], share)


def _below(points: list[float], value: float) -> int:
    """Return the point at the lower end of the interval for a value; beyond the ends, the last one."""
    at = 0
    while at + 2 < len(points) and points[at + 1] <= value:
        at += 1
    return at


def _mixed(low: list[float], high: list[float], share: float) -> list[float]:
    """Mix two lists of quantiles; a share outside [0, 1] goes on in a straight line, above 0."""
    return [max(1.0, a + (b - a) * share) for a, b in zip(low, high, strict=False)]
