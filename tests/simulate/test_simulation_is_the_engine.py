"""The simulator and the live engine, in lock step: the same decisions at each event.

The simulated server runs first, event by event. What it does to a model, a request that arrives or an
execution that ends, is then done to the live one, whose executions wait for that. No clock is
compared, so no delay or timeout is configured.
"""

# ruff: noqa: F821, N803, UP037 - function models: Triton's datatypes as annotations

from __future__ import annotations

import queue
import random
import threading

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import TritonError
from nbtriton.lab.perf.loads import RequestIntervals, send_times_ns
from nbtriton.lab.perf.traffic import Repeated
from nbtriton.lab.simulate.core.loads import OpenLoop
from nbtriton.lab.simulate.core.model import Model
from nbtriton.lab.simulate.model_profile import Profile
from nbtriton.lab.simulate.server import SimulatedServer
from nbtriton.model.config import format_pbtxt
from nbtriton.options.blocks import CallOptions
from tests.simulate.profiles import model_profile
from tests.until import PATIENCE_S, until

CONFIG = """name: "m" max_batch_size: {rows} {batching}
    input {{ name: "IN" data_type: TYPE_FP32 dims: 1 }}
    output {{ name: "OUT" data_type: TYPE_FP32 dims: 1 }}
    instance_group {{ count: {instances} kind: KIND_CPU }}"""


class Steps:
    """Executions that wait until they are let go, in the order in which they began."""

    def __init__(self) -> None:
        self.begun: queue.Queue[threading.Event] = queue.Queue()
        self.number = 0

    def execute(self, IN: "FP32[1]") -> {"OUT": "FP32[1]"}:
        go = threading.Event()
        self.number += 1
        self.begun.put(go)
        assert go.wait(PATIENCE_S)
        return {"OUT": IN}


def _draw(seed: int) -> tuple[str, list[CallOptions]]:
    choose = random.Random(seed)
    rows = choose.choice([0, 1, 4, 8])
    instances = choose.choice([1, 2, 3])
    options: list[CallOptions] = [{}]
    batching = ""
    if rows and choose.random() < 0.8:
        preferred = sorted(choose.sample(range(1, rows + 1), choose.choice([0, 1, min(2, rows)])))
        inside = f"preferred_batch_size: {preferred}" if preferred else ""
        if choose.random() < 0.5:
            inside += " priority_levels: 3 default_priority_level: 2"
            options = [{"priority": level} for level in choose.choices([1, 2, 3], k=7)]
        if choose.random() < 0.3:
            inside += " default_queue_policy { max_queue_size: 4 }"
        batching = f"dynamic_batching {{ {inside} }}"
    return CONFIG.format(rows=rows, batching=batching, instances=instances), options


@pytest.mark.parametrize("seed", range(12))
def test_each_event_has_the_same_decisions(seed):
    text, options = _draw(seed)
    steps = Steps()
    choose = random.Random(-seed)
    gaps = tuple(choose.choice([0, 100, 300, 1000]) + 7 for _ in range(40))
    with nt.Server() as server:
        server.load(text, model=steps.execute)
        config = server.config("m")
        # All take the same time, so that they end in the order in which they began.
        measured = Profile("m", {"m": model_profile(format_pbtxt(config), {(1, 1): 1.7})})
        simulated = SimulatedServer(measured, {"m": config})
        model = simulated.runtime("m")
        assert isinstance(model, Model)
        traffic = Repeated([{}], options)
        due = send_times_ns(RequestIntervals(gaps))
        load = OpenLoop(simulated.world, model, traffic, 1, len(gaps), due)
        load.start()
        row = np.zeros((1, 1) if config.max_batch_size else (1,), np.float32)
        sent = ended = begun = 0
        futures = []
        running: list[threading.Event] = []
        reasons: list[str] = []
        before: dict[str, int] = {}
        while simulated.world.calendar.run(10**15, 1):
            if load.number > sent:
                future = server.submit("m", {"IN": row}, **traffic.next(0, sent).options)
                futures.append(future)
                sent = load.number
            if model.executions > ended:
                running.pop(0).set()
                ended = model.executions
            begun_now = sum(model.reasons.values())
            while begun < begun_now:
                running.append(steps.begun.get(timeout=PATIENCE_S))
                begun += 1
            reasons += [
                reason
                for reason, count in model.reasons.items()
                for _ in range(count - before.get(reason, 0))
            ]
            before = dict(model.reasons)
            left = sent - model.successes - len(load.recorder.errors)
            assert until(lambda left=left: _in_flight(server) == left)
            assert steps.begun.empty()
        failed = [future.exception(PATIENCE_S) for future in futures]
        assert len(load.recorder.errors) == sum(isinstance(each, TritonError) for each in failed)
        live = server.batches("m")
        assert sorted(record.reason for record in live) == sorted(reasons)
        found = {size: count for size, (count, _) in model.sizes.items()}
        sizes = [max(1, record.batch_size) for record in live]
        assert found == {size: sizes.count(size) for size in set(sizes)}


def _in_flight(server: nt.Server) -> int:
    (model,) = server.models()
    return model.queued + model.executing
