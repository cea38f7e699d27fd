"""The garbage collector and the compiled build: it finds each reference once, and clears nothing that is alive.

What it sees is written by mypyc: in pure Python there is nothing to test.
"""

from __future__ import annotations

import numpy as np
import pytest

from nbtriton import compiled
from nbtriton.runtime.engine import Server
from tests.children import run_python
from tests.engine.heap import overcounted
from tests.engine.sequence_models import config, looking
from tests.engine.storm import BASE, KINDS, plus_one
from tests.engine.support import WAIT_S, Gate, echo, gated, row
from tests.until import until

pytestmark = pytest.mark.skipif(not compiled, reason="the classes are Python's own")

# Some of the classes whose instances are there while all that follows is in flight.
SEEN = {
    "runtime.engine.core.ensemble_runtime.EnsembleExecution",
    "runtime.engine.core.ensemble_runtime.EnsembleRuntime",
    "runtime.engine.core.future.InferenceFuture",
    "runtime.engine.core.history.ModelHistory",
    "runtime.engine.core.instance.Instance",
    "runtime.engine.core.instance_set.Limiter",
    "runtime.engine.core.model_runtime.ModelRuntime",
    "runtime.engine.core.request.InferenceRequest",
    "runtime.engine.core.sequence_tensors.SequenceTensors",
    "runtime.engine.core.execution.Statistics",
    "runtime.engine.core.summaries.LatencySummaries",
    "scheduling.batcher.Batcher",
    "scheduling.ensemble.EnsembleRun",
    "runtime.workers.core.connection.Connection",
}


def test_the_collector_finds_no_reference_twice():
    """In every state that a model and a request of each kind can be in."""
    gate, seen = Gate(), []
    with Server(
        gpus=(), cache_bytes=1 << 20, rate_limit="execution_count", summaries=True
    ) as server:
        try:
            server.load(echo("dynamic_batching {}"), plus_one, name=BASE)
            for name, kind in KINDS.items():
                server.load(kind.text, kind.model(), name=name)
                kind.ask(server, name)
            server.load(echo("dynamic_batching {}"), gated(gate), name=BASE)
            server.load(
                config("oldest { max_candidate_sequences: 4 }"), looking(gate, seen), name="s"
            )
            waiting = [
                server.submit(BASE, {"IN": row(1)}),
                server.submit(BASE, {"IN": row(1)}),
                server.submit("ensemble", {"X": row(1)}),
                server.submit("calling", {"IN": row(1)}),
                server.submit(
                    "s", {"IN": np.ones((1, 1), np.float32)}, sequence_id=1, sequence_start=True
                ),
            ]
            dropped = server.submit(BASE, {"IN": row(1)})
            dropped.cancel()
            gate.wait_entered(2)
            # Nothing moves any more: the second one, the step, the call and the dropped one are in a batch.
            base = server.engine.registry.resolve(BASE)
            assert until(lambda: base.snapshot("", "").queued == 4)
            wrong, classes = overcounted()
            assert not wrong
            assert {f"nbtriton.{name}" for name in SEEN} <= classes
        finally:
            gate.open()
        for future in waiting:
            future.result(WAIT_S)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("thresholds", "operations"), [((1, 1, 1), 500), ((50, 2, 2), 1000)], ids=str
)
def test_models_come_and_go_while_the_collector_runs(thresholds: tuple[int, ...], operations: int):
    """The short form of ``python -m tests.engine.storm``: a process that the collector would end."""
    done = run_python(
        "-m", "tests.engine.storm", "--operations", operations, "--thresholds", *thresholds,
        check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1].startswith("compiled, ")


@pytest.mark.slow
def test_workers_end_in_every_way_while_the_collector_runs():
    """The short form of ``python -m tests.workers.faults``: each request is answered once, nothing is left."""
    program = "import gc; gc.set_threshold(1, 1, 1); from tests.workers.faults import run_faults; print(run_faults(40, 7))"
    assert "right" in run_python("-c", program, check=True).stdout
