"""A stopping server: new requests of clients are refused, begun ones go on."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from nbtriton.backends.base import RequestOptions, Response
from nbtriton.common.errors import EngineStoppedError, InvalidArgumentError, UnavailableError
from nbtriton.runtime.engine import InferenceRequest, Server, Submission
from nbtriton.scheduling import SEQUENCE_END, SEQUENCE_START
from tests.engine.sequence_models import PATIENT
from tests.engine.support import WAIT_S, Gate, echo, ensemble_text, gated, ones
from tests.until import until

STOPPED = "Server is stopping, scheduler for model has stopped accepting new inference requests"
NO_ID = "[request id: <id_unknown>] "


def client(server: Server, name: str, correlation_id: int = 0, flags: int = 0) -> Any:
    """Send a request as an endpoint does; return its response."""
    found: list[Response] = []
    done = threading.Event()

    def receive(_: InferenceRequest, response: Response, final: bool) -> None:
        found.append(response)
        if final:
            done.set()

    options = RequestOptions(correlation_id=correlation_id, flags=flags)
    (sent,) = server.engine.dispatcher.submit_many(
        [Submission(name, -1, {"IN": ones()}, options, receive)]
    )
    if not isinstance(sent, InferenceRequest):
        raise sent
    assert done.wait(WAIT_S)
    if found[0].error is not None:
        raise found[0].error
    return found[0].outputs["OUT"]


def ensemble(*members: str) -> str:
    """Configuration of an ensemble of one model behind the other, IN to OUT."""
    names = ["IN", *(f"T{n}" for n in range(1, len(members))), "OUT"]
    steps = [(member, {"IN": names[n]}, {"OUT": names[n + 1]}) for n, member in enumerate(members)]
    return ensemble_text(*steps, inputs={"IN": "FP32[4]"}, outputs={"OUT": "FP32[4]"})


@pytest.fixture
def loaded(server: Server, gate: Gate) -> Server:
    server.load(echo(), gated(gate), name="plain")
    server.load(echo(f"sequence_batching {{ {PATIENT} }}"), gated(gate), name="seq")
    server.load(echo("sequence_batching { iterative_sequence: true }"), gated(gate), name="iter")
    server.load(ensemble("plain"), name="one")
    server.load(ensemble("seq", "plain"), name="both")
    server.load(ensemble("both"), name="outer")
    server.load(ensemble("one"), name="nested")
    return server


def test_S5_L22_new_requests_are_refused_with_tritons_text(loaded: Server, gate: Gate):
    gate.open()
    loaded.engine.lifecycle.stop_accepting()
    for name, begins, text in (
        ("plain", {}, NO_ID + STOPPED),
        ("one", {}, f"in ensemble 'one', {NO_ID}{STOPPED}"),
        ("nested", {}, f"in ensemble 'nested', in ensemble 'one', {NO_ID}{STOPPED}"),
        ("seq", {"correlation_id": 1, "flags": SEQUENCE_START}, STOPPED),
        ("both", {"correlation_id": 1, "flags": SEQUENCE_START}, f"in ensemble 'both', {STOPPED}"),
        ("iter", {}, STOPPED),
        ("plain", {"correlation_id": 1}, NO_ID + STOPPED),
    ):
        with pytest.raises(UnavailableError) as refused:
            client(loaded, name, **begins)
        assert refused.value.message == text, name
        assert not refused.value.accepted
    assert not gate.batches
    with pytest.raises(UnavailableError, match="Server not ready"):
        loaded.engine.inspection.check_answering()
    # Who holds the server may use it as before.
    assert loaded.infer("plain", {"IN": ones()})["OUT"].tolist() == ones().tolist()


def test_SQ12_L22_a_sequence_that_has_begun_goes_on_to_its_end(loaded: Server, gate: Gate):
    gate.open()
    for name in ("seq", "outer"):
        client(loaded, name, {"seq": 1, "outer": 2}[name], SEQUENCE_START)
    assert until(lambda: loaded.engine.lifecycle.in_flight() == [("seq", 1, 2)])
    loaded.engine.lifecycle.stop_accepting()
    for name, correlation_id in (("seq", 1), ("outer", 2)):
        client(loaded, name, correlation_id)
        client(loaded, name, correlation_id, SEQUENCE_END)
        with pytest.raises(InvalidArgumentError, match="must specify the START flag"):
            client(loaded, name, correlation_id)
    assert until(lambda: not loaded.engine.lifecycle.in_flight())


def test_an_ensemble_in_flight_goes_through_all_its_steps(loaded: Server, gate: Gate):
    loaded.load(ensemble("plain", "plain"), name="two")
    future = loaded.submit("two", {"IN": ones()})
    gate.wait_entered()
    assert sorted(loaded.engine.lifecycle.in_flight()) == [("plain", 1, 1), ("two", 1, 1)]
    loaded.engine.lifecycle.stop_accepting()
    gate.open()
    np.testing.assert_array_equal(future.result(WAIT_S)["OUT"], ones())
    assert until(lambda: not loaded.engine.lifecycle.in_flight())


def test_requests_beyond_the_time_limit_are_answered_once(loaded: Server, gate: Gate):
    futures = [loaded.submit(name, {"IN": ones()}) for name in ("plain", "plain", "nested")]
    gate.wait_entered()
    loaded.engine.lifecycle.stop_accepting()
    loaded.engine.lifecycle.fail_all()
    for future in futures:
        with pytest.raises(EngineStoppedError, match="Server is stopping"):
            future.result(WAIT_S)
