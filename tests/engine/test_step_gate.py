"""max_inflight_requests: how many requests of an ensemble may be in one step (E21)."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from nbtriton.backends.base import Response
from nbtriton.common.errors import TritonError
from nbtriton.runtime.engine import Server

X = np.ones((1, 1), np.float32)
TENSORS = (
    "input { name: 'IN' data_type: TYPE_FP32 dims: 1 } "
    "output { name: 'OUT' data_type: TYPE_FP32 dims: 1 } "
)
MODEL = "backend: 'python' max_batch_size: 8 " + TENSORS
ENSEMBLE = (
    "platform: 'ensemble' max_batch_size: 8 " + TENSORS + "ensemble_scheduling { LIMIT step ["
    "{ model_name: 'first' model_version: -1 input_map { key: 'IN' value: 'IN' } "
    "output_map { key: 'OUT' value: 'between' } }, "
    "{ model_name: 'second' model_version: -1 input_map { key: 'IN' value: 'between' } "
    "output_map { key: 'OUT' value: 'OUT' } } ] }"
)


def answers(requests):
    import triton_python_backend_utils as pb_utils

    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", X)]) for _ in requests]


class First:
    def execute(self, requests):
        return answers(requests)


class Gated:
    """Counts the executions inside; each waits for a permit."""

    def __init__(self) -> None:
        self.inside = threading.Semaphore(0)
        self.permits = threading.Semaphore(0)

    def model(self, *, fails: bool = False) -> type:
        gated = self

        class TritonPythonModel:
            def execute(self, requests):
                gated.inside.release()
                assert gated.permits.acquire(timeout=60)
                if fails:
                    raise ValueError("no")
                return answers(requests)

        return TritonPythonModel


@pytest.mark.parametrize(("limit", "together"), [("max_inflight_requests: 2", 2), ("", 4)])
def test_E21_a_step_holds_at_most_its_limit_of_requests(limit, together):
    gated = Gated()
    with Server() as server:
        server.load(MODEL, First, name="first")
        server.load(
            MODEL + "instance_group { count: 4 kind: KIND_CPU }", gated.model(), name="second"
        )
        server.load(ENSEMBLE.replace("LIMIT", limit), name="e")
        futures = [server.submit("e", {"IN": X}) for _ in range(4)]
        for _ in range(together):
            assert gated.inside.acquire(timeout=60)
        second = next(m for m in server.models() if m.name == "second")
        assert (second.executing, second.queued) == (together, 0)
        gated.permits.release(4)
        assert [f.result(30)["OUT"].item() for f in futures] == [1.0] * 4


@pytest.mark.medium
def test_E21_failed_steps_release_their_places():
    gated = Gated()
    with Server() as server:
        server.load(MODEL, First, name="first")
        server.load(MODEL, gated.model(fails=True), name="second")
        server.load(ENSEMBLE.replace("LIMIT", "max_inflight_requests: 1"), name="e")
        futures = [server.submit("e", {"IN": X}) for _ in range(2000)]
        gated.permits.release(2000)
        errors = [future.exception(30) for future in futures]
        assert all(isinstance(error, TritonError) for error in errors)
        server.load(MODEL, First, name="second")
        assert server.infer("e", {"IN": X})["OUT"].item() == 1.0


def test_E21_a_decoupled_model_is_held_back_by_a_slow_step():
    """Its responses wait one by one for a place in the step instead of piling up."""
    gated, sent = Gated(), []

    class Stream:
        def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            for request in requests:
                sender = request.get_response_sender()
                for number in range(5):
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", X * number)]))
                    sent.append(number)
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    with Server() as server:
        server.load(MODEL + "model_transaction_policy { decoupled: true }", Stream, name="first")
        server.load(MODEL, gated.model(), name="second")
        server.load(ENSEMBLE.replace("LIMIT", "max_inflight_requests: 1"), name="e")
        # Called on the answering thread, before it passes the step's place to the next request.
        results: list[Response] = []
        future = server.submit(
            "e",
            {"IN": X},
            on_response=lambda response, _: results.append(response) if response.outputs else None,
        )
        for _ in range(5):
            assert gated.inside.acquire(timeout=60)
            # The one inside, and the one whose sender waits for the place.
            assert len(sent) <= len(results) + 2
            gated.permits.release()
        future.result(30)
        assert len(results) == 5
