"""The end of a walk over a scheduler: all that is left runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

__all__ = ["Pair", "run_to_rest"]


class _Scheduler(Protocol):
    def wake_at(self) -> int | None: ...


class Pair(Protocol):
    """A scheduler beside its oracle; staged, busy and suspended are instances."""

    now: int

    @property
    def batcher(self) -> _Scheduler: ...
    @property
    def staged(self) -> Collection[int]: ...
    @property
    def busy(self) -> Collection[int]: ...
    @property
    def suspended(self) -> Collection[int]: ...
    def grant(self, instance: int, /) -> None: ...
    def finish(self, instance: int, /) -> None: ...
    def resume(self, instance: int, /) -> None: ...
    def tick(self) -> None: ...


def run_to_rest(pair: Pair, limit: int) -> None:
    """Resume what is suspended, grant what is staged, finish what runs, and go to each next wake-up; at most `limit` steps."""
    for _ in range(limit):
        wake = pair.batcher.wake_at()
        if pair.suspended:
            pair.resume(min(pair.suspended))
        elif pair.staged:
            pair.grant(min(pair.staged))
        elif pair.busy:
            pair.finish(min(pair.busy))
        elif wake is not None:
            pair.now = max(pair.now, wake)
            pair.tick()
        else:
            break
