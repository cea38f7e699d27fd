"""Rate limiter: a test per rule; its random steps are those of the walk."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from nbtriton.scheduling import (
    Batcher,
    RateLimiter,
    ResourceShortage,
    ReturnResources,
    RunBatch,
    StageInstance,
    Ticket,
)
from tests.scheduling.limiter_oracle import needs
from tests.scheduling.simulator import settings

# -- rules ---------------------------------------------------------------------------------------


def test_R2_resources_are_held_until_the_execution_ends():
    limiter = RateLimiter()
    limiter.add("a", needs(("X", 1)))
    limiter.add("b", needs(("X", 1)))
    assert limiter.stage("a") == ["a"]
    assert limiter.stage("b") == []
    assert limiter.pools() == {("x", 0): (1, 1)}
    assert limiter.release("a") == ["b"]
    assert limiter.release("b") == []
    assert limiter.pools() == {("x", 0): (0, 1)}


def test_R2_all_resources_or_none():
    limiter = RateLimiter()
    limiter.add("x", needs(("X", 1)))
    limiter.add("xy", needs(("X", 1), ("Y", 1)))
    limiter.stage("x")
    assert limiter.stage("xy") == []
    assert limiter.pools()["y", 0] == (0, 1)  # nothing is held while it waits
    assert limiter.release("x") == ["xy"]


def test_R2_an_instance_without_needs_runs_at_once():
    limiter = RateLimiter()
    limiter.add("free", [])
    assert limiter.stage("free") == ["free"]


def test_R3_a_pool_is_as_large_as_the_largest_single_need():
    limiter = RateLimiter()
    limiter.add("a", needs(("X", 3)))
    limiter.add("b", needs(("X", 3)))
    assert limiter.pools() == {("x", 0): (0, 3)}
    assert limiter.stage("a") == ["a"]
    assert limiter.stage("b") == []
    # Another model needs 8: now two fit side by side, from the next event on.
    limiter.add("c", needs(("X", 8)))
    assert limiter.pools() == {("x", 0): (3, 8)}
    assert limiter.stage("c") == ["b"]
    assert limiter.pools() == {("x", 0): (6, 8)}
    assert limiter.release("a") == []
    assert limiter.release("b") == ["c"]
    assert limiter.release("c") == []
    limiter.remove("c")
    assert limiter.pools() == {("x", 0): (0, 3)}


def test_R3_devices_have_pools_of_their_own_and_global_ones_are_shared():
    limiter = RateLimiter()
    for device in (0, 1):
        limiter.add(("own", device), needs(("X", 1)), device)
        limiter.add(("all", device), needs(("@G", 1)), device)
    assert limiter.stage(("own", 0)) == [("own", 0)]
    assert limiter.stage(("own", 1)) == [("own", 1)]
    assert limiter.stage(("all", 0)) == [("all", 0)]
    assert limiter.stage(("all", 1)) == []
    assert set(limiter.pools()) == {("x", 0), ("x", 1), ("g", -1)}


def test_R3_the_last_entry_of_a_name_counts():
    limiter = RateLimiter()
    limiter.add("a", needs(("X", 5), ("X", 2)))
    assert limiter.pools() == {("x", 0): (0, 2)}
    assert limiter.stage("a") == ["a"]
    assert limiter.pools() == {("x", 0): (2, 2)}


def test_R4_explicit_limits():
    limiter = RateLimiter({("x", None): 4, ("X", 1): 2, ("X", 2): 9, ("G", 1): 3})
    limiter.add("d0", needs(("X", 4)), 0)
    limiter.add("d1", needs(("x", 3)), 1)  # the larger of its device's and the general limit
    limiter.add("d2", needs(("X", 3)), 2)
    limiter.add("g", needs(("@G", 3)), 0)  # the device of a limit says nothing about global ones
    assert limiter.pools() == {
        ("x", 0): (0, 4), ("x", 1): (0, 4), ("x", 2): (0, 9), ("g", -1): (0, 3),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("limits", "need", "limited"),
    [
        ({("R", None): 2}, ("R", 3), 2),
        ({("Q", None): 2}, ("R", 1), 0),
        ({("R", 1): 5}, ("R", 1), 0),
    ],
)
def test_R4_an_instance_that_could_never_run_is_refused(limits, need, limited):
    limiter = RateLimiter(limits)
    with pytest.raises(ResourceShortage) as caught:
        limiter.add("a", needs(need))
    assert str(caught.value) == (
        f'Resource count for "R" is limited to {limited} which will prevent scheduling of one or '
        f"more model instances, the minimum required count is {need[1]}"
    )
    assert limiter.pools() == {}


@pytest.mark.parametrize("names", [("X", "@X"), ("@X", "x")])
def test_R5_a_name_is_global_or_not(names):
    first, second = names
    limiter = RateLimiter()
    limiter.add("a", needs((first, 1)))
    with pytest.raises(ResourceShortage) as caught:
        limiter.add("b", needs((second, 1)))
    assert str(caught.value) == (
        f'Resource "{second.lstrip("@")}" is present as both global and device-specific resource '
        "in the model configuration."
    )
    assert set(limiter.pools()) == {("x", 0 if first == "X" else -1)}
    with pytest.raises(ResourceShortage):
        RateLimiter().add("c", needs(("X", 1), ("@X", 1)))


def contend(priorities: dict[str, int], rounds: int) -> str:
    """Return the order of execution: one resource, and every instance always has a batch."""
    limiter = RateLimiter()
    for key, priority in priorities.items():
        limiter.add(key, needs(("X", 1)), priority=priority)
    running = [key for key in priorities for key in limiter.stage(key)]
    order = ""
    for _ in range(rounds):
        (key,) = running
        order += key
        running = limiter.release(key, more=True)
    return order


def test_R6_priority_is_a_weight():
    # As on the real server: priority 2 runs half as often as priority 1. Each counts two executions
    # when it is loaded, so that those of a low priority wait first.
    assert "aab" * 5 in contend({"a": 1, "b": 2}, 30)
    assert contend({"a": 1, "b": 3}, 12) == "aaaabaaabaaa"
    counts = Counter(contend({"a": 1, "b": 2, "c": 4}, 140))
    assert all(abs(counts[key] - share) <= 4 for key, share in (("a", 80), ("b", 40), ("c", 20)))
    assert contend({"a": 0, "b": 1}, 20) == "ab" * 10  # 0 is 1


def test_R6_the_rank_of_an_idle_instance():
    limiter = RateLimiter()
    limiter.add("a", [], priority=1)
    limiter.add("b", [], priority=3)
    assert (limiter.rank("a"), limiter.rank("b")) == (2, 6)
    limiter.stage("a")
    limiter.release("a")
    assert limiter.rank("a") == 3


def test_R7_nothing_behind_the_head_is_tried():
    limiter = RateLimiter()
    limiter.add("large", needs(("X", 4)))
    limiter.add("small", needs(("X", 1)))
    limiter.add("other", needs(("Y", 1)))
    limiter.stage("small")
    assert limiter.stage("large") == []
    assert limiter.stage("other") == []  # what it needs is free, but it is not its turn
    assert limiter.release("small") == ["large"]
    assert limiter.release("large") == ["other"]  # one at a time


def test_R8_a_released_instance_with_a_batch_competes_with_the_waiting_ones():
    limiter = RateLimiter()
    limiter.add("a", needs(("X", 1)), priority=1)
    limiter.add("b", needs(("X", 1)), priority=3)
    limiter.stage("a")
    limiter.stage("b")
    for _ in range(3):  # ranks up to 5 against 6: before b, which waits longer
        assert limiter.release("a", more=True) == ["a"]
    assert limiter.release("a", more=True) == ["b"]  # as much as b, which waits longer
    assert limiter.release("b", more=True) == ["a"]  # 6 against 9
    assert limiter.release("a", more=False) == ["b"]


def test_R8_each_staging_and_each_release_grants_one_instance():
    """As on the real server: of two that fit beside each other the second waits for an event."""
    limiter = RateLimiter()
    limiter.add("all", needs(("X", 4)))
    for key in "abcd":
        limiter.add(key, needs(("X", 2)))
    limiter.stage("all")
    for key in "abc":
        assert limiter.stage(key) == []
    assert limiter.release("all") == ["a"]
    assert limiter.stage("d") == ["b"]
    assert limiter.release("a") == ["c"]
    assert limiter.release("b", more=True) == ["d"]
    # Released and staged again: two may be granted.
    assert limiter.release("c", more=True) == ["b"]
    assert limiter.release("d") == ["c"]


def test_R8_an_instance_that_is_staged_again_may_grant_two():
    limiter = RateLimiter()
    limiter.add("all", needs(("X", 4)))
    for key in "ab":
        limiter.add(key, needs(("X", 2)), priority=1)
    limiter.stage("all")
    limiter.stage("a")
    limiter.stage("b")
    assert limiter.release("all", more=True) == ["a", "b"]


def test_a_removed_instance_is_not_granted_and_may_come_back():
    limiter = RateLimiter()
    for key in "abc":
        limiter.add(key, needs(("X", 1)))
    limiter.stage("a")
    limiter.stage("b")
    limiter.stage("c")
    limiter.remove("b")
    limiter.add("b", needs(("X", 1)))
    assert limiter.release("a") == ["c"]
    assert limiter.release("c") == []  # b is new and has no work
    assert limiter.stage("b") == ["b"]


def test_removing_the_head_makes_way_for_the_next():
    limiter = RateLimiter()
    limiter.add("large", needs(("X", 4)))
    limiter.add("small", needs(("X", 1)))
    limiter.add("other", needs(("X", 1)))
    limiter.stage("small")
    limiter.stage("large")
    limiter.stage("other")
    assert limiter.remove("large") == []  # the pool has shrunk to 1
    assert limiter.release("small") == ["other"]


@pytest.mark.parametrize(("ahead", "sizes"), [(True, [1, 7]), (False, [1, 1, 6])])
def test_R9_a_batch_grows_while_others_hold_the_resource(ahead, sizes):
    """2 instances, one may run at a time, 8 requests: as on the real server."""
    limiter = RateLimiter()
    for instance in range(2):
        limiter.add(instance, needs(("X", 1)))
    batcher = Batcher(settings(8, ahead=ahead), 2, gated=True, rank=limiter.rank)
    ran: list[RunBatch] = []

    def carry_out(decisions):
        for decision in decisions:
            if isinstance(decision, RunBatch):
                ran.append(decision)
            else:
                assert isinstance(decision, StageInstance)
                granted(limiter.stage(decision.instance))

    def granted(instances):
        for instance in instances:
            carry_out(batcher.granted(0, instance))

    assert batcher.forms_ahead is ahead
    for _ in range(8):
        carry_out(batcher.submit(0, Ticket()))
    assert [run.size for run in ran] == [1]
    for at in range(len(sizes)):
        granted(limiter.release(ran[at].instance))
        carry_out(batcher.finish(1, ran[at].instance))
    assert [run.size for run in ran] == sizes


def test_R9_a_staged_batch_without_requests_returns_its_resources():
    batcher = Batcher(settings(8), 1, gated=True)
    ticket, later = Ticket(), Ticket()
    assert batcher.submit(0, ticket) == [StageInstance(0)]
    assert batcher.cancel(0, ticket) == []  # X2: it is in a batch
    (rejection,) = batcher.cancel(0, ticket, formed=True)
    assert rejection.reason == "cancelled"
    assert batcher.granted(1, 0) == [ReturnResources(0)]
    assert batcher.submit(2, later) == [StageInstance(0)]
    (run,) = batcher.granted(3, 0)
    assert run.tickets == (later,)


# -- random work ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_every_instance_runs_under_contention(seed):
    random = Random(seed)
    priorities = {key: random.randint(1, 5) for key in "abcdefg"[: random.randint(2, 7)]}
    order = contend(priorities, 2000)
    shares = {key: order.count(key) * priority for key, priority in priorities.items()}
    # Executions times weight stay level: no instance is ahead by more than one step of another.
    assert max(shares.values()) - min(shares.values()) <= 2 * max(priorities.values())
