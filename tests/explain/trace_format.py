"""A check of a trace against the published "Trace Event Format" of Chromium, as Perfetto reads it."""

from __future__ import annotations

import json
from collections import defaultdict

# What each phase needs beside "ph", "pid" and "name".
FIELDS = {
    "X": {"tid", "ts", "dur", "cat"},  # a complete event
    "M": {"args"},  # metadata
    "s": {"tid", "ts", "id", "cat"},  # a flow starts
    "f": {"tid", "ts", "id", "cat", "bp"},  # and ends
    "i": {"tid", "ts", "s"},  # an instant
    "C": {"ts", "args"},  # a counter
}
# Times are doubles of microseconds: a nanosecond is exact up to some hours.
EPSILON = 1e-3


def check_trace(trace: dict) -> dict[str, list[dict]]:
    """Raise AssertionError unless it keeps the format; return the events by phase."""
    trace = json.loads(json.dumps(trace, allow_nan=False))
    assert set(trace) <= {"traceEvents", "displayTimeUnit", "otherData", "metadata"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    phases: dict[str, list[dict]] = defaultdict(list)
    for event in trace["traceEvents"]:
        needed = FIELDS[event["ph"]] | {"pid", "name"}
        assert needed <= set(event), (needed - set(event), event)
        for field in ("ts", "dur"):
            assert event.get(field, 0) >= 0, event
        for field in ("pid", "tid", "id"):
            assert isinstance(event.get(field, 0), int), event
        assert isinstance(event["name"], str)
        phases[event["ph"]].append(event)
    _check_metadata(phases)
    slices = _check_nesting(phases["X"])
    _check_flows(phases, slices)
    for event in phases["C"]:
        assert all(isinstance(value, int | float) for value in event["args"].values())
    for event in phases["i"]:
        assert event["s"] in ("g", "p", "t")
    return phases


def _check_metadata(phases):
    """Every process and every thread with a slice has one name."""
    named = [(e["name"], e["pid"], e.get("tid")) for e in phases["M"]]
    assert len(named) == len(set(named))
    assert {name for name, _, _ in named} <= {"process_name", "thread_name"}
    processes = {pid for name, pid, _ in named if name == "process_name"}
    threads = {(pid, tid) for name, pid, tid in named if name == "thread_name"}
    assert {e["pid"] for e in phases["X"]} <= processes
    assert {(e["pid"], e["tid"]) for e in phases["X"]} <= threads


def _check_nesting(slices):
    """Slices of one thread lie behind or inside each other: "they must be nested"."""
    threads = defaultdict(list)
    for event in slices:
        threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for place, found in threads.items():
        found.sort(key=lambda one: (one[0], -one[1]))
        open_ends = []
        for begin, end in found:
            while open_ends and open_ends[-1] <= begin + EPSILON:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + EPSILON, (place, begin, end)
            open_ends.append(end)
    return threads


def _check_flows(phases, slices):
    """A flow has one start and one end of the same name, category and id, each in a slice."""
    starts = {(e["cat"], e["name"], e["id"]): e for e in phases["s"]}
    ends = {(e["cat"], e["name"], e["id"]): e for e in phases["f"]}
    assert len(starts) == len(phases["s"])
    assert len(ends) == len(phases["f"])
    assert set(starts) == set(ends)
    for key, start in starts.items():
        assert start["ts"] <= ends[key]["ts"] + EPSILON
    for event in (*phases["s"], *phases["f"]):
        assert event.get("bp", "e") == "e"  # binds to the enclosing slice
        inside = slices[event["pid"], event["tid"]]
        assert any(b - EPSILON <= event["ts"] <= e + EPSILON for b, e in inside), event
