"""Sequence batcher rule by rule, on a virtual clock."""

from __future__ import annotations

import pytest

from nbtriton.scheduling import SEQUENCE_START, Decision, SequenceSettings
from tests.scheduling.sequence_clock import SequenceClock, oldest

# -- common to both strategies -------------------------------------------------------------------

BOTH = pytest.mark.parametrize("strategy", [None, oldest(2)], ids=["direct", "oldest"])


def refused(clock: SequenceClock) -> list[tuple[str, str]]:
    return [
        (name, message) for _, name, status, message in clock.rejected if status == "INVALID_ARG"
    ]


@BOTH
def test_SQ1_a_request_of_batch_size_2_is_refused(strategy):
    clock = SequenceClock(strategy=strategy)
    clock.arrive(0, "a1", "S", size=2)
    clock.run()
    assert refused(clock) == [
        (
            "a1",
            (
                "inference request to model 'm' must specify batch-size 1 due to requirements of "
                "sequence batcher"
            ),
        )
    ]
    assert not clock.ran


@BOTH
@pytest.mark.parametrize("nothing", [0, ""])
def test_SQ2_a_correlation_id_is_required(strategy, nothing):
    clock = SequenceClock(strategy=strategy)
    clock.arrive(0, "a1", "S", of=nothing)
    clock.run()
    assert refused(clock) == [
        (
            "a1",
            "inference request to model 'm' must specify a non-zero or non-empty correlation ID",
        )
    ]


@BOTH
@pytest.mark.parametrize("flags", ["", "E"])
def test_SQ3_a_sequence_begins_with_start(strategy, flags):
    clock = SequenceClock(strategy=strategy)
    clock.arrive(0, "a1", flags, of=7)
    clock.run()
    assert refused(clock) == [
        (
            "a1",
            (
                "inference request for sequence 7 to model 'm' must specify the START flag on the "
                "first request of the sequence"
            ),
        )
    ]


@BOTH
def test_SQ4_the_lowest_slot_over_all_instances_comes_first(strategy):
    clock = SequenceClock(2, instances=2, strategy=strategy)
    for number, name in enumerate("abcde"):
        clock.arrive(number, name + "1", "S")
    clock.run(until_ms=5)
    assert clock.batcher.slots() == [["a", "c"], ["b", "d"]]
    assert clock.batcher.waiting == 3  # c and d behind running batches, e in the backlog


def test_SQ4_slots_per_instance():
    assert SequenceSettings("m", max_batch_size=0).slots == 1
    assert SequenceSettings("m", max_batch_size=8).slots == 8
    assert SequenceSettings("m", 8, oldest=oldest(8)).slots == 8
    assert SequenceSettings("m", 8, oldest=oldest(8), max_candidate_sequences=3).slots == 3
    # A number of candidates says nothing without the strategy that it belongs to.
    assert SequenceSettings("m", 8, max_candidate_sequences=3).slots == 8


@BOTH
def test_SQ5_the_backlog_is_served_in_the_order_of_first_arrival(strategy):
    clock = SequenceClock(1, strategy=strategy and oldest(1))
    clock.arrive(0, "a1", "S")
    clock.arrive(1, "b1", "S")
    clock.arrive(2, "c1", "SE")
    clock.arrive(3, "b2", "E")  # later than c1, of a sequence that came before
    clock.arrive(20, "a2", "E")
    clock.run()
    assert clock.batches == ["a1", "a2", "b1", "b2", "c1"]
    assert clock.ran[2][0] == 30  # a2 began at 20


