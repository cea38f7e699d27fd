"""Backends, batches, sequences, warmup and traces with instances in processes (PB12)."""

# ruff: noqa: N803 - tensors have Triton's names

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from nbtriton.common.errors import ModelError
from nbtriton.runtime.engine.diagnostics.tracing import TraceSample
from tests.workers.conftest import ARRAY, MODELS

pytestmark = pytest.mark.slow

PROCESS = 'parameters { key: "INSTANCE_ISOLATION" value { string_value: "process" } }'
ROWS = """
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
instance_group { kind: KIND_CPU }
dynamic_batching { max_queue_delay_microseconds: 100000 preferred_batch_size: [ 4 ] }
"""


def rows(*values):
    return [np.full((1, 4), value, np.float32) for value in values]


def test_a_function_gets_whole_batches_and_its_rows_are_scattered(server):
    offset = 5

    def add(IN):
        if IN.max() > 100:
            raise ValueError("too much")
        return {"OUT": IN + offset + len(IN) * 0}

    server.load(ROWS.replace("100000", "60000000") + PROCESS, model=add, name="function")
    futures = [server.submit("function", {"IN": row}) for row in rows(1, 2, 3, 4)]
    assert [future.result()["OUT"].tolist() for future in futures] == [
        [[value + 5] * 4] for value in (1, 2, 3, 4)
    ]
    (batch,) = server.batches("function")
    assert batch.batch_size == 4
    with pytest.raises(ModelError, match="ValueError: too much") as caught:
        server.infer("function", {"IN": np.full((4, 4), 101, np.float32)})
    assert 'raise ValueError("too much")' in caught.value.user_traceback


def test_a_torch_module_answers_in_the_callers_kind(server):
    module = torch.nn.Linear(4, 4)
    config = (
        ROWS.replace("[ -1 ]", "[ 4 ]")
        .replace('"IN"', '"INPUT__0"')
        .replace('"OUT"', '"OUTPUT__0"')
    )
    server.load('backend: "pytorch"' + config + PROCESS, model=module, name="module")
    row = torch.ones(2, 4)
    with torch.inference_mode():
        expected = module(row)
    found = server.infer("module", {"INPUT__0": row})["OUTPUT__0"]
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, expected)
    found = server.infer("module", {"INPUT__0": row.numpy()})["OUTPUT__0"]
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6)


def test_bf16_keeps_its_bits(server):
    def double(IN):
        return {"OUT": IN * 2}

    config = ROWS.replace("TYPE_FP32", "TYPE_BF16")
    server.load(config + PROCESS, model=double, name="bf16")
    row = torch.tensor([[1.5, -2.25, 3.0]], dtype=torch.bfloat16)
    found = server.infer("bf16", {"IN": row})["OUT"]
    assert found.dtype is torch.bfloat16
    assert found.tolist() == (row * 2).tolist()


def test_a_sequence_may_be_executed_again_and_again(server):
    config = (
        ROWS.partition("dynamic_batching")[0]
        + "sequence_batching { iterative_sequence: true max_sequence_idle_microseconds: 60000000 }"
    )
    server.load(config + PROCESS, model=MODELS / "iterative" / "1" / "model.py", name="iterative")
    found = server.infer(
        "iterative", {"IN": rows(3)[0]}, sequence_id=7, sequence_start=True, sequence_end=True
    )
    assert found["OUT"].tolist() == [[4]]


def test_state_goes_from_request_to_request(server):
    config = (
        ROWS.partition("dynamic_batching")[0].replace("[ -1 ]", "[ 1 ]")
        + """
        sequence_batching { max_sequence_idle_microseconds: 60000000 state {
            input_name: "BEFORE" output_name: "AFTER" data_type: TYPE_FP32 dims: [ 1 ]
            initial_state { name: "zero" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }
        } }
        """
    )

    def add(IN, BEFORE):
        return {"OUT": IN + BEFORE, "AFTER": IN + BEFORE}

    server.load(config + PROCESS, model=add, name="summing")
    one = np.ones((1, 1), np.float32)
    sums = [
        server.infer("summing", {"IN": one}, sequence_id=1, sequence_start=turn == 0)["OUT"]
        for turn in range(3)
    ]
    assert [float(value[0, 0]) for value in sums] == [1, 2, 3]


def test_warmup_runs_in_the_process(server):
    warmup = """
    model_warmup { name: "w" batch_size: 2 count: 3
        inputs { key: "IN" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } }
    """

    def echo(IN):
        return {"OUT": IN}

    server.load(ROWS + warmup + PROCESS, model=echo, name="warm")
    (stats,) = server.statistics("warm")["model_stats"]
    assert stats["execution_count"] == 3
    assert stats["inference_count"] == 6


def test_a_call_of_the_model_is_traced_under_its_request(server):
    complete: list[TraceSample] = []
    ended = threading.Event()

    def on_complete(sample):
        complete.append(sample)
        ended.set()

    trace = TraceSample(frozenset({"TIMESTAMPS"}), on_complete).begin()
    future = server.submit(
        "apart", {"IN": ARRAY}, parameters={"program": "bls_traced"}, trace=trace
    )
    future.result()
    assert ended.wait(30)
    (sample,) = complete
    assert [(one.model, one.parent_id) for one in sample.traces] == [
        ("apart", 0), ("target", trace.id),
    ]  # fmt: skip


def test_times_of_an_execution_are_those_of_the_worker(server):
    found = server.infer("apart", {"IN": ARRAY}, parameters={"program": "nap"})
    assert found.timing.compute_infer_ns >= 20_000_000
    assert found.timing.compute_input_ns < found.timing.total_ns
