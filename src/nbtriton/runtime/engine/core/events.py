"""Events that a version's batcher gets through its mailbox."""

from __future__ import annotations

from typing import Final

__all__ = ["EventKind"]


class EventKind:
    """Events of a `ModelRuntime`'s mailbox.

    Numbers, so that the compiled core calls their handlers itself. A bound method would be made for
    each event and called through Python: 800 instructions, twice a step.
    """

    SUBMIT: Final = 0
    SUBMIT_MANY: Final = 1
    IDLE: Final = 2
    IDLE_IN_SEQUENCE: Final = 3
    ENDED: Final = 4
    CANCEL: Final = 5
    WAKE: Final = 6
    UPDATE: Final = 7
    DRAIN: Final = 8
    FAIL_PENDING: Final = 9
    REFUSE: Final = 10
    GRANTED: Final = 11
    SUSPEND: Final = 12
    RESUME: Final = 13
    GIVE_UP: Final = 14
    LOOK: Final = 15
    SUBMIT_CANCELLED: Final = 16
