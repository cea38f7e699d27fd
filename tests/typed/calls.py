"""A user's notebook with types throughout: what measures, explains, draws, predicts and teaches."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import pandas as pd

import nbtriton as nt
from nbtriton.extensions.chaos import ChaosReport
from nbtriton.extensions.lessons import Progress
from nbtriton.extensions.recordings import TrafficTap
from nbtriton.model.config import ModelConfig

Rows = npt.NDArray[np.float32]
Row = Annotated[Rows, "FP32[4]"]
ONE: Rows = np.ones((1, 4), np.float32)
CONFIG = "max_batch_size: 8  dynamic_batching { }"


def double(IN: Row) -> Annotated[dict[str, Rows], {"OUT": "FP32[4]"}]:
    return {"OUT": IN * np.float32(2)}


@nt.lessons.exercise(solution="dynamic_batching { }", hint="A request waits for others.")
def forms_batches(server: nt.Server) -> str:
    """Let `double` form batches of several requests."""
    assert server.config("double").HasField("dynamic_batching")
    return "The dynamic batcher forms them."


@nt.lessons.predict_batches
def one_each() -> object:
    """Which batches form?"""
    return nt.lessons.scenario(CONFIG, [0, 1])


def serve(server: nt.Server, folder: Path) -> None:
    with server.serve(http_port=0, grpc_port=0, metrics_port=None) as endpoints:
        ports = (endpoints.http_port, endpoints.grpc_port, endpoints.metrics_port)
        print(None not in ports[:2], ports[2] is None, len(server.endpoints))
    exported = server.export(folder / "models", ["double"], overwrite=True)
    print(type(exported).__name__)
    with nt.Server(gpus=nt.types.SimulatedGPUs(2), cache_bytes=1 << 20) as other:
        control = other.load_repository(folder / "models", control_mode="explicit")
        control.load("double")
        config: ModelConfig = other.config("double")
        print(config.max_batch_size, other.is_ready("double"), len(nt.copies(other)))
        print(other.unload("double", timeout_s=None))


def measure(server: nt.Server) -> nt.types.PerfReport:
    report: nt.types.PerfReport = nt.perf(
        server, "double", concurrency="1:2", instances=[1, 2], request_count=4, inputs={"IN": ONE}
    )
    best: float = report.best(p99_ms=60_000.0).infer_per_s
    frame: pd.DataFrame = report.frame
    run = nt.types.PerfRun(server, "double", concurrency=1, request_count=4)
    print(len(frame), best > 0, len(run.result(timeout=60).points), bool(report.headline))
    return report


def explain(server: nt.Server, folder: Path) -> None:
    tap: TrafficTap
    with nt.record(server, folder / "traffic.jsonl", inputs=True) as tap:
        asyncio.run(server.infer_async("double", {"IN": ONE}, priority=1))
    recording: nt.types.Recording = tap.stop()
    again: nt.types.PerfReport = nt.replay(recording, server, speed=2.0)
    why: nt.types.Explanation = nt.why(server, "double")
    found: nt.types.Diagnosis = nt.doctor(server, "double")
    seen: pd.DataFrame = nt.events(server, "double")
    faults: ChaosReport = nt.chaos(
        server, "double", faults=["raise"], request_count=4, duration_s=5.0
    )
    print(again.interrupted, bool(why.headline), found.ok, len(seen) > 0, faults.unanswered)
    print(
        len(nt.status(server, "double")),
        len(nt.lessons.last_batches(server, "double", request_count=1)),
    )


def draw(server: nt.Server, report: nt.types.PerfReport) -> None:
    graph = nt.dag(server, "double")
    lanes = nt.timeline(server, "double", span_ms=1000.0)
    curves = nt.plot(before=report, after=report, p99_ms=20.0)
    steps = nt.lessons.figure(nt.lessons.scenario(CONFIG, [0, 1], execution_ms=5.0))
    print(*(type(one).__name__ for one in (graph, lanes, curves, steps)))
    shown = nt.watch(server, "double")
    shown.stop()


def predict(server: nt.Server, folder: Path) -> None:
    profile: nt.types.Profile = nt.types.Profile.declared({"double": {1: 2.0, 8: 4.0}})
    told: nt.types.PerfReport = nt.whatif(profile, "double", concurrency=[1, 8], instances=[1, 2])
    tuning: nt.types.Tuning = nt.tune(
        server, "double", p99_ms=1000.0, concurrency=2, instances=[1, 2], max_batch_size=[8],
        max_queue_delay_us=[0], profile=profile, finalists=1, duration_s=2.0,
    )  # fmt: skip
    print(told.simulated, len(tuning.frontier) > 0)
    mark = nt.lessons.check(server, forms_batches, progress=Progress(folder / "progress.json"))
    print(mark.correct, forms_batches.hint, type(one_each).__name__)


def main() -> None:
    with nt.Server(gpus=()) as server, tempfile.TemporaryDirectory() as folder:
        server.load(CONFIG, double, name="double")
        server.infer("double", {"IN": ONE})
        serve(server, Path(folder))
        report = measure(server)
        explain(server, Path(folder))
        draw(server, report)
        predict(server, Path(folder))


if __name__ == "__main__":
    main()
