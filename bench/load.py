"""How load is made: `nbtriton.perf` in the process, NVIDIA's perf_analyzer forevery server."""

from __future__ import annotations

import csv
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbtriton
from bench.figures import Missing, Wrong
from nbtriton.repository.verify.reference import Reference

__all__ = ["Measured", "analyzer", "in_process"]

# Three windows in any case: the rounds and their median are the judge of noise here.
WINDOWS = 3
# Of perf_analyzer's windows one may be empty on a busy machine; it then wants three others.
MOST_WINDOWS = 8


@dataclass(frozen=True, slots=True)
class Measured:
    """One level of load, as the client saw it."""

    infer_per_s: float
    p50_us: float


def in_process(
    server: nbtriton.Server,
    model: str,
    inputs: Mapping[str, Any],
    *,
    concurrency: int = 1,
    interval_ms: int,
    requests: int = 0,
) -> Measured:
    """Load a model in this process; requests that fail are `Wrong`.

    A number of requests instead of windows suits those that take longer than a window.
    """
    (point,) = nbtriton.perf(
        server, model, concurrency=concurrency, inputs=inputs, request_count=requests,
        measurement_interval_ms=interval_ms, stability_percentage=999, max_trials=WINDOWS,
    ).points  # fmt: skip
    if point.error_count:
        raise Wrong(f"nbtriton answered with an error: {point.first_error}")
    return Measured(point.infer_per_s, point.latency_p50_us)


def analyzer(
    reference: Reference,
    url: str,
    model: str,
    *flags: str,
    protocol: str = "grpc",
    concurrency: int = 1,
    interval_ms: int,
) -> Measured:
    """Load a model of a server with perf_analyzer; `Missing` where it gives up.

    The real server's streams are known to die under load, and its report is then empty.
    """
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.csv")
        command: Sequence[str] = [
            "-m", model, "-i", protocol, "-u", url, *flags,
            "--concurrency-range", str(concurrency), "--measurement-interval", str(interval_ms),
            "--stability-percentage", "999", "--max-trials", str(MOST_WINDOWS), "-f", str(report),
        ]  # fmt: skip
        try:
            done = reference.perf_analyzer(*command, timeout_s=60 + interval_ms / 100)
        except subprocess.TimeoutExpired:
            raise Missing(f"perf_analyzer did not end over {protocol}") from None
        if done.returncode or not report.exists():
            said = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise Missing(f"perf_analyzer gave up over {protocol}: {' '.join(said)}")
        (row,) = csv.DictReader(report.read_text().splitlines())
    return Measured(float(row["Inferences/Second"]), float(row["p50 latency"]))
