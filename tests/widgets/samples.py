"""Servers' snapshots and graphs for the tests of the views."""

from __future__ import annotations

from dataclasses import replace

import nbtriton as nt
from nbtriton.drawing.curve import Point, Series
from nbtriton.drawing.graph import Edge, Graph, Node
from nbtriton.model.config import as_config
from nbtriton.runtime.engine import (
    InstanceSnapshot,
    ModelHistorySnapshot,
    ModelSnapshot,
    Moment,
    ServerHistory,
    ServerSnapshot,
)

SECOND = 1_000_000_000


@nt.lessons.predict_batches
def which_batches():
    """Which batches leave?"""
    return "batch_forms"


def instance(name="m_0_0", *, batch_size=0, executions=0, busy_ns=0):
    return InstanceSnapshot(name, "KIND_CPU", 0, batch_size, executions, busy_ns)


def model(name="m", **changes):
    base = ModelSnapshot(
        name=name,
        version=1,
        state="READY",
        reason="",
        platform="python",
        max_batch_size=8,
        queued=0,
        executing=0,
        instances=(instance(f"{name}_0_0"), instance(f"{name}_0_1")),
        inference_count=0,
        execution_count=0,
        success_count=0,
        fail_count=0,
        success_ns=0,
        queue_ns=0,
        compute_input_ns=0,
        compute_infer_ns=0,
        compute_output_ns=0,
        batch_sizes={},
    )
    return replace(base, **changes)


