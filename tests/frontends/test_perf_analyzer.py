"""The unmodified C++ perf_analyzer measures this endpoint as it does Triton's."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from nbtriton.runtime.engine import Server
from tests.frontends.measured import measured

SERVED = ("one", "flexible", "sequence", "words")

pytestmark = [pytest.mark.reference, pytest.mark.slow]

MODES = {
    "async": ("one", "--async", "--concurrency-range", "4"),
    "sync": ("one", "--sync", "--concurrency-range", "2"),
    "json": ("one", "--input-tensor-format", "json", "--output-tensor-format", "json"),
    "batch": ("one", "-b", "4"),
    "request rate": ("one", "--request-rate-range", "50"),
    "system shared memory": ("one", "--shared-memory", "system", "--output-shared-memory-size", "64"),
    "strings": ("words", "--string-length", "12"),
    "variable shape": ("flexible", "--shape", "IN:32"),
    "sequences": ("sequence", "--concurrency-range", "2", "--sequence-length", "5"),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_perf_analyzer_measures_this_endpoint(
    reference, server: Server, port: int, mode: str, tmp_path: Path
) -> None:
    report = tmp_path / "report.csv"
    done = measured(
        reference, server, *MODES[mode], "-i", "http", "-u", f"127.0.0.1:{port}", "-f", str(report)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = csv.DictReader(report.read_text().splitlines())
    assert float(row["Inferences/Second"]) > 0
    # The server's side: present, and on average not longer than the client waited, or nothing were left of that.
    parts = (
        "Server Queue",
        "Server Compute Input",
        "Server Compute Infer",
        "Server Compute Output",
    )
    assert sum(float(row[part]) for part in parts) > 0
    assert float(row["Network+Server Send/Recv"]) > 0
