"""Truth of prediction: ``python -m bench.predict [--cases 40] [--seed N]``.

Each model is profiled once. Then each case is measured several times and predicted once, by the same
options; the measurements' own spread stands beside the prediction's errors. ``--url`` does so for a model
of a server that runs, under loads only, as its configuration stays; ``--speed N`` times the simulation of N
requests instead.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import nbtriton
from bench.predicted import LOADS, Case, Model, draw, models, serve
from nbtriton.perf import PerfPoint, perf
from nbtriton.simulate import EngineCosts, ModelProfile, Profile, ServicePoint, profile, whatif

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
    parser.add_argument("--url", help="profile and predict a model of the server there")
    parser.add_argument("--model", default="", help="of the server at --url")
    parser.add_argument(
        "--speed", type=int, default=0, metavar="N", help="time N simulated requests"
    )
    asked = parser.parse_args(argv)
    if asked.speed:
        print("\n".join(speed(asked.speed)))
        return 0
    if asked.url and not asked.model:
        parser.error("--url needs --model NAME")
    chosen = [m for m in models(asked.isolation) if asked.only in m.name]
    print(
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; "
        f"error of the prediction (largest deviation of {asked.runs} runs from their median)"
    )
    results: list[Result] = []
    if asked.url:
        results = _predict_at(asked.url, asked)
        print(_summary(results))
        return 0
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


def _predict_at(url: str, asked: argparse.Namespace) -> list[Result]:
    """Profile and predict a model of a server elsewhere: closed and open loops."""
    found = profile(None, asked.model, url=url)
    print(f"\n{found.headline} at {url}; load average {os.getloadavg()[0]:.1f}", flush=True)
    full = whatif(found, asked.model, concurrency=32).points[0].infer_per_s
    choose = random.Random(asked.seed)
    results = []
    for number in range(asked.cases):
        level = LOADS[number % len(LOADS)]
        options: dict[str, Any] = {"concurrency": {"low": 1, "half": 4, "saturating": 32}[level]}
        if level != "saturating" and choose.random() < 0.5:
            share = {"low": 0.1, "half": 0.5}[level]
            options = {"request_rate": float(f"{full * share:.2g}")}
            options["request_distribution"] = choose.choice(["constant", "poisson"])
        case = Case(asked.model, level, options)
        predicted = whatif(found, asked.model, **options, seed=asked.seed).points[0]
        measured = [
            perf(None, asked.model, url=url, **options, seed=asked.seed).points[0]
            for _ in range(asked.runs)
        ]
        results.append(Result(case, predicted, measured))
        print(_line(results[-1]), flush=True)
    return results


def speed(requests: int) -> list[str]:
    """Simulate this many requests of a model, of many instances and of three steps; say what it took."""
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
