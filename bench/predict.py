"""Accuracy of predictions: ``python -m bench.predict [--cases 40] [--seed N] [--runs 3]``.

A run profiles a model, then measures each case once for 5 s and over at least 1,000 requests, if these come within 9 s (a
99th percentile of fewer is chance), and predicts it from that profile with the same options and seed. The cores of a virtual machine may be slower
by half for seconds, when its host's other guests use them. So the error is that of the median prediction against the
median measurement, reported with the runs' spread. No case and no run is left out. ``--url`` measures a model of a
running server under different loads; ``--speed N`` times the simulation of N requests instead. ``--busy 2`` does all
beside two busy processes, and counts the cases whose measurements lie in the predicted ranges, or that are refused.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, median
from typing import Any

import nbtriton
from bench.predicted import LOADS, Case, Model, draw, models, serve
from bench.processes import busy
from bench.quiet import Watch
from nbtriton.lab.perf.api import perf
from nbtriton.lab.perf.point import PerfPoint
from nbtriton.lab.simulate.model_profile import EngineCosts, ModelProfile, Profile, ServicePoint
from nbtriton.lab.simulate.prediction import whatif
from nbtriton.lab.simulate.profiling import profile

__all__ = ["main"]

# Compared quantities.
QUANTITIES: dict[str, Callable[[PerfPoint], float]] = {
    "throughput": lambda point: point.infer_per_s,
    "p50": lambda point: point.latency_p50_us,
    "p99": lambda point: point.latency_p99_us,
}


# Quantities that are predicted with a range.
RANGES: dict[
    str, tuple[Callable[[PerfPoint], float], Callable[[PerfPoint], tuple[float, float] | None]]
] = {
    "throughput": (QUANTITIES["throughput"], lambda point: point.infer_per_s_range),
    "p99": (QUANTITIES["p99"], lambda point: point.latency_p99_range_us),
}
# The share of the cases that their ranges have to hold, or that are refused.
HELD = 0.9

# Targets of each quantity: the median error, and the error within which a share of the cases must be.
TARGETS: dict[str, tuple[float | None, float, float]] = {
    "throughput": (0.03, 0.05, 0.95),
    "p50": (None, 0.10, 0.8),
    "p99": (None, 0.15, 0.9),
}
# Least requests of a run, its least and its most seconds: stalls of a machine come by the second, and each is the 99th
# percentile of a shorter run.
REQUESTS = 1000
SHORTEST_S, LONGEST_S = 5.0, 9.0
WINDOWS = 3
# perf_analyzer's windows are longer than their nominal interval (PA1).
NOMINAL = 1.2
# Limit of the cores used by other programs on a quiet machine.
QUIET = 0.1


@dataclass(frozen=True, slots=True)
class Result:
    """Predictions and measurements of a case.

    Parameters
    ----------
    case : Case
    predicted, measured : sequence of PerfPoint
        By run; prediction and measurement of a run have the same seed.
    others : float
        Cores that other programs took during the runs.
    """

    case: Case
    predicted: Sequence[PerfPoint]
    measured: Sequence[PerfPoint]
    others: float

    def error(self, quantity: str) -> float:
        """Return the error of the median prediction against the median of the runs."""
        read = QUANTITIES[quantity]
        real = median(read(point) for point in self.measured)
        return median(read(point) for point in self.predicted) / real - 1 if real else math.nan

    @property
    def refused(self) -> bool:
        """Whether at least half of the predictions are none: beyond the profile."""
        count = sum(point.outcome == "beyond the profile" for point in self.predicted)
        return 2 * count >= len(self.predicted)

    @property
    def held(self) -> bool:
        """Whether the medians of what was measured lie in the medians of the ranges, which one that is refused lacks."""
        if self.refused:
            return False
        for read, ends in RANGES.values():
            ranges = [found for point in self.predicted if (found := ends(point)) is not None]
            low, high = (median(each[end] for each in ranges) for end in (0, 1))
            if not low <= median(map(read, self.measured)) <= high:
                return False
        return True

    def repeats(self, quantity: str) -> list[float]:
        """Return how far each measurement is from the one before, of the same case and minutes earlier."""
        values = [QUANTITIES[quantity](point) for point in self.measured]
        return [abs(later / earlier - 1) for earlier, later in pairwise(values) if earlier]

    def spread(self, quantity: str) -> float:
        """Return the largest deviation of the runs from their median."""
        values = [QUANTITIES[quantity](point) for point in self.measured]
        middle = median(values)
        return max(abs(value / middle - 1) for value in values) if middle else math.nan


def main(argv: Sequence[str] | None = None) -> int:
    """Print every case and the verdict on the targets."""
    parser = argparse.ArgumentParser(prog="python -m bench.predict", description=__doc__)
    parser.add_argument("--cases", type=int, default=40, help="in all (40)")
    parser.add_argument("--seed", type=int, default=0, help="of configurations and loads (0)")
    parser.add_argument(
        "--runs", type=int, default=3, help="profiles of a model, and measurements of a case (3)"
    )
    parser.add_argument("--only", default="", metavar="MODEL", help="only models whose names match")
    parser.add_argument("--interval-ms", type=float, default=None, help="length of a window")
    parser.add_argument("--isolation", default="process", choices=("thread", "process"))
    parser.add_argument(
        "--busy", type=int, default=0, metavar="N", help="measure beside N busy processes"
    )
    parser.add_argument("--url", help="profile and predict a model of the server there")
    parser.add_argument("--model", default="", help="of the server at --url")
    parser.add_argument(
        "--speed", type=int, default=0, metavar="N", help="time N simulated requests"
    )
    arguments = parser.parse_args(argv)
    if arguments.speed:
        print("\n".join(speed(arguments.speed)))
        return 0
    if arguments.url and not arguments.model:
        parser.error("--url needs --model NAME")
    known = models(arguments.isolation)
    chosen = [m for m in known if re.search(arguments.only, m.name)]
    if not chosen:
        parser.error(f"no model '{arguments.only}'; there are {', '.join(m.name for m in known)}")
    print(
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; error of the prediction "
        f"(largest deviation of {arguments.runs} runs from their median), cores that others took meanwhile"
    )
    results: list[Result] = []
    work = _Work(arguments)
    with busy(arguments.busy):
        if arguments.url:
            results = _predict_at(arguments.url, work)
        else:
            for index, model in enumerate(chosen):
                count = len(range(index, arguments.cases, len(chosen)))
                results += _predict(model, count, work)
    if not arguments.busy:
        print(_summary(results))
    print(_ranges(results))
    return 0


class _Work:
    """Cases of a call of this program, with its progress."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self._done = 0
        self._begin_s = time.monotonic()

    def results(
        self,
        make: Callable[[], Profile],
        draw_cases: Callable[[Profile], Sequence[Case]],
        measure: Callable[..., PerfPoint],
    ) -> list[Result]:
        """Profile a model and measure its cases in turns, predict each, and print all.

        Parameters
        ----------
        make : callable
            Measures a profile.
        draw_cases : callable
            Draws the cases from the first profile.
        measure : callable
            Maps options of `nt.perf` to a point.
        """
        arguments = self.arguments
        print()
        found = _profiled(make)
        cases = draw_cases(found)
        predicted: list[list[PerfPoint]] = [[] for _ in cases]
        measured: list[list[PerfPoint]] = [[] for _ in cases]
        others: list[list[float]] = [[] for _ in cases]
        for run in range(arguments.runs):
            if run:
                found = _profiled(make)
            for index, case in enumerate(cases):
                options = {
                    **case.options,
                    **self._windows(found, case),
                    "seed": arguments.seed + run,
                }
                watch = Watch()
                measured[index].append(measure(**options))
                others[index].append(watch.condition().others)
                predicted[index].append(_predicted(found, options))
                self._done += 1
            left = arguments.cases * arguments.runs - self._done
            took_s = time.monotonic() - self._begin_s
            left_s = took_s / max(1, self._done) * left
            print(f"  run {run + 1} of {arguments.runs}; {left_s:.0f} s left of all", flush=True)
        results = [
            Result(case, predicted[index], measured[index], mean(others[index]))
            for index, case in enumerate(cases)
        ]
        print("\n".join(map(_line, results)), flush=True)
        return results

    def _windows(self, found: Profile, case: Case) -> dict[str, Any]:
        expected = _predicted(found, case.options).infer_per_s or 1.0
        seconds = min(max(REQUESTS / expected, SHORTEST_S), LONGEST_S)
        interval_ms = self.arguments.interval_ms or seconds * 1000 / WINDOWS / NOMINAL
        return {
            "measurement_interval_ms": interval_ms, "max_trials": WINDOWS, "stability_percentage": 999,
        }  # fmt: skip


