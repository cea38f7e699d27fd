"""Write the tables of docs/performance.md from the newest results: ``python -m bench.page``.

The lines between ``<!-- figures: BENCH ... -->`` or ``<!-- stages: NAME -->`` and ``<!-- end -->`` are
replaced. All figures come from the history, and those of a table from one run, as the machine differs more
from run to run than most figures.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench import history
from bench.__main__ import figures
from bench.figures import Figure, show
from bench.history import Entry
from bench.machine import ROOT
from bench.stages import TABLES

__all__ = ["PAGE", "filled", "main"]

PAGE = ROOT / "docs" / "performance.md"
PLACE = re.compile(r"(<!-- (figures|stages|machine)(?:: (.*?))? -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = "| | nbtriton | beside it | | ratio (lowest to highest) | target | |\n|---|--:|---|--:|--:|---|---|"
VERDICTS = {True: "met", False: "**missed**", None: ""}


def filled(page: str, entries: Sequence[Entry]) -> str:
    """Return the page with all tables replaced."""
    names = [
        name for place in PLACE.finditer(page) if place[2] == "figures" for name in place[3].split()
    ]
    runs = {name: history.newest_run(entries, [f.name for f in figures(name)]) for name in names}
    latest = history.latest(entries)

    def table(place: re.Match[str]) -> str:
        head, kind, names, end = place.groups()
        if kind == "figures":
            body = "\n\n".join(bench_table(name, runs[name]) for name in names.split())
        elif kind == "stages":
            body = stages(names, latest)
        else:
            used = [line for run in runs.values() for line in run.values()]
            body = machines(used + [latest[name] for name in TABLES if name in latest])
        return f"{head}{body}\n{end}"

    return PLACE.sub(table, page)


def bench_table(bench: str, run: Mapping[str, Entry]) -> str:
    """Return the table of a bench below a line with date, machine and versions."""
    rows = [row(figure, figure.title, run.get(figure.name)) for figure in figures(bench)]
    caption = f"`{bench}`: not measured yet"
    if run:
        line = next(iter(run.values()))
        core = "compiled" if line["figure"] != next(iter(run)) else "pure Python"
        caption = (
            f"`{bench}`, {core}, {line['date'].partition('T')[0]}, commit {line['commit'].rstrip('+')}, "
            f"load average {line['load']:.1f}:"
        )
    return "\n".join([caption, "", HEAD, *rows])


def row(figure: Figure, title: str, line: Mapping[str, Any] | None) -> str:
    """Return a figure's measurement as a line of a table."""
    targets = ", ".join(target.text(figure.unit) for target in figure.targets)
    if line is None:
        return f"| {title} | not in this run | {figure.against} | | | {targets} | |"
    unit = figure.unit
    beside = f"{show(line['theirs'])} {unit}" if line["theirs"] is not None else line["note"]
    ratio = ""
    if line["ratio"] is not None:
        span = f"{show(line['ratio_low'])} to {show(line['ratio_high'])}"
        ratio = f"{show(line['ratio'])}x ({span})"
    return (
        f"| {title} | {show(line['ours'])} {unit} | {figure.against} | {beside} | {ratio} "
        f"| {targets} | {VERDICTS[line['met']]} |"
    )


def stages(name: str, latest: Mapping[str, Entry]) -> str:
    """Return a table of stages."""
    line = latest.get(name)
    title, _ = TABLES[name]
    if line is None:
        return f"| {title}: not measured yet | |\n|---|--:|"
    parts = line["parts"]
    total = sum(parts.values())
    rows = [f"| {title} | {show(total)} us | |\n|---|--:|--:|"]
    rows += [f"| {stage} | {show(us)} us | {us / total:.0%} |" for stage, us in parts.items()]
    return "\n".join(rows)


def machines(lines: Iterable[Mapping[str, Any]]) -> str:
    """Return date and machine of the shown measurements."""
    known = sorted(lines, key=lambda line: line["date"])
    if not known:
        return "Nothing was measured yet."
    dates = _span([line["date"].partition("T")[0] for line in known])
    loads = [line["load"] for line in known]
    cpus = _list(f"{line['cpu']}, {line['cores']} cores" for line in known)
    pythons = _list(line["python"] for line in known)
    commits = _list(line["commit"].rstrip("+") for line in known)
    return (
        f"Measured {dates} on {cpus}, Python {pythons}, while the machine's load average was "
        f"{min(loads):.1f} to {max(loads):.1f}; commits {commits}."
    )


def _span(values: Sequence[str]) -> str:
    return values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"


def _list(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def main() -> int:
    """Write the page."""
    entries = history.read(history.HISTORY)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), entries), encoding="utf-8")
    print(f"Written: {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
