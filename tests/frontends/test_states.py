"""The table of states of an HTTP/1.1 connection: what is not in it cannot happen."""

from __future__ import annotations

import itertools

import pytest

from nbtriton.serving.frontends.http1.reader import TRANSITIONS, ConnectionState, Event, State


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_an_event_that_cannot_happen_leaves_the_state(state: State, event: Event) -> None:
    machine = ConnectionState()
    machine._enter(state)
    expected = TRANSITIONS[state].get(event)
    if expected is None:
        with pytest.raises(ValueError, match=f"{event.name} cannot happen in state {state.name}"):
            machine.process(event)
    else:
        machine.process(event)
    assert machine.now is (expected or state)


def test_every_state_can_be_closed_and_nothing_follows() -> None:
    assert all(TRANSITIONS[state][Event.CLOSE] is State.CLOSED for state in State)
    assert set(TRANSITIONS[State.CLOSED]) == {Event.CLOSE}


@pytest.mark.parametrize(
    ("events", "reads", "in_request"),
    [
        ([], True, False),
        ([Event.REQUEST_STARTED], True, True),
        ([Event.REQUEST_STARTED, Event.HEAD_COMPLETE], True, True),
        ([Event.REQUEST_STARTED, Event.HEAD_COMPLETE, Event.REQUEST_COMPLETE], True, False),
        ([Event.LAST_REQUEST], False, False),
        ([Event.LAST_REQUEST, Event.LAST_RESPONSE], False, False),
        ([Event.CLOSE], False, False),
    ],
)
def test_bytes_are_read_until_the_last_request(
    events: list[Event], reads: bool, in_request: bool
) -> None:
    machine = ConnectionState()
    for event in events:
        machine.process(event)
    assert (machine.reads, machine.in_request) == (reads, in_request)
