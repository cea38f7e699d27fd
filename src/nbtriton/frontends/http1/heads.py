"""The heads of requests, which the parser need not see twice: most clients send few different ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nbtriton.frontends.http1.body import padding_of

if TYPE_CHECKING:
    from nbtriton.frontends.http1.cycle import RequestHead, RequestResponseCycle

__all__ = ["Heads", "Known", "head_of"]

# Heads up to this size are remembered, and so many of them.
_LONGEST = 2048
_MOST = 256
_END = b"\r\n\r\n"
# With any of these, the bytes behind the head are not just the body.
_FRAMING = (b"transfer-encoding", b"expect", b"upgrade")


class Known(NamedTuple):
    """What the parser made of a head.

    Parameters
    ----------
    head : RequestHead
    size : int
        Bytes of such a request, head and body.
    padding : int
        How many bytes before the body are to be kept with it.
    """

    head: RequestHead
    size: int
    padding: int


class Heads:
    """What the parser made of the heads that came last."""

    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}

    def find(self, text: bytes, size: int) -> Known | None:
        """Return what is known of a head, if so many bytes are one whole request with it."""
        known = self._known.get(text)
        return known if known is not None and known.size == size else None

    def learn(self, text: bytes, cycle: RequestResponseCycle | None, size: int) -> None:
        """Remember what the parser made of a head, if so many bytes were it and its body."""
        if cycle is None:
            return
        head = cycle.head
        body_size = len(cycle.body)
        if (
            len(text) + body_size != size
            or head.old
            or not head.keep_alive
            or not head.headers.keys().isdisjoint(_FRAMING)
            or (body_size and b"content-length" not in head.headers)
        ):
            return
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[text] = Known(head, size, padding_of(head.headers))


def head_of(data: memoryview) -> bytes:
    """Return the head at the beginning of what was read; empty if it is long or not complete."""
    text = bytes(data[:_LONGEST])
    end = text.find(_END)
    return text[: end + len(_END)] if end >= 0 else b""
