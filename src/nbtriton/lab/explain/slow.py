"""The slowest requests compared with those around the median."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nbtriton.drawing import measure
from nbtriton.runtime.engine import RequestRecord

# The least number of requests with a slowest hundredth.
_FEWEST = 20


@dataclass(frozen=True, slots=True)
class SlowRequests:
    """The slowest hundredth of the requests, at least one, compared with the fifth around the median.

    Attributes
    ----------
    count : int
        Number of slow requests.
    median_us, slow_us : mapping of str to float
        Mean microseconds by part, around the median and of the slow requests; the sum is the latency.
    examples : tuple of RequestRecord
        The three slowest.
    """

    count: int
    median_us: Mapping[str, float]
    slow_us: Mapping[str, float]
    examples: tuple[RequestRecord, ...]

    @property
    def more_us(self) -> dict[str, float]:
        """The difference between slow and median requests by part, the largest first."""
        differences = {
            part: us - self.median_us.get(part, 0.0) for part, us in self.slow_us.items()
        }
        return dict(sorted(differences.items(), key=lambda item: -item[1]))

    @property
    def sentence(self) -> str:
        """The part with the largest difference."""
        median, slow = sum(self.median_us.values()), sum(self.slow_us.values())
        more = slow - median
        part, us = next(iter(self.more_us.items()))
        noun = "request" if self.count == 1 else "requests"
        text = (
            f"the slowest 1% ({self.count} {noun}) took {time_text(slow)}, "
            f"a median one {time_text(median)}: "
        )
        # Where another part is shorter, a single part may exceed the whole difference.
        if us > more:
            return f"{text}{part} alone is {time_text(us)} longer"
        return f"{text}of the {time_text(more)} more, {time_text(us)} are {part}"


def compare_slowest(
    requests: Sequence[RequestRecord], parts: Callable[[RequestRecord], Mapping[str, int]]
) -> SlowRequests | None:
    """Compare the slowest requests with the median; return None for too few requests.

    Parameters
    ----------
    requests : sequence of RequestRecord
        Without failed ones.
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
    """Format microseconds, from 1000 on as milliseconds."""
    return f"{measure(us / 1e3)} ms" if abs(us) >= 1000 else f"{measure(us)} us"
