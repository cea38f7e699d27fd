"""Auto-placement and exhaustive search: ``python -m bench.placing [--kind outputs] [--graphs 10] [--seed N]``.

``nt.tune`` places random ensembles, whose steps have given times on the host and on a simulated GPU; then every
assignment is measured, in turns. The choice is right if the best assignment leads by no more than the variation of
their difference between turns (or a fiftieth). All GPU times are simulated.

Kind ``latency`` compares the median latency of one request at a time. Kind ``outputs`` compares the throughput of four
requests at a time, of ensembles with several outputs and large tensors. Each prediction is compared with its
measurement.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import nbtriton

__all__ = ["main"]

COPY_GB_PER_S = 0.05
DEVICES = ("cpu", "gpu:0")
SAME = 1.02
TURNS = 3
# Tolerance of a good prediction.
NEAR = 0.1


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of graphs, and how their assignments are compared.

    Parameters
    ----------
    sizes : tuple of int
        Elements of 4 bytes in a tensor: copies of 4 and 16 ms.
    outputs : bool
        Whether at least two steps make outputs of the ensemble.
    outstanding : int
        Requests in flight: with one the latency is compared, with several the throughput.
    requests : int
        Requests of an assignment in each turn.
    """

    sizes: tuple[int, ...]
    outputs: bool
    outstanding: int
    requests: int

    def ms(self, point: Any) -> float:
        """Return the compared value: the median latency, or the time per request by the throughput."""
        if self.outstanding == 1:
            return float(point.latency_p50_us) / 1000
        return 1000 / float(point.infer_per_s)


KINDS = {
    "latency": Kind((1, 50_000, 200_000), outputs=False, outstanding=1, requests=8),
    "outputs": Kind((50_000, 200_000), outputs=True, outstanding=4, requests=40),
}


def gpu(slower: float) -> str:
    return f"simulated:1,copy_gb_per_s={COPY_GB_PER_S / slower:g}"


def step(host_ms: float, gpu_ms: float) -> Callable[..., Any]:
    """Return a model with these times on the host and on the GPU, which starts when its input is ready."""

    def run(X: Any) -> dict[str, Any]:  # noqa: N803 - a tensor's name
        if isinstance(X, np.ndarray):
            time.sleep(host_ms / 1000)
        else:
            X.device.run("elementwise", partial(time.sleep, gpu_ms / 1000), [X])
        return {"Y": X}

    return run


def load(
    server: nbtriton.Server, steps: int, choose: random.Random, kind: Kind, slower: float
) -> list[str]:
    """Load an ensemble of steps with one input each, some of them parallel; return their names."""
    size = choose.choice(kind.sizes)
    shape = f"data_type: TYPE_FP32 dims: {size}"
    tensors, read, lines = ["in"], set(), []
    names = [f"s{index}" for index in range(steps)]
    for index, name in enumerate(names):
        source = choose.choice(tensors[:2] if kind.outputs else tensors[-2:])
        read.add(source)
        tensors.append(f"t{index}")
        server.load(
            f"""max_batch_size: 1 instance_group {{ kind: KIND_CPU }}
            input {{ name: "X" {shape} }} output {{ name: "Y" {shape} }}""",
            step(slower * choose.uniform(2, 40), slower * choose.uniform(2, 40)),
            name=name,
        )
        lines.append(
            f'step {{ model_name: "{name}" model_version: -1 input_map {{ key: "X" value: "{source}" }} '
            f'output_map {{ key: "Y" value: "t{index}" }} }}'
        )
    outputs = " ".join(f'output {{ name: "{t}" {shape} }}' for t in tensors[1:] if t not in read)
    server.load(
        f"""name: "all" platform: "ensemble" max_batch_size: 1 input {{ name: "in" {shape} }} {outputs}
        ensemble_scheduling {{ {" ".join(lines)} }}"""
    )
    return names


def measured_ms(server: nbtriton.Server, where: dict[str, str], kind: Kind) -> float:
    (point,) = nbtriton.perf(
        server, "all", concurrency=kind.outstanding, request_count=kind.requests, placement=where
    ).points
    return kind.ms(point)


