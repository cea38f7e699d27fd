"""Make the pictures of the README: views of a pipeline under load.

    python scripts/pictures.py
    python scripts/pictures.py --screens build/screens [--lessons build/lessons]

The second form saves screenshots of every view and lesson instead, light and dark, wide and narrow; no test compares
them. The models sleep for their nominal times, so that the pictures are similar on every machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import nbtriton as nt

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
TENSORS = """input [ { name: "IN" data_type: TYPE_FP32 dims: [ 64 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 64 ] } ]"""


def waiting(first_ms: float, row_ms: float) -> Callable[..., dict[str, Any]]:
    """Return a model that sleeps for `first_ms` a batch, and `row_ms` for each further row."""

    def execute(IN: "FP32[64]") -> {"OUT": "FP32[64]"}:  # noqa: F821, N803, UP037
        time.sleep((first_ms + row_ms * (len(IN) - 1)) / 1000)
        return {"OUT": IN}

    return execute


def step(model: str, takes: str, gives: str) -> str:
    """Return a step of an ensemble from one tensor to another."""
    return (
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "IN" value: "{takes}" }} '
        f'output_map {{ key: "OUT" value: "{gives}" }} }}'
    )


def load(server: nt.Server) -> None:
    """Load a pipeline: a preprocessing step and two parallel models."""
    batching = "max_batch_size: 8 dynamic_batching { }"
    server.load(batching, model=waiting(1, 0.1), name="preprocess")
    server.load(batching, model=waiting(6, 0.4), name="classify")
    server.load(batching, model=waiting(4, 0.3), name="segment")
    steps = step("preprocess", "IMAGE", "pixels") + step("classify", "pixels", "CLASS")
    steps += step("segment", "pixels", "MASK")
    ends = 'input [ { name: "IMAGE" data_type: TYPE_FP32 dims: [ 64 ] } ]' + "".join(
        f'output [ {{ name: "{name}" data_type: TYPE_FP32 dims: [ 64 ] }} ]' for name in ("CLASS", "MASK")
    )  # fmt: skip
    server.load(
        f'platform: "ensemble" max_batch_size: 8 {ends} ensemble_scheduling {{ {steps} }}',
        name="pipeline",
    )


def measured(server: nt.Server) -> Any:
    """Measure the pipeline; return the report."""
    server.infer("pipeline", {"IMAGE": np.ones((1, 64), np.float32)})
    return nt.perf(
        server, "pipeline", concurrency=[1, 2, 4, 8, 16], dynamic_batching=[False, True],
        measurement_interval_ms=400,
    )  # fmt: skip


def screens(server: nt.Server, report: Any, folder: Path, lessons: Path | None) -> None:
    """Save screenshots of each view, static and live, and of each lesson, light and dark."""
    from nbtriton.extensions.lessons import SCENARIOS
    from nbtriton.lab.perf.curves import series_of
    from nbtriton.widgets.curve import CurveView
    from nbtriton.widgets.dag import DagView
    from nbtriton.widgets.publisher import Hub
    from nbtriton.widgets.timeline import live_timeline
    from nbtriton.widgets.watch import WatchView
    from screens import Screens

    hub = Hub(threaded=False)
    watch = WatchView(server, on_hub=hub)
    nt.perf(server, "pipeline", concurrency=8, measurement_interval_ms=400)
    curve = CurveView(title="pipeline", on_hub=hub)
    curve.update(series_of(report))
    curve.show_progress("concurrency 8 of 16 · window 2/3 · about 14 s left", 0.4)
    selected = live_timeline(server, "pipeline", on_hub=hub)
    selected.select(nt.events(server, by="request").tail(20))
    live = {
        "watch": watch,
        "timeline-selected": selected,
        "dag": DagView.of(server, "pipeline", on_hub=hub),
        "timeline": live_timeline(server, "pipeline", span_ms=200, on_hub=hub),
        "curve": curve,
    }
    result = server.infer("pipeline", {"IMAGE": np.ones((2, 64), np.float32)})
    rest = {
        "report": report,
        "dag": nt.dag(server, "pipeline"),
        "watch": watch.static(),
        "timeline": nt.timeline(server, "pipeline", span_ms=60),
        "why": nt.why(server, "pipeline"),
        "doctor": nt.doctor(server),
        "result": result,
        "handle": server.load(name="pipeline"),
        "options": server.options,
    }
    for name in SCENARIOS:
        live[f"figure-{name}"] = nt.lessons.figure(name).widget
        rest[f"figure-{name}"] = nt.lessons.figure(name).static()
    with Screens(folder) as made:
        for name, view in live.items():
            view.refresh()
            made.live(f"live-{name}", view)
        for name, value in rest.items():
            bundle = getattr(value, "_repr_mimebundle_", None)
            html = bundle()["text/html"] if bundle is not None else value._repr_html_()
            made.html(f"rest-{name}", html)
        for path in sorted(lessons.glob("*.ipynb")) if lessons is not None else ():
            made.notebook(path)


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--screens",
        type=Path,
        metavar="DIR",
        help="save what every view looks like, to be looked at",
    )
    parser.add_argument(
        "--lessons",
        type=Path,
        metavar="DIR",
        help="and executed notebooks, such as run_notebook.py writes",
    )
    arguments = parser.parse_args()
    with nt.Server(gpus=()) as server:
        load(server)
        report = measured(server)
        if arguments.screens is not None:
            screens(server, report, arguments.screens, arguments.lessons)
            return
        PICTURES.mkdir(parents=True, exist_ok=True)
        report.save(PICTURES / "curves.svg")
        nt.perf(server, "pipeline", concurrency=8, measurement_interval_ms=400)
        nt.dag(server, "pipeline").save(PICTURES / "graph.svg")
        nt.timeline(server, "pipeline", span_ms=60).save(PICTURES / "timeline.svg")
    nt.lessons.figure("batch_forms").save(PICTURES / "figure.svg")


if __name__ == "__main__":
    main()