@BOTH
def test_SQ6_end_frees_the_id_at_once(strategy):
    clock = SequenceClock(2, strategy=strategy)
    clock.arrive(0, "x1", "SE")  # keeps the instance busy until 10
    clock.arrive(1, "a1", "S")
    clock.arrive(2, "a2", "E")
    clock.arrive(3, "A1", "S", of="a")  # the same id again: a new sequence in a slot of its own
    clock.arrive(4, "a?", of="b")
    clock.run(until_ms=9)
    # x1 freed its slot 0 when it was scheduled.
    assert clock.batcher.slots() == [["a", "a"]]
    clock.arrive(9, "A2", "E", of="a")
    clock.run()
    # Direct: in rows of their own. Oldest: a1 had to wait for x1, whose slot it got (OL4).
    expected = ["x1", "A1 a1", "A2 a2"] if strategy else ["x1", "a1 A1", "a2 A2"]
    assert clock.batches == expected
    assert [name for name, _ in refused(clock)] == ["a?"]


def test_SQ6_direct_end_frees_its_slot_when_it_is_scheduled():
    clock = SequenceClock(1)
    clock.arrive(0, "a1", "SE")
    clock.arrive(1, "b1", "S")
    clock.run(until_ms=2)
    assert clock.batcher.slots() == [["b"]]  # while a1 runs


@BOTH
def test_SQ7_start_of_an_active_id_keeps_its_slot(strategy):
    clock = SequenceClock(2, strategy=strategy)
    clock.arrive(0, "a1", "S")
    second = clock.arrive(20, "a2", "S")
    clock.run(until_ms=40)
    assert clock.batches == ["a1", "a2"]
    assert clock.batcher.slots() == [["a", None]]
    assert second.flags == SEQUENCE_START  # the model sees it, and the state is reset


@BOTH
def test_SQ8_one_request_may_be_a_whole_sequence(strategy):
    clock = SequenceClock(2, strategy=strategy)
    clock.arrive(0, "a1", "SE")
    clock.arrive(20, "a2", "")
    clock.run()
    assert clock.batches == ["a1"]
    assert [name for name, _ in refused(clock)] == ["a2"]
    assert clock.batcher.slots() == [[None, None]]


@BOTH
def test_SQ9_an_idle_sequence_loses_its_slot_without_a_response(strategy):
    clock = SequenceClock(1, idle_ms=100, strategy=strategy and oldest(1))
    clock.arrive(0, "a1", "S")
    clock.arrive(50, "b1", "SE")
    clock.arrive(200, "a2")
    clock.run()
    # idleness counts from the last request's arrival
    assert clock.timed == [(0, "a1"), (100, "b1")]
    assert [name for name, _ in refused(clock)] == ["a2"]
    assert len(clock.rejected) == 1


@BOTH
def test_SQ9_requests_keep_a_sequence_alive(strategy):
    clock = SequenceClock(1, idle_ms=100, strategy=strategy and oldest(1))
    for number, at_ms in enumerate(range(0, 400, 80)):
        clock.arrive(at_ms, f"a{number}", "S" if number == 0 else "")
    clock.run()
    assert len(clock.ran) == 5
    assert not clock.rejected
    assert clock.now_ms == 420  # the end of the sequence


@BOTH
def test_a_sequence_is_live_from_start_to_end_or_until_it_is_idle(strategy):
    clock = SequenceClock(1, idle_ms=100, strategy=strategy and oldest(1))
    seen: list[int] = []
    clock.arrive(0, "a1", "S")
    clock.arrive(20, "b1", "S")
    clock.arrive(40, "a2", "E")

    def look(_: int) -> list[Decision]:
        seen.append(clock.batcher.live)
        return []

    for at_ms in (10, 30, 50, 300):
        clock.at(at_ms, look)
    clock.run()
    assert seen == [1, 2, 1, 0]


@BOTH
def test_SQ9_idle_time_includes_the_backlog(strategy):
    clock = SequenceClock(1, idle_ms=400, service_ms=5, strategy=strategy and oldest(1))
    clock.arrive(0, "a1", "S")
    clock.arrive(50, "b1", "S")  # runs at 400, when a ends
    clock.arrive(550, "b2")
    clock.run()
    assert clock.timed == [(0, "a1"), (400, "b1")]
    assert [name for name, _ in refused(clock)] == ["b2"]


