"""Streams of a connection that have ended, or that can no longer begin (RFC 9113 section 5.1)."""

from __future__ import annotations

__all__ = ["ClosedStreams"]

# Streams reset here whose peer may not know it, and gaps between identifiers.
_MAX_IGNORED, _MAX_GAPS = 1000, 256


class ClosedStreams:
    """Identifiers of streams without a state of their own; the oldest are forgotten."""

    __slots__ = ("_gaps", "_ignored")

    def __init__(self) -> None:
        self._ignored: dict[int, None] = {}  # the oldest first
        self._gaps: list[range] = []

    def ignore(self, stream_id: int) -> None:
        """Ignore what comes on a stream: its peer may not know yet that it has ended."""
        self._ignored[stream_id] = None
        if len(self._ignored) > _MAX_IGNORED:
            del self._ignored[next(iter(self._ignored))]

    def is_ignored(self, stream_id: int) -> bool:
        return stream_id in self._ignored

    def skip(self, first: int, until: int) -> None:
        """Note streams that the client has left out, and can never use (section 5.1.1)."""
        self._gaps.append(range(first, until, 2))
        del self._gaps[:-_MAX_GAPS]

    def was_skipped(self, stream_id: int) -> bool:
        return any(stream_id in gap for gap in self._gaps)
