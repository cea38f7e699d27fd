"""Load generators: `nbtriton.perf` in the process, NVIDIA's perf_analyzer for every server."""

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
from nbtriton.extensions.verify.reference import Reference

__all__ = ["Measured", "analyzer", "in_process"]

# Always three windows: noise is handled by the rounds and their median.
WINDOWS = 3
# On a busy machine one of perf_analyzer's windows may be empty; it then needs three more.
MOST_WINDOWS = 8


@dataclass(frozen=True, slots=True)
class Measured:
    """Client's measurement of one level of load."""

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
    """Measure a model in this process; raise `Wrong` if requests fail.

    `requests` is an alternative to windows for requests that take longer than a window.
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
    """Measure a model of a server with perf_analyzer; raise `Missing` if it fails.

    The real server may crash under a load of streams; the report is empty then.
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
            reason = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise Missing(f"perf_analyzer gave up over {protocol}: {' '.join(reason)}")
        (row,) = csv.DictReader(report.read_text().splitlines())
    return Measured(float(row["Inferences/Second"]), float(row["p50 latency"]))
