"""Keepalive and age of a connection by gRPC's channel arguments; checked once a second."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["ChannelArguments", "Keepalive"]

# Minimum interval of pings by a client without calls.
_IDLE_PINGS_S = 7200.0
# Spread of the maximum age, so that connections that began together do not end together.
_JITTER = 0.1
_LONGEST = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class ChannelArguments:
    """gRPC's channel arguments that apply to a server; times in milliseconds.

    Parameters
    ----------
    level : int
        Compression level of responses: 0 none, 3 best.
    """

    keepalive_time_ms: int = 7_200_000
    keepalive_timeout_ms: int = 20_000
    keepalive_permit_without_calls: int = 0
    max_pings_without_data: int = 2
    min_ping_interval_without_data_ms: int = 300_000
    max_ping_strikes: int = 2
    level: int = 0
    max_connection_age_ms: int = _LONGEST
    max_connection_age_grace_ms: int = _LONGEST
    max_connection_idle_ms: int = _LONGEST

    @classmethod
    def parse(cls, arguments: Sequence[tuple[str, int | str]]) -> ChannelArguments:
        """Read arguments such as ``("grpc.keepalive_time_ms", 7200000)``; ignore unknown ones."""
        named = {
            name.removeprefix("grpc.").removeprefix("http2."): value for name, value in arguments
        }
        named["level"] = named.pop("default_compression_level", 0)
        known = cls.__dataclass_fields__
        return cls(**{name: int(value) for name, value in named.items() if name in known})


class Keepalive:
    """Pings and activity of one connection; times in seconds of the loop's clock.

    Parameters
    ----------
    options : ChannelArguments
    now : float

    Attributes
    ----------
    created_at, received_at : float
        When the connection began, and when bytes were last read; `received_at` is set by the owner.
    has_responded : bool
        Whether a response was sent, which permits the client's earlier pings; set by the owner.
    """

    __slots__ = (
        "_active", "_age_s", "_leaves_at", "_options", "_pinged", "_pings", "_strikes", "_waits_since",
        "created_at", "has_responded", "received_at",
    )  # fmt: skip

    def __init__(self, options: ChannelArguments, now: float) -> None:
        self.created_at = self.received_at = self._active = now
        self._options = options
        spread = random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311
        self._age_s = options.max_connection_age_ms / 1000 * spread
        self._leaves_at = math.inf
        self.has_responded = False
        self._strikes = 0
        self._pinged = -math.inf  # last ping of the client
        self._pings = 0  # pings sent since the last data
        self._waits_since: float | None = None  # time of a ping without an answer

    def _apply_response(self) -> None:
        if self.has_responded:
            self.has_responded = False
            self._strikes = self._pings = 0
            self._pinged = -math.inf

    def record_ping(self, now: float, has_calls: bool) -> bool:
        """Note a ping of the client; True if the client pings too often."""
        self._apply_response()
        options = self._options
        without = has_calls or options.keepalive_permit_without_calls
        pause_s = options.min_ping_interval_without_data_ms / 1000 if without else _IDLE_PINGS_S
        self._strikes += now < self._pinged + pause_s
        self._pinged = now
        return 0 < options.max_ping_strikes < self._strikes

    def due(self, now: float, has_calls: bool) -> Literal["", "ping", "leave", "end"]:
        """Return the action that is due now."""
        self._apply_response()
        options = self._options
        if has_calls:
            self._active = now
        if self._waits_since is not None and self.received_at >= self._waits_since:
            self._waits_since = None
        if self._waits_since is not None:
            if now - self._waits_since >= options.keepalive_timeout_ms / 1000:
                return "end"
        elif now - self.received_at >= options.keepalive_time_ms / 1000 and (
            has_calls or options.keepalive_permit_without_calls
        ):
            limit = options.max_pings_without_data
            if not limit or self._pings < limit:
                self._pings += 1
                self._waits_since = now
                return "ping"
        if now >= self._leaves_at + options.max_connection_age_grace_ms / 1000:
            return "end"
        idle = now - self._active >= options.max_connection_idle_ms / 1000
        if self._leaves_at == math.inf and (idle or now - self.created_at >= self._age_s):
            self._leaves_at = now
            return "leave"
        return ""