@BOTH
def test_SQ9_the_backlog_is_checked_every_50_ms(strategy):
    clock = SequenceClock(1, idle_ms=100, service_ms=1, strategy=strategy and oldest(1))
    for number, at_ms in enumerate(range(0, 320, 80)):
        clock.arrive(at_ms, f"a{number}", "S" if number == 0 else "")
    clock.arrive(330, "a9", "E")
    clock.arrive(10, "b1", "S")  # idle since 110, checked at 110, 160, 210, 260, 310, 360
    clock.arrive(355, "b2")  # ... which this moves to 455
    clock.arrive(454, "b3")
    clock.arrive(600, "b4")
    clock.run()
    assert clock.timed[-3:] == [(331, "b1"), (355, "b2"), (454, "b3")]
    assert [name for name, _ in refused(clock)] == ["b4"]


@BOTH
def test_SQ10_queued_requests_of_an_ended_sequence_still_run(strategy):
    clock = SequenceClock(1, idle_ms=100, service_ms=80, strategy=strategy and oldest(1))
    for number in range(4):
        clock.arrive(number, f"a{number}", "S" if number == 0 else "")
    clock.arrive(5, "b1", "SE")
    clock.arrive(150, "a4")
    clock.run()
    assert clock.batches == ["a0", "a1", "a2", "a3", "b1"]
    assert [name for name, _ in refused(clock)] == ["a4"]


@BOTH
def test_SQ11_a_timeout_ends_the_whole_sequence_in_the_backlog(strategy):
    clock = SequenceClock(1, strategy=strategy and oldest(1))
    clock.arrive(0, "a1", "S")
    clock.arrive(1, "b1", "S", timeout_ms=500)
    clock.arrive(2, "c1", "SE")
    clock.arrive(3, "b2", timeout_ms=100)  # the shortest one counts
    clock.arrive(4, "b3", timeout_ms=300)
    clock.arrive(200, "b4")
    clock.arrive(300, "a2", "E")
    clock.run()
    text = "timeout of the corresponding sequence has been expired"
    assert clock.rejected[:3] == [(103, f"b{n}", "UNAVAILABLE", text) for n in (1, 2, 3)]
    assert [name for name, _ in refused(clock)] == ["b4"]
    assert clock.batches == ["a1", "a2", "c1"]


@BOTH
def test_SQ11_timeouts_have_no_effect_in_a_slot(strategy):
    clock = SequenceClock(1, service_ms=50, strategy=strategy and oldest(1))
    clock.arrive(0, "a1", "S", timeout_ms=5)
    clock.arrive(1, "a2", timeout_ms=5)
    clock.arrive(2, "b1", "SE", timeout_ms=200)
    clock.arrive(3, "a3", "E", timeout_ms=5)
    clock.run()
    assert clock.batches == ["a1", "a2", "a3", "b1"]
    assert not clock.rejected


@BOTH
def test_SQ11_a_new_sequence_of_the_same_id_has_its_own_deadline(strategy):
    clock = SequenceClock(1, strategy=strategy and oldest(1))
    clock.arrive(0, "a1", "S")
    clock.arrive(1, "b1", "SE", timeout_ms=100)
    clock.arrive(2, "B1", "S", of="b")
    clock.arrive(150, "a2", "E")
    clock.arrive(200, "B2", "E", of="b")
    clock.run()
    assert [(at, name) for at, name, _, _ in clock.rejected] == [(101, "b1")]
    assert clock.batches == ["a1", "a2", "B1", "B2"]


@BOTH
def test_SQ12_stopping_rejects_all_requests_that_do_not_run(strategy):
    clock = SequenceClock(2, strategy=strategy)
    clock.arrive(0, "a1", "S")
    for number, name in enumerate(("a2", "a3", "b1", "c1", "d1"), 1):
        clock.arrive(number, name, "S" if name[1] == "1" else "")
    clock.run(until_ms=6)
    rejections = clock.batcher.clear("UNAVAILABLE", "Server is stopping")
    assert {rejection.ticket for rejection in rejections} == {
        clock.tickets[name] for name in ("a2", "a3", "b1", "c1", "d1")
    }
    assert {(rejection.status, rejection.reason) for rejection in rejections} == {
        ("UNAVAILABLE", "stopped")
    }
    assert clock.batcher.waiting == 0
    assert clock.batcher.wake_at() is None
    clock.run()
    assert clock.batches == ["a1"]  # was running
    assert clock.batcher.slots() == [[None, None]]


