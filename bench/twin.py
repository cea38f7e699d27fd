"""Accuracy of a twin, judged by the real server: ``python -m bench.twin [--cases 10] [--seed 1]``.

Each case is a model on tritonserver 2.51 that takes its time by the rows of a batch, with a spread. A twin is made while
one load runs; another load is then predicted from it and measured, in half of the cases with another number of
instances. A prediction counts if throughput is within 5% and p99 within 15%, or if the printed ranges hold both.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtriton.extensions.twin import twin
from nbtriton.extensions.verify.install import ensure_reference
from nbtriton.lab.perf.api import PerfRun, perf
from nbtriton.lab.simulate.prediction import whatif
from nbtriton.serving.clients.http import HttpClient

_CODE = """
import random, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        rows = sum(len(array) for array in arrays)
        time.sleep(({base} + {per_row} * rows) * random.lognormvariate(0, {spread}) / 1000)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in arrays]
"""
_CONFIG = """
backend: "python" max_batch_size: 8
input {{ name: "IN" data_type: TYPE_FP32 dims: 1 }} output {{ name: "OUT" data_type: TYPE_FP32 dims: 1 }}
dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}
instance_group {{ kind: KIND_CPU count: {instances} }}
"""
# Of what a model can do at most, at full batches.
_BUSY = (0.25, 0.75)


@dataclass(frozen=True, slots=True)
class Case:
    """A model, the load under which the twin is made, and the load and configuration that are predicted."""

    base_ms: float
    per_row_ms: float
    spread: float
    delay_us: int
    instances: int
    seen: Mapping[str, Any]
    asked: Mapping[str, Any]
    asked_instances: int

    def __str__(self) -> str:
        return (
            f"{self.base_ms:.1f} + {self.per_row_ms:.1f} ms a row, spread {self.spread:.2f}, delay {self.delay_us} us, "
            f"{self.instances} -> {self.asked_instances} instances, {_load(self.seen)} -> {_load(self.asked)}"
        )


def draw(cases: int, seed: int) -> list[Case]:
    """Return random cases."""
    chance = random.Random(seed)
    found = []
    for number in range(cases):
        base, per_row = chance.uniform(2, 15), chance.uniform(0.2, 2)
        instances = chance.choice((1, 2, 3))
        asked = instances if number % 2 == 0 else instances + 1
        most = 8000 / (base + 8 * per_row)
        loads: list[dict[str, Any]] = [
            {"request_rate": round(share * most * count, 1), "request_distribution": "poisson"}
            if chance.random() < 0.6
            else {"concurrency": max(1, round(share * 16 * count))}
            for share, count in zip(
                (chance.uniform(*_BUSY), chance.uniform(*_BUSY)), (instances, asked), strict=True
            )
        ]
        found.append(
            Case(
                base, per_row, chance.choice((0.0, 0.1, 0.3)), chance.choice((0, 0, 2000)), instances,
                loads[0], loads[1], asked,
            )
        )  # fmt: skip
    return found


def _load(load: Mapping[str, Any]) -> str:
    return f"{load['request_rate']}/s" if "request_rate" in load else f"c={load['concurrency']}"


def judge(case: Case, number: int, server: Any, root: Path) -> bool:
    """Make the twin, predict, measure, print a line; return whether the prediction counts."""
    name = f"case{number}"
    folder = root / name / "1"
    folder.mkdir(parents=True)
    code = _CODE.format(base=case.base_ms, per_row=case.per_row_ms, spread=case.spread)
    (folder / "model.py").write_text(code)
    url, config = server.grpc_url, folder.parent / "config.pbtxt"
    url = f"grpc://{url}"
    config.write_text(_CONFIG.format(delay_us=case.delay_us, instances=case.instances))
    with HttpClient(server.http_url) as client:
        client.load(name)
        run = PerfRun(None, name, url=url, measurement_interval_ms=60_000, **case.seen)
        while not client.statistics(name)["model_stats"][0]["execution_count"]:
            time.sleep(0.1)
        copy = twin(url, name, duration_s=10, at_once=max(case.instances, case.asked_instances))
        run.stop()
        (predicted,) = whatif(copy, name, instances=case.asked_instances, **case.asked).points
        if case.asked_instances != case.instances:
            text = _CONFIG.format(delay_us=case.delay_us, instances=case.asked_instances)
            config.write_text(text)
            client.load(name)
        (measured,) = perf(None, name, url=url, measurement_request_count=1000, measurement_mode="count_windows", **case.asked).points  # fmt: skip
        client.unload(name)
    rate = predicted.infer_per_s / measured.infer_per_s - 1
    tail = predicted.latency_p99_us / measured.latency_p99_us - 1
    held = _within(predicted.infer_per_s_range, measured.infer_per_s) and _within(
        predicted.latency_p99_range_us, measured.latency_p99_us
    )
    near = abs(rate) <= 0.05 and abs(tail) <= 0.15
    print(
        f"{number:3} {case}: {predicted.infer_per_s:.1f} for {measured.infer_per_s:.1f}/s ({rate:+.1%}), p99 "
        f"{predicted.latency_p99_us / 1000:.1f} for {measured.latency_p99_us / 1000:.1f} ms ({tail:+.1%}), "
        f"{predicted.outcome}; {'near' if near else 'off'}, {'held' if held else 'not held'}",
        flush=True,
    )
    return near or held


def _within(span: tuple[float, float] | None, value: float) -> bool:
    return span is not None and span[0] <= value <= span[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Judge random cases; return 1 if fewer than eight of ten count."""
    parser = argparse.ArgumentParser(prog="python -m bench.twin", description=__doc__)
    parser.add_argument("--cases", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        with ensure_reference().server(root, "--model-control-mode=explicit") as server:
            good = sum(
                judge(case, number, server, root)
                for number, case in enumerate(draw(options.cases, options.seed))
            )
    print(f"{good} of {options.cases} within 5% and 15%, or held by the printed ranges")
    return int(good < 0.8 * options.cases)


if __name__ == "__main__":
    sys.exit(main())