def loaded(name, at, *, rate=100, batch=4, share=0.5, queued=3):
    """A model that has worked steadily for `at` seconds."""
    done = int(rate * at)
    busy = int(share * at * SECOND)
    return model(
        name,
        queued=queued,
        executing=batch,
        instances=(
            instance(f"{name}_0_0", batch_size=batch, executions=done // batch, busy_ns=busy),
            instance(f"{name}_0_1", batch_size=0, executions=0, busy_ns=busy // 2),
        ),
        inference_count=done,
        execution_count=done // batch,
        success_count=done,
        queue_ns=done * 2_000_000,
        compute_infer_ns=done * 3_000_000,
        batch_sizes={batch: done // batch},
    )


class FakeServer:
    """Answers what a view asks of a server, from values that a test sets."""

    def __init__(self, *models, now_ns=SECOND):
        self.now_ns = now_ns
        self.shown = models or (model(),)

        self.moments = {}

    def models(self):
        return tuple(self.shown)

    def requests(self, _name, *, most=None):
        return ()

    def config(self, name, version=-1):
        return as_config(f'name: "{name}"')

    def in_flight(self):
        return ()

    def snapshot(self):
        return ServerSnapshot(self.now_ns, tuple(self.shown))

    def drain(self):
        """Let what is inside end."""
        self.shown = tuple(
            replace(
                one, queued=0, executing=0,
                instances=tuple(replace(each, batch_size=0) for each in one.instances),
            )
            for one in self.shown
        )  # fmt: skip

    def history(self):
        """As seen whenever it was asked: the engine's recorder would keep more moments."""
        for one in self.shown:
            kept = self.moments.setdefault((one.name, one.version), [])
            if not kept or kept[-1].at_ns < self.now_ns:
                kept.append(moment(self.now_ns, one))
        return ServerHistory(
            self.now_ns,
            tuple(
                ModelHistorySnapshot(one, tuple(self.moments[one.name, one.version]), ())
                for one in self.shown
            ),
        )


def moment(at_ns, one):
    """What the recorder keeps of a model that looks like this."""
    compute_ns = one.compute_input_ns + one.compute_infer_ns + one.compute_output_ns
    return Moment(
        at_ns, one.queued if one.platform != "ensemble" else one.executing,
        one.success_count, one.fail_count, one.inference_count, one.execution_count,
        one.queue_ns, compute_ns, dict(one.batch_sizes),
        {(i.name, i.kind, i.device_id): i.busy_ns for i in one.instances},
    )  # fmt: skip


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self, now=1234.5):
        self.now = now

    def __call__(self):
        return self.now

    def pass_(self, seconds):
        self.now += seconds


def digits_graph():
    """Triton's own example: one preprocessing step, two models side by side."""
    image = "preprocessed_image FP32[1,8,8]"
    return Graph(
        (
            Node("input:IMAGE", "IMAGE", "input", "BYTES[1]"),
            Node(
                "step:0",
                "image_preprocess_model",
                "model",
                "python · batch ≤ 64 · 2 x CPU",
                (("backend", "python"), ("max_batch_size", "64")),
                ("IMAGE",),
                ("OUTPUT",),
            ),
            Node("step:1", "classification_model", "model", "pytorch", (), ("X",), ("Y",)),
            Node("step:2", "segmentation_model", "model", "pytorch", (), ("X",), ("Y",)),
            Node("output:CLASSIFICATION", "CLASSIFICATION", "output", "FP32[10]"),
            Node("output:SEGMENTATION", "SEGMENTATION", "output", "FP32[8,8]"),
        ),
        (
            Edge("input:IMAGE", "step:0", "IMAGE BYTES[1]", "", "IMAGE"),
            Edge("step:0", "step:1", image, "OUTPUT", "X"),
            Edge("step:0", "step:2", image, "OUTPUT", "X"),
            Edge("step:1", "output:CLASSIFICATION", "CLASSIFICATION FP32[10]", "Y"),
            Edge("step:2", "output:SEGMENTATION", "SEGMENTATION FP32[8,8]", "Y"),
        ),
        "ensemble_model",
    )


def sweep():
    """Two configurations as a sweep over concurrency finds them."""
    loads = (1, 2, 4, 8, 16)
    return (
        Series(
            "1 instance, no batching",
            tuple(
                steady(c, 360 * c / (c + 1), {50: 2 + 2.8 * c, 90: 3 + 3 * c, 99: 4 + 4 * c})
                for c in loads
            ),
        ),
        Series(
            "2 instances + dynamic batching",
            tuple(
                steady(c, 2400 * c / (c + 7), {50: 3 + 0.3 * c, 90: 3.5 + 0.4 * c, 99: 5 + 0.5 * c})
                for c in loads
            ),
        ),
    )


def steady(load, throughput, latency_ms):
    """A point whose three windows differ by 2%."""
    windows = (throughput * 0.99, throughput, throughput * 1.01)
    return Point(load, throughput, latency_ms, "stable", windows)


def numbers(name, inputs, outputs):
    """A model of FP32[16] tensors."""
    tensors = (
        f"{way} [ {{ name: '{tensor}' data_type: TYPE_FP32 dims: [ 16 ] }} ]"
        for way, names in (("input", inputs), ("output", outputs))
        for tensor in names
    )
    return as_config(f"name: '{name}' backend: 'python' max_batch_size: 8 {' '.join(tensors)}")


def ensemble(name, *steps):
    """An ensemble from IN to OUT; a step is a model, its input tensor and its output tensor."""
    written = "".join(
        f"step {{ model_name: '{model}' model_version: -1 input_map {{ key: 'IN' value: '{takes}' }} "
        f"output_map {{ key: 'OUT' value: '{gives}' }} }}"
        for model, takes, gives in steps
    )
    return as_config(
        f"name: '{name}' platform: 'ensemble' max_batch_size: 8 "
        "input [ { name: 'IN' data_type: TYPE_FP32 dims: [ 16 ] } ] "
        "output [ { name: 'OUT' data_type: TYPE_FP32 dims: [ 16 ] } ] "
        f"ensemble_scheduling {{ {written} }}"
    )


def chain(length):
    """An ensemble of a number of models, one after the other, with its members."""
    names = [f"stage_{at:02}" for at in range(length)]
    tensors = ["IN", *(f"t{at}" for at in range(1, length)), "OUT"]
    steps = zip(names, tensors, tensors[1:], strict=False)
    return ensemble("chain", *steps), {name: numbers(name, ["IN"], ["OUT"]) for name in names}
