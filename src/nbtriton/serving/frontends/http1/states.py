"""States of one HTTP/1.1 connection on the server's side: an enumeration and a table."""

from __future__ import annotations

from enum import Enum, auto

__all__ = ["TRANSITIONS", "ConnectionState", "Event", "State"]


class State(Enum):
    """State of a connection."""

    IDLE = auto()  # between two requests
    HEAD = auto()  # inside the request line or header fields
    BODY = auto()  # inside the body
    MUST_CLOSE = auto()  # input is discarded; earlier requests are still answered
    LINGERING = auto()  # everything is sent; the client has time to read it
    CLOSED = auto()


class Event(Enum):
    """Event in the life of a connection."""

    REQUEST_STARTED = auto()
    HEAD_COMPLETE = auto()
    REQUEST_COMPLETE = auto()
    LAST_REQUEST = auto()  # refused, or followed by bytes that cannot be read
    LAST_RESPONSE = auto()
    CLOSE = auto()


_READING = {Event.LAST_REQUEST: State.MUST_CLOSE, Event.CLOSE: State.CLOSED}
TRANSITIONS: dict[State, dict[Event, State]] = {
    State.IDLE: {**_READING, Event.REQUEST_STARTED: State.HEAD},
    State.HEAD: {**_READING, Event.HEAD_COMPLETE: State.BODY},
    State.BODY: {**_READING, Event.REQUEST_COMPLETE: State.IDLE},
    State.MUST_CLOSE: {**_READING, Event.LAST_RESPONSE: State.LINGERING},
    State.LINGERING: {Event.CLOSE: State.CLOSED},
    State.CLOSED: {Event.CLOSE: State.CLOSED},
}


class ConnectionState:
    """The state of one connection.

    Attributes
    ----------
    now : State
    in_request : bool
        Whether part of a request has been read.
    reads : bool
        Whether input is read, not discarded.
    """

    __slots__ = ("in_request", "now", "reads")

    def __init__(self) -> None:
        self._enter(State.IDLE)

    def process(self, event: Event) -> None:
        """Change the state.

        Raises
        ------
        ValueError
            The event cannot happen in this state, which stays.
        """
        found = TRANSITIONS[self.now].get(event)
        if found is None:
            raise ValueError(f"{event.name} cannot happen in state {self.now.name}")
        self._enter(found)

    def _enter(self, state: State) -> None:
        self.now = state
        # Attributes, not properties: both are read for every piece of input.
        self.in_request = state is State.HEAD or state is State.BODY
        self.reads = self.in_request or state is State.IDLE
