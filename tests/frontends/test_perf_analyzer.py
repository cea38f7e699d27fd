"""The unmodified C++ perf_analyzer measures this endpoint as it does Triton's."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

pytestmark = [pytest.mark.reference, pytest.mark.slow]

MODES = {
    "async": ("-m", "one", "--async", "--concurrency-range", "4"),
    "sync": ("-m", "one", "--sync", "--concurrency-range", "2"),
    "json": ("-m", "one", "--input-tensor-format", "json", "--output-tensor-format", "json"),
    "batch": ("-m", "one", "-b", "4"),
    "request rate": ("-m", "one", "--request-rate-range", "50"),
    "system shared memory": ("-m", "one", "--shared-memory", "system", "--output-shared-memory-size", "64"),
    "strings": ("-m", "words", "--string-length", "12"),
    "variable shape": ("-m", "flexible", "--shape", "IN:32"),
    "sequences": ("-m", "sequence", "--concurrency-range", "2", "--sequence-length", "5"),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_perf_analyzer_measures_this_endpoint(
    reference, port: int, mode: str, tmp_path: Path
) -> None:
    report = tmp_path / "report.csv"
    done = reference.perf_analyzer(
        *MODES[mode], "-i", "http", "-u", f"127.0.0.1:{port}", "--request-count", "200",
        "-f", str(report),
        timeout_s=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = csv.DictReader(report.read_text().splitlines())
    assert float(row["Inferences/Second"]) > 0
    # The server's side: present, and not longer than the client waited.
    parts = (
        "Server Queue",
        "Server Compute Input",
        "Server Compute Infer",
        "Server Compute Output",
    )
    assert 0 < sum(float(row[part]) for part in parts) <= float(row["p99 latency"])
