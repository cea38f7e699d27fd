"""When instances are added and removed, in virtual time."""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtriton.drawing.numbers import percentile
from nbtriton.extensions.autoscale.policy import Change, Look, Policy, mean_work

POLICY = Policy(1, 8, 20.0)
BEGIN = Change(0.0, 1, 1)
TICK_S = 0.005


def scaled(
    policy: Policy, rate: Callable[[float], float], service_s: float, until_s: float, seed: int
) -> tuple[list[Change], list[Look]]:
    """Run one queue for the instances that the policy wants; requests come at random by a rate."""
    chance = random.Random(seed)
    changes, looks = [Change(0.0, policy.least, policy.least)], []
    recent: deque[Look] = deque(maxlen=16)
    queue: deque[float] = deque()
    ends: list[float] = []  # of what executes
    answered: deque[tuple[float, float, float]] = deque()  # arrival, latency, wait
    count, worked_s, next_s, look_s = policy.least, 0.0, 0.0, policy.look_s
    for step in range(round(until_s / TICK_S)):
        now = step * TICK_S
        while next_s <= now:
            queue.append(next_s)
            next_s += chance.expovariate(rate(now)) if rate(now) else until_s
        ends = [end for end in ends if end > now]
        while queue and len(ends) < count:
            came = queue.popleft()
            ends.append(now + service_s)
            answered.append((came, now + service_s - came, now - came))
        worked_s += len(ends) * TICK_S
        if now < look_s:
            continue
        look_s += policy.look_s
        since = max(now - policy.window_s, changes[-1].at_s)
        while answered and answered[0][0] < since:
            answered.popleft()
        done = [one for one in answered if sum(one[:2]) <= now]
        late = [(now - came, now - came) for came in (max(since, one) for one in queue)]
        found = [one[1:] for one in done] + [one for one in late if one[0] * 1000 > policy.limit_ms]
        times = [percentile(sorted(column), 99) * 1000 for column in zip(*found, strict=True)] or [
            None,
            None,
        ]
        look = Look(now, count, worked_s / policy.look_s, *times)
        worked_s = 0.0
        recent.append(look)
        looks.append(look)
        wanted, _ = policy.decide(recent, changes)
        if wanted != count:
            changes.append(Change(now, count, wanted, mean_work(recent)))
            count = wanted
    return changes, looks


def turns(changes: list[Change]) -> int:
    """How often instances were added after some had been removed, or removed after some had been added."""
    signs = [one.after > one.before for one in changes if one.after != one.before]
    return sum(one != other for one, other in itertools.pairwise(signs))


NUMBERS = st.none() | st.floats(0, 1000) | st.just(float("inf"))


@pytest.mark.medium
@given(
    st.lists(st.tuples(st.integers(0, 12), st.floats(0, 12), NUMBERS, NUMBERS), min_size=1, max_size=16),
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12), st.floats(0, 12)), max_size=4),
    st.integers(1, 4), st.integers(0, 4),
)  # fmt: skip
def test_it_stays_in_its_bounds_and_gives_a_reason(looks, changes, least, more):
    policy = Policy(least, least + more, 20.0)
    made = [Look(float(at), *one) for at, one in enumerate(looks)]
    told = [BEGIN, *(Change(float(at), *one) for at, one in enumerate(changes))]
    count, reason = policy.decide(made, told)
    assert policy.least <= count <= policy.most
    assert reason
    assert count <= max(2 * made[-1].instances, made[-1].instances + 1, policy.least)
    assert (count, reason) == policy.decide(made, told)


@pytest.mark.slow
@pytest.mark.parametrize("service_s", [0.02, 0.1])
@pytest.mark.parametrize("work", [0.2, 0.5, 0.9, 3.0])
def test_a_constant_load_settles(work, service_s):
    """One overshoot may be taken back and may turn out to be needed: two turns in five minutes, and no more."""
    for times, seed in ((1.5, 1), (1.5, 2), (3.0, 1)):
        policy = Policy(1, 8, 1000 * service_s * times)
        changes, looks = scaled(policy, lambda _: work / service_s, service_s, 300.0, seed)
        assert turns(changes) <= 2, changes
        settled = [look.p99_ms or 0.0 for look in looks if look.at_s > 60]
        assert sum(one <= policy.limit_ms for one in settled) >= 0.9 * len(settled)


@pytest.mark.medium
def test_it_follows_a_load_up_and_down():
    changes, _ = scaled(
        Policy(1, 8, 60.0), lambda at: 150.0 if 30 < at < 90 else 10.0, 0.02, 200.0, 1
    )
    loaded = [one for one in changes if 30 < one.at_s < 90]
    assert loaded[0].at_s < 35
    assert max(one.after for one in loaded) >= 4
    assert changes[-1].after <= 2
    (first, *_) = [one for one in changes if one.at_s > 90]
    assert first.at_s > 90 + 10  # not at the first quiet second


def test_executions_that_are_too_long_add_nothing():
    reason = "p99 is 100 ms, over 20.0 ms, but not by waiting for an instance: more would not help"
    assert POLICY.decide([Look(9.0, 1, 1.0, 100.0, 2.0)], [BEGIN]) == (1, reason)


@pytest.mark.parametrize(
    ("look", "count", "reason"),
    [
        (Look(9.0, 2, 2.0, 22.0, 9.0), 3, "p99 is 22.0 ms, over 20.0 ms by waiting for an instance"),
        (Look(9.0, 3, 3.0, 200.0, 190.0), 6, "p99 is 200 ms, over 20.0 ms by waiting for an instance"),
        (Look(9.0, 6, 6.0, 200.0, 190.0), 8, "p99 is 200 ms, over 20.0 ms by waiting for an instance"),
        (Look(9.0, 8, 8.0, 200.0, 190.0), 8, "p99 is 200 ms, over 20.0 ms with the most instances that are allowed"),
        (Look(2.0, 2, 2.0, 200.0, 190.0), 2, "p99 is 200 ms, over 20.0 ms, soon after a change"),
        (Look(9.0, 2, 2.0, math.inf, math.inf), 4, "more than 1% of requests are refused or time out by waiting for an instance"),
        (Look(9.0, 9, 0.0), 8, "9 is not between 1 and 8"),
        (Look(15.0, 8, 1.6, 10.0, 0.0), 4, "at most 1.6 of 8 were busy in 15.0 s"),
        (Look(14.0, 8, 1.6, 10.0, 0.0), 8, "at most 1.6 of 8 were busy"),
        (Look(15.0, 3, 1.6, 10.0, 0.0), 3, "at most 1.6 of 3 were busy"),
    ],
)  # fmt: skip
def test_what_is_decided_and_said(look, count, reason):
    assert POLICY.decide([look], [BEGIN]) == (count, reason)


def test_a_number_that_was_too_small_is_tried_again_with_half_the_work_only():
    grown = Change(0.0, 2, 4, 1.0)
    for work, count in ((0.9, 3), (0.4, 2)):
        assert POLICY.decide([Look(20.0, 4, work, 10.0, 0.0)], [BEGIN, grown])[0] == count
