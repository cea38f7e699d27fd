"""The requests of a version that are accepted and have not ended."""

from __future__ import annotations

from typing import Final

from nbtriton.runtime.engine.core.request import InferenceRequest

__all__ = ["MANY_CHANGES", "InFlight"]

# Beyond this many changes they are summed up.
MANY_CHANGES: Final = 200


class InFlight:
    """Counts requests; and keeps those that their model answers after its execution has ended.

    `sum_up` and `is_empty` are for the thread that owns the batcher; any thread may do the rest.

    Attributes
    ----------
    changes : list of int
        How many requests were accepted (more than 0) or have ended (less). Adding to a list is atomic with
        and without a GIL.
    late : set of InferenceRequest
        Requests that the model answers later, from a thread of its own.
    """

    __slots__ = ("_count", "changes", "late")

    def __init__(self) -> None:
        self._count = 0
        self.changes: list[int] = []
        self.late: set[InferenceRequest] = set()

    def keep(self, request: InferenceRequest) -> None:
        """Keep a request without an answer, whose execution counts it as ended."""
        self.changes.append(1)
        self.late.add(request)

    def answered(self, request: InferenceRequest) -> bool:
        """Forget an answered request; True for the first call if it was kept."""
        try:
            self.late.remove(request)
        except KeyError:
            return False
        return True

    def sum_up(self) -> None:
        """Sum up the changes."""
        noted = len(self.changes)
        self._count += sum(self.changes[:noted])
        del self.changes[:noted]

    def is_empty(self) -> bool:
        """Return whether all that were accepted have ended."""
        self.sum_up()
        return not self._count

    def count(self) -> int:
        """Return the number of requests."""
        return max(0, self._count + sum(self.changes))
