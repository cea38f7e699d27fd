"""The dynamic batcher rule by rule."""

from __future__ import annotations

import pytest

from nbtriton.scheduling import REASONS, Batcher, BatcherSettings, Ticket, TicketState
from tests.scheduling.simulator import Simulator, delay, reject, settings


def busy(config, sizes, *, busy_ms=300, gap_ms=1):
    """Run requests of these sizes; they arrive one by one while the only instance is busy."""
    sim = Simulator(config)
    sim.occupy(busy_ms)
    sim.arrive_all(sizes, gap_ms=gap_ms)
    return sim.run()


# -- the default scheduler -----------------------------------------------------------------------


def test_S2_without_dynamic_batching_requests_are_never_merged():
    sim = Simulator(BatcherSettings(max_batch_size=8), service_ms=10)
    for index in range(4):
        sim.arrive(index, size=1 + index)
    sim.run()
    assert sim.sizes == [[1], [2], [3], [4]]  # one of four items is a batch by itself
    assert sim.times == [0, 10, 20, 30]
    assert set(sim.reasons) == {"batching_off"}


def test_S3_the_default_scheduler_knows_no_shape_priority_or_timeout():
    sim = Simulator(BatcherSettings(max_batch_size=8), service_ms=10)
    sim.arrive(0, name="a", shape_key="x")
    sim.arrive(1, name="b", shape_key="y", timeout_ns=1)
    sim.arrive(2, name="c", priority=1)
    sim.run()
    assert sim.names == ["a", "b", "c"]
    assert sim.rejections == []


def test_S4_all_idle_instances_serve_one_queue():
    sim = Simulator(BatcherSettings(max_batch_size=8), instances=2, service_ms=10)
    for index in range(4):
        sim.arrive(index, name="abcd"[index])
    sim.run()
    assert sim.names == ["a", "b", "c", "d"]
    assert sim.times == [0, 1, 10, 11]
    assert {one.instance for one in sim.executed} == {0, 1}


# -- the scan ------------------------------------------------------------------------------------


def test_D1_levels_ascend_and_each_level_is_first_in_first_out():
    sim = Simulator(settings(8, levels=3))
    sim.occupy(100)
    for at, (name, level) in enumerate([("e", 3), ("c", 2), ("a", 1), ("d", 2), ("b", 1)]):
        sim.arrive(at, name=name, priority=level)
    assert sim.run().names == ["abcde"]


def test_D2_the_first_request_fixes_the_shape():
    sim = Simulator(settings(8))
    sim.occupy(100)
    for name in "BAA":
        sim.arrive(0, name=name, shape_key=name)
    assert sim.run().names == ["B", "AA"]


def test_D3_the_mark_is_before_the_request_that_exceeds_the_largest_preferred_size():
    sim = busy(settings(8, (4,), ahead=False), [1, 2, 2, 1])
    assert sim.sizes == [[1, 2], [2, 1]]
    assert sim.reasons[0] == "preferred_exceeded"


def test_D3_a_request_beyond_max_batch_size_ends_the_scan():
    sim = busy(settings(4, (2,), 50), [3, 2], busy_ms=10)
    assert sim.sizes == [[3], [2]]


def test_D5_the_largest_preferred_size_within_reach_wins():
    assert busy(settings(16, (2, 3, 5), ahead=False), [1] * 9).sizes == [[1] * 5, [1] * 3, [1]]


def test_D6_the_age_is_that_of_the_oldest_scanned_request_of_any_level():
    sim = Simulator(settings(8, delay_ms=100, levels=2))
    sim.arrive(0, name="b", priority=2)
    sim.arrive(60, name="a", priority=1)
    sim.run()
    assert sim.names == ["ab"]
    assert sim.times == [100]


def test_D7_exactly_the_preferred_size_is_released():
    sim = busy(settings(8, (3,), ahead=False), [1] * 5)
    assert sim.sizes == [[1] * 3, [1] * 2]
    assert sim.reasons == ["preferred_batch_size", "no_delay"]


def test_D7_without_a_delay_a_preferred_batch_is_closed():
    """A fifth request fits into the payload that still waits, but may not join it."""
    assert busy(settings(8, (4,)), [4, 1]).sizes == [[4], [1]]


