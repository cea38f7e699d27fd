"""The engine's clock.

One name for the compiled core's sake: it looks a name of a module that is not compiled up in a
dictionary at each use (8 times in a step of an ensemble), but keeps a final one in a C variable.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import Final

__all__ = ["now_ns"]

now_ns: Final = monotonic_ns
