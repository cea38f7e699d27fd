"""Sequences through real models: slots, controls, states, idleness.

The rules themselves are tested on a virtual clock in tests/scheduling; here is what the engine adds:
tensors, padding rows, threads and the clock.
"""

from __future__ import annotations

import threading
from collections import defaultdict

import numpy as np
import pytest

from nbtriton.common.errors import CancelledError, EngineStoppedError, InvalidArgumentError
from nbtriton.runtime.engine import Server
from tests.engine.support import WAIT_S, Gate, echo, fields, ones, row

CONTROLS = """
control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }
control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ -1, 2 ] } }
control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }
control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
"""


def sequences(body: str = "", *, max_batch_size: int = 4, more: str = "", controls: bool = True):
    inner = f"{CONTROLS if controls else ''} {body}"
    return echo(f"sequence_batching {{ {inner} }} {more}", max_batch_size=max_batch_size)


def summing(seen: list, gate: Gate | None = None) -> type:
    """Adds up a sequence's inputs by its id; records every row."""
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.sums: dict[int, np.ndarray] = defaultdict(lambda: np.zeros((1, 4), np.float32))

        def execute(self, requests):
            rows = []
            for request in requests:
                rows.append(
                    {tensor.name(): tensor.as_numpy().flat[0].item() for tensor in request.inputs()}
                )
            seen.append(rows)
            if gate is not None:
                gate.stand([])
            answers = []
            for controls in rows:
                if controls["READY"]:
                    if controls["START"]:
                        self.sums.pop(controls["ID"], None)
                    self.sums[controls["ID"]] += controls["IN"]
                out = (
                    self.sums[controls["ID"]].copy()
                    if controls["READY"]
                    else np.zeros((1, 4), np.float32)
                )
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
            return answers

    return TritonPythonModel


def ask(server: Server, sequence: int, value: float, *, start: bool = False, end: bool = False):
    return server.submit(
        "m",
        {"IN": row(value)},
        sequence_id=sequence,
        sequence_start=start,
        sequence_end=end,
    )


def first(future) -> float:
    return float(future.result(WAIT_S)["OUT"][0, 0])


def test_C2_controls_of_a_sequence(server: Server):
    seen: list = []
    server.load(sequences(), summing(seen), name="m")
    sums = [first(ask(server, 9, value, start=value == 1, end=value == 3)) for value in (1, 2, 3)]
    assert sums == [1, 3, 6]
    assert [rows[0] for rows in seen] == [
        {"IN": 1, "START": 1, "END": -1, "READY": True, "ID": 9},
        {"IN": 2, "START": 0, "END": -1, "READY": True, "ID": 9},
        {"IN": 3, "START": 0, "END": 2, "READY": True, "ID": 9},
    ]
    assert fields(server.statistics(), "m")["success"] == 3


@pytest.mark.parametrize(
    ("sequence", "options", "size", "text"),
    [
        (
            5,
            {"sequence_start": True},
            2,
            (
                "inference request to model 'm' must specify batch-size 1 due to requirements of "
                "sequence batcher"
            ),
        ),
        (
            0,
            {"sequence_start": True},
            1,
            "inference request to model 'm' must specify a non-zero or non-empty correlation ID",
        ),
        (
            5,
            {},
            1,
            (
                "inference request for sequence 5 to model 'm' must specify the START flag on the "
                "first request of the sequence"
            ),
        ),
    ],
    ids=["SQ1", "SQ2", "SQ3"],
)
def test_a_request_without_a_sequence_is_refused(server: Server, sequence, options, size, text):
    server.load(sequences(), summing([]), name="m")
    future = server.submit("m", {"IN": ones(size)}, sequence_id=sequence, **options)
    error = future.exception(WAIT_S)
    assert isinstance(error, InvalidArgumentError)
    assert text in error.message
    counts = fields(server.statistics(), "m")
    assert (counts["success"], counts["fail"], counts["execution_count"]) == (0, 0, 0)


