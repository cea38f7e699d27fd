"""The requests of a version that are accepted and have not ended."""

from __future__ import annotations

from typing import Final

from nbtriton.engine.core.request import InferenceRequest

__all__ = ["InFlight"]

# This many ends are noted at most until they are summed up.
_NOTED: Final = 100


class InFlight:
    """Counts requests; and keeps those that their model answers after its execution has ended.

    Methods are for the thread that owns the batcher, but for `record_ended`, `keep`, `answered` and
    `count`: any thread may call those.

    Attributes
    ----------
    late : set of InferenceRequest
        Requests that the model answers later, from a thread of its own.
    """

    __slots__ = ("_accepted", "_ended", "_noted", "late")

    def __init__(self) -> None:
        self._accepted = 0
        self._ended = 0
        # Adding to a list is atomic with and without a GIL.
        self._noted: list[int] = []
        self.late: set[InferenceRequest] = set()

    def accept(self, count: int) -> None:
        """Count more requests."""
        self._accepted += count

    def record_ended(self, count: int) -> None:
        """Record the end of this many requests."""
        self._noted.append(count)

    def keep(self, request: InferenceRequest) -> None:
        """Keep a request without an answer, whose execution counts it as ended."""
        self._noted.append(-1)
        self.late.add(request)

    def answered(self, request: InferenceRequest) -> bool:
        """Forget an answered request; True for the first call if it was kept."""
        try:
            self.late.remove(request)
        except KeyError:
            return False
        return True

    def sum_up(self) -> None:
        """Sum up the ends that were noted, if they are many."""
        if len(self._noted) >= _NOTED:
            self._sum_up()

    def is_empty(self) -> bool:
        """Return whether all that were accepted have ended."""
        self._sum_up()
        return self._accepted == self._ended

    def count(self) -> int:
        """Return the number of requests."""
        return max(0, self._accepted - self._ended - sum(self._noted))

    def _sum_up(self) -> None:
        noted = len(self._noted)
        self._ended += sum(self._noted[:noted])
        del self._noted[:noted]