# -- direct --------------------------------------------------------------------------------------


def test_DI1_an_instance_has_one_batch_at_a_time():
    clock = SequenceClock(2)
    clock.arrive(0, "a1", "S")
    clock.arrive(1, "a2")
    clock.arrive(2, "b1", "S")
    clock.run(until_ms=100)
    assert clock.timed == [(0, "a1"), (10, "a2 b1")]


def test_DI2_rows_are_slots_and_the_empty_ones_below_are_padded():
    clock = SequenceClock(4)
    for name in "abcd":
        clock.arrive(0, name + "1", "S")
    clock.arrive(50, "c2")
    clock.arrive(51, "a2")
    clock.arrive(52, "c3")
    clock.arrive(53, "b2")
    clock.run(until_ms=100)
    assert clock.batches == ["a1", ". b1 c1 d1", ". . c2", "a2 b2 c3"]


def test_DI5_another_shape_waits_for_the_next_batch_and_is_padded():
    clock = SequenceClock(4)
    for name in "abcd":
        clock.arrive(0, name + "1", "S")
    clock.arrive(15, "a2", shape=1)
    clock.arrive(15, "b2", shape=2)
    clock.arrive(15, "c2", shape=1)
    clock.arrive(15, "d2", shape=2)
    clock.run(until_ms=100)
    # The batch reaches up to the highest slot with a request, even if that one is padded (DI2).
    assert clock.batches[2:] == ["a2 . c2 .", ". b2 . d2"]


def test_DI5_the_first_slot_with_a_request_decides_the_shape():
    clock = SequenceClock(2)
    clock.arrive(0, "x1", "SE")
    clock.arrive(1, "a1", "S", shape=2)
    clock.arrive(1, "b1", "S", shape=1)
    clock.arrive(2, "a2", shape=1)
    clock.run(until_ms=100)
    assert clock.batches == ["x1", "a1 .", "a2 b1"]


@pytest.mark.parametrize(("delay_ms", "utilization"), [(0, 1.0), (400, 0.0)])
def test_DI6_without_delay_or_utilization_nothing_waits(delay_ms, utilization):
    clock = SequenceClock(4, delay_ms=delay_ms, utilization=utilization)
    clock.arrive(0, "a1", "S")
    clock.run(until_ms=100)
    assert clock.timed == [(0, "a1")]
    assert clock.reasons == ["sequence_ready"]


def test_DI6_enough_slots_or_enough_time():
    clock = SequenceClock(4, delay_ms=400, utilization=0.5, idle_ms=10_000)
    clock.arrive(0, "a1", "S")
    clock.arrive(100, "b1", "S")
    clock.arrive(200, "b2")
    clock.run(until_ms=2000)
    assert clock.timed == [(100, "a1 b1"), (600, ". b2")]
    assert clock.reasons == ["minimum_slot_utilization", "max_queue_delay"]


def test_DI6_shares_are_compared_in_single_precision():
    # What a protobuf float field holds for 0.3 is a little more than the double 0.3.
    third = 0.30000001192092896
    settings = SequenceSettings("m", 10, minimum_slot_utilization=third)
    assert settings.enough_slots == 3
    assert SequenceSettings("m", 0, minimum_slot_utilization=1.0).enough_slots == 1
    assert SequenceSettings("m", 4, minimum_slot_utilization=0.51).enough_slots == 3


def test_DI6_a_cancelled_wait_leaves_no_timer():
    clock = SequenceClock(4, delay_ms=400, utilization=1.0, idle_ms=10_000)
    clock.arrive(0, "a1", "S")
    clock.cancel(50, "a1")
    clock.run()
    assert not clock.ran
    assert clock.now_ms == 50


