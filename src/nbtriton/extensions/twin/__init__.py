"""A simulated copy of a running Triton, made of its configurations and its statistics."""

from __future__ import annotations

from nbtriton.extensions.twin.look import twin
from nbtriton.extensions.twin.twin import Twin

__all__ = ["Twin", "twin"]
