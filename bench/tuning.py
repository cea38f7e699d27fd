"""`nt.tune` compared with a full grid search: ``python -m bench.tuning [--only MODEL] [--p99-ms MS]``.

For each model every configuration of a small grid is measured under every load, and `nt.tune` chooses from the same
values. Then both winners are measured in turns, as the best of many measurements is partly luck; the result is the
median ratio of the rounds. Steps of an ensemble have separate options.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import nbtriton as nt
from bench.predicted import loaded_branches, loaded_sleeping
from bench.quiet import Watch
from nbtriton.lab.perf.point import PerfPoint
from nbtriton.lab.perf.sweep import Configurator

__all__ = ["main"]

# Targets: share of the grid's best throughput, and share of its time.
SHARE, PART = 0.97, 0.1
LOADS = (4, 16, 48)

Options = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Task:
    """A model to tune.

    Parameters
    ----------
    name : str
    load : callable
        Loads the model into a server.
    steps : tuple of str
        Models to configure.
    instances, max_batch_size, max_queue_delay_us : tuple of int
        Values of the grid.
    p99_ms : float
        Limit of the 99th percentile of the latency.
    """

    name: str
    load: Callable[[nt.Server], None]
    steps: tuple[str, ...]
    instances: tuple[int, ...]
    max_batch_size: tuple[int, ...]
    max_queue_delay_us: tuple[int, ...]
    p99_ms: float

    def grid(self) -> Iterator[Options]:
        """Yield every configuration."""
        names = ("instances", "max_batch_size", "max_queue_delay_us")
        values = itertools.product(*(getattr(self, name) for name in names))
        one = [dict(zip(names, each, strict=True)) for each in values]
        for chosen in itertools.product(one, repeat=len(self.steps)):
            yield dict(zip(self.steps, chosen, strict=True))


TASKS = (
    Task("sleeping", loaded_sleeping, ("sleeping",), (1, 2, 4), (1, 2, 4, 8), (0, 1000, 3000), 16),
    # Values for each step: 64 configurations of the three steps together.
    Task("branches", loaded_branches, ("left", "right", "join"), (1, 2), (4, 8), (0,), 25),
)


@dataclass(frozen=True, slots=True)
class Winner:
    """Best result of one side: options, load, and the time of the search."""

    options: Options
    concurrency: int
    found: PerfPoint
    took_s: float
    tried: str

    def __str__(self) -> str:
        words = "; ".join(
            f"{name}: "
            + ", ".join(f"{key}={value}" for key, value in each.items())
            for name, each in self.options.items()
        )  # fmt: skip
        return f"{words}; {self.concurrency} outstanding"


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table for each model, and the verdict on the targets."""
    parser = argparse.ArgumentParser(prog="python -m bench.tuning", description=__doc__)
    parser.add_argument("--only", default="", metavar="MODEL", help="only this model")
    parser.add_argument("--rounds", type=int, default=5, help="of both winners in turns (5)")
    parser.add_argument("--p99-ms", type=float, default=None, help="another limit")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    chosen = [task for task in TASKS if arguments.only in task.name]
    if not chosen:
        parser.error(f"no model '{arguments.only}'; there are {', '.join(t.name for t in TASKS)}")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for task in chosen:
        with nt.Server() as server:
            task.load(server)
            print("\n".join(_compare(server, task, arguments)), flush=True)
    return 0


def _compare(server: nt.Server, task: Task, arguments: argparse.Namespace) -> list[str]:
    limit_ms = arguments.p99_ms or task.p99_ms
    watch = Watch()
    tuned = _tuned(server, task, limit_ms, arguments.seed)
    print(f"\n{task.name}: tuned in {tuned.took_s:.0f} s; now the grid", flush=True)
    best = _measure_grid(server, task, limit_ms)
    rounds = list(_rounds(server, task, (best, tuned), arguments.rounds))
    shares = [ours.infer_per_s / theirs.infer_per_s for theirs, ours in rounds]
    share, part = median(shares), tuned.took_s / best.took_s
    others = watch.condition().others
    lines = [
        f"\n{task.name}: most throughput, p99 <= {limit_ms:g} ms; others took {others:.1f} cores",
        f"  {'':<6}{'time':>8}{'tried':>32}{'infer/s':>10}{'p99':>10}",
    ]
    for title, side, index in (("grid", best, 0), ("tuned", tuned, 1)):
        rate = median(pair[index].infer_per_s for pair in rounds)
        p99_ms = median(pair[index].latency_p99_us for pair in rounds) / 1000
        lines.append(
            f"  {title:<6}{side.took_s:>6.0f} s{side.tried:>32}{rate:>10.0f}{p99_ms:>7.1f} ms  {side}"
        )
    spread = f"rounds: {min(shares):.1%} to {max(shares):.1%}"
    return [
        *lines,
        f"  throughput: {share:.1%} of the grid's ({spread}; wanted: {SHARE:.0%}) {_verdict(share >= SHARE)}",
        f"  time: {part:.1%} of the grid's (wanted: {PART:.0%}) {_verdict(part <= PART)}",
    ]


def _tuned(server: nt.Server, task: Task, limit_ms: float, seed: int) -> Winner:
    started_s = time.monotonic()
    found = nt.tune(
        server, task.name, p99_ms=limit_ms, seed=seed,
        instances=task.instances, max_batch_size=task.max_batch_size,
        max_queue_delay_us=task.max_queue_delay_us,
    )  # fmt: skip
    took_s = time.monotonic() - started_s
    tried = f"{found.simulated} simulated, {len(found.finalists)} measured"
    return Winner(found.models, int(found.best.value), found.best, took_s, tried)


def _measure_grid(server: nt.Server, task: Task, limit_ms: float) -> Winner:
    """Measure the whole grid; return the highest throughput within the limit."""
    started_s = time.monotonic()
    configurator = Configurator(server, task.name, [])
    best: Winner | None = None
    count = 0
    grid = list(task.grid())
    try:
        for index, options in enumerate(grid):
            configurator.apply_each(options)
            for point in nt.perf(server, task.name, concurrency=LOADS).points:
                count += 1
                within = point.latency_p99_us <= limit_ms * 1000
                if within and (best is None or point.infer_per_s > best.found.infer_per_s):
                    best = Winner(options, int(point.value), point, 0.0, "")
            took_s = time.monotonic() - started_s
            left_s = took_s / (index + 1) * (len(grid) - index - 1)
            if index % 6 == 5:
                print(
                    f"  {index + 1} of {len(grid)} configurations, {left_s:.0f} s left", flush=True
                )
    finally:
        configurator.restore()
    if best is None:
        raise SystemExit(f"no configuration of '{task.name}' kept p99 <= {limit_ms:g} ms")
    took_s = time.monotonic() - started_s
    return Winner(best.options, best.concurrency, best.found, took_s, f"{count} measured")


def _rounds(
    server: nt.Server, task: Task, sides: tuple[Winner, Winner], rounds: int
) -> Iterator[tuple[PerfPoint, PerfPoint]]:
    """Measure both winners in turns, in alternating order."""
    configurator = Configurator(server, task.name, [])
    try:
        for number in range(rounds):
            found: dict[int, PerfPoint] = {}
            for index in (0, 1) if number % 2 == 0 else (1, 0):
                configurator.apply_each(sides[index].options)
                load = sides[index].concurrency
                found[index] = nt.perf(server, task.name, concurrency=load).points[0]
            yield found[0], found[1]
    finally:
        configurator.restore()


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


if __name__ == "__main__":
    sys.exit(main())
