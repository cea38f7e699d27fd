"""One model.py, two servers, one run: nbtriton in this process beside the real tritonserver.

    make bench            three rounds, about a minute
    python bench/first.py --rounds 5 --interval-ms 1000

Measured are the latency of one request at a time and the throughput with 32 in flight. nbtriton is
driven by `nbtriton.perf` in the process, tritonserver by NVIDIA's own perf_analyzer over gRPC; both
use the same windows. Rounds alternate between the two, so that a machine that slows down slows both.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

import nbtriton
from doubling import CONFIG, MODEL
from nbtriton.errors import TritonError
from nbtriton.repository.reference import Reference, ReferenceServer, ensure_reference

IN_FLIGHT = 32
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Measured:
    """One level of load, as the client saw it."""

    infer_per_s: float
    p50_us: float
    p99_us: float
    avg_us: float


def ours(server: nbtriton.Server, concurrency: int, interval_ms: int) -> Measured:
    (point,) = nbtriton.perf(
        server,
        "double",
        concurrency=concurrency,
        inputs={"IN": np.ones((1, 16), np.float32)},
        measurement_interval_ms=interval_ms,
        stability_percentage=999,
        max_trials=3,
    ).points
    if point.error_count:
        sys.exit(f"nbtriton answered with an error: {point.first_error}")
    return Measured(
        point.infer_per_s, point.latency_p50_us, point.latency_p99_us, point.latency_avg_us
    )


def theirs(
    reference: Reference, server: ReferenceServer, concurrency: int, interval_ms: int
) -> Measured:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.csv")
        done = reference.perf_analyzer(
            "-m", "double", "-i", "grpc", "-u", server.grpc_url,
            "--concurrency-range", str(concurrency), "--measurement-interval", str(interval_ms),
            "--stability-percentage", "999", "--max-trials", "3", "-f", str(report),
            timeout_s=120,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"perf_analyzer failed:\n{done.stdout}\n{done.stderr}")
        (row,) = csv.DictReader(report.read_text().splitlines())
    parts = ("Client Send", "Network+Server Send/Recv", "Server Queue", "Server Compute Input",
             "Server Compute Infer", "Server Compute Output", "Client Recv")  # fmt: skip
    return Measured(
        float(row["Inferences/Second"]),
        float(row["p50 latency"]),
        float(row["p99 latency"]),
        sum(float(row[part]) for part in parts),
    )


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def machine() -> dict[str, object]:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": importlib.metadata.version("numpy"),
        "nbtriton": nbtriton.__version__,
        "tritonserver": "2.51.0",
        "perf_analyzer": "2.50.0",
    }


def rounds(
    reference: Reference, server: ReferenceServer, count: int, interval_ms: int
) -> dict[str, list[Measured]]:
    found: dict[str, list[Measured]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "model.py")
        path.write_text(MODEL)
        with nbtriton.Server() as mine:
            mine.load(CONFIG, path, name="double")
            plan: list[tuple[str, Callable[[], Measured]]] = [
                ("nbtriton 1", lambda: ours(mine, 1, interval_ms)),
                ("triton 1", lambda: theirs(reference, server, 1, interval_ms)),
                ("nbtriton 32", lambda: ours(mine, IN_FLIGHT, interval_ms)),
                ("triton 32", lambda: theirs(reference, server, IN_FLIGHT, interval_ms)),
            ]
            for number in range(1, count + 1):
                for name, measure in plan:
                    measured = measure()
                    found.setdefault(name, []).append(measured)
                    print(
                        f"round {number}/{count}  {name:<12} "
                        f"{measured.infer_per_s:10,.0f} infer/s  p50 {measured.p50_us:8,.0f} us",
                        flush=True,
                    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--interval-ms", type=int, default=500, help="length of one window")
    arguments = parser.parse_args()
    try:
        reference = ensure_reference(on_progress=lambda line: print(f"reference server: {line}"))
    except TritonError as error:
        print(f"There is nothing to compare with here: {error.message}")
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "double", "1")
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(MODEL)
        (folder.parent / "config.pbtxt").write_text(CONFIG)
        with reference.server(scratch) as server:
            found = rounds(reference, server, arguments.rounds, arguments.interval_ms)

    one, their_one = ([m.p50_us for m in found[f"{name} 1"]] for name in ("nbtriton", "triton"))
    many, their_many = (
        [m.infer_per_s for m in found[f"{name} {IN_FLIGHT}"]] for name in ("nbtriton", "triton")
    )
    faster = statistics.median(their_one) / statistics.median(one)
    more = statistics.median(many) / statistics.median(their_many)
    print(f"""
median (lowest to highest of {arguments.rounds} rounds), the same model.py
{"":34}{"nbtriton, in the kernel":>30}{"tritonserver over gRPC":>30}{"ratio":>9}
{"one request, p50 latency, us":34}{spread(one):>30}{spread(their_one):>30}{faster:>8.1f}x
{f"{IN_FLIGHT} in flight, inferences/s":34}{spread(many):>30}{spread(their_many):>30}{more:>8.1f}x
""")
    RESULTS.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    target = RESULTS / f"first-{now:%Y%m%d-%H%M%S}.json"
    target.write_text(
        json.dumps(
            {
                "date": now.isoformat(timespec="seconds"),
                "machine": machine(),
                "model": MODEL,
                "config": CONFIG,
                "interval_ms": arguments.interval_ms,
                "rounds": {name: [asdict(m) for m in row] for name, row in found.items()},
                "latency_ratio": faster,
                "throughput_ratio": more,
            },
            indent=1,
        )
    )
    print(
        f"Written to {target.relative_to(Path.cwd()) if target.is_relative_to(Path.cwd()) else target}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