def test_D8_the_largest_preferred_size_closes_the_payload():
    assert busy(settings(8, (4,)), [3, 2, 1]).sizes == [[3, 2], [1]]


def test_D9_without_a_delay_a_payload_stays_open_until_it_runs():
    sim = busy(settings(8), [1, 1, 1], gap_ms=100, busy_ms=150)
    assert sim.sizes == [[1, 1], [1]]
    assert sim.reasons[0] == "joined"


def test_D9_an_exceeded_delay_leaves_the_payload_open():
    sim = Simulator(settings(8, delay_ms=50))
    sim.occupy(300)
    for at_ms in (0, 100):
        sim.arrive(at_ms, shape_key="A")
    sim.run()
    assert sim.sizes == [[1, 1]]  # the second joined at 150 ms, when its own delay had passed
    assert sim.times == [300]


def test_D10_waits_for_the_delay_and_no_longer():
    sim = Simulator(settings(8, delay_ms=50))
    sim.arrive(0)
    sim.arrive(20)
    sim.run()
    assert sim.times == [50]
    assert sim.reasons == ["max_queue_delay"]


def test_D10_wakes_for_the_closest_timeout_if_that_is_earlier():
    sim = Simulator(settings(8, delay_ms=50, policy=reject(20)))
    sim.arrive(0, name="a")
    sim.arrive(10, name="b")
    sim.run()
    assert sim.executed == []
    assert sim.rejections == [
        (20, "a", "UNAVAILABLE", "timeout"),
        (30, "b", "UNAVAILABLE", "timeout"),
    ]


def test_D10_requests_join_a_waiting_payload_of_no_preferred_size_at_once():
    batcher = Batcher(settings(8, (4,), 50), 1)
    batcher.submit(0, Ticket(8))
    first, second = Ticket(1, "A"), Ticket(1, "A")
    batcher.submit(0, first)
    batcher.tick(50_000_000)
    assert first.state is TicketState.PAYLOAD
    batcher.submit(50_000_001, second)
    assert second.state is TicketState.PAYLOAD  # it waits for no delay of its own
    assert batcher.wake_at() is None
    (run,) = batcher.finish(60_000_000, 0)
    assert list(run.tickets) == [first, second]
    assert run.reason == "joined"


@pytest.mark.parametrize(
    ("preferred", "delay_ms", "arrivals", "opens_ms", "executed"),
    [
        ((), 50, [(0, 1), (100, 1)], 300, [[1], [1]]),
        ((), 50, [(0, 1), (100, 1)], 700, [[1, 1]]),  # half a second after the first has gone
        ((), 50, [(0, 1), (100, 1), (120, 1), (140, 1)], 300, [[1], [1, 1, 1]]),
        ((), 50, [(0, 1), (100, 4), (200, 4)], 300, [[1, 4], [4]]),  # the 8 rows that it wanted
        ((4,), 50, [(0, 1), (100, 1)], 300, [[1], [1]]),
        ((4,), 50, [(at, 1) for at in (0, 10, 20, 30, 60)], 200, [[1] * 4, [1]]),
        ((4,), 50, [(at, 1) for at in (0, 10, 20, 30, 60)], 700, [[1] * 5]),
        ((4,), 1000, [(at, 1) for at in (0, 10, 20, 30, 60)], 200, [[1] * 4, [1]]),
        ((4,), 1000, [(at, 1) for at in (0, 10, 20, 30, 60)], 700, [[1] * 5]),
        ((3, 6), 1000, [(at, 1) for at in range(0, 70, 10)], 300, [[1] * 6, [1]]),
        ((3, 6), 1000, [(at, 1) for at in range(0, 50, 10)], 300, [[1] * 3, [1, 1]]),
        ((3, 6), 100, [(0, 1), *((at, 3 if at == 10 else 1) for at in range(10, 70, 10))], 650, [[1, 3, 1, 1, 1, 1], [1]]),
        ((4,), 0, [(at, 1) for at in (0, 10, 20, 30, 60)], 200, [[1] * 4, [1]]),
    ],
)  # fmt: skip
def test_D16_requests_beside_a_waiting_payload_are_seen_once_enough_have_come(
    preferred, delay_ms, arrivals, opens_ms, executed
):
    """What tritonserver executes: the batcher wakes for the rows that it wanted last, or in half a second."""
    sim = Simulator(settings(8, preferred, delay_ms))
    sim.occupy(opens_ms)
    for at_ms, size in arrivals:
        sim.arrive(at_ms, size)
    sim.run()
    assert sim.sizes == executed