def case(seed: int, steps: int, kind: Kind, slower: float) -> tuple[bool, list[float]]:
    """Place one graph both ways; return whether the choice was right, and each prediction's ratio."""
    with nbtriton.Server(gpus=gpu(slower)) as server:
        names = load(server, steps, random.Random(seed), kind, slower)
        began = time.monotonic()
        latency = kind.outstanding == 1
        best = nbtriton.tune(
            server,
            "all",
            placement="auto",
            concurrency=kind.outstanding,
            finalists=1,
            duration_s=4 * slower,
            seed=seed,
            minimize="latency" if latency else None,
            maximize=None if latency else "throughput",
        )
        took_s = time.monotonic() - began
        chosen = best.configuration["placement"]
        every = [
            dict(zip(names, w, strict=True)) for w in itertools.product(DEVICES, repeat=len(names))
        ]
        # In turns, as the machine's speed varies.
        turns = [[measured_ms(server, where, kind) for where in every] for _ in range(TURNS)]
    found = [median(each) for each in zip(*turns, strict=True)]
    ours, theirs = every.index(chosen), found.index(min(found))
    behind = [turn[ours] - turn[theirs] for turn in turns]
    noise_ms = (max(behind) - min(behind)) / 2
    right = bool(median(behind) <= max(noise_ms, (SAME - 1) * found[theirs]))
    points = {
        tuple(p["placement"] for p in c.options.values()): c.predicted for c in best.candidates
    }
    # A very busy machine has no time to simulate all.
    compared = [
        (where, ms, kind.ms(points[tuple(where.values())]))
        for where, ms in zip(every, found, strict=True)
        if tuple(where.values()) in points
    ]
    # Ratios of the latency or of the throughput: above 1 for predictions above the measurement.
    ratios = [guess / ms if latency else ms / guess for _, ms, guess in compared]
    print(
        f"graph {seed}: {' '.join(chosen.values())} in {took_s:.0f} s, {found[ours]:.1f} ms; the best of "
        f"{len(every)} {' '.join(every[theirs].values())}, {found[theirs]:.1f} ms (simulated); behind by "
        f"{median(behind):.1f} ms, give or take {noise_ms:.1f} ms: {'right' if right else 'WRONG'}; predicted "
        f"{min(ratios):.2f} to {max(ratios):.2f} of what was measured",
        flush=True,
    )
    for where, ms, guess in compared:
        if not right or abs(guess / ms - 1) > NEAR:
            print(f"    {' '.join(where.values())}: {ms:.1f} ms, predicted {guess:.1f} ms")
    return right, ratios


def main(argv: Sequence[str] | None = None) -> int:
    """Place graphs; print how often the choice was right."""
    parser = argparse.ArgumentParser(prog="python -m bench.placing", description=__doc__)
    parser.add_argument("--graphs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the first graph")
    parser.add_argument("--kind", choices=tuple(KINDS), help="both by default")
    parser.add_argument(
        "--slower",
        type=float,
        default=1.0,
        help="factor of all times, for a machine that others use too",
    )
    arguments = parser.parse_args(argv)
    print(
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; GPU: {gpu(arguments.slower)} (simulated)"
    )
    seeds = range(arguments.seed, arguments.seed + arguments.graphs)
    for name in [arguments.kind] if arguments.kind else KINDS:
        print(f"{name}:")
        cases = [case(seed, arguments.steps, KINDS[name], arguments.slower) for seed in seeds]
        right = sum(found for found, _ in cases)
        ratios = [ratio for _, each in cases for ratio in each]
        near = sum(abs(ratio - 1) <= NEAR for ratio in ratios)
        print(
            f"{name}: {right} of {arguments.graphs} right (wanted: 9 of 10); {near} of {len(ratios)} predictions "
            f"within {NEAR:.0%}, {min(ratios):.2f} to {max(ratios):.2f} of what was measured"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
