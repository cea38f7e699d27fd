"""Each option that several surfaces have, declared once."""

from __future__ import annotations

from nbtriton.options.table import Option, only

__all__ = ["Option", "only"]