def test_D16_where_shapes_are_compared_each_request_is_seen_at_once():
    sim = Simulator(settings(8, (4,), 50))
    sim.occupy(200)
    for at_ms in (0, 10, 20, 30, 40):
        sim.arrive(at_ms, shape_key="A")
    sim.run()
    assert sim.sizes == [[1] * 5]


@pytest.mark.parametrize("keys", [("A", None), (None, "A")])
def test_D16_one_whose_shape_is_compared_ends_the_sleep_for_all_that_came_with_it(keys):
    batcher = Batcher(settings(8, (4,), 50), 1)
    batcher.submit(0, Ticket(8))
    batcher.submit(0, Ticket(1))
    batcher.tick(50_000_000)  # it waits for the instance, the batcher for three more rows
    batcher.submit_many(60_000_000, [Ticket(1, key) for key in keys])
    assert batcher.wake_at() != 550_000_000


def test_D10_no_request_joins_a_waiting_payload_of_a_preferred_size_before_its_delay():
    batcher = Batcher(settings(8, (2, 4), 50), 1)
    batcher.submit(0, Ticket(8))
    batcher.submit(0, Ticket(2))
    late = Ticket(1)
    batcher.submit(1, late)
    assert late.state is TicketState.PENDING
    assert batcher.wake_at() == 50_000_001


def test_requests_pending_beside_a_payload_are_scanned_again_when_it_runs():
    """Two of shape A run as a batch; a third waits, and the fourth completes its batch."""
    sim = Simulator(settings(8, (2, 4), 300))
    sim.occupy(20)
    for at_ms in (0, 1, 2, 30):
        sim.arrive(at_ms, shape_key="A")
    sim.run()
    assert list(zip(sim.times, sim.sizes, strict=True)) == [(20, [1, 1]), (30, [1, 1])]


def test_D11_P2_two_batches_per_instance_are_formed_ahead():
    batcher = Batcher(settings(2), 1)
    batcher.submit(0, Ticket(2))
    tickets = [Ticket() for _ in range(7)]
    for ticket in tickets:
        batcher.submit(0, ticket)
    # The second batch has room for one more, but no scan runs while two batches are formed.
    assert [ticket.state for ticket in tickets] == [TicketState.PAYLOAD] * 3 + [
        TicketState.QUEUED
    ] * 4
    assert batcher.waiting == 7
    (run,) = batcher.finish(1, 0)
    assert list(run.tickets) == tickets[:2]
    assert [ticket.state for ticket in tickets[2:]] == [TicketState.PAYLOAD] * 4 + [
        TicketState.QUEUED
    ]


def test_D13_the_delay_counts_from_arrival_not_from_when_an_instance_is_idle():
    sim = busy(settings(8, delay_ms=100), [1], busy_ms=60)
    assert sim.times == [100]


def test_D13_a_preferred_size_needs_no_delay():
    sim = Simulator(settings(8, (2,), 1_000_000))
    sim.arrive(0)
    sim.arrive(5)
    assert sim.run().times == [5]


def test_D14_an_exceeded_delay_overrules_preferred_sizes():
    sim = busy(settings(8, (4,), 100, ahead=False), [1] * 7)
    assert sim.sizes == [[1] * 7]
    assert sim.reasons == ["max_queue_delay"]


def test_D14_and_releases_no_more_than_fits():
    sim = busy(settings(8, (4,), 100, ahead=False), [1] * 11)
    assert sim.sizes == [[1] * 8, [1] * 3]
    assert sim.reasons == ["max_batch_size", "max_queue_delay"]


# -- payloads ------------------------------------------------------------------------------------


def test_P1_one_queue_of_batches_for_all_instances():
    sim = Simulator(settings(2), instances=2, service_ms=50)
    sim.occupy(10, 30)
    for at, name in enumerate("abcdef"):
        sim.arrive(at, name=name)
    sim.run()
    assert [(one.at_ms, one.instance) for one in sim.executed] == [(10, 0), (30, 1), (60, 0)]
    assert sim.names == ["ab", "cd", "ef"]


