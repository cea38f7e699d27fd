"""How many nodes of which machine meet a load within a p99 latency, what they cost, and what the loss of one does."""

from __future__ import annotations

from nbtriton.extensions.capacity.planning import capacity
from nbtriton.extensions.capacity.result import Capacity, Fleet

__all__ = ["Capacity", "Fleet", "capacity"]
