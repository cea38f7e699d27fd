"""Custom batching in the pure batcher: calls of a strategy and effect of its answers (D4, G8)."""

from __future__ import annotations

import pytest

from nbtriton.common.errors import InternalError
from nbtriton.scheduling import (
    Batcher,
    BatcherSettings,
    RejectTicket,
    RunBatch,
    Ticket,
    TicketState,
)
from tests.scheduling.simulator import MS, settings


class RecordingStrategy:
    """Records its calls; refuses and fails for requests of given names."""

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
        """The calls since the last look, as text."""
        text = "".join(self.calls)
        self.calls.clear()
        return text


class LetterBatcher:
    """A batcher with one instance; requests are letters, decisions are texts."""

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


def test_D4_a_batch_is_initialized_filled_and_finalized_before_it_runs():
    batcher = LetterBatcher(AHEAD, RecordingStrategy())
    assert batcher.submit("a") == ["a no_delay"]
    assert batcher.strategy.log == "[a]"


def test_D4_a_refusal_ends_the_scan_and_the_refused_request_begins_the_next_batch():
    batcher = LetterBatcher(NOT_AHEAD, RecordingStrategy(2))
    batcher.submit("x")
    batcher.submit("abcde")  # while the instance is busy; no batch is formed ahead
    assert batcher.strategy.log == "[x]"
    assert batcher.finish() == ["ab custom_batching"]
    assert batcher.strategy.log == "[abc]"
    assert batcher.finish() == ["cd custom_batching"]
    assert batcher.finish() == ["e no_delay"]
    assert batcher.strategy.log == "[cde][e]"


def test_D4_a_batch_that_is_joined_while_it_waits_begins_with_its_requests():
    batcher = LetterBatcher(AHEAD, RecordingStrategy(2))
    batcher.submit("x")
    assert batcher.strategy.log == "[x]"
    batcher.submit("a")
    assert batcher.strategy.log == "[a]"
    batcher.submit("b")
    assert batcher.strategy.log == "[ab]"
    batcher.submit("c")
    assert batcher.strategy.log == "[abc][c]"
    assert batcher.finish() == ["ab custom_batching"]
    assert batcher.finish() == ["c no_delay"]
    assert batcher.strategy.log == ""


def test_D4_while_a_scan_waits_each_candidate_is_included_once():
    batcher = LetterBatcher(settings(8, delay_ms=10), RecordingStrategy(3))
    assert batcher.submit("ab") == []
    assert batcher.strategy.log == "[ab"
    assert batcher.batcher.wake_at() == 10 * MS
    assert batcher.submit("c", now=5) == []
    assert batcher.strategy.log == "c"
    assert batcher.submit("d", now=6) == ["abc custom_batching"]
    assert batcher.strategy.log == "d][d"
    assert batcher.texts(batcher.batcher.tick(16 * MS)) == []
    assert batcher.finish(16 * MS) == ["d max_queue_delay"]
    assert batcher.strategy.log == "]"


def test_D4_a_restarted_scan_begins_with_a_new_state():
    batcher = LetterBatcher(settings(8, delay_ms=10, levels=2), RecordingStrategy())
    batcher.submit("ab", priority=2)
    assert batcher.strategy.log == "[ab"
    batcher.submit("c", priority=1)
    assert batcher.strategy.log == "][cab"  # Q3
    assert batcher.texts(batcher.batcher.cancel(1, batcher.tickets["a"])) == ["a cancelled: "]
    assert batcher.strategy.log == "][cb"
    assert batcher.texts(batcher.batcher.clear("UNAVAILABLE", "stopping")) == [
        "c stopped: stopping", "b stopped: stopping"
    ]  # fmt: skip
    assert batcher.strategy.log == "]"


def test_D4_size_and_shape_are_checked_first():
    batcher = LetterBatcher(settings(2, ahead=False), RecordingStrategy())
    batcher.submit("x")
    batcher.submit("abc")
    batcher.submit("d", shape_key="other")
    batcher.strategy.log  # noqa: B018 - reset
    assert batcher.finish() == ["ab max_batch_size"]
    assert batcher.finish() == ["c shape"]
    assert batcher.strategy.log == "[ab][c]"


