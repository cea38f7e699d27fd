"""Measure two compiled builds in turn: ``python -m bench.against OLD NEW [BENCH ...]``.

OLD and NEW are checkouts, each with its ``build/compiled`` (``make build/compiled``). In each round both run their
own benches in new processes, in alternating order, so that other load of the machine affects both equally. A figure
of only one of them is left out. ``computing`` times requests to models that compute, by one program for both;
``--instructions`` counts theirs instead (`bench.computing`), which needs valgrind and no quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import computing, history
from bench.__main__ import figures
from bench.figures import Figure, Missing, Sides, show, spread
from bench.session import Session

__all__ = ["BENCHES", "Comparison", "main", "table"]

BENCHES = ("computing", "kernel", "ensemble", "bls", "http", "grpc", "large")
# Tolerance, above the difference between two runs of one build on a quiet machine.
TOLERANCE = 0.05

# One round of one side: value and ratio to the other server, by figure.
Round = Mapping[str, Mapping[str, Any]]


@dataclass(slots=True)
class Comparison:
    """One figure of both builds; index 0 is the old build.

    Parameters
    ----------
    figure : Figure
    values : pair of lists
        One value per round.
    ratios : pair of lists
        Ratios to the bench's second side, mostly tritonserver; empty without one.
    """

    figure: Figure
    values: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    ratios: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    @property
    def gains(self) -> list[float]:
        """Factors by which the new build is better, by round; flat figures are times and sizes."""
        pairs = [pair for pair in zip(*self.values, strict=True) if min(pair) > 0]
        if self.figure.better == "higher":
            return [new / old for old, new in pairs]
        return [old / new for old, new in pairs]

    @property
    def worse(self) -> bool:
        """Whether the new build is worse by more than the tolerance."""
        return bool(self.gains) and statistics.median(self.gains) < 1 - TOLERANCE


@contextmanager
def _nowhere(_session: Session) -> Iterator[Sides]:
    raise Missing("measured by bench.against alone")
    yield


def _computing(unit: str) -> tuple[Figure, ...]:
    """Return a figure for each scenario of `bench.computing`."""
    return tuple(
        Figure(f"computing.{name}", title, unit, "lower", "", (), _nowhere)
        for name, title in computing.SCENARIOS.items()
    )


def _as_round(values: Mapping[str, float]) -> Round:
    compiled = {"compiled": True}
    return {
        history.named(f"computing.{name}", compiled): {"ours": value, "ratio": None}
        for name, value in values.items()
    }


def measure(checkout: Path, bench: str, flags: Sequence[str]) -> Round:
    """Run a bench of a checkout once with its compiled build; return the figures by name."""
    build = checkout / "build" / "compiled"
    if bench == "computing":
        return _as_round(computing.timed(build))
    with tempfile.TemporaryDirectory() as results:
        done = subprocess.run(
            [sys.executable, "-m", "bench", bench, "--rounds", "1", "--no-history",
             "--results", results, *flags],
            cwd=checkout, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(build), str(checkout)])},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{checkout}: python -m bench {bench} failed:\n{done.stderr[-2000:]}")
        found: dict[str, Mapping[str, Any]] = {}
        for path in Path(results).glob("*.json"):
            written = json.loads(path.read_text())
            if not written["machine"]["compiled"]:
                sys.exit(f"{checkout}: not the compiled build was measured")
            found.update((figure["figure"], figure) for figure in written["figures"])
        return found


def compare(figure: Figure, old: Round, new: Round, comparisons: dict[str, Comparison]) -> None:
    """Add one round of a figure, if both builds have measured it."""
    name = history.named(figure.name, {"compiled": True})
    pair = (old.get(name), new.get(name))
    if any(side is None or side["ours"] is None for side in pair):
        return
    entry = comparisons.setdefault(name, Comparison(figure))
    for index, side in enumerate(pair):
        assert side is not None
        entry.values[index].append(side["ours"])
        if side["ratio"] is not None:
            entry.ratios[index].append(side["ratio"])


def table(comparisons: Sequence[Comparison]) -> str:
    """Return a line per figure: both medians, the gain of the new build, and both ratios."""
    rows = [
        f"{'figure':<26} {'old':>10} {'new':>10}  {'new is better by':<26} beside it, old and new"
    ]
    for one in comparisons:
        old, new = (show(statistics.median(values)) for values in one.values)
        beside = " ".join(spread(ratios, "x") for ratios in one.ratios if ratios)
        verdict = "  WORSE" if one.worse else ""
        rows.append(
            f"{one.figure.name:<26} {old:>10} {new:>10} {one.figure.unit:<7} {spread(one.gains, 'x'):<24} {beside}{verdict}"
        )
    return "\n".join(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare two builds; return 1 if a figure is worse by more than the tolerance."""
    parser = argparse.ArgumentParser(prog="python -m bench.against", description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument(
        "bench", nargs="*", default=BENCHES, help=f"by default {', '.join(BENCHES)}"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of both in turn (5)")
    parser.add_argument(
        "--instructions", action="store_true", help="count instructions, and no time"
    )
    arguments, flags = parser.parse_known_args(argv)
    sides = [arguments.old.resolve(), arguments.new.resolve()]
    for side in sides:
        if not (side / "build" / "compiled").is_dir():
            parser.error(f"{side} has no build/compiled: run make build/compiled there")
    comparisons: dict[str, Comparison] = {}
    if arguments.instructions:
        old, new = (
            _as_round(computing.counted(side / "build" / "compiled", tuple(computing.SCENARIOS)))
            for side in sides
        )
        for figure in _computing("thousand"):
            compare(figure, old, new, comparisons)
        return _verdict(list(comparisons.values()))
    for number in range(arguments.rounds):
        for bench in arguments.bench:
            turn = sides if number % 2 == 0 else sides[::-1]
            found = {side: measure(side, bench, flags) for side in turn}
            for figure in _computing("us") if bench == "computing" else figures(bench):
                compare(figure, found[sides[0]], found[sides[1]], comparisons)
            print(f"round {number + 1}/{arguments.rounds}  {bench}", flush=True)
    return _verdict(list(comparisons.values()))


def _verdict(comparisons: Sequence[Comparison]) -> int:
    """Print the comparisons; return 1 if one is worse."""
    print(table(comparisons))
    worse = [one.figure.name for one in comparisons if one.worse]
    print(f"worse by more than {TOLERANCE:.0%}: {', '.join(worse) or 'none'}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