@BOTH
def test_DI7_requests_of_a_sequence_keep_their_order_and_never_overlap(strategy):
    clock = SequenceClock(2, instances=2, strategy=strategy)
    for number in range(6):
        clock.arrive(0, f"a{number}", "S" if number == 0 else "")
        clock.arrive(0, f"b{number}", "S" if number == 0 else "")
    clock.run(until_ms=200)
    ran = [(at, name) for at, _, text in clock.ran for name in text.split()]
    for letter in "ab":
        own = [(at, name) for at, name in ran if name[0] == letter]
        assert own == [(10.0 * n, f"{letter}{n}") for n in range(6)]


# -- oldest --------------------------------------------------------------------------------------


def test_OL1_one_request_of_a_sequence_at_a_time_in_dynamic_batches():
    clock = SequenceClock(4, strategy=oldest(4))
    for number in range(2):
        for name in "abc":
            clock.arrive(number, f"{name}{number}", "" if number else "S")
    clock.run(until_ms=200)
    # b0 and c0 wait together; when a0 has run, a1 is issued in time to join them.
    assert clock.batches == ["a0", "b0 c0 a1", "b1 c1"]


def test_OL1_preferred_sizes_and_delay_are_those_of_the_dynamic_batcher():
    clock = SequenceClock(4, strategy=oldest(4, (2,), delay_ms=100), idle_ms=10_000)
    clock.arrive(0, "a1", "S")
    clock.arrive(30, "b1", "S")
    clock.arrive(50, "c1", "S")
    clock.run(until_ms=500)
    assert clock.timed == [(30, "a1 b1"), (150, "c1")]
    assert clock.reasons == ["preferred_batch_size", "max_queue_delay"]


def test_OL1_the_delay_counts_from_the_issue_and_queue_time_from_the_arrival():
    clock = SequenceClock(4, strategy=oldest(4, (4,), delay_ms=100), idle_ms=10_000)
    clock.arrive(0, "a1", "S")
    clock.arrive(20, "a2")  # issued at 110, when a1 has run
    clock.run(until_ms=500)
    assert clock.timed == [(100, "a1"), (210, "a2")]
    assert clock.queued_ms == {"a1": 100, "a2": 190}


def test_OL2_no_padding_and_no_rows():
    clock = SequenceClock(4, strategy=oldest(4))
    for name in "abc":
        clock.arrive(0, name + "1", "S")
    clock.arrive(50, "c2")
    clock.run(until_ms=100)
    assert clock.batches == ["a1", "b1 c1", "c2"]


def test_SQ4_the_lowest_slot_comes_first_and_a_heap_decides_between_instances():
    """Three instances of two slots, as on the real server."""
    clock = SequenceClock(2, instances=3)
    for at, name in enumerate("abcdef"):
        clock.arrive(at, name + "1", "S")
    clock.run(until_ms=100)
    assert clock.batcher.slots() == [["a", "f"], ["b", "e"], ["c", "d"]]


def test_OL3_the_number_of_candidates_bounds_the_active_sequences():
    clock = SequenceClock(4, strategy=oldest(4), candidates=2)
    for name in "abc":
        clock.arrive(0, name + "1", "S")
    clock.arrive(40, "a2", "E")
    clock.run(until_ms=100)
    assert clock.timed == [(0, "a1"), (10, "b1"), (40, "a2"), (50, "c1")]


def test_OL4_the_issue_of_end_frees_the_slot_but_the_next_request_waits():
    clock = SequenceClock(4, strategy=oldest(4), candidates=1)
    clock.arrive(0, "a1", "SE")
    clock.arrive(1, "b1", "SE", timeout_ms=5)  # in a slot at once: its timeout has no effect
    clock.run(until_ms=3)
    assert clock.batcher.slots() == [["b"]]
    clock.run()
    assert clock.timed == [(0, "a1"), (10, "b1")]
    assert not clock.rejected