def test_P4_P3_no_request_joins_a_running_batch():
    sim = Simulator(settings(8), service_ms=100)
    sim.arrive(0)
    sim.arrive(50)
    assert sim.run().sizes == [[1], [1]]


@pytest.mark.parametrize(
    ("busy_ms", "executed"),
    [
        pytest.param(90, [[4, 1], [1]], id="younger-than-the-delay"),
        pytest.param(400, [[4, 1, 1]], id="older-than-the-delay"),
    ],
)
def test_P5_only_batches_older_than_the_delay_are_merged(busy_ms, executed):
    sim = busy(settings(8, (4,), 100), [4, 1, 1], busy_ms=busy_ms, gap_ms=20)
    assert sim.sizes == executed


def test_P5_the_delay_must_be_exceeded_not_just_reached():
    batcher = Batcher(settings(8, (4,), 100), 1)
    batcher.submit(0, Ticket(8))
    for size in (4, 1, 3):
        batcher.submit(0, Ticket(size))
    assert [run.size for run in batcher.finish(100_000_000, 0)] == [5]
    assert [run.size for run in batcher.finish(100_000_001, 0)] == [3]


def test_P5_never_beyond_max_batch_size():
    sim = busy(settings(8, (4,), 100), [4, 4, 4], busy_ms=500)
    assert sim.sizes == [[4, 4], [4]]


def test_P5_batches_of_other_shapes_are_not_merged():
    sim = Simulator(settings(8, delay_ms=10))
    sim.occupy(500)
    for at, name in enumerate("ABA"):
        sim.arrive(at, name=name, shape_key=name)
    assert sim.run().names == ["A", "B", "A"]


def test_P5_without_a_delay_nothing_is_merged():
    assert busy(settings(8, (4,)), [4, 4], busy_ms=500).sizes == [[4], [4]]


def test_P6_requests_run_in_the_order_of_the_queue():
    sim = Simulator(settings(8, (2,), 10))
    sim.occupy(100)
    for at, name in enumerate("abcdefg"):
        sim.arrive(at, name=name)
    assert "".join(sim.run().names) == "abcdefg"


# -- shapes --------------------------------------------------------------------------------------


def test_G1_G4_requests_with_one_key_share_a_batch():
    """Fixed shapes, or allow_ragged_batch: the engine gives every request the same key."""
    sim = Simulator(settings(8))
    sim.occupy(50)
    for key in (None, None, None):
        sim.arrive(0, shape_key=key)
    assert sim.run().sizes == [[1, 1, 1]]


def test_G2_batch_sizes_may_differ():
    sim = Simulator(settings(8))
    sim.occupy(50)
    for size in (1, 3, 2):
        sim.arrive(0, size, shape_key=("x", (4,)))
    assert sim.run().sizes == [[1, 3, 2]]


def test_G3_a_mismatch_starts_the_next_batch_without_look_ahead():
    sim = Simulator(settings(8))
    sim.occupy(50)
    for name in "AABAA":
        sim.arrive(0, name=name, shape_key=name)
    assert sim.run().names == ["AA", "B", "AA"]
    assert sim.reasons[:2] == ["shape", "shape"]


@pytest.mark.parametrize("ahead", [True, False])
def test_G3_is_the_same_when_batches_are_not_formed_ahead(ahead):
    sim = Simulator(settings(8, ahead=ahead))
    sim.occupy(50)
    for name in "AABAACA":
        sim.arrive(0, name=name, shape_key=name)
    assert sim.run().names == ["AA", "B", "AA", "C", "A"]


def test_G5_other_optional_inputs_are_another_batch():
    sim = Simulator(settings(8))
    sim.occupy(50)
    for at, names in enumerate(["A", "AB", "AB", "AC", "A", "A"]):
        sim.arrive(at, name=f"{names} ", shape_key=tuple(names))
    assert sim.run().names == ["A ", "AB AB ", "AC ", "A A "]


# -- cancellation --------------------------------------------------------------------------------


