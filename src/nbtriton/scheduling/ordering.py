"""Responses in the order their requests were accepted (preserve_ordering, rule D12)."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

__all__ = ["ResponseOrder"]

R = TypeVar("R")


class _Slot(Generic[R]):
    __slots__ = ("finished", "held", "line")

    def __init__(self, line: deque[int]) -> None:
        self.line = line
        self.held: list[R] = []
        self.finished = False


class ResponseOrder(Generic[R]):
    """Hold early responses until every request accepted before has sent its final one.

    The head of a line streams: its responses pass as they come. A key stands for one request
    and must be unique among those in any line. There is a line for every batcher: one for a model,
    or one an instance under the oldest strategy of sequences.
    """

    __slots__ = ("_lines", "_slots")

    def __init__(self) -> None:
        self._lines: dict[int, deque[int]] = {}
        self._slots: dict[int, _Slot[R]] = {}

    def accept(self, key: int, line: int = 0) -> None:
        """A request takes its place in a line; one that runs again keeps the place it has."""
        if key in self._slots:
            return
        keys = self._lines.setdefault(line, deque())
        keys.append(key)
        self._slots[key] = _Slot(keys)

    def forget(self, line: int) -> None:
        """Nothing new comes into this line."""
        self._lines.pop(line, None)

    def respond(self, key: int, response: R, *, final: bool) -> list[R]:
        """One response of a request; returns all that may be sent now, in order.

        A request that took no place, refused before it could run, is answered at once.
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
