"""Limits of one connection."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Http2Limits"]


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Resources that one peer may use.

    Parameters
    ----------
    max_concurrent_streams : int
        Concurrent streams, and how many streams the peer may reset at once.
    max_header_list_size : int
        As HPACK counts. Beyond twice that, a block is not read at all.
    max_frame_size : int
        Of DATA frames.
    stream_window, connection_window : int
        Bytes that the peer may send before WINDOW_UPDATE.
    resets_per_s : float
        Mean rate of streams that the peer may reset, besides one for each response (CVE-2023-44487).
    settings_at_once, settings_per_s : float
        Burst and mean rate of SETTINGS: each may affect every stream.
    idle_frames_at_once, idle_frames_per_s : int, float
        Burst and mean rate of frames that ask for nothing, besides four for each call and message: small
        WINDOW_UPDATE, PRIORITY, acknowledgements, empty DATA and unknown frames.
    max_unread_replies : int
        Acknowledgements and header blocks for a peer that does not read; a long block counts for several.
    turn_bytes : int
        Bytes after which `receive_data` returns, so that other clients get a turn: some 20 short requests.
    """

    max_concurrent_streams: int = 1000
    max_header_list_size: int = 16 << 10
    max_frame_size: int = 4 << 20
    stream_window: int = 4 << 20
    connection_window: int = 16 << 20
    resets_per_s: float = 100
    settings_at_once: int = 100
    settings_per_s: float = 10
    idle_frames_at_once: int = 10_000
    idle_frames_per_s: float = 1000
    max_unread_replies: int = 10_000
    turn_bytes: int = 4 << 10
