"""How many instances a model is to have: a pure function of what was seen and of what was changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nbtriton.drawing.numbers import measure

# The numbers follow from what a mistake costs. Too few instances cost each client its time, so that one is added as soon
# as the latest requests show it; too many cost memory, so that they go late and by halves.
#
# More instances shorten the wait for an instance and nothing else. A p99 of which less than a fifth is that wait would
# stay where it is, and is no reason to add any.
_WAITS = 0.2
# A p99 of ten times the limit says that a queue has formed, not that ten times the instances are needed: at most double.
_MOST_AT_ONCE = 2.0
# The instances that stay are to be busy for at most half of their time. A model whose instances had been added for a queue
# is busier than that with the number before (all of its time), so that a constant load does not take them away again.
_BUSY = 0.5
# Short or bursty requests may wait although instances are busy for less than half of their time. Then what remains is
# what was learnt: a number that was too small is not tried again before there is half the work. At two requests a second
# chance alone takes a third of the work from one stretch of 15 s in twenty, and half of it from one in two hundred.
_LESS_WORK = 0.5


class Look(NamedTuple):
    """What was seen of a model at one moment.

    Attributes
    ----------
    at_s : float
    instances : int
    work : float
        Mean number of instances that executed since the look before.
    p99_ms, wait_ms : float or None
        Of the latest requests that came after the last change: their latency, and how long they waited for an instance
        beyond the configured delay. None without such requests, infinite if they were refused or timed out in the queue.
    """

    at_s: float
    instances: int
    work: float
    p99_ms: float | None = None
    wait_ms: float | None = None


class Change(NamedTuple):
    """A change of the number of instances, with the `mean_work` and the latest look; the first is the begin and changes nothing."""

    at_s: float
    before: int
    after: int
    work: float = 0.0
    p99_ms: float | None = None
    wait_ms: float | None = None
    reason: str = "begun"


@dataclass(frozen=True, slots=True)
class Policy:
    """Decides on the number of instances.

    Parameters
    ----------
    least, most : int
    limit_ms : float
        For the p99 latency.
    look_s : float
        Between two looks.
    settle_s : float
        After a change, until instances are added: a second for the queue to go, two for requests without it.
    window_s : float
        The oldest requests that count. At 10 requests a second these are 100, the fewest that have a 99th percentile.
    rest_s : float
        Until instances are removed, after a change and without more work: longer than the window, so that a gap between
        two bursts is no rest.
    """

    least: int
    most: int
    limit_ms: float
    look_s: float = 1.0
    settle_s: float = 3.0
    window_s: float = 10.0
    rest_s: float = 15.0

    def decide(self, looks: Sequence[Look], changes: Sequence[Change]) -> tuple[int, str]:
        """Return the number of instances to have now, and why.

        Parameters
        ----------
        looks, changes : sequence
            Oldest first; at least one each.
        """
        now, last = looks[-1], changes[-1]
        count, age_s = now.instances, now.at_s - last.at_s
        if not self.least <= count <= self.most:
            wanted = min(max(count, self.least), self.most)
            return wanted, f"{count} is not between {self.least} and {self.most}"
        p99_ms, wait_ms = now.p99_ms or 0.0, now.wait_ms or 0.0
        late = f"p99 is {measure(p99_ms)} ms, over {measure(self.limit_ms)} ms"
        if math.isinf(p99_ms):
            late = "more than 1% of requests are refused or time out"
        if p99_ms > self.limit_ms and wait_ms >= _WAITS * p99_ms:
            if count == self.most:
                return count, f"{late} with the most instances that are allowed"
            if age_s < self.settle_s:
                return count, f"{late}, soon after a change"
            more = math.ceil(count * min(_MOST_AT_ONCE, p99_ms / self.limit_ms))
            return min(self.most, max(count + 1, more)), f"{late} by waiting for an instance"
        since_s = max(last.at_s, now.at_s - self.rest_s)
        busiest = max((look.work for look in looks if look.at_s > since_s), default=now.work)
        seen = f"at most {measure(busiest, 2)} of {count} were busy"
        if age_s >= self.rest_s:
            few = max(math.ceil(busiest / _BUSY), _floor(changes, mean_work(looks)))
            fewer = max(self.least, count // 2, few)
            if fewer < count:
                return fewer, f"{seen} in {measure(self.rest_s)} s"
        if p99_ms > self.limit_ms:
            return count, f"{late}, but not by waiting for an instance: more would not help"
        return count, seen


def mean_work(looks: Sequence[Look]) -> float:
    """Return the mean work of the latest looks."""
    return sum(look.work for look in looks) / len(looks)


def _floor(changes: Sequence[Change], work: float) -> int:
    """Return the fewest instances that have not been too few for this work."""
    grown = next((one for one in reversed(changes) if one.after > one.before), None)
    return 0 if grown is None or work <= _LESS_WORK * grown.work else grown.before + 1