def test_OL4_the_backlog_gets_slots_in_the_order_in_which_they_are_freed():
    """As on the real server: c gets the higher slot of b, whose END was issued first."""
    clock = SequenceClock(4, strategy=oldest(4), candidates=2)
    for at, name, flags in (
        (0, "a1", "S"), (1, "b1", "S"), (2, "a2", ""), (3, "c1", "S"), (4, "d1", "S"),
        (12, "a3", "E"), (13, "b2", "E"),
    ):  # fmt: skip
        clock.arrive(at, name, flags)
    clock.run(until_ms=100)
    assert clock.batches == ["a1", "b1 a2", "b2 a3", "c1 d1"]
    assert clock.batcher.slots() == [["d", "c"]]


def test_OL4_several_sequences_wait_for_one_end():
    clock = SequenceClock(4, strategy=oldest(4), candidates=1)
    for number, name in enumerate("abcd"):
        clock.arrive(number, name + "1", "SE")
    clock.run()
    assert clock.timed == [(0, "a1"), (10, "b1"), (20, "c1"), (30, "d1")]
    assert clock.batcher.slots() == [[None]]


# -- iterative sequences -------------------------------------------------------------------------


@BOTH
def test_IT1_requests_without_an_id_get_one(strategy):
    clock = SequenceClock(2, iterative=True, strategy=strategy)
    tickets = [
        clock.arrive(0, name + "1", flags, of=0)
        for name, flags in zip("abc", ("", "E", "S"), strict=True)
    ]
    clock.run()
    assert [ticket.correlation_id for ticket in tickets] == [1, 2, 3]
    assert [ticket.flags for ticket in tickets] == [SEQUENCE_START] * 3
    assert clock.batcher.slots() == [[None, None]]


def test_IT1_a_client_id_is_not_assigned_to_another_request():
    clock = SequenceClock(2, iterative=True)
    clock.arrive(0, "a1", "S", of=1, passes=3)
    other = clock.arrive(1, "b1", of=0)
    clock.run()
    assert other.correlation_id == 2


@BOTH
def test_IT2_a_rescheduled_request_runs_again_in_its_slot(strategy):
    clock = SequenceClock(2, iterative=True, strategy=strategy)
    clock.arrive(0, "a1", of=0, passes=3)
    clock.run()
    assert clock.timed == [(0, "a1"), (10, "a1"), (20, "a1")]
    assert clock.queued_ms == {"a1": 0}  # every pass is enqueued anew


@BOTH
def test_IT3_an_answered_request_frees_its_slot(strategy):
    clock = SequenceClock(1, iterative=True, strategy=strategy and oldest(1))
    clock.arrive(0, "a1", of=0, passes=2)
    clock.arrive(1, "b1", of=0)
    clock.run()
    assert clock.timed == [(0, "a1"), (10, "a1"), (20, "b1")]
    assert clock.batcher.slots() == [[None]]
    assert clock.batcher.waiting == 0


@BOTH
def test_IT4_only_the_first_pass_has_start(strategy):
    clock = SequenceClock(2, iterative=True, strategy=strategy)
    ticket = clock.arrive(0, "a1", of=0, passes=3)
    flags = []
    for at_ms in (5, 15, 25):
        clock.at(at_ms, lambda now: flags.append(ticket.flags) or [])
    clock.run()
    assert flags == [SEQUENCE_START, 0, 0]


def test_IT5_passes_of_different_requests_share_batches():
    clock = SequenceClock(4, iterative=True, strategy=oldest(4))
    for name in "abc":
        clock.arrive(0, name + "1", of=0, passes=2)
    clock.run()
    assert clock.batches == ["a1", "b1 c1 a1", "b1 c1"]


def test_IT5_direct_keeps_rows_and_padding():
    clock = SequenceClock(4, iterative=True)
    clock.arrive(0, "a1", of=0, passes=2)
    clock.arrive(1, "b1", of=0, passes=2)
    clock.run()
    assert clock.batches == ["a1", "a1 b1", ". b1"]