def _profiled(make: Callable[[], Profile]) -> Profile:
    watch = Watch()
    found = make()
    now = watch.condition()
    print(
        f"{found.headline}; others took {now.others:.1f} cores, a fixed piece of work {now.speed_us:.0f} us",
        found.disturbance,
        flush=True,
    )
    return found


def _predicted(found: Profile, options: Mapping[str, Any]) -> PerfPoint:
    return whatif(found, **options).points[0]


def _predict(model: Model, count: int, work: _Work) -> list[Result]:
    seed = work.arguments.seed
    with serve(model) as server:

        def cases(found: Profile) -> list[Case]:
            def capacity(configuration: Mapping[str, Any]) -> float:
                full = 2 * configuration["instances"] * model.rows
                return _predicted(found, {**configuration, "concurrency": full}).infer_per_s

            return draw(model, count, seed, capacity)

        def measure(**options: Any) -> PerfPoint:
            return perf(server, model.name, **options).points[0]

        return work.results(lambda: profile(server, model.name, at_once=2), cases, measure)


def _predict_at(url: str, work: _Work) -> list[Result]:
    """Profile and predict a model of another server, in closed and open loops."""
    name = work.arguments.model

    def cases(found: Profile) -> list[Case]:
        full = _predicted(found, {"concurrency": 32}).infer_per_s
        choose = random.Random(work.arguments.seed)
        drawn = []
        for number in range(work.arguments.cases):
            level = LOADS[number % len(LOADS)]
            options: dict[str, Any] = {
                "concurrency": {"low": 1, "half": 4, "saturating": 32}[level]
            }
            if level != "saturating" and choose.random() < 0.5:
                share = {"low": 0.1, "half": 0.5}[level]
                options = {"request_rate": float(f"{full * share:.2g}")}
                options["request_distribution"] = choose.choice(["constant", "poisson"])
            drawn.append(Case(name, level, options))
        return drawn

    def measure(**options: Any) -> PerfPoint:
        return perf(None, name, url=url, **options).points[0]

    return work.results(lambda: profile(None, name, url=url), cases, measure)


