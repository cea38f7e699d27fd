"""Adding and removing instances while requests are in flight: L16 on a virtual clock."""

from __future__ import annotations

import pytest

from nbtriton.scheduling import (
    Batcher,
    BatcherSettings,
    RateLimiter,
    ResourceNeed,
    RetireInstance,
    Ticket,
)
from tests.scheduling.sequence_clock import SequenceClock, oldest
from tests.scheduling.simulator import Simulator, settings

BOTH = pytest.mark.parametrize("strategy", [None, oldest(1)], ids=["direct", "oldest"])


# -- dynamic batcher and default scheduler -------------------------------------------------------


@pytest.mark.parametrize("config", [BatcherSettings(8), settings(8), settings(8, ahead=False)])
def test_L16_waiting_requests_run_on_an_added_instance_at_once(config):
    sim = Simulator(config, service_ms=10)
    sim.occupy(100)
    sim.arrive(1)
    sim.add_instance(5, 7)
    sim.run()
    assert [(each.at_ms, each.instance) for each in sim.executed] == [(5, 7)]


def test_L16_an_idle_instance_is_retired_at_once_and_a_busy_one_after_its_batch():
    sim = Simulator(settings(8), instances=3)
    sim.occupy(20, 30)
    sim.remove_instance(5, 0)
    sim.remove_instance(6, 2)
    sim.run()
    # Of three idle instances the first two ran a batch each.
    assert sim.retired == [(6, 2, "removed"), (20, 0, "removed")]


@pytest.mark.parametrize("config", [BatcherSettings(8), settings(8), settings(8, ahead=False)])
def test_S4_the_longest_idle_instance_runs(config):
    sim = Simulator(config, instances=3, service_ms=1)
    for at in range(6):
        sim.arrive(10 * at)
    assert [each.instance for each in sim.run().executed] == [0, 1, 2, 0, 1, 2]


def test_L16_a_removed_instance_gets_no_further_batch():
    sim = Simulator(settings(1), instances=2, service_ms=10)
    sim.occupy(20, 20)
    sim.arrive_all([1, 1, 1], start_ms=1)
    sim.remove_instance(5, 0)
    sim.run()
    assert [(each.at_ms, each.instance) for each in sim.executed] == [(20, 1), (30, 1), (40, 1)]
    assert sim.retired == [(20, 0, "removed")]


def test_L16_without_any_instance_requests_wait_until_one_is_added():
    batcher = Batcher(settings(8, delay_ms=1), 1)
    assert batcher.remove_instance(0, 0) == [RetireInstance(0)]
    ticket = Ticket()
    assert batcher.submit(1, ticket) == []
    assert (batcher.waiting, batcher.wake_at()) == (1, None)
    (run,) = batcher.add_instance(2_000_000, 1)
    assert (run.instance, list(run.tickets)) == (1, [ticket])


@pytest.mark.parametrize(("change", "payloads"), [("remove", 2), ("", 4), ("add", 6)])
def test_L16_P2_batches_formed_ahead_follow_the_number_of_instances(change, payloads):
    """Two batches per instance are formed ahead; their requests cannot be cancelled (X2)."""
    sim = Simulator(settings(8, (1,)), instances=2)
    sim.occupy(100, 100)
    if change == "remove":
        sim.remove_instance(0, 1)
    elif change == "add":
        sim.add_instance(0, 2)
        sim.occupy(100)
    for ticket in [sim.arrive(1) for _ in range(20)]:
        sim.cancel(2, ticket)
    sim.run(until_ms=3)
    assert len(sim.rejected) == 20 - payloads


# -- sequence batcher ------------------------------------------------------------------------------


@BOTH
def test_L16_slots_of_a_removed_instance_drain_first(strategy):
    clock = SequenceClock(1, instances=2, strategy=strategy)
    clock.arrive(0, "a1", "S")
    clock.arrive(0, "b1", "S")
    clock.remove_instance(20, 1)
    clock.arrive(21, "c1", "S")  # waits for a slot of the instance that stays
    clock.arrive(30, "b2")
    clock.arrive(50, "b3", "E")
    clock.arrive(80, "a2", "E")
    clock.run()
    assert clock.retired == [(60, 1)]  # when b3 has run
    assert {n: clock.where[n] for n in ("b1", "b2", "b3")} == {"b1": 1, "b2": 1, "b3": 1}
    assert (clock.where["c1"], clock.ran[-1][0]) == (0, 90)
    assert clock.rejected == []


@BOTH
def test_L16_an_instance_without_sequences_is_retired_at_once(strategy):
    clock = SequenceClock(2, instances=2, strategy=strategy)
    clock.arrive(0, "a1", "S")
    clock.remove_instance(20, 1)
    clock.run(until_ms=40)
    assert clock.retired == [(20, 1)]
    assert clock.batcher.slots() == [["a", None]]


@BOTH
def test_L16_an_idle_sequence_keeps_a_removed_instance_until_it_times_out(strategy):
    clock = SequenceClock(1, instances=1, idle_ms=100, strategy=strategy)
    clock.arrive(0, "a1", "S")
    clock.remove_instance(20, 0)
    clock.run()
    assert clock.retired == [(100, 0)]


