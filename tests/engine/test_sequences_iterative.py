"""Iterative sequences: requests that their model reschedules (IT1 to IT7)."""

from __future__ import annotations

import numpy as np
import pytest

from nbtriton.common.errors import InternalError, ModelError, TritonError
from tests.engine.sequence_models import passing, pieces
from tests.engine.support import WAIT_S, Gate, fields

BOTH = pytest.mark.parametrize("strategy", ["", "oldest { }"], ids=["direct", "oldest"])


def wanting(passes: int) -> dict[str, np.ndarray]:
    return {"IN": np.full((1, 1), passes, np.float32)}


@BOTH
def test_IT1_IT3_IT4_passes_of_one_request(server, strategy):
    server.load(pieces(f"iterative_sequence: true {strategy}"), passing(), name="m")
    for passes in (3, 1, 5):
        result = server.infer("m", wanting(passes))
        assert result["OUT"].tolist() == [[1.0] + [0.0] * (passes - 1)]
    counts = fields(server.statistics("m"), "m")
    # Every pass counts.
    assert counts["success"] == counts["inference_count"] == counts["execution_count"] == 9
    assert counts["fail"] == 0


@BOTH
def test_IT2_many_requests_at_once(server, strategy):
    server.load(pieces(f"iterative_sequence: true {strategy}"), passing(), name="m")
    futures = [server.submit("m", wanting(1 + number % 5)) for number in range(40)]
    for number, future in enumerate(futures):
        assert future.result(timeout=WAIT_S)["OUT"].shape == (1, 1 + number % 5)
    assert fields(server.statistics("m"), "m")["success"] == 40 * 3


@BOTH
def test_IT8_a_request_that_ends_its_sequence_runs_on_with_a_warning(server, strategy, caplog):
    server.load(pieces(f"iterative_sequence: true {strategy}"), passing(), name="m")

    def warnings(passes: int, **flags: bool) -> list[str]:
        caplog.clear()
        found = server.infer("m", wanting(passes), sequence_id=passes, **flags)
        assert found["OUT"].shape == (1, passes)
        return [
            each.getMessage() for each in caplog.records if "iterative-end" in each.getMessage()
        ]

    # Triton answers these two.
    assert warnings(4, sequence_start=True) == []
    assert warnings(1, sequence_start=True, sequence_end=True) == []
    assert len(warnings(3, sequence_start=True, sequence_end=True)) == 1
    assert warnings(2, sequence_start=True, sequence_end=True) == []


def test_IT3_slots_are_free_again(server):
    server.load(pieces("iterative_sequence: true", max_batch_size=1), passing(), name="m")
    for _ in range(5):
        assert server.infer("m", wanting(2))["OUT"].tolist() == [[1, 0]]


@BOTH
def test_IT5_passes_share_batches(server, gate, strategy):
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            gate.stand([request.request_id() for request in requests])
            answers = []
            for request in requests:
                first = request.flags() == pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
                if first or not request.correlation_id():  # what is asked for padding is nothing
                    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                    answers.append(None)
                else:
                    tensor = pb_utils.Tensor("OUT", np.zeros((1, 1), np.float32))
                    answers.append(pb_utils.InferenceResponse([tensor]))
            return answers

    server.load(pieces(f"iterative_sequence: true {strategy}"), TritonPythonModel, name="m")
    futures = [server.submit("m", wanting(2), request_id="a")]
    gate.wait_entered()
    futures.append(server.submit("m", wanting(2), request_id="b"))
    gate.open()
    for future in futures:
        future.result(timeout=WAIT_S)
    if strategy:
        assert gate.batches == [["a"], ["b", "a"], ["b"]]
    else:
        assert gate.batches == [["a"], ["a", "b"], ["", "b"]]


@BOTH
def test_IT6_elsewhere_only_the_request_itself_fails(server, strategy):
    server.load(pieces(strategy), passing(), name="m")
    with pytest.raises(InternalError) as caught:
        server.infer("m", wanting(2), sequence_id=1, sequence_start=True)
    assert caught.value.message == (
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not "
        "configured to handle such a flag."
    )
    assert server.infer("m", wanting(1), sequence_id=2, sequence_start=True)["OUT"].size == 1


