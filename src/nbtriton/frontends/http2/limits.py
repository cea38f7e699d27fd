"""Limits of one connection."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Http2Limits"]


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """The resources that one peer may use.

    Parameters
    ----------
    max_concurrent_streams : int
        Streams at a time, and how many the peer may give up at once.
    max_header_list_size : int
        As HPACK counts. Twice that is not even read.
    max_frame_size : int
        Of frames.DATA.
    stream_window, connection_window : int
        Bytes that the peer may send before it is given more room.
    resets_per_s : float
        Streams that may be given up in the long run, besides one for each that is answered (CVE-2023-44487).
    settings_at_once, settings_per_s : float
        How often settings may change: a change may move every stream.
    max_unread_replies : int
        Acknowledgements and header blocks for a peer that does not read; a long block counts for several.
    turn_bytes : int
        After that many `receive_data` returns, for others to have their turn: some 20 short requests.
    """

    max_concurrent_streams: int = 1000
    max_header_list_size: int = 16 << 10
    max_frame_size: int = 4 << 20
    stream_window: int = 4 << 20
    connection_window: int = 16 << 20
    resets_per_s: float = 100
    settings_at_once: int = 100
    settings_per_s: float = 10
    max_unread_replies: int = 10_000
    turn_bytes: int = 4 << 10
