"""The seed of the random tests: fixed in the gate, free in the long runs.

``NBTRITON_SEED`` is a number, or ``free`` for another one in each run; pytest's header shows it.
Without it every run is the same, hypothesis included.
"""

from __future__ import annotations

import os
import random

__all__ = ["FIXED", "SEED", "free_seed"]


def free_seed() -> int:
    """Return a seed that differs from run to run."""
    return random.SystemRandom().getrandbits(32)


FIXED = "NBTRITON_SEED" not in os.environ
if os.environ.get("NBTRITON_SEED") == "free":
    # Written back: the workers of pytest-xdist need the same one.
    os.environ["NBTRITON_SEED"] = str(free_seed())
SEED = int(os.environ.get("NBTRITON_SEED", "1"))