def test_D4_a_refused_request_ends_the_mark_of_a_preferred_size_too():
    batcher = LetterBatcher(settings(8, (2, 6), ahead=False), RecordingStrategy(4))
    batcher.submit("x")
    batcher.submit("abcdef")
    assert batcher.finish() == ["ab preferred_batch_size"]
    assert batcher.finish() == ["cd preferred_batch_size"]


def test_a_request_that_an_empty_batch_refuses_is_rejected_and_blocks_no_other():
    batcher = LetterBatcher(NOT_AHEAD, RecordingStrategy(refuses="b"))
    batcher.submit("x")
    batcher.submit("abc")
    assert batcher.finish() == ["a custom_batching"]
    assert batcher.finish() == [f"b {REFUSED}", "c no_delay"]
    assert batcher.tickets["b"].state is TicketState.DONE
    assert batcher.batcher.waiting == 0
    assert batcher.strategy.log.count("[") == 4


def test_a_strategy_that_fails_on_a_request_fails_that_request_alone():
    batcher = LetterBatcher(NOT_AHEAD, RecordingStrategy(fails="bd"))
    batcher.submit("x")
    batcher.submit("abcde")
    assert batcher.finish() == [
        "b custom_batching_failed: not b",
        "d custom_batching_failed: not d",
        "ace no_delay",
    ]
    assert batcher.finish() == []
    assert batcher.batcher.waiting == 0


def test_a_strategy_that_cannot_begin_fails_the_head():
    batcher = LetterBatcher(NOT_AHEAD, RecordingStrategy())
    batcher.submit("x")
    batcher.submit("abc")
    batcher.strategy.fails_to_begin = 2
    assert batcher.finish() == [
        "a custom_batching_failed: no state",
        "b custom_batching_failed: no state",
        "c no_delay",
    ]


def test_a_strategy_that_cannot_begin_leaves_a_formed_batch_as_it_is():
    batcher = LetterBatcher(AHEAD, RecordingStrategy())
    batcher.submit("xa")
    batcher.strategy.fails_to_begin = 1
    assert batcher.submit("b") == []  # b begins a batch of its own
    assert batcher.finish() == ["a no_delay"]
    assert batcher.finish() == ["b no_delay"]


def test_a_strategy_that_fails_on_the_requests_of_a_batch_leaves_it_as_it_is():
    batcher = LetterBatcher(AHEAD, RecordingStrategy())
    batcher.submit("xa")
    batcher.strategy.log  # noqa: B018 - reset
    batcher.strategy.fails = "a"
    assert batcher.submit("b") == []
    assert batcher.strategy.log == "[a][b]"
    assert batcher.finish() == ["a no_delay"]
    assert batcher.finish() == ["b no_delay"]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [(RecordingStrategy(), "abcde merged"), (RecordingStrategy(4), "abcd preferred_exceeded")],
    ids=["included", "refused"],
)
def test_P5_batches_are_merged_only_if_the_strategy_includes_all(strategy, expected):
    batcher = LetterBatcher(settings(8, (3,), 10), strategy)
    assert batcher.submit("xyz") == ["xyz preferred_batch_size"]
    batcher.submit("abcd")  # the full size
    batcher.submit("e")
    batcher.texts(batcher.batcher.tick(11 * MS))  # its own batch after its delay
    assert batcher.finish(22 * MS)[0] == expected
    assert strategy.calls.count("[") == strategy.calls.count("]")


def test_P5_a_batch_that_the_strategy_closed_is_not_merged():
    batcher = LetterBatcher(settings(8, (3,), 10), RecordingStrategy(3))
    batcher.submit("xyz")
    batcher.submit("abcd")
    batcher.texts(batcher.batcher.tick(11 * MS))
    batcher.strategy.most = 99
    assert batcher.finish(22 * MS) == ["abc preferred_batch_size"]


def test_the_default_scheduler_ignores_the_strategy():
    batcher = LetterBatcher(BatcherSettings(max_batch_size=8), RecordingStrategy(refuses="a"))
    assert batcher.submit("a") == ["a batching_off"]
    assert batcher.strategy.log == ""


def test_a_refusal_is_a_rejection_with_a_status():
    batcher = LetterBatcher(AHEAD, RecordingStrategy(refuses="a"))
    batcher.tickets["a"] = Ticket(correlation_id="a")
    (rejection,) = batcher.batcher.submit(0, batcher.tickets["a"])
    assert isinstance(rejection, RejectTicket)
    assert (rejection.status, rejection.reason) == ("INVALID_ARG", "custom_batching_refused")