@BOTH
def test_L16_the_end_has_run_before_the_instance_is_retired(strategy):
    clock = SequenceClock(1, strategy=strategy)
    clock.arrive(0, "a1", "SE")  # its slot is free at once (SQ6), its execution takes 10 ms
    clock.remove_instance(5, 0)
    clock.run()
    assert clock.retired == [(10, 0)]
    assert clock.batches == ["a1"]


@BOTH
def test_L16_the_backlog_moves_to_an_added_instance(strategy):
    clock = SequenceClock(1, strategy=strategy)
    clock.arrive(0, "a1", "S")
    clock.arrive(1, "b1", "SE")
    clock.add_instance(3, 4)
    clock.run(until_ms=50)
    assert [(at, k, names) for at, k, names in clock.ran] == [(0, 0, "a1"), (3, 4, "b1")]


@BOTH
def test_L16_stopping_retires_removed_instances(strategy):
    clock = SequenceClock(1, strategy=strategy)
    clock.arrive(0, "a1", "S")
    clock.arrive(20, "a2")
    clock.remove_instance(15, 0)
    clock.at(25, lambda _: clock.batcher.clear("UNAVAILABLE", "stopping"))
    clock.run()
    assert clock.retired == [(30, 0)]


# -- instances that are lost with their process ---------------------------------------------------


@pytest.mark.parametrize("config", [BatcherSettings(8), settings(8), settings(8, ahead=False)])
def test_a_lost_instance_gets_no_batch_until_it_is_resumed(config):
    sim = Simulator(config, instances=2, service_ms=10)
    sim.suspend(1, 0)
    for at in (2, 3, 4):
        sim.arrive(at)
    sim.resume(25, 0)
    sim.run()
    assert sim.suspended == [(1, 0, "lost")]
    where = [(each.at_ms, each.instance) for each in sim.executed]
    assert where[0] == (2, 1)
    assert all(instance == 1 for at, instance in where if at < 25)


def test_an_instance_that_is_lost_with_its_batch_is_suspended_behind_it():
    sim = Simulator(settings(1), service_ms=10)
    sim.occupy(20)
    sim.suspend(5, 0)
    sim.suspend(6, 0)  # told by several
    sim.arrive(7)
    sim.resume(50, 0)
    sim.run()
    assert sim.suspended == [(20, 0, "lost")]
    assert sim.times == [50]


def test_a_suspended_instance_that_is_removed_is_retired_at_once():
    sim = Simulator(settings(1), instances=2)
    sim.suspend(1, 0)
    sim.remove_instance(2, 0)
    sim.resume(3, 0)  # it recovered nevertheless
    sim.arrive(4)
    sim.run()
    assert sim.retired == [(2, 0, "removed")]
    assert [each.instance for each in sim.executed] == [1]


@BOTH
def test_PB92_the_sequences_of_a_lost_instance_end(strategy):
    """Their requests that wait fail, and the next one needs START: the model knows nothing of them."""
    clock = SequenceClock(1, instances=2, strategy=strategy)
    clock.arrive(0, "a1", "S")
    clock.arrive(0, "b1", "S")
    clock.arrive(1, "a2")
    clock.arrive(2, "b2")
    clock.suspend(5, 0)
    clock.arrive(6, "a3")
    clock.arrive(30, "b3", "E")
    clock.run()
    rule = "inference request for sequence a to model 'm' must specify the START flag on the first"
    assert clock.rejected[0] == (5, "a2", "INTERNAL", "not healthy")
    assert clock.rejected[1][:3] == (6, "a3", "INVALID_ARG")
    assert clock.rejected[1][3].startswith(rule)
    assert len(clock.rejected) == 2
    assert clock.suspended == [(10, 0)]  # a1 was inside
    assert clock.where == {"a1": 0, "b1": 1, "b2": 1, "b3": 1}


@BOTH
def test_a_retired_instance_whose_process_ends_is_not_suspended(strategy):
    """It is told of a loss while it leaves."""
    clock = SequenceClock(1, instances=2, strategy=strategy)
    clock.remove_instance(0, 1)
    clock.suspend(1, 1)
    clock.arrive(2, "a1", "SE")
    clock.run()
    assert (clock.retired, clock.suspended, clock.batches) == ([(0, 1)], [], ["a1"])


@BOTH
def test_new_sequences_are_for_the_other_instances_until_a_lost_one_is_resumed(strategy):
    clock = SequenceClock(1, instances=2, strategy=strategy)
    clock.suspend(0, 0)
    for at, name in enumerate("abc", 1):
        clock.arrive(at, f"{name}1", "S")
    clock.resume(50, 0)
    clock.run(until_ms=80)
    assert clock.ran == [(1, 1, "a1"), (50, 0, "b1")]
    assert clock.batcher.slots() == [["b"], ["a"]]


# -- rate limiter ----------------------------------------------------------------------------------


def test_L16_the_pool_shrinks_to_the_largest_remaining_need():
    limiter = RateLimiter()
    limiter.add("small", [ResourceNeed("R", 1)])
    limiter.add("large", [ResourceNeed("R", 5)])
    assert limiter.stage("large") == ["large"]
    limiter.release("large")
    assert limiter.pools() == {("r", 0): (0, 5)}
    limiter.remove("large")
    assert limiter.pools() == {("r", 0): (0, 1)}