def test_IT7_a_response_for_a_rescheduled_request(server):
    import triton_python_backend_utils as pb_utils

    made = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((1, 1), np.float32))])
    server.load(
        pieces("iterative_sequence: true"), passing(lambda answer: answer or made), name="m"
    )
    with pytest.raises(ModelError) as caught:
        server.infer("m", wanting(2))
    assert caught.value.message.endswith(
        "Expected a None object in the execute function return list for reschduled request, found "
        f"type '{type(made)}'."
    )
    assert server.infer("m", wanting(1))["OUT"].size == 1


@BOTH
def test_a_pass_that_raises_ends_the_request(server, strategy):
    passes = []

    def raise_later(answer):
        passes.append(answer)
        if len(passes) == 2:
            raise ValueError("kaboom")
        return answer

    server.load(
        pieces(f"iterative_sequence: true {strategy}", max_batch_size=1),
        passing(raise_later),
        name="m",
    )
    with pytest.raises(ModelError, match="kaboom"):
        server.infer("m", wanting(9))
    assert len(passes) == 2
    assert server.infer("m", wanting(1))["OUT"].size == 1  # the slot is free
    counts = fields(server.statistics("m"), "m")
    assert (counts["success"], counts["fail"]) == (2, 1)
    server.unload("m")


@BOTH
def test_a_cancelled_request_has_no_further_pass(server, gate, strategy):
    def hold(answer):
        gate.stand([])
        return answer

    server.load(pieces(f"iterative_sequence: true {strategy}"), passing(hold), name="m")
    future = server.submit("m", wanting(1000))
    gate.wait_entered()
    gate.let()
    gate.wait_entered()
    future.cancel()
    gate.open()
    with pytest.raises(TritonError) as caught:
        future.result(timeout=WAIT_S)
    assert caught.value.status == "CANCELLED"
    assert len(gate.batches) == 2


@BOTH
def test_a_decoupled_model_streams_over_its_passes(server, strategy):
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.passes = {}

        def execute(self, requests):
            for request in requests:
                wanted = pb_utils.get_input_tensor_by_name(request, "IN")
                if wanted.as_numpy().flat[0] == 0:  # padding
                    continue
                number = self.passes.get(request.correlation_id(), 0) + 1
                self.passes[request.correlation_id()] = number
                sender = request.get_response_sender()
                tensor = pb_utils.Tensor("OUT", np.full((1, 1), number, np.float32))
                last = number >= wanted.as_numpy().flat[0]
                flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
                sender.send(pb_utils.InferenceResponse([tensor]), flags)
                if not last:
                    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)

    server.load(
        pieces(
            f"iterative_sequence: true {strategy}",
            rest="model_transaction_policy { decoupled: true }",
        ),
        TritonPythonModel,
        name="m",
    )
    streams = [server.stream("m", wanting(number)) for number in (4, 2, 3)]
    said = [[result["OUT"].item() for result in stream] for stream in streams]
    assert said == [[1, 2, 3, 4], [1, 2], [1, 2, 3]]
    server.unload("m")  # which waits until nothing is under way


def test_I1_a_decoupled_model_writes_its_state_in_every_pass(server):
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                state = pb_utils.get_input_tensor_by_name(request, "SUM_IN").as_numpy() + 1
                wanted = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().item()
                tensors = [pb_utils.Tensor("OUT", state), pb_utils.Tensor("SUM_OUT", state)]
                last = state.item() >= wanted
                if not last:
                    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                request.get_response_sender().send(
                    pb_utils.InferenceResponse(tensors),
                    pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0,
                )

    server.load(
        pieces(
            "iterative_sequence: true state { input_name: 'SUM_IN' output_name: 'SUM_OUT' "
            "data_type: TYPE_FP32 dims: 1 }",
            rest="model_transaction_policy { decoupled: true }",
        ),
        TritonPythonModel,
        name="m",
    )
    for _ in range(2):
        said = [dict(result) for result in server.stream("m", wanting(3))]
        assert [one["OUT"].item() for one in said] == [1, 2, 3]
        assert all(set(one) == {"OUT"} for one in said)


def test_unloading_lets_the_passes_go_on(server):
    gate = Gate()

    def hold(answer):
        gate.stand([])
        return answer

    server.load(pieces("iterative_sequence: true"), passing(hold), name="m")
    future = server.submit("m", wanting(4))
    gate.wait_entered()
    server.unload("m")
    gate.open()
    assert future.result(timeout=WAIT_S)["OUT"].shape == (1, 4)
