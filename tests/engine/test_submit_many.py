"""Requests of the same moment: `Server.submit_many`, as the endpoints call it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from nbtriton.backends.base import RequestOptions, Response
from nbtriton.common.errors import InvalidArgumentError, NotFoundError, TritonError
from nbtriton.runtime.engine import InferenceRequest, Server, Submission
from nbtriton.runtime.engine.core.runtime import Runtime
from tests.engine.support import WAIT_S, Gate, echo, ensemble_text, gated, ones, row, waited

BATCHING = echo("dynamic_batching { }")


class Answers:
    """The responses by request id, and an event once all have come."""

    def __init__(self, count: int) -> None:
        self.found: dict[str, Response] = {}
        self._count = count
        self.all = threading.Event()

    def receive(self, request: InferenceRequest, response: Response, final: bool) -> None:
        assert request.request_id not in self.found, "answered twice"
        assert final
        self.found[request.request_id] = response
        if len(self.found) == self._count:
            self.all.set()


def call(
    answers: Answers, request_id: str, name: str = "m", inputs: Mapping[str, Any] | None = None
) -> Submission:
    given = {"IN": ones()} if inputs is None else inputs
    return Submission(name, -1, given, RequestOptions(request_id=request_id), answers.receive)


def send(server: Server, calls: Sequence[Submission]) -> list[InferenceRequest]:
    found = server.engine.dispatcher.submit_many(calls)
    assert all(isinstance(one, InferenceRequest) for one in found)
    return found  # type: ignore[return-value]


def test_an_idle_instance_gets_them_as_one_batch(server: Server, gate: Gate):
    server.load(BATCHING, gated(gate), name="m")
    gate.open()
    answers = Answers(5)
    send(server, [call(answers, str(n), inputs={"IN": row(float(n))}) for n in range(5)])
    waited(answers.all)
    assert gate.batches == [["0", "1", "2", "3", "4"]]
    assert [answers.found[str(n)].outputs["OUT"][0, 0] for n in range(5)] == [0, 1, 2, 3, 4]


def test_without_dynamic_batching_each_runs_alone_and_in_order(server: Server, gate: Gate):
    server.load(echo(), gated(gate), name="m")
    gate.open()
    answers = Answers(3)
    send(server, [call(answers, str(n)) for n in range(3)])
    waited(answers.all)
    assert gate.batches == [["0"], ["1"], ["2"]]


def test_refused_requests_get_the_reason_and_the_others_run(server: Server, gate: Gate):
    server.load(BATCHING, gated(gate), name="m")
    gate.open()
    answers = Answers(2)
    found = server.engine.dispatcher.submit_many(
        [
            call(answers, "a"),
            call(answers, "b", name="absent"),
            call(answers, "c", inputs={"IN": np.ones((1, 3), np.float32)}),
            call(answers, "d"),
        ]
    )
    assert isinstance(found[1], NotFoundError)
    assert isinstance(found[2], InvalidArgumentError)
    waited(answers.all)
    assert set(answers.found) == {"a", "d"}


def test_a_call_read_by_a_replaced_version_goes_to_its_successor(server: Server, gate: Gate):
    server.load(echo(), gated(gate), name="m")
    signature = server.engine.inspection.signature("m")
    gate.open()
    server.load(echo(max_batch_size=2), gated(gate), name="m")
    answers = Answers(1)
    (request,) = send(server, [call(answers, "late")._replace(signature=signature)])
    waited(answers.all)
    assert answers.found["late"].error is None
    assert isinstance(request.runtime, Runtime)
    assert request.runtime.config.max_batch_size == 2


def test_each_model_and_ensemble_gets_its_own(server: Server, gate: Gate):
    server.load(BATCHING, gated(gate), name="m")
    server.load(echo(), gated(gate), name="n")
    server.load(
        ensemble_text(
            ("n", {"IN": "X"}, {"OUT": "Y"}), inputs={"X": "FP32[4]"}, outputs={"Y": "FP32[4]"}
        ),
        name="e",
    )
    gate.open()
    answers = Answers(4)
    calls = [
        call(answers, "0"),
        call(answers, "1", name="n"),
        call(answers, "2", name="e", inputs={"X": ones()}),
        call(answers, "3"),
    ]
    send(server, calls)
    waited(answers.all)
    assert ["0", "3"] in gate.batches
    assert list(answers.found["2"].outputs) == ["Y"]


def test_a_waiting_request_can_be_cancelled(server: Server, gate: Gate):
    # With a queue policy nothing is formed ahead of time (Q10): the second one waits in the queue.
    policy = "dynamic_batching { default_queue_policy { max_queue_size: 9 } }"
    server.load(echo(policy, max_batch_size=1), gated(gate), name="m")
    answers = Answers(2)
    _, second = send(server, [call(answers, "runs"), call(answers, "waits")])
    gate.wait_entered()
    second.cancel()
    gate.open()
    waited(answers.all)
    error = answers.found["waits"].error
    assert answers.found["runs"].error is None
    assert error is not None
    assert error.status == "CANCELLED"
    assert gate.batches == [["runs"]]


def test_a_full_queue_refuses_the_requests_beyond_its_limit(server: Server, gate: Gate):
    policy = "default_queue_policy { max_queue_size: 2 }"
    server.load(echo(f"dynamic_batching {{ {policy} }}", max_batch_size=1), gated(gate), name="m")
    busy = server.submit("m", {"IN": ones()}, request_id="busy")
    gate.wait_entered()
    answers = Answers(4)
    send(server, [call(answers, str(n)) for n in range(4)])
    gate.open()
    busy.result(WAIT_S)
    waited(answers.all)
    failed = {name: r.error.status for name, r in answers.found.items() if r.error is not None}
    assert failed == {"2": "UNAVAILABLE", "3": "UNAVAILABLE"}


def test_no_request_is_lost_while_the_model_is_replaced(server: Server):
    """Every call has exactly one answer, from either version."""
    gate = Gate(is_open=True)
    server.load(BATCHING, gated(gate), name="m")
    stop = threading.Event()

    def replace() -> None:
        while not stop.is_set():
            server.load(BATCHING, gated(gate), name="m")

    replacing = threading.Thread(target=replace)
    replacing.start()
    try:
        for _ in range(30):
            answers = Answers(8)
            send(server, [call(answers, str(n)) for n in range(8)])
            waited(answers.all)
            assert all(response.error is None for response in answers.found.values())
    finally:
        stop.set()
        replacing.join()


@pytest.mark.parametrize("count", [0, 1])
def test_few(server: Server, gate: Gate, count: int):
    server.load(BATCHING, gated(gate), name="m")
    gate.open()
    answers = Answers(count)
    assert len(send(server, [call(answers, str(n)) for n in range(count)])) == count
    if count:
        waited(answers.all)


def test_a_closed_server_refuses():
    server = Server()
    server.close()
    (found,) = server.engine.dispatcher.submit_many([call(Answers(0), "late")])
    assert isinstance(found, TritonError)


# -- the next steps of a batch ------------------------------------------------------------------------

TWO_STEPS = ensemble_text(
    ("first", {"IN": "X"}, {"OUT": "T"}),
    ("second", {"IN": "T"}, {"OUT": "Y"}),
    inputs={"X": "FP32[4]"},
    outputs={"Y": "FP32[4]"},
)


def test_one_batch_in_a_step_is_one_batch_in_the_next(server: Server, gate: Gate):
    server.load(BATCHING, gated(Gate(is_open=True)), name="first")
    server.load(BATCHING, gated(gate), name="second")
    server.load(TWO_STEPS, name="e")
    gate.open()
    answers = Answers(6)
    send(server, [call(answers, str(n), "e", {"X": row(float(n))}) for n in range(6)])
    waited(answers.all)
    assert gate.batches == [["0", "1", "2", "3", "4", "5"]]
    assert [answers.found[str(n)].outputs["Y"][0, 0] for n in range(6)] == [0, 1, 2, 3, 4, 5]


def test_a_callback_may_wait_for_a_request_of_its_own_batch(server: Server):
    """The next step of the one is sent before the other's callback blocks the thread."""
    gate = Gate()
    server.load(BATCHING, gated(gate), name="busy")
    server.load(BATCHING, gated(Gate(is_open=True)), name="second")
    server.load(
        ensemble_text(
            ("busy", {"IN": "X"}, {"OUT": "T"}),
            ("second", {"IN": "T"}, {"OUT": "Y"}),
            inputs={"X": "FP32[4]"},
            outputs={"Y": "FP32[4]"},
        ),
        name="both",
    )
    blocker = server.submit("busy", {"IN": ones()})
    gate.wait_entered()
    ensemble = server.submit("both", {"X": row(3.0)})
    seen: list[float] = []
    plain = server.submit("busy", {"IN": ones()})
    plain.add_done_callback(lambda _: seen.append(ensemble.result(WAIT_S)["Y"][0, 0]))
    gate.open()
    blocker.result(WAIT_S)
    plain.result(WAIT_S)
    assert ensemble.result(WAIT_S)["Y"][0, 0] == 3
    server.infer("busy", {"IN": ones()})  # its instance is through with the callback
    assert seen == [3]


def test_custom_batching_gets_inputs_that_are_read_only(server: Server, gate: Gate):
    writable, answers = [], Answers(2)

    class Strategy:
        def model_batcher_initialize(self, model):
            return None

        def model_batch_initialize(self, batcher):
            return None

        def model_batch_include_request(self, request, batch):
            writable.append(request.inputs["IN"].flags.writeable)
            return True

        def model_batch_finalize(self, batch): ...

        def model_batcher_finalize(self, batcher): ...

    server.load(BATCHING, gated(gate), name="m", batching=Strategy())
    gate.open()
    send(server, [call(answers, "a"), call(answers, "b")])
    waited(answers.all)
    assert writable == [False, False]
