"""Token bucket: a limit on the rate of a peer's costly requests."""

from __future__ import annotations

__all__ = ["TokenBucket"]


class TokenBucket:
    """At most `size` tokens at once and `per_s` a second in the long run; full at first.

    Parameters
    ----------
    size : int
    per_s : float
    now : float
        Seconds, of any clock.

    Attributes
    ----------
    earned : int
        Tokens added by the owner of the bucket since the last `acquire`.
    """

    __slots__ = ("_left", "_per_s", "_size", "_then", "earned")

    def __init__(self, size: int, per_s: float, now: float) -> None:
        self._size = size
        self._per_s = per_s
        self._left = float(size)
        self._then = now
        self.earned = 0

    def acquire(self, now: float) -> bool:
        """Take a token; False if none is left."""
        gained = self.earned + (now - self._then) * self._per_s
        self._left = min(self._left + gained, self._size)
        self._then = now
        self.earned = 0
        if self._left < 1:
            return False
        self._left -= 1
        return True
