"""Runner of benches: rounds in turn, a table, a JSON file, and a line in the history for each figure."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench import history
from bench.figures import Figure, Missing, Result, alternate, spread
from bench.machine import machine
from bench.session import Session

__all__ = ["RESULTS", "Options", "listed", "run", "summary", "table", "write"]

RESULTS = Path(__file__).with_name("results")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run, with the command line's defaults."""

    rounds: int = 5
    interval_ms: int = 400
    short: bool = False
    only: str = ""
    history: Path | None = history.HISTORY
    results: Path = RESULTS


def _say(text: str) -> None:
    print(text, flush=True)


def run(
    figures: Sequence[Figure], options: Options, say: Callable[[str], None] = _say
) -> list[Result]:
    """Measure the figures one after the other, also after one fails."""
    results = []
    with ExitStack() as stack:
        session = Session(stack, options.interval_ms, options.short)
        for figure in figures:
            if not re.search(options.only, figure.name):
                continue
            try:
                with figure.sides(session) as sides:
                    result = alternate(figure, sides, options.rounds, say)
            except Missing as error:
                result = Result(figure, note=str(error))
            results.append(result)
    return results


def table(results: Sequence[Result]) -> str:
    """Return the figures as a table: both medians, the ratio and its spread, and the targets."""
    load, cores = os.getloadavg()[0], os.cpu_count()
    rows = [f"median (lowest to highest of the rounds); load average {load:.1f} on {cores} cores"]
    for result in results:
        figure = result.figure
        rows.append(f"\n{figure.name}: {figure.title}")
        if result.value is not None:
            rows.append(f"  {figure.first:<34} {spread(result.ours)} {figure.unit}")
        if result.other is not None:
            rows.append(f"  {figure.against:<34} {spread(result.theirs)} {figure.unit}")
            rows.append(f"  {'ratio':<34} {spread(result.ratios, 'x')}")
        if result.note:
            rows.append(f"  {result.note}")
        for target in figure.targets:
            is_met = None if result.value is None else target.met(result.ratio, result.value)
            is_met = False if result.wrong else is_met
            verdict = {True: "met", False: "MISSED", None: "not measured"}[is_met]
            rows.append(f"  {'target ' + target.text(figure.unit):<34} {verdict}")
    return "\n".join(rows)


def write(bench: str, results: Sequence[Result], options: Options) -> Path:
    """Write the rounds as JSON and a line per figure to the history; return the JSON's path."""
    now = datetime.now(UTC)
    where = machine()
    date = now.isoformat(timespec="seconds")
    lines = [history.entry(result, date, where, short=options.short) for result in results]
    if options.history is not None:
        history.append(options.history, lines)
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / f"{bench}-{now:%Y%m%d-%H%M%S}.json"
    figures = [
        {
            **line,
            "title": result.figure.title,
            "against": result.figure.against,
            "targets": [target.text(result.figure.unit) for target in result.figure.targets],
            "rounds_ours": result.ours,
            "rounds_theirs": result.theirs,
        }
        for line, result in zip(lines, results, strict=True)
    ]
    written = {"bench": bench, "date": date, "machine": where, "interval_ms": options.interval_ms}
    path.write_text(
        json.dumps({**written, "figures": figures}, indent=1, ensure_ascii=False) + "\n"
    )
    return path


def summary(results: Sequence[Result]) -> str:
    """Return one line with the number of figures that met their targets."""
    met = sum(result.met is True for result in results)
    missed = [result.figure.name for result in results if result.met is False]
    other = len(results) - met - len(missed)
    text = f"{met} of {len(results)} figures keep their targets"
    if missed:
        text += f"; missed: {', '.join(missed)}"
    return text + (f"; {other} have none or could not be compared here" if other else "")


def listed(figures: Sequence[Figure]) -> str:
    """Return each figure's name, title and targets."""
    return "\n".join(
        f"{f.name:<28} {', '.join(t.text(f.unit) for t in f.targets) or '-':<28} "
        f"{f.title} (against {f.against})"
        for f in figures
    )
