"""Custom batching in the pure batcher: what a strategy is asked, and what its answers do (D4, G8)."""

from __future__ import annotations

import pytest

from nbtriton.errors import InternalError
from nbtriton.scheduling import (
    Batcher,
    BatcherSettings,
    RejectTicket,
    RunBatch,
    Ticket,
    TicketState,
)
from tests.scheduling.simulator import MS, settings


class Names:
    """Keeps what it was called with; refuses and fails as told, by name."""

    def __init__(self, most=99, *, fails=(), refuses=(), fails_to_begin=0):
        self.calls = []
        self.most = most  # requests in a batch
        self.fails = fails
        self.refuses = refuses
        self.fails_to_begin = fails_to_begin

    def initialize(self):
        if self.fails_to_begin:
            self.fails_to_begin -= 1
            raise InternalError("no state")
        self.calls.append("[")
        return []

    def include(self, state, ticket):
        name = ticket.correlation_id
        self.calls.append(name)
        if name in self.fails:
            raise InternalError(f"not {name}")
        if name in self.refuses or len(state) >= self.most:
            return False
        state.append(name)
        return True

    def finalize(self, state):
        self.calls.append("]")

    @property
    def log(self):
        """Calls so far, as a text; forgotten."""
        text = "".join(self.calls)
        self.calls.clear()
        return text


class Line:
    """A batcher with one instance; requests have letters, decisions are texts."""

    def __init__(self, config, strategy):
        self.strategy = strategy
        self.batcher = Batcher(config, 1, strategy)
        self.tickets = {}

    def submit(self, names, now=0, **ticket):
        out = []
        for name in names:
            self.tickets[name] = Ticket(correlation_id=name, **ticket)
            out += self.texts(self.batcher.submit(now, self.tickets[name]))
        return out

    def finish(self, now=0):
        return self.texts(self.batcher.finish(now, 0))

    def texts(self, decisions):
        return [
            f"{''.join(t.correlation_id for t in one.tickets)} {one.reason}"
            if isinstance(one, RunBatch)
            else f"{one.ticket.correlation_id} {one.reason}: {one.message}"
            for one in decisions
        ]


AHEAD = settings(8)
NOT_AHEAD = settings(8, ahead=False)
REFUSED = (
    "custom_batching_refused: "
    "the custom batching strategy includes the request in no batch, not even in an empty one"
)


def test_D4_a_batch_is_initialized_asked_about_and_finalized_before_it_runs():
    line = Line(AHEAD, Names())
    assert line.submit("a") == ["a no_delay"]
    assert line.strategy.log == "[a]"


def test_D4_no_stops_the_scan_and_the_refused_request_begins_the_next_batch():
    line = Line(NOT_AHEAD, Names(2))
    line.submit("x")
    line.submit("abcde")  # while the instance is busy and nothing is formed ahead
    assert line.strategy.log == "[x]"
    assert line.finish() == ["ab custom_batching"]
    assert line.strategy.log == "[abc]"
    assert line.finish() == ["cd custom_batching"]
    assert line.finish() == ["e no_delay"]
    assert line.strategy.log == "[cde][e]"


def test_D4_a_batch_that_is_joined_while_it_waits_begins_with_what_it_holds():
    line = Line(AHEAD, Names(2))
    line.submit("x")
    assert line.strategy.log == "[x]"
    line.submit("a")
    assert line.strategy.log == "[a]"
    line.submit("b")
    assert line.strategy.log == "[ab]"
    line.submit("c")
    assert line.strategy.log == "[abc][c]"
    assert line.finish() == ["ab custom_batching"]
    assert line.finish() == ["c no_delay"]
    assert line.strategy.log == ""


def test_D4_while_a_scan_waits_each_candidate_is_asked_about_once():
    line = Line(settings(8, delay_ms=10), Names(3))
    assert line.submit("ab") == []
    assert line.strategy.log == "[ab"
    assert line.batcher.wake_at() == 10 * MS
    assert line.submit("c", now=5) == []
    assert line.strategy.log == "c"
    assert line.submit("d", now=6) == ["abc custom_batching"]
    assert line.strategy.log == "d][d"
    assert line.texts(line.batcher.tick(16 * MS)) == []
    assert line.finish(16 * MS) == ["d max_queue_delay"]
    assert line.strategy.log == "]"


def test_D4_a_restarted_scan_begins_anew():
    line = Line(settings(8, delay_ms=10, levels=2), Names())
    line.submit("ab", priority=2)
    assert line.strategy.log == "[ab"
    line.submit("c", priority=1)
    assert line.strategy.log == "][cab"  # Q3
    assert line.texts(line.batcher.cancel(1, line.tickets["a"])) == ["a cancelled: "]
    assert line.strategy.log == "][cb"
    assert line.texts(line.batcher.clear("UNAVAILABLE", "stopping")) == [
        "c stopped: stopping", "b stopped: stopping"
    ]  # fmt: skip
    assert line.strategy.log == "]"


