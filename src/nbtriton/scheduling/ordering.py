"""Responses in the order in which their requests were accepted (preserve_ordering, D12)."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

R = TypeVar("R")


class _Slot(Generic[R]):
    __slots__ = ("finished", "held", "line")

    def __init__(self, line: deque[int]) -> None:
        self.line = line
        self.held: list[R] = []
        self.finished = False


class ResponseOrder(Generic[R]):
    """Hold early responses until every request accepted before has sent its final response.

    Responses of the head of a line pass immediately. A key identifies one request and is unique over
    all lines. Each batcher has its own line: one per model, or one per instance under the oldest
    strategy of sequences.
    """

    __slots__ = ("_lines", "_slots")

    def __init__(self) -> None:
        self._lines: dict[int, deque[int]] = {}
        self._slots: dict[int, _Slot[R]] = {}

    def accept(self, key: int, line: int = 0) -> None:
        """Append a request to a line; a rescheduled one keeps its place."""
        if key in self._slots:
            return
        keys = self._lines.setdefault(line, deque())
        keys.append(key)
        self._slots[key] = _Slot(keys)

    def remove_line(self, line: int) -> None:
        """Remove a line: it accepts no further requests, and those in it are still answered in order."""
        self._lines.pop(line, None)

    def respond(self, key: int, response: R, *, final: bool) -> list[R]:
        """Add one response of a request; return all that may be sent now, in order.

        A request outside every line, rejected before it could run, is answered immediately.
        """
        slot = self._slots.get(key)
        if slot is None:
            return [response]
        slot.held.append(response)
        slot.finished = final
        out: list[R] = []
        line = slot.line
        while line:
            head = self._slots[line[0]]
            out.extend(head.held)
            head.held.clear()
            if not head.finished:
                break
            del self._slots[line.popleft()]
        return out
