"""Queue policies, timeouts and priorities rule by rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nbtriton.scheduling import Batcher, QueuePolicy, Ticket, TicketState
from nbtriton.scheduling.queueing import PriorityQueue
from tests.scheduling.simulator import Simulator, delay, reject, settings

MS = 1_000_000


def test_Q1_each_level_has_its_own_policy_or_the_default():
    sim = Simulator(
        settings(8, levels=3, policy=reject(10), policies={1: reject(30), 2: QueuePolicy()})
    )
    sim.occupy(100)
    for level in (1, 2, 3):
        sim.arrive(0, name=str(level), priority=level)
    sim.run()
    assert [rejection[:2] for rejection in sim.rejections] == [(10, "3"), (30, "1")]
    assert sim.names == ["2"]


def test_Q1_without_levels_the_default_policy_applies():
    """An entry of priority_queue_policy has no effect without levels."""
    sim = Simulator(settings(8, policy=reject(10), policies={0: reject(50)}))
    sim.occupy(100)
    sim.arrive(0, name="a")
    sim.run()
    assert sim.rejections == [(10, "a", "UNAVAILABLE", "timeout")]


def test_Q2_a_higher_level_is_served_first_and_a_batch_may_span_levels():
    sim = Simulator(settings(8, levels=3))
    sim.occupy(100)
    for at, (name, level) in enumerate([("e", 3), ("c", 2), ("a", 1), ("d", 3), ("b", 1)]):
        sim.arrive(at, 4, name=name, priority=level)
    assert sim.run().names == ["ab", "ce", "d"]


def test_Q3_a_higher_priority_restarts_the_scan():
    """Requests that wait for the delay go behind the new one; only four fit."""
    sim = Simulator(settings(4, delay_ms=100, levels=2))
    sim.arrive(0, 2, name="b", priority=2)
    sim.arrive(1, 1, name="c", priority=2)
    sim.arrive(50, 2, name="a", priority=1)
    sim.run()
    assert sim.names == ["ab", "c"]
    assert sim.times == [50, 101]


@pytest.mark.parametrize("levels", [0, 2])
def test_Q4_the_queue_size_counts_queued_requests(levels):
    sim = Simulator(settings(8, levels=levels, policy=reject(size=2)), service_ms=10)
    sim.occupy(100)
    for name in "abc":
        sim.arrive(1, name=name, priority=1 if levels else 0)
    sim.arrive(101, name="d", priority=1 if levels else 0)
    sim.run()
    assert sim.rejections == [(1, "c", "UNAVAILABLE", "queue_full")]
    assert sim.rejected[0][1].message == "Exceeds maximum queue size"
    assert sim.names == ["ab", "d"]  # running requests do not count


def test_Q4_each_level_has_its_own_size():
    sim = Simulator(settings(8, levels=2, policies={1: reject(size=1)}))
    sim.occupy(100)
    for name, level in (("x", 2), ("y", 2), ("a", 1), ("b", 1)):
        sim.arrive(1, name=name, priority=level)
    sim.run()
    assert [rejection[1] for rejection in sim.rejections] == ["b"]
    assert sim.names == ["axy"]


def test_Q4_delayed_requests_count():
    sim = Simulator(settings(8, policy=delay(10, size=1)))
    sim.occupy(100)
    sim.arrive(0, name="a")
    sim.arrive(50, name="b")
    sim.run()
    assert [rejection[1:] for rejection in sim.rejections] == [("b", "UNAVAILABLE", "queue_full")]
    assert sim.names == ["a"]


def test_Q4_requests_that_wait_for_the_delay_count():
    sim = Simulator(settings(8, delay_ms=100, policy=reject(size=1)))
    sim.arrive(0, name="a")
    sim.arrive(50, name="b")
    sim.run()
    assert [rejection[1] for rejection in sim.rejections] == ["b"]
    assert sim.names == ["a"]


def test_Q4_an_expired_request_makes_room_for_a_new_one():
    """At the time of the timeout, and with a late timer."""
    for late in (0, 5 * MS):
        batcher = Batcher(settings(8, policy=reject(10, size=1)), 1)
        batcher.submit(0, Ticket(8))
        old, new = Ticket(), Ticket()
        batcher.submit(0, old)
        (rejection,) = batcher.submit(10 * MS + late, new)
        assert rejection.ticket is old
        assert rejection.reason == "timeout"
        assert new.state is TicketState.QUEUED


@pytest.mark.parametrize(
    ("default_ms", "override", "requested_ms", "rejected_at"),
    [
        pytest.param(50, True, 20, 20, id="shorter"),
        pytest.param(50, True, 80, 50, id="longer-is-ignored"),
        pytest.param(50, True, 0, 50, id="none"),
        pytest.param(50, False, 20, 50, id="not-allowed"),
        pytest.param(0, True, 20, None, id="no-default-no-timeout"),
    ],
)
def test_Q5_a_request_can_only_shorten_its_timeout(default_ms, override, requested_ms, rejected_at):
    sim = Simulator(settings(8, policy=reject(default_ms, override=override)))
    sim.occupy(100)
    sim.arrive(0, name="a", timeout_ns=requested_ms * MS)
    sim.run()
    expected = [] if rejected_at is None else [(rejected_at, "a", "UNAVAILABLE", "timeout")]
    assert sim.rejections == expected
    assert sim.names == ([] if expected else ["a"])


def test_Q6_no_timeout_once_in_a_batch():
    sim = Simulator(settings(8, policy=reject(10)), service_ms=100)
    sim.arrive(0, name="a")
    sim.run()
    assert sim.names == ["a"]
    assert sim.rejections == []


HAND_OVER = 20_000


def hasty(*policy, **settings_of):
    return replace(
        settings(8, policy=reject(*policy, override=True), **settings_of), hand_over_ns=HAND_OVER
    )


@pytest.mark.parametrize(("timeout_us", "runs"), [(1, False), (20, False), (21, True), (0, True)])
def test_Q6_a_timeout_within_the_hand_over_expires_though_an_instance_is_idle(timeout_us, runs):
    batcher = Batcher(hasty(10), 1)
    ticket = Ticket(timeout_ns=timeout_us * 1000)
    (decision,) = batcher.submit(0, ticket)
    assert decision.reason == ("no_delay" if runs else "timeout")
    assert batcher.waiting == 0
    assert ticket.state is (TicketState.RUNNING if runs else TicketState.DONE)


def test_Q6_the_policy_of_the_level_decides_whether_it_expires():
    config = settings(8, levels=2, policies={1: reject(10, override=True)})
    batcher = Batcher(replace(config, hand_over_ns=HAND_OVER), 1)
    (run,) = batcher.submit(0, Ticket(priority=2, timeout_ns=1000))
    assert run.reason == "no_delay"
    batcher.finish(0, 0)
    (rejection,) = batcher.submit(0, Ticket(priority=1, timeout_ns=1000))
    assert (rejection.status, rejection.message) == ("UNAVAILABLE", "Request timeout expired")


def test_Q6_a_delayed_request_moves_behind_at_once():
    config = settings(1, policy=delay(10, override=True))
    batcher = Batcher(replace(config, hand_over_ns=HAND_OVER), 1)
    batcher.submit(1, Ticket())
    hasty_one, other = Ticket(timeout_ns=1000), Ticket()
    batcher.submit(1, hasty_one)
    batcher.submit(1, other)
    assert [batcher.finish(1, 0)[0].tickets for _ in range(2)] == [(other,), (hasty_one,)]


def test_Q7_reject_answers_unavailable():
    sim = Simulator(settings(8, policy=reject(10)))
    sim.occupy(100)
    sim.arrive(0, name="a")
    sim.arrive(95, name="b")
    sim.run()
    assert sim.rejections == [(10, "a", "UNAVAILABLE", "timeout")]
    assert sim.rejected[0][1].message == "Request timeout expired"
    assert sim.names == ["b"]


def test_Q8_delay_serves_expired_requests_after_the_others_of_their_level():
    sim = Simulator(settings(1, policy=delay(10)))
    sim.occupy(100)
    sim.arrive(0, name="a")
    sim.arrive(95, name="b")
    sim.arrive(96, name="c")
    sim.run()
    assert sim.names == ["b", "c", "a"]
    assert sim.rejections == []


def test_Q8_expired_requests_keep_their_order_and_expire_once():
    sim = Simulator(settings(1, policy=delay(10)), service_ms=30)
    sim.occupy(100)
    for at, name in enumerate("abc"):
        sim.arrive(at, name=name)
    assert sim.run().names == ["a", "b", "c"]


def test_Q8_expired_requests_keep_the_order_of_arrival_for_any_timeouts():
    """As on the real server: the next scan decides the order, not the clock."""
    sim = Simulator(settings(2, policy=delay(200, override=True)), service_ms=10)
    sim.occupy(700)
    for name, timeout_ms in zip("abcdef", (0, 100, 0.001, 0, 500, 150), strict=True):
        sim.arrive(0, name=name, timeout_ns=int(timeout_ms * MS))
    sim.arrive(650, name="g")
    sim.arrive(650, name="h")
    assert sim.run().names == ["gh", "ab", "cd", "ef"]


def test_Q8_an_expired_request_that_no_scan_met_keeps_its_place():
    """The first batch is complete before the scan reaches the expired request."""
    sim = Simulator(settings(1, policy=delay(50, override=True)), service_ms=10)
    sim.occupy(20)
    sim.arrive(0, name="a")
    sim.arrive(0, name="b", timeout_ns=10 * MS)
    sim.arrive(0, name="c")
    # At 20 a scan accepts a and ends at b, which moves behind; at 30 it accepts c.
    assert sim.run().names == ["a", "c", "b"]


def test_Q8_a_scan_moves_expired_requests_up_to_the_size_of_a_batch():
    """Also beyond the preferred size: the first scan meets e, and only the second one d."""
    batcher = Batcher(settings(4, (2,), policy=delay(10, override=True)), 1)
    batcher.submit(1, Ticket(4))
    timeouts = {"a": 0, "b": 0, "c": 0, "d": 3 * MS, "e": 1 * MS}
    named = {name: Ticket(timeout_ns=timeout) for name, timeout in timeouts.items()}
    for ticket in named.values():
        batcher.submit(1, ticket)
    order = []
    for now in (2 * MS, 4 * MS, 5 * MS):
        (run,) = batcher.finish(now, 0)
        order.append("".join(name for name, ticket in named.items() if ticket in run.tickets))
    assert order == ["ab", "ce", "d"]


def test_Q8_expired_requests_of_a_level_precede_the_next_level():
    sim = Simulator(settings(1, levels=2, policy=delay(10)))
    sim.occupy(100)
    sim.arrive(0, name="a", priority=1)
    sim.arrive(95, name="b", priority=2)
    assert sim.run().names == ["a", "b"]


def test_Q8_a_request_that_expires_during_the_delay_moves_behind():
    sim = Simulator(settings(2, delay_ms=50, policy=delay(10)))
    sim.arrive(0, name="a")
    sim.arrive(15, name="b", size=2)
    sim.run()
    assert sim.names == ["b", "a"]


def test_Q9_a_request_is_rejected_when_its_timeout_expires_though_no_instance_is_idle():
    """Triton polls every 500 ms; nbtriton has a timer. A deliberate difference."""
    sim = Simulator(settings(8, policy=reject(100)))
    sim.occupy(5000)
    sim.arrive(0, name="a")
    sim.run()
    assert sim.rejections == [(100, "a", "UNAVAILABLE", "timeout")]


@pytest.mark.parametrize(
    ("config", "ahead"),
    [
        pytest.param(settings(8), True, id="default"),
        pytest.param(settings(8, policies={1: reject(10)}), True, id="entry-without-levels"),
        pytest.param(settings(8, levels=1), False, id="levels"),
        pytest.param(settings(8, policy=reject(10)), False, id="timeout"),
        pytest.param(settings(8, policy=reject(override=True)), False, id="override"),
        pytest.param(settings(8, policy=reject(size=5)), False, id="size"),
        pytest.param(settings(8, policy=delay()), True, id="action-alone"),
    ],
)
def test_Q10_batches_are_formed_ahead_only_if_no_policy_could_act(config, ahead):
    batcher = Batcher(config, 1)
    level = 1 if config.priority_levels else 0
    batcher.submit(0, Ticket(8, priority=level))
    ticket = Ticket(priority=level)
    batcher.submit(0, ticket)
    assert ticket.state is (TicketState.PAYLOAD if ahead else TicketState.QUEUED)


def test_Q11_without_forming_ahead_a_batch_runs_when_an_instance_is_idle():
    """Triton can lag up to 500 ms here; the batch is the same. A deliberate difference."""
    sim = Simulator(settings(8, ahead=False))
    sim.occupy(300)
    sim.arrive_all([1, 1, 1], gap_ms=50)
    sim.run()
    assert sim.sizes == [[1, 1, 1]]
    assert sim.times == [300]


def test_a_starved_level_does_not_keep_detached_tickets():
    """Level 2 is never reached, and all its requests time out or are cancelled."""
    batcher = Batcher(settings(1, levels=2, policies={2: reject(10)}), 1)
    batcher.submit(0, Ticket(priority=1))
    batcher.submit(0, Ticket(priority=1))  # level 1 always has one waiting
    for step in range(1, 20_000):
        ticket = Ticket(priority=2)
        batcher.submit(step * MS, ticket)
        if step % 3 == 0:
            batcher.cancel(step * MS, ticket)
        if step % 7 == 0:
            batcher.submit(step * MS, Ticket(priority=1))
            batcher.finish(step * MS, 0)
    queue = batcher._queue
    assert batcher.waiting < 20
    assert len(queue._levels[2].fifo) < 200
    assert len(queue._deadlines) < 200


def test_levels_cost_nothing_until_they_are_used():
    """priority_levels may be any 64-bit number."""
    batcher = Batcher(settings(4, levels=2**63, policies={2**62: reject(size=1)}), 1)
    batcher.submit(0, Ticket(4, priority=5))
    low, high = Ticket(priority=2**62), Ticket(priority=3)
    batcher.submit(1, low)
    batcher.submit(1, high)
    (rejection,) = batcher.submit(1, Ticket(priority=2**62))
    assert rejection.reason == "queue_full"
    (run,) = batcher.finish(2, 0)
    assert list(run.tickets) == [high, low]


class CountedQueue(PriorityQueue):
    """Counts the calls of `head`."""

    __slots__ = ("looks",)

    def __init__(self, *policies):
        super().__init__(*policies)
        self.looks = 0

    def head(self, now):
        self.looks += 1
        return super().head(now)


@pytest.mark.medium
@pytest.mark.parametrize("delay_ms", [0, 1])
@pytest.mark.parametrize("waiting", [10, 1_000, 30_000])
def test_a_batch_costs_the_same_however_many_wait(waiting, delay_ms):
    """The calls of `head` per batch are bounded by its size, at four priority levels."""
    config = settings(4, delay_ms=delay_ms, levels=4)
    batcher = Batcher(config, 1)
    queue = batcher._queue = CountedQueue(config.default_policy, config.level_policies)
    batcher.submit(0, Ticket(4, priority=1))
    for number in range(waiting):
        batcher.submit(number, Ticket(priority=1 + number % 4))
    assert queue.looks <= 1  # no scan without an idle instance
    now = waiting + MS
    for batch in range(1, 3):
        queue.looks = 0
        (run,) = batcher.finish(now, 0)
        assert run.size == 4
        assert queue.looks <= 5, batch
