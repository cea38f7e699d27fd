"""preserve_ordering (D12)."""

from __future__ import annotations

from random import Random

from nbtriton.scheduling import ResponseOrder
from tests.scheduling.order_oracle import OrderPair


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


def test_D12_a_request_in_an_empty_line_is_answered_at_once():
    order = ResponseOrder()
    for key in range(3):
        order.accept(key)
        assert order.respond(key, key, final=True) == [key]


def test_D12_a_request_outside_the_line_is_answered_at_once():
    """Such as one rejected while it waited: neither delays nor is delayed."""
    order = ResponseOrder()
    order.accept(0)
    order.accept(2)
    assert order.respond(1, "refused", final=True) == ["refused"]
    assert order.respond(2, "b", final=True) == []
    assert order.respond(0, "a", final=True) == ["a", "b"]


def test_D12_sent_responses_leave_no_state():
    order = ResponseOrder()
    for key in range(100):
        order.accept(key)
    for key in reversed(range(100)):
        order.respond(key, key, final=True)
    assert not any(order._lines.values())
    assert not order._slots


def test_D12_each_line_has_its_own_order():
    """Oldest strategy: a slow instance delays no other."""
    order = ResponseOrder()
    order.accept(1, line=0)
    order.accept(2, line=1)
    order.accept(3, line=0)
    order.accept(4, line=1)
    assert order.respond(4, "d", final=True) == []
    assert order.respond(2, "b", final=True) == ["b", "d"]
    assert order.respond(3, "c", final=True) == []
    order.remove_line(0)  # the instance is retired; its requests are still answered
    assert order.respond(1, "a", final=True) == ["a", "c"]


def test_D12_a_key_may_be_reused_once_it_was_sent():
    pair = OrderPair()
    random = Random(1)
    pair.accept(random)
    pair.respond(0, final=True)
    pair.order.accept(pair.accepted[0])
    assert pair.order.respond(pair.accepted[0], "again", final=True) == ["again"]
