"""Measure two compiled builds in turn: ``python -m bench.against OLD NEW``.

OLD and NEW are checkouts, each with its ``build/compiled`` (``make build/compiled``). In each round both run
their own benches in processes of their own, in an order that changes from round to round, so that
what else the machine does meets both in the same way. A figure that only one of them has is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import history
from bench.__main__ import figures
from bench.figures import Figure, show, spread

__all__ = ["BENCHES", "Comparison", "main", "table"]

BENCHES = ("kernel", "ensemble", "bls", "http", "grpc", "large")
# Above what differs between two runs of the same build on a quiet machine.
TOLERANCE = 0.05

# Of one side and one round: value and ratio to the other server, by figure.
Round = Mapping[str, Mapping[str, Any]]


@dataclass(slots=True)
class Comparison:
    """One figure, measured by both builds; index 0 is the old one.

    Parameters
    ----------
    figure : Figure
    values : pair of lists
        One value a round.
    ratios : pair of lists
        To what the bench itself compares with, mostly tritonserver; empty where there is nothing.
    """

    figure: Figure
    values: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    ratios: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    @property
    def gains(self) -> list[float]:
        """How many times better the new build is, by round; flat figures are times and sizes."""
        pairs = [pair for pair in zip(*self.values, strict=True) if min(pair) > 0]
        if self.figure.better == "higher":
            return [new / old for old, new in pairs]
        return [old / new for old, new in pairs]

    @property
    def worse(self) -> bool:
        """Whether the new build is behind by more than the tolerance."""
        return bool(self.gains) and statistics.median(self.gains) < 1 - TOLERANCE


def measure(checkout: Path, bench: str, flags: Sequence[str]) -> Round:
    """Run a bench of a checkout once, on its compiled build; return its figures by name."""
    build = checkout / "build" / "compiled"
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


def compare(figure: Figure, old: Round, new: Round, kept: dict[str, Comparison]) -> None:
    """Add one round of a figure to what is kept, if both builds have measured it."""
    name = history.named(figure.name, {"compiled": True})
    pair = (old.get(name), new.get(name))
    if any(side is None or side["ours"] is None for side in pair):
        return
    entry = kept.setdefault(name, Comparison(figure))
    for at, side in enumerate(pair):
        assert side is not None
        entry.values[at].append(side["ours"])
        if side["ratio"] is not None:
            entry.ratios[at].append(side["ratio"])


def table(kept: Sequence[Comparison]) -> str:
    """Return a line a figure: both medians, how many times better the new is, and both ratios."""
    rows = [
        f"{'figure':<26} {'old':>10} {'new':>10}  {'new is better by':<26} beside it, old and new"
    ]
    for one in kept:
        old, new = (show(statistics.median(values)) for values in one.values)
        beside = " ".join(spread(ratios, "x") for ratios in one.ratios if ratios)
        verdict = "  WORSE" if one.worse else ""
        rows.append(
            f"{one.figure.name:<26} {old:>10} {new:>10} {one.figure.unit:<7} {spread(one.gains, 'x'):<24} {beside}{verdict}"
        )
    return "\n".join(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Run it; 1 if a figure is worse by more than the tolerance."""
    parser = argparse.ArgumentParser(prog="python -m bench.against", description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument(
        "bench", nargs="*", default=BENCHES, help=f"by default {', '.join(BENCHES)}"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of both in turn (5)")
    asked, flags = parser.parse_known_args(argv)
    sides = [asked.old.resolve(), asked.new.resolve()]
    for side in sides:
        if not (side / "build" / "compiled").is_dir():
            parser.error(f"{side} has no build/compiled: run make build/compiled there")
    kept: dict[str, Comparison] = {}
    for number in range(asked.rounds):
        for bench in asked.bench:
            turn = sides if number % 2 == 0 else sides[::-1]
            found = {side: measure(side, bench, flags) for side in turn}
            for figure in figures(bench):
                compare(figure, found[sides[0]], found[sides[1]], kept)
            print(f"round {number + 1}/{asked.rounds}  {bench}", flush=True)
    print(table(list(kept.values())))
    worse = [one.figure.name for one in kept.values() if one.worse]
    print(f"worse by more than {TOLERANCE:.0%}: {', '.join(worse) or 'none'}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
