"""Auto-placement beside an exhaustive search: ``python -m bench.placing [--graphs 10] [--seed N]``.

Random ensembles of steps that take given times on the host and on a simulated GPU are placed by ``nt.tune``; then
every assignment is measured, in turns. The choice is right if the best is ahead of it by no more than their difference
varies from turn to turn (or a fiftieth). All GPU times are simulated.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import nbtriton

__all__ = ["main"]

GPU = "simulated:1,copy_gb_per_s=0.05"
DEVICES = ("cpu", "gpu:0")
# Numbers of 4 bytes in a tensor: copies of up to 16 ms.
SIZES = (1, 50_000, 200_000)
SAME = 1.02
TURNS = 3


def step(host_ms: float, gpu_ms: float) -> Callable[..., Any]:
    """Return a model that takes so long on the host and on the GPU, which begins when its input is there."""

    def run(X: Any) -> dict[str, Any]:  # noqa: N803 - a tensor's name
        if isinstance(X, np.ndarray):
            time.sleep(host_ms / 1000)
        else:
            X.device.run("elementwise", partial(time.sleep, gpu_ms / 1000), [X])
        return {"Y": X}

    return run


def load(server: nbtriton.Server, steps: int, choose: random.Random) -> list[str]:
    """Load an ensemble of steps of one input each, some of them beside each other; return their names."""
    size = choose.choice(SIZES)
    shape = f"data_type: TYPE_FP32 dims: {size}"
    tensors, read, lines = ["in"], set(), []
    names = [f"s{at}" for at in range(steps)]
    for at, name in enumerate(names):
        source = choose.choice(tensors[-2:])
        read.add(source)
        tensors.append(f"t{at}")
        server.load(
            f"""max_batch_size: 1 instance_group {{ kind: KIND_CPU }}
            input {{ name: "X" {shape} }} output {{ name: "Y" {shape} }}""",
            step(choose.uniform(2, 40), choose.uniform(2, 40)),
            name=name,
        )
        lines.append(
            f'step {{ model_name: "{name}" model_version: -1 input_map {{ key: "X" value: "{source}" }} '
            f'output_map {{ key: "Y" value: "t{at}" }} }}'
        )
    outputs = " ".join(f'output {{ name: "{t}" {shape} }}' for t in tensors[1:] if t not in read)
    server.load(
        f"""name: "all" platform: "ensemble" max_batch_size: 1 input {{ name: "in" {shape} }} {outputs}
        ensemble_scheduling {{ {" ".join(lines)} }}"""
    )
    return names


def p50_ms(server: nbtriton.Server, where: dict[str, str], count: int) -> float:
    (point,) = nbtriton.perf(server, "all", request_count=count, placement=where).points
    return point.latency_p50_us / 1000


def case(seed: int, steps: int, count: int) -> bool:
    """Place one graph both ways; print what was found."""
    with nbtriton.Server(gpus=GPU) as server:
        names = load(server, steps, random.Random(seed))
        began = time.monotonic()
        best = nbtriton.tune(
            server,
            "all",
            placement="auto",
            minimize="latency",
            concurrency=1,
            finalists=1,
            seconds=4,
            seed=seed,
        )
        took_s = time.monotonic() - began
        chosen = best.configuration["placement"]
        every = [
            dict(zip(names, w, strict=True)) for w in itertools.product(DEVICES, repeat=len(names))
        ]
        # In turns: the machine is now faster, now slower.
        turns = [[p50_ms(server, where, count) for where in every] for _ in range(TURNS)]
    found = [median(each) for each in zip(*turns, strict=True)]
    ours, theirs = every.index(chosen), found.index(min(found))
    behind = [turn[ours] - turn[theirs] for turn in turns]
    noise_ms = (max(behind) - min(behind)) / 2
    right = bool(median(behind) <= max(noise_ms, (SAME - 1) * found[theirs]))
    print(
        f"graph {seed}: {' '.join(chosen.values())} in {took_s:.0f} s, {found[ours]:.1f} ms; the best of "
        f"{len(every)} {' '.join(every[theirs].values())}, {found[theirs]:.1f} ms (simulated); behind by "
        f"{median(behind):.1f} ms, give or take {noise_ms:.1f} ms: {'right' if right else 'WRONG'}",
        flush=True,
    )
    if not right:
        predicted = {tuple(p["placement"] for p in c.options.values()): c for c in best.candidates}
        for where, ms in zip(every, found, strict=True):
            point = predicted[tuple(where.values())].point
            print(
                f"    {' '.join(where.values())}: {ms:.1f} ms, predicted {point.latency_p50_us / 1000:.1f} ms"
            )
    return right


def main(argv: Sequence[str] | None = None) -> int:
    """Place graphs, and say how often the choice was right."""
    parser = argparse.ArgumentParser(prog="python -m bench.placing", description=__doc__)
    parser.add_argument("--graphs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the first graph")
    parser.add_argument("--requests", type=int, default=8, help="of an assignment, in each turn")
    asked = parser.parse_args(argv)
    print(
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; GPU: {GPU} (simulated)"
    )
    seeds = range(asked.seed, asked.seed + asked.graphs)
    right = sum(case(seed, asked.steps, asked.requests) for seed in seeds)
    print(f"{right} of {asked.graphs} right (wanted: 9 of 10)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
