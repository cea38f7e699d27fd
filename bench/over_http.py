"""Throughput over HTTP beside the real tritonserver: one model.py, one perf_analyzer, one run.

    python bench/over_http.py [--connections 1] [--json]

Both servers answer the same unmodified perf_analyzer with 32 connections, each with a thread of its
own: its asynchronous mode has one thread for all, which takes 75 us a request and is then what is
measured. nbtriton serves from a process of its own, as tritonserver does. Rounds alternate between the
two, so that a machine that slows down slows both.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import nbtriton
from doubling import CONFIG, MODEL
from nbtriton.errors import TritonError
from nbtriton.repository.reference import Reference, ensure_reference

TARGET = 1.5
RESULTS = Path(__file__).resolve().parent / "results"


# The other process: loads the model, says its port, ends with its input.
SERVE = """
import sys
from pathlib import Path
import nbtriton
from nbtriton.frontends import serve
folder = Path(sys.argv[1])
with nbtriton.Server() as server:
    server.load((folder / "config.pbtxt").read_text(), folder / "1" / "model.py", name="double")
    with serve(server, http_port=0, metrics_port=None) as endpoints:
        print(endpoints.http_port, flush=True)
        sys.stdin.read()
"""


@contextlib.contextmanager
def ours(folder: Path) -> Iterator[tuple[str, int]]:
    """Run nbtriton; gives its address and process."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            sys.exit("nbtriton did not start")
        yield f"127.0.0.1:{port}", process.pid
        assert process.stdin is not None
        process.stdin.close()


def cpu_s(pid: int) -> float:
    """Return the processor time that a process and its children have taken so far."""
    found = {pid}
    ticks = 0
    for path in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        with contextlib.suppress(OSError):
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if int(path.name) in found or int(fields[1]) in found:
                found.add(int(path.name))
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def answered(url: str) -> int:
    """Return how many requests a server has answered so far."""
    with urllib.request.urlopen(f"http://{url}/v2/models/double/stats") as reply:
        return int(json.load(reply)["model_stats"][0]["inference_stats"]["success"]["count"])


def measure(
    reference: Reference, url: str, interval_ms: int, binary: bool, connections: int
) -> tuple[float, float]:
    """Return inferences a second and the median latency in microseconds."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.csv")
        kind = "binary" if binary else "json"
        done = reference.perf_analyzer(
            "-m", "double", "-i", "http", "-u", url, "--sync",
            "--input-tensor-format", kind, "--output-tensor-format", kind,
            "--concurrency-range", str(connections), "--measurement-interval", str(interval_ms),
            "--stability-percentage", "999", "--max-trials", "3", "-f", str(report),
            timeout_s=120,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"perf_analyzer failed:\n{done.stdout}\n{done.stderr}")
        (row,) = csv.DictReader(report.read_text().splitlines())
    return float(row["Inferences/Second"]), float(row["p50 latency"])


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--interval-ms", type=int, default=1000, help="length of one window")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--json", action="store_true", help="tensors as JSON instead of binary")
    arguments = parser.parse_args()
    try:
        reference = ensure_reference(on_progress=lambda line: print(f"reference server: {line}"))
    except TritonError as error:
        print(f"There is nothing to compare with here: {error.message}")
        return 1
    found: dict[str, list[float]] = {"nbtriton": [], "triton": []}
    latency: dict[str, list[float]] = {"nbtriton": [], "triton": []}
    cost: dict[str, list[float]] = {"nbtriton": [], "triton": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "double")
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text(MODEL)
        (folder / "config.pbtxt").write_text(CONFIG)
        with reference.server(scratch) as theirs, ours(folder) as (url, pid):
            servers = (
                ("nbtriton", url, pid),
                ("triton", theirs.http_url, theirs.process.pid),
            )
            for number in range(1, arguments.rounds + 1):
                for name, address, process in servers:
                    before_s, before = cpu_s(process), answered(address)
                    rate, p50_us = measure(
                        reference, address, arguments.interval_ms, not arguments.json,
                        arguments.connections,
                    )  # fmt: skip
                    spent = (cpu_s(process) - before_s) / (answered(address) - before) * 1e6
                    found[name].append(rate)
                    latency[name].append(p50_us)
                    cost[name].append(spent)
                    print(
                        f"round {number}/{arguments.rounds}  {name:<9} {rate:10,.0f} infer/s  "
                        f"p50 {p50_us:8,.0f} us  {spent:5,.0f} us of processor time a request",
                        flush=True,
                    )
    kind = "JSON" if arguments.json else "binary"
    print(
        f"\nmedian (and spread) of {arguments.rounds} rounds, {arguments.connections} connections, "
        f"{kind} tensors, the same model.py\n{'':32}{'nbtriton':>26}{'tritonserver':>26}"
    )
    ratios = {}
    for what, unit, values, wanted in (
        ("throughput", "infer/s", found, f" (wanted {TARGET}x)"),
        ("latency p50", "us", latency, ""),
        ("processor time a request", "us", cost, ""),
    ):
        mine, real = values["nbtriton"], values["triton"]
        rounds = [a / b if unit == "infer/s" else b / a for a, b in zip(mine, real, strict=True)]
        ratios[what] = statistics.median(rounds)
        print(
            f"{f'{what}, {unit}':<32}{spread(mine):>26}{spread(real):>26}   {ratios[what]:.2f}x, "
            f"{min(rounds):.2f} to {max(rounds):.2f}{wanted if arguments.connections > 1 else ''}"
        )
    RESULTS.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    target = RESULTS / f"http-{now:%Y%m%d-%H%M%S}.json"
    target.write_text(
        json.dumps(
            {
                "date": now.isoformat(timespec="seconds"),
                "cores": os.cpu_count(),
                "load_average": os.getloadavg()[0],
                "system": platform.platform(),
                "python": platform.python_version(),
                "httptools": importlib.metadata.version("httptools"),
                "nbtriton": nbtriton.__version__,
                "connections": arguments.connections,
                "tensors": kind,
                "interval_ms": arguments.interval_ms,
                "infer_per_s": found,
                "p50_us": latency,
                "processor_us": cost,
                "ratios": ratios,
            },
            indent=1,
        )
    )
    print(f"load of the machine {os.getloadavg()[0]:.1f}; written to {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
