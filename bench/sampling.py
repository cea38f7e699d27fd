"""Sampling profiler of a loop: the running stage, every few milliseconds.

The clock is the process's processor time, so that waiting does not count and nothing is slowed down. A sample
belongs to the innermost line of nbtriton or of a model.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from types import FrameType

import nbtriton

__all__ = ["STAGES", "sampled", "stage_of"]

SOURCE = str(Path(nbtriton.__file__).parent) + "/"
# The operating system's clock allows no shorter interval.
EVERY_S = 0.001

# Stage by the longest prefix of a path inside the package.
STAGES: Mapping[str, str] = {
    "model.py": "the model's own execute",
    "backends/python/": "the python backend: pb_utils' requests, tensors, responses",
    "extensions/pytorch/": "the pytorch backend, the module itself included",
    "backends/": "backends: gathering and scattering a batch",
    "scheduling/ensemble.py": "the ensemble's dataflow: what runs next",
    "scheduling/": "the scheduler's decision",
    "model/tensors/": "looking at arrays: datatypes, shapes, views",
    "runtime/engine/core/request.py": "the request: made, answered",
    "runtime/engine/core/future.py": "the future",
    "runtime/engine/core/execution.py": "times, statistics and the result",
    "runtime/engine/core/ensemble_runtime.py": "the ensemble's requests: made, joined, answered",
    "runtime/engine/engine.py": "calls from model to model",
    "runtime/engine/": "the engine: checks, locks, instances, hand-over",
}
REST = "outside: the caller's loop, the interpreter"


def stage_of(filename: str) -> str:
    """Return the stage of a source file; empty for files outside nbtriton."""
    if filename.endswith("/1/model.py"):
        return STAGES["model.py"]
    if not filename.startswith(SOURCE):
        return ""
    inside = filename.removeprefix(SOURCE)
    known = [prefix for prefix in STAGES if inside.startswith(prefix)]
    return STAGES[max(known, key=len)] if known else f"{inside.partition('/')[0]}/"


def sampled(call: Callable[[], object], seconds: float) -> dict[str, float]:
    """Call in a loop in the main thread; return each stage's share of the time."""
    seen: Counter[str] = Counter()

    def look(_signal: int, frame: FrameType | None) -> None:
        while frame is not None:
            stage = stage_of(frame.f_code.co_filename)
            if stage:
                seen[stage] += 1
                return
            frame = frame.f_back
        seen[REST] += 1

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
    try:
        end = perf_counter() + seconds
        while perf_counter() < end:
            for _ in range(50):
                call()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    looks = sum(seen.values())
    return {stage: count / looks for stage, count in seen.most_common()}