def test_X2_Q12_a_waiting_request_is_cancelled():
    sim = Simulator(settings(8, ahead=False))
    sim.occupy(100)
    sim.arrive(0, name="a")
    cancelled = sim.arrive(1, name="b")
    sim.arrive(2, name="c")
    sim.cancel(50, cancelled)
    sim.run()
    assert sim.names == ["ac"]
    assert sim.rejections == [(50, "b", "CANCELLED", "cancelled")]
    assert sim.rejected[0][1].message == ""


def test_X2_a_request_that_waits_for_the_delay_is_cancelled():
    sim = Simulator(settings(8, delay_ms=100))
    sim.cancel(10, sim.arrive(0, name="a"))
    sim.arrive(20, name="b")
    sim.run()
    assert sim.names == ["b"]
    assert sim.times == [120]  # the delay of the other one


def test_X2_a_request_in_a_batch_runs_on():
    sim = Simulator(settings(8), service_ms=50)
    sim.occupy(100)
    formed = sim.arrive(0, name="a")
    sim.cancel(10, formed)
    sim.cancel(120, formed)  # while it runs
    sim.cancel(500, formed)  # after it has run
    sim.run()
    assert sim.names == ["a"]
    assert sim.rejections == []


def test_X3_the_default_scheduler_runs_cancelled_requests():
    sim = Simulator(BatcherSettings(max_batch_size=8), service_ms=50)
    sim.arrive(0, name="a")
    sim.cancel(10, sim.arrive(1, name="b"))
    assert sim.run().names == ["a", "b"]


def test_cancel_with_formed_removes_a_request_from_a_formed_batch():
    """A batch that loses all its requests disappears."""
    batcher = Batcher(settings(2), 1)
    tickets = [Ticket() for _ in range(5)]
    for ticket in (Ticket(2), *tickets):
        batcher.submit(0, ticket)
    first, second, third, fourth, _ = tickets
    assert first.state is TicketState.PAYLOAD
    assert batcher.cancel(1, first) == []
    for ticket in (first, third, fourth):
        (rejection,) = batcher.cancel(1, ticket, formed=True)
        assert (rejection.ticket, rejection.reason) == (ticket, "cancelled")
        assert batcher.cancel(1, ticket, formed=True) == []
    assert batcher.waiting == 2
    (run,) = batcher.finish(2, 0)
    assert (run.tickets, run.size) == ((second,), 1)
    (run,) = batcher.finish(3, 0)
    assert (run.tickets, run.size) == ((tickets[4],), 1)
    assert batcher.finish(4, 0) == []
    assert batcher.waiting == 0


def test_cancelling_the_head_releases_the_requests_behind_it():
    """Without the first request those behind it are a batch of a preferred size."""
    sim = Simulator(settings(8, (4,), 100, ahead=False))
    odd = sim.arrive(0, name="x")
    sim.arrive(10, 3, name="b")
    sim.cancel(5, odd)
    sim.arrive(20, 1, name="c")
    sim.run()
    assert sim.names == ["bc"]
    assert sim.times == [20]


# -- stopping ------------------------------------------------------------------------------------


def test_clear_rejects_all_waiting_requests_and_resets_the_delay():
    config = settings(2, delay_ms=100)
    batcher = Batcher(config, 1)
    running = Ticket(2)
    batcher.submit(0, running)
    waiting = [Ticket(2), Ticket(2), Ticket(1), Ticket(1)]
    for ticket in waiting:
        batcher.submit(1, ticket)
    rejections = batcher.clear("UNAVAILABLE", "stopping")
    assert [rejection.ticket for rejection in rejections] == waiting
    assert {(rejection.status, rejection.message) for rejection in rejections} == {
        ("UNAVAILABLE", "stopping")
    }
    assert batcher.waiting == 0
    assert batcher.wake_at() is None
    assert batcher.finish(5, 0) == []
    last = Ticket(2)
    (run,) = batcher.submit(6, last)
    assert list(run.tickets) == [last]


def test_clear_rejects_a_request_that_waits_for_the_delay():
    batcher = Batcher(settings(8, delay_ms=100), 1)
    batcher.submit(0, Ticket())
    assert batcher.wake_at() == 100_000_000
    batcher.clear("UNAVAILABLE", "stopping")
    assert batcher.wake_at() is None


# -- reasons -------------------------------------------------------------------------------------


def cancelled():
    sim = Simulator(settings(8, ahead=False))
    sim.occupy(10)
    sim.cancel(1, sim.arrive(0))
    return sim.run()