def speed(requests: int) -> list[str]:
    """Print the time of simulating requests to a model, to many instances and to three steps."""
    lines = [f"{requests} simulated requests; {'compiled' if nbtriton.compiled else 'pure Python'}"]
    for title, found, options in _speeds():
        started_s = time.process_time()
        whatif(found, request_count=requests, **options)
        took_s = time.process_time() - started_s
        lines.append(f"  {title:<44}{took_s:7.2f} s  {took_s / requests * 1e6:6.2f} us a request")
    return lines


def _speeds() -> list[tuple[str, Profile, dict[str, Any]]]:
    costs = EngineCosts(5, 2, 2, 17, 5, 4, 1, 6, 80)

    def measured(name: str, rows: int, instances: int) -> ModelProfile:
        text = f"""name: "{name}" backend: "python" max_batch_size: {rows} dynamic_batching {{}}
            input {{ name: "IN" data_type: TYPE_FP32 dims: 1 }}
            output {{ name: "OUT" data_type: TYPE_FP32 dims: 1 }}
            instance_group {{ count: {instances} kind: KIND_CPU }}"""
        levels = [(1, 1, 1000.0), (rows, 1, 2000.0), (1, 2, 1000.0), (rows, 2, 2000.0)]
        points = {(row, level): ServicePoint(row, level, (us,), 1) for row, level, us in levels}
        return ModelProfile(text, "thread", tuple(points.values()))

    steps = " ".join(
        f"""step {{ model_name: "{name}" model_version: -1
            input_map {{ key: "IN" value: "{source}" }} output_map {{ key: "OUT" value: "{target}" }} }}"""
        for name, source, target in (("a", "IN", "x"), ("b", "x", "y"), ("c", "y", "OUT"))
    )
    chain = f"""name: "chain" platform: "ensemble" max_batch_size: 8
        input {{ name: "IN" data_type: TYPE_FP32 dims: 1 }}
        output {{ name: "OUT" data_type: TYPE_FP32 dims: 1 }}
        ensemble_scheduling {{ {steps} }}"""
    one = Profile("one", {"one": measured("one", 8, 1)}, costs=costs)
    many = Profile("many", {"many": measured("many", 1, 300)}, costs=costs)
    three = Profile("chain", {n: measured(n, 8, 1) for n in "abc"}, {"chain": chain}, costs)
    poisson = {"request_distribution": "poisson"}
    return [
        ("a model, 2500 a second, poisson", one, {"request_rate": 2500, **poisson}),
        ("a model, 64 outstanding", one, {"concurrency": 64}),
        ("300 instances, 100000 a second, poisson", many, {"request_rate": 100_000, **poisson}),
        ("an ensemble of three steps, 700 a second", three, {"request_rate": 700, **poisson}),
        ("an ensemble of three steps, 32 outstanding", three, {"concurrency": 32}),
    ]