@BOTH
def test_IT2_a_request_cancelled_while_it_runs_is_not_run_again(strategy):
    clock = SequenceClock(2, iterative=True, strategy=strategy)
    clock.arrive(0, "a1", of=0, passes=5)
    clock.cancel(15, "a1")
    clock.run()
    assert clock.timed == [(0, "a1"), (10, "a1")]
    assert clock.rejected == [(20, "a1", "CANCELLED", "")]
    assert clock.batcher.slots() == [[None, None]]


@BOTH
def test_IT2_idleness_does_not_end_running_requests(strategy):
    clock = SequenceClock(
        1, iterative=True, service_ms=300, idle_ms=100, strategy=strategy and oldest(1)
    )
    clock.arrive(0, "a1", of=0, passes=3)
    clock.run()
    assert clock.timed == [(0, "a1"), (300, "a1"), (600, "a1")]


# -- cancellation --------------------------------------------------------------------------------


@BOTH
def test_X5_cancelling_a_request_cancels_those_behind_it(strategy):
    clock = SequenceClock(1, strategy=strategy and oldest(1))
    for number in range(4):
        clock.arrive(number, f"a{number}", "S" if number == 0 else "")
    clock.arrive(4, "b1", "SE")
    clock.cancel(5, "a2")
    clock.arrive(6, "a4")
    clock.run()
    assert [rejection[:3] for rejection in clock.rejected[:2]] == [
        (5, "a2", "CANCELLED"),
        (5, "a3", "CANCELLED"),
    ]
    assert [name for name, _ in refused(clock)] == ["a4"]
    assert clock.batches == ["a0", "a1", "b1"]  # as on the real server


@BOTH
def test_X5_in_the_backlog_the_whole_sequence_is_cancelled(strategy):
    clock = SequenceClock(1, strategy=strategy and oldest(1))
    clock.arrive(0, "a1", "S")
    clock.arrive(1, "b1", "S")
    clock.arrive(2, "c1", "SE")
    clock.arrive(3, "b2")
    clock.cancel(5, "b2")
    clock.arrive(20, "a2", "E")
    clock.arrive(25, "B1", "SE", of="b")  # a new sequence, behind c
    clock.run()
    assert [rejection[1:3] for rejection in clock.rejected] == [
        ("b1", "CANCELLED"),
        ("b2", "CANCELLED"),
    ]
    assert clock.batches == ["a1", "a2", "c1", "B1"]


@BOTH
def test_X5_a_running_request_runs_on(strategy):
    clock = SequenceClock(1, strategy=strategy and oldest(1))
    clock.arrive(0, "a1", "S")
    clock.cancel(5, "a1")
    clock.arrive(20, "a2", "E")
    clock.run()
    assert clock.batches == ["a1", "a2"]
    assert not clock.rejected


def test_X5_an_issued_request_that_waits_for_its_batch_is_cancelled():
    clock = SequenceClock(4, strategy=oldest(4, (4,), delay_ms=100), idle_ms=10_000)
    clock.arrive(0, "a1", "S")
    clock.arrive(1, "a2")
    clock.arrive(2, "b1", "S")
    clock.cancel(50, "a1")
    clock.run(until_ms=500)
    assert [rejection[1:3] for rejection in clock.rejected] == [
        ("a1", "CANCELLED"),
        ("a2", "CANCELLED"),
    ]
    assert clock.timed == [(102, "b1")]
    assert clock.batcher.slots() == [[None, "b", None, None]]


def test_X5_cancelling_an_end_issues_the_next_request_of_its_slot():
    clock = SequenceClock(4, strategy=oldest(4, (4,), delay_ms=100), candidates=1, idle_ms=10_000)
    clock.arrive(0, "a1", "SE")
    clock.arrive(1, "b1", "SE")
    clock.cancel(50, "a1")
    clock.run()
    assert clock.timed == [(150, "b1")]  # issued at 50