def test_D4_the_rules_of_size_and_shape_come_first():
    line = Line(settings(2, ahead=False), Names())
    line.submit("x")
    line.submit("abc")
    line.submit("d", shape_key="other")
    line.strategy.log  # noqa: B018 - forget
    assert line.finish() == ["ab max_batch_size"]
    assert line.finish() == ["c shape"]
    assert line.strategy.log == "[ab][c]"


def test_D4_a_refused_request_ends_the_mark_of_a_preferred_size_too():
    line = Line(settings(8, (2, 6), ahead=False), Names(4))
    line.submit("x")
    line.submit("abcdef")
    assert line.finish() == ["ab preferred_batch_size"]
    assert line.finish() == ["cd preferred_batch_size"]


def test_a_request_that_an_empty_batch_refuses_is_told_so_and_holds_up_nobody():
    line = Line(NOT_AHEAD, Names(refuses="b"))
    line.submit("x")
    line.submit("abc")
    assert line.finish() == ["a custom_batching"]
    assert line.finish() == [f"b {REFUSED}", "c no_delay"]
    assert line.tickets["b"].state is TicketState.DONE
    assert line.batcher.waiting == 0
    assert line.strategy.log.count("[") == 4


def test_a_strategy_that_fails_on_a_request_fails_that_request_alone():
    line = Line(NOT_AHEAD, Names(fails="bd"))
    line.submit("x")
    line.submit("abcde")
    assert line.finish() == [
        "b custom_batching_failed: not b",
        "d custom_batching_failed: not d",
        "ace no_delay",
    ]
    assert line.finish() == []
    assert line.batcher.waiting == 0


def test_a_strategy_that_cannot_begin_fails_the_head():
    line = Line(NOT_AHEAD, Names())
    line.submit("x")
    line.submit("abc")
    line.strategy.fails_to_begin = 2
    assert line.finish() == [
        "a custom_batching_failed: no state",
        "b custom_batching_failed: no state",
        "c no_delay",
    ]


def test_a_strategy_that_cannot_begin_leaves_a_formed_batch_as_it_is():
    line = Line(AHEAD, Names())
    line.submit("xa")
    line.strategy.fails_to_begin = 1
    assert line.submit("b") == []  # b begins a batch of its own
    assert line.finish() == ["a no_delay"]
    assert line.finish() == ["b no_delay"]


def test_a_strategy_that_fails_on_what_a_batch_holds_leaves_it_as_it_is():
    line = Line(AHEAD, Names())
    line.submit("xa")
    line.strategy.log  # noqa: B018 - forget
    line.strategy.fails = "a"
    assert line.submit("b") == []
    assert line.strategy.log == "[a][b]"
    assert line.finish() == ["a no_delay"]
    assert line.finish() == ["b no_delay"]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [(Names(), "abcde merged"), (Names(4), "abcd preferred_exceeded")],
    ids=["included", "refused"],
)
def test_P5_batches_are_merged_only_if_the_strategy_includes_all(strategy, expected):
    line = Line(settings(8, (3,), 10), strategy)
    assert line.submit("xyz") == ["xyz preferred_batch_size"]
    line.submit("abcd")  # as large as it gets
    line.submit("e")
    line.texts(line.batcher.tick(11 * MS))  # a batch by itself after its delay
    assert line.finish(22 * MS)[0] == expected
    assert strategy.calls.count("[") == strategy.calls.count("]")


def test_P5_a_batch_that_the_strategy_closed_is_not_merged():
    line = Line(settings(8, (3,), 10), Names(3))
    line.submit("xyz")
    line.submit("abcd")
    line.texts(line.batcher.tick(11 * MS))
    line.strategy.most = 99
    assert line.finish(22 * MS) == ["abc preferred_batch_size"]


def test_the_default_scheduler_asks_nobody():
    line = Line(BatcherSettings(max_batch_size=8), Names(refuses="a"))
    assert line.submit("a") == ["a batching_off"]
    assert line.strategy.log == ""


def test_a_refusal_is_a_drop_with_a_status():
    line = Line(AHEAD, Names(refuses="a"))
    line.tickets["a"] = Ticket(correlation_id="a")
    (drop,) = line.batcher.submit(0, line.tickets["a"])
    assert isinstance(drop, RejectTicket)
    assert (drop.status, drop.reason) == ("INVALID_ARG", "custom_batching_refused")
