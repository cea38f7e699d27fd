"""The slowest requests beside those around the median."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nbtriton.drawing import measure
from nbtriton.engine import RequestRecord

__all__ = ["SlowRequests", "compare_slowest", "time_text"]

# Fewer requests have no slowest hundredth.
_FEWEST = 20


@dataclass(frozen=True, slots=True)
class SlowRequests:
    """The slowest hundredth of the requests, at least one, beside the fifth around the median.

    Attributes
    ----------
    count : int
        How many are slow.
    median_us, slow_us : mapping of str to float
        Mean microseconds by part, of those around the median and of the slow ones; parts add up.
    examples : tuple of RequestRecord
        The three slowest.
    """

    count: int
    median_us: Mapping[str, float]
    slow_us: Mapping[str, float]
    examples: tuple[RequestRecord, ...]

    @property
    def more_us(self) -> dict[str, float]:
        """By how much each part is longer in the slow ones, the longest first."""
        found = {part: us - self.median_us.get(part, 0.0) for part, us in self.slow_us.items()}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def sentence(self) -> str:
        """The part that makes the slow ones slow."""
        median, slow = sum(self.median_us.values()), sum(self.slow_us.values())
        more = slow - median
        part, us = next(iter(self.more_us.items()))
        took = "request" if self.count == 1 else "requests"
        said = (
            f"the slowest 1% ({self.count} {took}) took {time_text(slow)}, "
            f"a median one {time_text(median)}: "
        )
        # Where another part is shorter, one alone can be longer by more than the whole.
        if us > more:
            return f"{said}{part} alone is {time_text(us)} longer"
        return f"{said}of the {time_text(more)} more, {time_text(us)} are {part}"


def compare_slowest(
    requests: Sequence[RequestRecord], parts: Callable[[RequestRecord], Mapping[str, int]]
) -> SlowRequests | None:
    """Compare them; None where there are too few requests.

    Parameters
    ----------
    requests : sequence of RequestRecord
        Without those that failed.
    parts : callable
        Returns the nanoseconds of a request by part.
    """
    if len(requests) < _FEWEST:
        return None
    ordered = sorted(requests, key=lambda request: request.answered_ns - request.arrival_ns)
    count = max(1, len(ordered) // 100)
    slow = ordered[-count:]
    middle = ordered[int(len(ordered) * 0.4) : max(int(len(ordered) * 0.6), 1)]
    return SlowRequests(count, _means(middle, parts), _means(slow, parts), tuple(ordered[:-4:-1]))


def _means(
    requests: Sequence[RequestRecord], parts: Callable[[RequestRecord], Mapping[str, int]]
) -> dict[str, float]:
    sums: dict[str, int] = {}
    for request in requests:
        for part, ns in parts(request).items():
            sums[part] = sums.get(part, 0) + ns
    return {part: ns / len(requests) / 1e3 for part, ns in sums.items()}


def time_text(us: float) -> str:
    """Write microseconds, from 1000 on as milliseconds."""
    return f"{measure(us / 1e3)} ms" if abs(us) >= 1000 else f"{measure(us)} us"