def test_DI2_slots_that_wait_are_batched_and_the_others_padded(server: Server):
    gate, seen = Gate(), []
    server.load(sequences(), summing(seen, gate), name="m")
    futures = [ask(server, 1, 10, start=True)]
    gate.wait_entered()
    # While the instance is busy: three sequences, then the first and the third have more.
    futures += [ask(server, n, 10 * n, start=True) for n in (2, 3)]
    gate.let(1)
    gate.wait_entered()
    futures.append(ask(server, 1, 1))
    futures.append(ask(server, 3, 1))
    gate.open()
    assert [first(future) for future in futures] == [10, 20, 30, 11, 31]
    assert [[each["ID"] for each in rows] for rows in seen] == [[1], [0, 2, 3], [1, 0, 3]]
    assert [[each["READY"] for each in rows] for rows in seen][1] == [False, True, True]
    counts = fields(server.statistics(), "m")
    # DI4: padding counts in the size of the batch only.
    assert (counts["inference_count"], counts["batches"]) == (5, {1: 1, 3: 2})


def test_DI7_requests_of_a_sequence_keep_their_order(server: Server):
    server.load(sequences(more="instance_group { count: 2 kind: KIND_CPU }"), summing([]), name="m")
    futures: dict[int, list] = {n: [] for n in range(1, 9)}
    for step in range(20):
        for n, sent in futures.items():
            sent.append(ask(server, n, n, start=step == 0, end=step == 19))
    for n, sent in futures.items():
        assert [first(future) for future in sent] == [n * (step + 1) for step in range(20)]
    assert fields(server.statistics(), "m")["success"] == 160


def test_SQ5_a_backlog_waits_for_a_slot(server: Server):
    seen: list = []
    server.load(sequences(max_batch_size=1), summing(seen), name="m")
    assert first(ask(server, 1, 1, start=True)) == 1
    waiting = [ask(server, 2, 5, start=True), ask(server, 2, 5, end=True)]
    assert first(ask(server, 1, 1)) == 2
    assert not any(future.done() for future in waiting)
    assert first(ask(server, 1, 1, end=True)) == 3
    assert [first(future) for future in waiting] == [5, 10]


def test_SQ9_an_idle_sequence_loses_its_slot_by_the_clock(server: Server):
    server.load(
        sequences("max_sequence_idle_microseconds: 20000", max_batch_size=1), summing([]), name="m"
    )
    assert first(ask(server, 1, 1, start=True)) == 1
    # Sequence 1 is never ended: only the scheduler thread can free its slot.
    assert first(ask(server, 2, 7, start=True)) == 7
    error = ask(server, 1, 1).exception(WAIT_S)
    assert "must specify the START flag" in str(error)


def test_OL1_the_oldest_strategy_batches_sequences(server: Server):
    gate, seen = Gate(), []
    server.load(sequences("oldest { max_candidate_sequences: 8 }"), summing(seen, gate), name="m")
    futures = [ask(server, 9, 1, start=True)]
    gate.wait_entered()
    futures += [ask(server, n, n, start=True) for n in (1, 2, 3)]
    gate.open()
    assert [first(future) for future in futures] == [1, 1, 2, 3]
    assert [[each["ID"] for each in rows] for rows in seen] == [[9], [1, 2, 3]]
    assert all(each["READY"] for rows in seen for each in rows)


def test_OL6_the_order_of_responses_is_that_of_an_instance(server: Server):
    """A slow instance delays its own sequences, no others."""
    slow = Gate()

    class TritonPythonModel:
        def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            if any(request.correlation_id() == 1 for request in requests):
                slow.stand([])
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())])
                for r in requests
            ]

    config = sequences(
        "oldest { max_candidate_sequences: 2 preserve_ordering: true }",
        more="instance_group { count: 2 kind: KIND_CPU }",
        controls=False,
    )
    server.load(config, TritonPythonModel, name="m")
    behind = ask(server, 1, 1, start=True)
    slow.wait_entered()
    # Slots in turn: sequence 2 is with the other instance, 3 waits behind 1.
    beside, waits = ask(server, 2, 2, start=True), ask(server, 3, 3, start=True)
    assert first(beside) == 2
    assert not behind.done()
    assert not waits.done()
    slow.open()
    assert (first(behind), first(waits)) == (1, 3)


