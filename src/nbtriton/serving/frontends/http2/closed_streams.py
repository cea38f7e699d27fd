"""Closed streams of a connection, and streams that can no longer begin (RFC 9113 section 5.1)."""

from __future__ import annotations

__all__ = ["ClosedStreams"]

# Limits of streams reset here whose peer may not know it, and of gaps between identifiers.
_MAX_IGNORED, _MAX_GAPS = 1000, 256


class ClosedStreams:
    """Identifiers of closed streams; the oldest are dropped."""

    __slots__ = ("_gaps", "_ignored")

    def __init__(self) -> None:
        self._ignored: dict[int, None] = {}  # the oldest first
        self._gaps: list[range] = []

    def ignore(self, stream_id: int) -> None:
        """Ignore further frames on a stream: its peer may not know yet that it is closed."""
        self._ignored[stream_id] = None
        if len(self._ignored) > _MAX_IGNORED:
            del self._ignored[next(iter(self._ignored))]

    def is_ignored(self, stream_id: int) -> bool:
        return stream_id in self._ignored

    def skip(self, first: int, end: int) -> None:
        """Note identifiers that the client has skipped and can no longer use (section 5.1.1)."""
        self._gaps.append(range(first, end, 2))
        del self._gaps[:-_MAX_GAPS]

    def was_skipped(self, stream_id: int) -> bool:
        return any(stream_id in gap for gap in self._gaps)
