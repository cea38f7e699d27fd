"""Truth of prediction: ``python -m bench.predict [--cases 40] [--seed N]``.

Each model is profiled once. Then each case is measured several times and predicted once, by the same
options; the measurements' own spread stands beside the prediction's errors.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.predicted import Case, Model, draw, models, serve
from nbtriton.perf import PerfPoint, perf
from nbtriton.simulate import profile, whatif

__all__ = ["main"]

# What is compared, and the errors that are allowed: median and, for so many cases, the largest one.
QUANTITIES: dict[str, Callable[[PerfPoint], float]] = {
    "throughput": lambda point: point.infer_per_s,
    "p50": lambda point: point.latency_p50_us,
    "p99": lambda point: point.latency_p99_us,
}


@dataclass(frozen=True, slots=True)
class Result:
    """A case: what was predicted, and what each run measured."""

    case: Case
    predicted: PerfPoint
    measured: Sequence[PerfPoint]

    def error(self, quantity: str) -> float:
        """Return the error of the prediction against the median of the runs."""
        read = QUANTITIES[quantity]
        real = median(read(point) for point in self.measured)
        return read(self.predicted) / real - 1 if real else math.nan

    def spread(self, quantity: str) -> float:
        """Return how far the runs are from their own median, at most."""
        values = [QUANTITIES[quantity](point) for point in self.measured]
        middle = median(values)
        return max(abs(value / middle - 1) for value in values) if middle else math.nan


def main(argv: Sequence[str] | None = None) -> int:
    """Print every case and what is kept of the targets."""
    parser = argparse.ArgumentParser(prog="python -m bench.predict", description=__doc__)
    parser.add_argument("--cases", type=int, default=40, help="in all (40)")
    parser.add_argument("--seed", type=int, default=0, help="of configurations and loads (0)")
    parser.add_argument("--runs", type=int, default=3, help="measurements of a case (3)")
    parser.add_argument("--only", default="", metavar="MODEL", help="only this model")
    parser.add_argument("--interval-ms", type=float, default=None, help="length of a window")
    parser.add_argument("--isolation", default="process", choices=("thread", "process"))
    asked = parser.parse_args(argv)
    chosen = [m for m in models(asked.isolation) if asked.only in m.name]
    print(
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; "
        f"error of the prediction (largest deviation of {asked.runs} runs from their median)"
    )
    results: list[Result] = []
    for at, model in enumerate(chosen):
        count = len(range(at, asked.cases, len(chosen)))
        results += _predict(model, count, asked)
    print(_summary(results))
    return 0


def _predict(model: Model, count: int, asked: argparse.Namespace) -> list[Result]:
    results = []
    with serve(model) as server:
        found = profile(server, model.name, at_once=2)
        print(f"\n{found.headline}; load average {os.getloadavg()[0]:.1f}", flush=True)

        def capacity(configuration: Mapping[str, Any]) -> float:
            full = 2 * configuration["instances"] * model.rows
            report = whatif(found, model.name, **configuration, concurrency=full)
            return report.points[0].infer_per_s

        for case in draw(model, count, asked.seed, capacity):
            options = {**case.options, "measurement_interval_ms": asked.interval_ms}
            predicted = whatif(found, model.name, **options, seed=asked.seed).points[0]
            measured = [
                perf(server, model.name, **options, seed=asked.seed).points[0]
                for _ in range(asked.runs)
            ]
            results.append(Result(case, predicted, measured))
            print(_line(results[-1]), flush=True)
    return results


def _line(result: Result) -> str:
    case = result.case
    cells = [f"  {case.model:<11}{case.level:<11}{result.measured[0].infer_per_s:8.0f}/s"]
    cells += [
        f"{name} {result.error(name):+6.1%} ({result.spread(name):5.1%})" for name in QUANTITIES
    ]
    return "  ".join([*cells, str(case)])


def _summary(results: Sequence[Result]) -> str:
    lines = [f"\n{len(results)} cases"]
    for name, limit, part in (("throughput", 0.05, 0.9), ("p50", 0.10, 0.8), ("p99", 0.15, 0.8)):
        errors = sorted(abs(result.error(name)) for result in results)
        within = sum(error <= limit for error in errors) / len(errors)
        noisy = sum(result.spread(name) > limit for result in results) / len(results)
        lines.append(
            f"  {name:<11} median error {median(errors):5.1%}; within {limit:.0%} in {within:.0%} of "
            f"cases (wanted: {part:.0%}); in {noisy:.0%} the measurement itself spreads wider"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