def test_I2_states_follow_their_sequence(server: Server):
    server.load(
        """
        backend: "python" max_batch_size: 4
        input { name: "IN" data_type: TYPE_FP32 dims: 4 }
        output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
        sequence_batching {
          state { input_name: "SUM" output_name: "NEXT" data_type: TYPE_FP32 dims: 4
                  initial_state { name: "zero" data_type: TYPE_FP32 dims: 4 zero_data: true } }
        }
        """,
        Stateful,
        name="m",
    )
    for n in (1, 2):
        assert first(ask(server, n, n, start=True)) == n
    assert [first(ask(server, n, n)) for n in (1, 2, 1, 2)] == [2, 4, 3, 6]
    assert first(ask(server, 1, 5, start=True)) == 5  # SQ7: starts again
    result = ask(server, 2, 1, end=True).result(WAIT_S)
    assert (float(result["OUT"][0, 0]), set(result)) == (7, {"OUT"})


class Stateful:
    def execute(self, requests):
        import triton_python_backend_utils as pb_utils

        answers = []
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            state = pb_utils.get_input_tensor_by_name(request, "SUM").as_numpy()
            state += value  # in place: it is the model's own
            answers.append(
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUT", state), pb_utils.Tensor("NEXT", state)]
                )
            )
        return answers


def test_IT2_an_iterative_model_sees_its_request_again(server: Server):
    passes: list[int] = []

    class TritonPythonModel:
        def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            answers = []
            for request in requests:
                passes.append(request.flags())
                if len(passes) < 4:
                    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                    answers.append(None)
                else:
                    tensor = pb_utils.Tensor("OUT", request.inputs()[0].as_numpy() + 1)
                    answers.append(pb_utils.InferenceResponse([tensor]))
            return answers

    server.load(sequences("iterative_sequence: true", controls=False), TritonPythonModel, name="m")
    assert server.infer("m", {"IN": row(1)})["OUT"][0, 0] == 2
    assert passes == [1, 0, 0, 0]  # IT4
    counts = fields(server.statistics(), "m")
    assert (counts["success"], counts["execution_count"]) == (4, 4)
    assert server.unload("m", timeout_s=WAIT_S)


def test_X5_cancelling_one_request_cancels_its_sequence(server: Server):
    gate, seen = Gate(), []
    server.load(sequences(max_batch_size=1), summing(seen, gate), name="m")
    running = ask(server, 1, 1, start=True)
    gate.wait_entered()
    queued = [ask(server, 1, 1), ask(server, 1, 1)]
    assert queued[0].cancel()
    assert isinstance(queued[1].exception(WAIT_S), CancelledError)
    gate.open()
    assert first(running) == 1
    assert "START" in str(ask(server, 1, 1).exception(WAIT_S))
    assert first(ask(server, 2, 4, start=True, end=True)) == 4


def test_unload_and_close_answer_the_requests_of_an_open_sequence(server: Server):
    gate = Gate()
    server.load(sequences(max_batch_size=1), summing([], gate), name="m")
    futures = [ask(server, 1, 1, start=True)]
    gate.wait_entered()
    futures += [ask(server, n, n, start=True) for n in (2, 3)]
    closer = threading.Thread(target=server.close, kwargs={"timeout_s": WAIT_S})
    closer.start()
    for future in futures[1:]:
        assert isinstance(future.exception(WAIT_S), EngineStoppedError)
    gate.open()
    closer.join(WAIT_S)
    assert first(futures[0]) == 1


def test_sequences_from_many_threads(server: Server):
    server.load(
        sequences(
            "oldest { max_candidate_sequences: 4 }",
            more="instance_group { count: 2 kind: KIND_CPU }",
        ),
        summing([]),
        name="m",
    )
    wrong: list = []

    def run(worker: int) -> None:
        for turn in range(10):
            sequence = 1 + worker * 100 + turn
            for step in range(10):
                out = server.infer(
                    "m",
                    {"IN": row(1)},
                    sequence_id=sequence,
                    sequence_start=step == 0,
                    sequence_end=step == 9,
                )["OUT"]
                if out[0, 0] != step + 1:
                    wrong.append((sequence, step, out[0, 0]))

    workers = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(WAIT_S)
    assert not wrong, wrong[0]
    assert fields(server.statistics(), "m")["success"] == 800