def stopped():
    sim = Simulator(settings(8, ahead=False))
    sim.occupy(10)
    sim.arrive(0)
    sim.at(1, lambda now: sim.batcher.clear("UNAVAILABLE", "stopping"))
    return sim.run()


def one_idle(config):
    sim = Simulator(config)
    sim.arrive(0)
    return sim.run()


def removed():
    sim = Simulator(settings(8))
    sim.remove_instance(0, 0)
    return sim.run()


def lost():
    sim = Simulator(settings(8))
    sim.suspend(0, 0)
    return sim.run()


def shapes():
    sim = Simulator(settings(8))
    sim.occupy(10)
    for key in "AB":
        sim.arrive(0, shape_key=key)
    return sim.run()


SCENARIOS = {
    "batching_off": lambda: one_idle(BatcherSettings(max_batch_size=8)),
    "no_batch_dimension": lambda: one_idle(settings(0)),
    "preferred_batch_size": lambda: busy(settings(8, (2,)), [1, 1]),
    "preferred_exceeded": lambda: busy(settings(8, (4,), ahead=False), [3, 3]),
    "max_batch_size": lambda: busy(settings(8), [5, 5]),
    "shape": shapes,
    "max_queue_delay": lambda: one_idle(settings(8, delay_ms=10)),
    "no_delay": lambda: one_idle(settings(8)),
    "joined": lambda: busy(settings(8), [1, 1]),
    "merged": lambda: busy(settings(8, (4,), 10), [4, 1, 1]),
    "timeout": lambda: busy(settings(8, policy=reject(10)), [1]),
    "queue_full": lambda: busy(settings(8, policy=delay(size=1)), [1, 1]),
    "cancelled": cancelled,
    "stopped": stopped,
    "removed": removed,
    "lost": lost,
}
OF_SEQUENCES = {"sequence_ready", "minimum_slot_utilization", "sequence_rule"}
# In test_custom_batching.py.
OF_STRATEGIES = {"custom_batching", "custom_batching_refused", "custom_batching_failed"}
# In test_rate_limiter.py.
OF_LIMITERS = {"resources"}
# In test_perf_live.py: no scheduler's.
OF_MEASUREMENTS = {"load_ended"}


@pytest.mark.parametrize("reason", SCENARIOS)
def test_reasons_each_has_a_scenario(reason):
    sim = SCENARIOS[reason]()
    met = {*sim.reasons, *(rejection.reason for _, rejection in sim.rejected)}
    assert reason in met | {why for _, _, why in sim.retired + sim.suspended}


def test_reasons_all_are_covered():
    assert (
        set(SCENARIOS)
        == set(REASONS) - OF_SEQUENCES - OF_STRATEGIES - OF_LIMITERS - OF_MEASUREMENTS
    )


@pytest.mark.parametrize(
    ("config", "sizes", "reasons"),
    [
        pytest.param(settings(8), [8], ["max_batch_size"], id="full"),
        pytest.param(settings(8), [5, 4], ["max_batch_size", "no_delay"], id="does-not-fit"),
        pytest.param(settings(8, (3,), ahead=False), [1, 1, 1], ["preferred_batch_size"], id="at"),
        pytest.param(settings(8, (3,)), [2, 2], ["preferred_exceeded"], id="overshoot"),
        pytest.param(
            settings(8, (2, 8)), [2, 8], ["preferred_batch_size", "max_batch_size"], id="2"
        ),
    ],
)
def test_reasons_explain_the_size(config, sizes, reasons):
    assert busy(config, sizes).reasons == reasons


@pytest.mark.parametrize(
    ("arrivals", "batches"),
    [
        ([4, 4, 1, 2, 1, 1], [[4], [4, 1], [2, 1, 1]]),
        ([5, 5, 1, 1, 1, 1], [[5], [5], [1, 1, 1, 1]]),
        ([4, 4, 1, 1, 1, 1], [[4], [4, 1, 1, 1, 1]]),
    ],
)
def test_P5_no_request_joins_a_merge_candidate(arrivals, batches):
    """As on the real server; in the last row the whole candidate is merged."""
    assert busy(settings(8, (5,), 100), arrivals).sizes == batches
