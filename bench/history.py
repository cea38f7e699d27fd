"""History of all figures in the repository: one line per figure and run.

python -m bench --history [PATTERN]
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.figures import Result, show

__all__ = ["HISTORY", "Entry", "append", "entry", "latest", "named", "newest_run", "read", "table"]

HISTORY = Path(__file__).with_name("history.jsonl")
BARS = "▁▂▃▄▅▆▇█"
# Limit of the runs that are drawn.
DRAWN = 24
# Ends the key of a figure of the compiled build.
COMPILED = " compiled"

Entry = Mapping[str, Any]


def entry(result: Result, date: str, machine: Mapping[str, object], *, short: bool) -> Entry:
    """Return a figure's line of the history: medians, the spread of the ratio, and the verdict."""
    ratios = result.ratios
    return {
        "figure": named(result.figure.name, machine),
        "date": date,
        "commit": machine["commit"],
        "cpu": machine["cpu"],
        "cores": machine["cores"],
        "load": machine["load_average"],
        "python": machine["python"],
        "rounds": len(result.ours),
        "short": short,
        "unit": result.figure.unit,
        "ours": _rounded(result.value),
        "theirs": _rounded(result.other),
        "ratio": _rounded(result.ratio),
        "ratio_low": _rounded(min(ratios, default=None)),
        "ratio_high": _rounded(max(ratios, default=None)),
        "met": result.met,
        "note": result.note,
    }


def named(figure: str, machine: Mapping[str, object]) -> str:
    """Return the key of a figure, which differs between compiled and pure Python builds."""
    return figure + COMPILED if machine["compiled"] else figure


def append(path: Path, entries: Iterable[Entry]) -> None:
    """Append lines."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in entries)


def read(path: Path) -> list[Entry]:
    """Return all lines sorted by date, as merged branches may leave them in any order."""
    if not path.exists():
        return []
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line)
    return sorted(lines, key=lambda line: line["date"])


def latest(entries: Sequence[Entry]) -> dict[str, Entry]:
    """Return each figure's newest line with a value, preferring full runs to short ones."""
    found: dict[str, Entry] = {}
    for line in entries:
        measured = line.get("ours") is not None or "parts" in line
        if measured and not (line["short"] and not found.get(line["figure"], line)["short"]):
            found[line["figure"]] = line
    return found


def newest_run(entries: Sequence[Entry], names: Sequence[str]) -> dict[str, Entry]:
    """Return the lines of one run of a bench by figure.

    The newest of the runs with the most figures, so that partial runs do not count; compiled before pure
    Python, full before short.
    """
    runs: dict[tuple[bool, bool, str], dict[str, Entry]] = {}
    for line in entries:
        name = line["figure"].removesuffix(COMPILED)
        if name in names and line.get("ours") is not None:
            key = (line["figure"] != name, not line["short"], line["date"])
            runs.setdefault(key, {})[name] = line
    if not runs:
        return {}
    return runs[max(runs, key=lambda key: (key[0], key[1], len(runs[key]), key[2]))]


def table(entries: Sequence[Entry], pattern: str = "") -> str:
    """Return each figure's first, best and last ratio (or value), and a sparkline."""
    rows = [f"{'figure':<28}{'runs':>5}{'first':>10}{'last':>10}{'change':>9}  course"]
    for name in dict.fromkeys(line["figure"] for line in entries):
        if not re.search(pattern, name):
            continue
        course = [
            line["ratio"] if line["ratio"] is not None else line["ours"]
            for line in entries
            if line["figure"] == name and line.get("ours") is not None
        ]
        if not course:
            continue
        sign = "x" if all(line["ratio"] for line in entries if line["figure"] == name) else ""
        change = f"{course[-1] / course[0] - 1:+.0%}" if course[0] else ""
        rows.append(
            f"{name:<28}{len(course):>5}{show(course[0]) + sign:>10}{show(course[-1]) + sign:>10}"
            f"{change:>9}  {_drawn(course[-DRAWN:])}"
        )
    return "\n".join(rows)


def _drawn(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    width = (high - low) or 1.0
    return "".join(BARS[round((value - low) / width * (len(BARS) - 1))] for value in values)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
