"""Random pauses in nbtriton's functions, on each thread of a test process: `pytest -p tests.pauses`.

A thread may be stopped between any two lines, but a busy machine rarely stops it between the two that matter. Here every
thread sleeps up to 20 ms at random calls and returns of nbtriton's functions, all of them together at most a quarter of
the time: what passes with it leans neither on speed nor on the order of threads. Tests that count calls fail with it.
``PAUSES_SEED`` draws other ones.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import nbtriton

# One call or return in this number, on average.
_EVENTS = 150
_LONGEST_S = 0.02
_SOURCES = str(Path(nbtriton.__file__).parent) + os.sep
_random = random.Random(int(os.environ.get("PAUSES_SEED", "1")))
_is_ours: dict[CodeType, bool] = {}
# Until when nobody pauses: three times as long as the last pause was.
_quiet_until_s = 0.0
_bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
# As tests may patch the clock.
_monotonic, _sleep = time.monotonic, time.sleep


def _pauses() -> Any:
    """Return a profile function for one thread."""
    left = _random.randint(1, 2 * _EVENTS)

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal left
        global _quiet_until_s
        if event not in ("call", "return"):
            return
        code = frame.f_code
        ours = _is_ours.get(code)
        if ours is None:
            ours = _is_ours[code] = code.co_filename.startswith(_SOURCES)
        left -= ours
        if left > 0 or not ours:
            return
        left = _random.randint(1, 2 * _EVENTS)
        now_s = _monotonic()
        if now_s < _quiet_until_s:
            return
        pause_s = _random.random() ** 2 * _LONGEST_S
        _quiet_until_s = now_s + 4 * pause_s
        _sleep(pause_s)

    return profile


def _begin(thread: threading.Thread) -> None:
    sys.setprofile(_pauses())
    _bootstrap(thread)


threading.Thread._bootstrap_inner = _begin  # type: ignore[attr-defined]


def pytest_runtest_setup() -> None:
    """Pause the test's own thread as well."""
    sys.setprofile(_pauses())


def pytest_runtest_teardown() -> None:
    """Fixtures end without pauses."""
    sys.setprofile(None)
