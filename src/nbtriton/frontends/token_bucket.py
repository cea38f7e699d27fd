"""How often a client may do what costs others something: a token bucket."""

from __future__ import annotations

__all__ = ["TokenBucket"]


class TokenBucket:
    """So many at once, and so many a second in the long run; full at first.

    Parameters
    ----------
    most : int
        Tokens that it holds.
    per_s : float
        Tokens that it gets a second.
    now : float
        In seconds, of any clock.

    Attributes
    ----------
    earned : int
        Tokens that the client has worked for since the last `take`; to be counted up by the owner.
    """

    __slots__ = ("_left", "_most", "_per_s", "_then", "earned")

    def __init__(self, most: int, per_s: float, now: float) -> None:
        self._most = most
        self._per_s = per_s
        self._left = float(most)
        self._then = now
        self.earned = 0

    def take(self, now: float) -> bool:
        """Take one; False if there is none."""
        gained = self.earned + (now - self._then) * self._per_s
        self._left = min(self._left + gained, self._most)
        self._then = now
        self.earned = 0
        if self._left < 1:
            return False
        self._left -= 1
        return True
