"""One model.py over gRPC, two servers, one run: nbtriton beside the real tritonserver.

    python bench/over_grpc.py                      five rounds, about four minutes
    python bench/over_grpc.py --only stream --interval-ms 2000

Both are driven by NVIDIA's own perf_analyzer. Rounds alternate between the two, so that a machine
that slows down slows both. nbtriton runs as `nbtriton serve`, with the same flags.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import tritonclient.grpc

import nbtriton
from doubling import CONFIG, MODEL
from nbtriton.errors import TritonError
from nbtriton.repository.reference import Reference, ensure_reference
from over_http import cpu_s, spread

RESULTS = Path(__file__).resolve().parent / "results"
SIDES = ("nbtriton", "tritonserver")
# Inferences a second, median latency in us, and the server's processor time a request in us.
Measured = tuple[float, float, float]


# tritonserver 2.51 dies of SIGSEGV (in TRITONSERVER_InferenceRequestDelete) within a second of 32
# requests in streams: it deletes the state of a request that its core still holds, unless there is
# room for it in a pool, which holds 8 by default.
FLAGS = ("--grpc-infer-allocation-pool-size=128",)
# Four streams of eight requests each is what perf_analyzer does by itself.
STREAMING = ("--async", "--streaming", "--concurrency-range", "32")
LOADS = {
    "1 call": ("--concurrency-range", "1"),
    "32 calls": ("--concurrency-range", "32"),
    "32 in 4 streams": STREAMING,
    "32 streams": (*STREAMING, "--max-threads", "32"),
}


@contextlib.contextmanager
def ours(repository: str) -> Iterator[tuple[str, int]]:
    """Run `nbtriton serve` over the repository; gives its address and process."""
    command = [
        sys.executable, "-m", "nbtriton", "serve", f"--model-repository={repository}",
        "--grpc-port=0", "--allow-http=false", "--allow-metrics=false", *FLAGS,
    ]  # fmt: skip
    # In a session of its own, as the reference's: Linux shares a busy processor out by sessions, and
    # perf_analyzer is in this one.
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            found = re.search(r"Started GRPCInferenceService at ([^\s\"]+)", line)
            if found:
                break
        else:
            sys.exit("nbtriton did not start")
        yield found[1], process.pid
    finally:
        process.terminate()
        process.communicate(timeout=40)


def answered(url: str) -> int:
    """Return how many requests a server has answered so far."""
    with tritonclient.grpc.InferenceServerClient(url) as client:
        statistics = client.get_inference_statistics("double")
        return int(statistics.model_stats[0].inference_stats.success.count)


def measure(
    reference: Reference, url: str, pid: int, load: Sequence[str], interval_ms: int
) -> Measured | None:
    """Drive one server; None if perf_analyzer gave up."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.csv")
        before_s, before = cpu_s(pid), answered(url)
        try:
            done = reference.perf_analyzer(
                "-m", "double", "-i", "grpc", "-u", url, *load,
                "--measurement-interval", str(interval_ms),
                "--stability-percentage", "999", "--max-trials", "3", "-f", str(report),
                timeout_s=30 + interval_ms / 100,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None
        if done.returncode or not report.exists():
            return None
        (row,) = csv.DictReader(report.read_text().splitlines())
    spent_us = (cpu_s(pid) - before_s) / (answered(url) - before) * 1e6
    return float(row["Inferences/Second"]), float(row["p50 latency"]), spent_us


def rounds(
    reference: Reference, count: int, interval_ms: int, loads: dict[str, Sequence[str]]
) -> dict[str, dict[str, list[Measured]]]:
    found: dict[str, dict[str, list[Measured]]] = {}
    with tempfile.TemporaryDirectory() as repository:
        folder = Path(repository, "double", "1")
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(MODEL)
        (folder.parent / "config.pbtxt").write_text(CONFIG)
        with ours(repository) as mine:
            for load, arguments in loads.items():
                # A server of its own for each load: one that died of it spoils no other.
                with reference.server(repository, *FLAGS) as theirs:
                    servers = (mine, (theirs.grpc_url, theirs.process.pid))
                    for number in range(1, count + 1):
                        got = [measure(reference, *one, arguments, interval_ms) for one in servers]
                        for name, one in zip(SIDES, got, strict=True):
                            text = "gave up" if one is None else f"{one[0]:10,.0f} infer/s  p50 {one[1]:8,.0f} us  {one[2]:5,.0f} us of processor time a request"  # fmt: skip
                            print(
                                f"round {number}/{count}  {load:<15} {name:<13} {text}", flush=True
                            )
                        if None not in got:
                            for name, one in zip(SIDES, got, strict=True):
                                found.setdefault(load, {}).setdefault(name, []).append(one)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--interval-ms", type=int, default=1000, help="length of one window")
    parser.add_argument("--only", default="", help="only loads that match this pattern")
    arguments = parser.parse_args()
    try:
        reference = ensure_reference(on_progress=lambda line: print(f"reference server: {line}"))
    except TritonError as error:
        print(f"There is nothing to compare with here: {error.message}")
        return 1
    loads = {name: load for name, load in LOADS.items() if re.search(arguments.only, name)}
    found = rounds(reference, arguments.rounds, arguments.interval_ms, loads)
    print(
        f"\nmedian (and spread) of {arguments.rounds} rounds over gRPC, the same model.py\n"
        f"{'':33}{'nbtriton':>26}{'tritonserver':>26}  ratio"
    )
    ratios: dict[str, dict[str, float]] = {}
    for load in loads:
        if load not in found:
            print(f"{load}: no round in which both were measured")
            continue
        for place, what in enumerate(("infer/s", "p50 us", "processor us")):
            mine, real = ([row[place] for row in found[load][name]] for name in SIDES)
            each = [a / b if place == 0 else b / a for a, b in zip(mine, real, strict=True)]
            ratio = ratios.setdefault(load, {})[what] = statistics.median(each)
            print(
                f"{load:<17}{what:<16}{spread(mine):>26}{spread(real):>26}  {ratio:.2f}x, "
                f"{min(each):.2f} to {max(each):.2f}"
            )
    RESULTS.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    target = RESULTS / f"grpc-{now:%Y%m%d-%H%M%S}.json"
    target.write_text(
        json.dumps(
            {
                "date": now.isoformat(timespec="seconds"),
                "cores": os.cpu_count(),
                "load_average": os.getloadavg()[0],
                "system": platform.platform(),
                "python": platform.python_version(),
                "grpcio": importlib.metadata.version("grpcio"),
                "nbtriton": nbtriton.__version__,
                "interval_ms": arguments.interval_ms,
                "rounds": found,
                "ratios": ratios,
            },
            indent=1,
        )
    )
    print(f"Written to {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