def _ranges(results: Sequence[Result]) -> str:
    """Return how many cases were refused, how many ranges held, and the verdict."""
    refused = sum(result.refused for result in results)
    held = sum(result.held for result in results)
    lost = [result for result in results if not (result.refused or result.held)]
    share = (refused + held) / len(results)
    counts = f"{held} of {len(results)} cases held, {refused} refused; wanted {HELD:.0%} together"
    lines = [f"\nranges of throughput and p99: {counts} {_verdict(share >= HELD)}"]
    for result in lost:
        point = result.predicted[0]
        words = [
            f"{name} {median(map(read, result.measured)):.0f} not in {ends(point)}"
            for name, (read, ends) in RANGES.items()
        ]
        lines.append(f"  {result.case.model}: {result.case}: {'; '.join(words)}")
    return "\n".join(lines)


def _line(result: Result) -> str:
    case = result.case
    cells = [f"  {case.model:<11}{case.level:<11}{result.measured[0].infer_per_s:8.0f}/s"]
    cells += [
        f"{name} {result.error(name):+6.1%} ({result.spread(name):5.1%})" for name in QUANTITIES
    ]
    verdict = "refused" if result.refused else "held" if result.held else "LOST"
    return "  ".join([*cells, f"others {result.others:.1f}", verdict, str(case)])


def _summary(results: Sequence[Result]) -> str:
    """Return a table of errors and spreads, and the verdict on each target."""
    quiet = [result for result in results if result.others < QUIET]
    parts = {f"all {len(results)} cases": results}
    if 0 < len(quiet) < len(results):
        parts[f"the {len(quiet)} cases in which others took less than {QUIET} cores"] = quiet
    for model in dict.fromkeys(result.case.model for result in results):
        parts[model] = [result for result in results if result.case.model == model]
    lines = []
    for title, found in parts.items():
        lines.append(f"\n{title}")
        lines.append(f"  {'':<12}{'error: median':>14}{'p80':>8}{'p90':>8}{'most':>8}"
                     f"{'spread: median':>17}{'p90':>8}")  # fmt: skip
        for name, (middle, limit, part) in TARGETS.items():
            errors = sorted(abs(result.error(name)) for result in found)
            spreads = sorted(result.spread(name) for result in found)
            cells = f"{median(errors):>14.1%}" + "".join(
                f"{_percentile(errors, percent):>8.1%}" for percent in (80, 90, 100)
            )
            cells += f"{median(spreads):>17.1%}{_percentile(spreads, 90):>8.1%}"
            within = sum(error <= limit for error in errors) / len(errors)
            words = [
                f"within {limit:.0%}: {within:.0%} of cases (wanted {part:.0%}) {_verdict(within >= part)}"
            ]
            # No prediction can do better than a measurement of the very case.
            again = [repeat <= limit for result in found for repeat in result.repeats(name)]
            if again:
                words.append(f"a measurement by the one before: {mean(again):.0%}")
            if middle is not None:
                kept = _verdict(median(errors) <= middle)
                words.insert(0, f"median (wanted {middle:.0%}) {kept}")
            lines.append(f"  {name:<12}{cells}   {'; '.join(words)}")
    return "\n".join(lines)


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """Return a percentile of ascending numbers (nearest rank)."""
    return ordered[math.ceil(percent / 100 * len(ordered)) - 1]


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


if __name__ == "__main__":
    sys.exit(main())
