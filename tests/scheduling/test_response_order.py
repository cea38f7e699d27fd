"""preserve_ordering (D12)."""

from __future__ import annotations

from random import Random

from nbtriton.scheduling import ResponseOrder
from tests.scheduling.order import Line


def test_D12_an_early_response_is_held_until_all_before_it_are_final():
    order = ResponseOrder()
    for key in (3, 1, 2):
        order.accept(key)
    assert order.respond(1, "b", final=True) == []
    assert order.respond(2, "c", final=True) == []
    assert order.respond(3, "a", final=True) == ["a", "b", "c"]


def test_D12_the_head_of_the_line_streams():
    order = ResponseOrder()
    order.accept(0)
    order.accept(1)
    assert order.respond(0, "a0", final=False) == ["a0"]
    assert order.respond(1, "b0", final=False) == []
    assert order.respond(0, "a1", final=True) == ["a1", "b0"]
    assert order.respond(1, "b1", final=False) == ["b1"]
    assert order.respond(1, "b2", final=True) == ["b2"]


def test_D12_a_request_accepted_when_nothing_is_in_line_goes_straight_through():
    order = ResponseOrder()
    for key in range(3):
        order.accept(key)
        assert order.respond(key, key, final=True) == [key]


def test_D12_a_request_that_took_no_place_is_answered_at_once():
    """One that was refused while it waited: it holds up nobody, and nobody holds it up."""
    order = ResponseOrder()
    order.accept(0)
    order.accept(2)
    assert order.respond(1, "refused", final=True) == ["refused"]
    assert order.respond(2, "b", final=True) == []
    assert order.respond(0, "a", final=True) == ["a", "b"]


def test_D12_nothing_is_remembered_of_what_was_sent():
    order = ResponseOrder()
    for key in range(100):
        order.accept(key)
    for key in reversed(range(100)):
        order.respond(key, key, final=True)
    assert not any(order._lines.values())
    assert not order._slots


def test_D12_each_line_is_in_order_for_itself():
    """Of the oldest strategy: an instance that is slow holds up no other."""
    order = ResponseOrder()
    order.accept(1, line=0)
    order.accept(2, line=1)
    order.accept(3, line=0)
    order.accept(4, line=1)
    assert order.respond(4, "d", final=True) == []
    assert order.respond(2, "b", final=True) == ["b", "d"]
    assert order.respond(3, "c", final=True) == []
    order.remove_line(0)  # the instance goes; what it has answered goes on
    assert order.respond(1, "a", final=True) == ["a", "c"]


def test_D12_a_key_may_be_used_again_once_it_was_sent():
    line = Line()
    random = Random(1)
    line.accept(random)
    line.respond(0, final=True)
    line.order.accept(line.accepted[0])
    assert line.order.respond(line.accepted[0], "again", final=True) == ["again"]
