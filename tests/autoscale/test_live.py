"""Instances that come and go with the load of a live model."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

import nbtriton as nt
from nbtriton.common.errors import (
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from nbtriton.extensions import autoscale as scaling_module
from nbtriton.extensions.autoscale import Autoscale, running
from nbtriton.extensions.autoscale.policy import Policy
from nbtriton.lab.explain.timeline import read_timeline
from tests.engine.conftest import gate, pb_utils, server
from tests.engine.support import WAIT_S, Gate, echo, ensemble_text, fields, gated, row
from tests.until import until

__all__ = ["gate", "pb_utils", "server"]

FAST = Policy(1, 4, 20.0, look_s=0.02, settle_s=0.05, window_s=1.0, rest_s=0.2)
SLEEPING = """
import time

import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.01)
        inputs = [pb_utils.get_input_tensor_by_name(one, "IN").as_numpy() for one in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one * 2)]) for one in inputs]
"""


def count(server: nt.Server) -> int:
    return server.config("m").instance_group[0].count


@pytest.mark.medium
def test_requests_that_wait_bring_instances_and_rest_takes_them_away(server: nt.Server, gate: Gate):
    server.load(echo(max_batch_size=1), gated(gate), name="m")
    with Autoscale(server, "m", FAST) as scaling:
        futures = [server.submit("m", {"IN": row(number)}) for number in range(12)]
        assert until(lambda: count(server) == 4)
        gate.open()
        answers = [future.result(WAIT_S)["OUT"][0, 0] for future in futures]
        assert answers == list(range(12))
        assert until(lambda: count(server) == 1)
    assert fields(server.statistics(), "m")["success"] == 12
    frame = scaling.frame
    assert frame["after"].tolist()[:3] == [1, 2, 4]
    assert frame["after"].tolist()[-1] == 1
    assert "by waiting for an instance" in frame["reason"][1]
    assert " were busy in " in frame["reason"].iloc[-1]
    (history,) = server.history().models
    told = [change.summary for change in history.changes if "autoscale" in change.summary]
    assert len(told) == len(frame) - 1
    assert told[0].startswith("autoscale, 1 to 2 instances: p99 is ")
    rows = nt.events(server, "m").query("event == 'change'")["reason"].tolist()
    assert [reason for reason in rows if "autoscale" in reason] == told
    (lanes,) = read_timeline(server, "m", span_ms=60_000).models
    (strip,) = (each for each in lanes.strips if each.name == "changes")
    assert told[0] in [span.label for span in strip.spans]


@pytest.mark.parametrize(
    "isolation", [pytest.param("thread", marks=pytest.mark.medium), pytest.param("process", marks=pytest.mark.slow)]
)  # fmt: skip
def test_no_request_is_lost_under_load(server: nt.Server, isolation: str, tmp_path):
    code = tmp_path / "model.py"
    code.write_text(SLEEPING)
    place = f'parameters {{ key: "INSTANCE_ISOLATION" value {{ string_value: "{isolation}" }} }}'
    server.load(echo(place, max_batch_size=1), str(code), name="m")
    enough = threading.Event()
    answers: list[list[tuple[float, float]]] = [[] for _ in range(8)]

    def client(own: list[tuple[float, float]]) -> None:
        while not enough.is_set():
            value = float(len(own))
            own.append((value, server.infer("m", {"IN": row(value)})["OUT"][0, 0]))

    clients = [threading.Thread(target=client, args=(own,)) for own in answers]
    with Autoscale(server, "m", FAST) as scaling:
        for one in clients:
            one.start()
        try:
            grown = until(lambda: count(server) > 2)
        finally:
            enough.set()
            for one in clients:
                one.join(WAIT_S)
        assert grown, scaling.reason
        assert until(lambda: count(server) == 1)
    assert all(got == 2 * value for own in answers for value, got in own)
    assert fields(server.statistics(), "m")["success"] == sum(map(len, answers))


def test_it_ends_with_the_model_and_with_the_server(server: nt.Server):
    server.load(echo(), gated(Gate(is_open=True)), name="m")
    of_model = Autoscale(server, "m", FAST)
    server.unload("m")
    assert of_model.ended.wait(WAIT_S)
    assert "m" in of_model.reason
    with nt.Server(gpus=()) as own:
        own.load(echo(), gated(Gate(is_open=True)), name="m")
        of_server = Autoscale(own, "m", FAST)
    of_server._thread.join(WAIT_S)
    assert of_server.ended.is_set()
    assert not of_server._thread.is_alive()
    assert running(server) == []


def test_a_dropped_server_is_not_kept(pb_utils):
    own = nt.Server(gpus=())
    own.load(echo(), gated(Gate(is_open=True)), name="m")
    scaling = Autoscale(own, "m", FAST)
    own.close()
    del own
    assert scaling._server() is None


def test_an_instance_that_cannot_be_made_is_told_and_the_model_serves_on(
    server: nt.Server, gate: Gate
):
    made = []

    class Second(gated(gate)):
        def initialize(self, args):
            if made:
                raise MemoryError("no memory")
            made.append(args)

    server.load(echo(max_batch_size=1), Second, name="m")
    with Autoscale(server, "m", FAST) as scaling:
        futures = [server.submit("m", {"IN": row(number)}) for number in range(3)]
        assert until(lambda: len(scaling.frame) > 1)
        gate.open()
        assert [future.result(WAIT_S)["OUT"][0, 0] for future in futures] == [0, 1, 2]
    assert scaling.frame["after"].tolist() == [1, 1]
    assert "no memory" in scaling.frame["reason"][1]


def test_no_more_instances_are_busy_than_there_are(server: nt.Server, gate: Gate, monkeypatch):
    server.load(echo(max_batch_size=1), gated(gate), name="m")
    with Autoscale(server, "m", replace(FAST, look_s=WAIT_S)) as scaling:
        future = server.submit("m", {"IN": row(1)})
        gate.wait_entered()
        # Its thread takes the time, and stops until the execution has ended.
        now_ns = scaling._seen_ns + 1
        gate.open()
        future.result(WAIT_S)
        monkeypatch.setattr(scaling_module, "monotonic_ns", lambda: now_ns)
        look, _ = scaling._look(server)
    assert 0 < look.work <= 1


def test_instances_that_somebody_sets_meanwhile_stay(server: nt.Server):
    class Late(Policy):
        def decide(self, looks, changes):
            server.load(three, name="m")
            return 2, "there is work"

    three = echo("instance_group { count: 3 kind: KIND_CPU }")
    server.load(echo(), gated(Gate(is_open=True)), name="m")
    with Autoscale(server, "m", Late(1, 4, 20.0, look_s=WAIT_S)) as scaling:
        scaling._step()
        assert count(server) == 3
        assert "changed meanwhile" in repr(scaling)


def test_a_second_call_takes_the_place_of_the_first(server: nt.Server):
    server.load(echo(), gated(Gate(is_open=True)), name="m")
    first = nt.autoscale(server, "m", p99_ms=20)
    second = nt.autoscale(server, "m", between=(2, 3), p99_ms=20)
    assert first.ended.wait(WAIT_S)  # no more than seconds are waited for it before
    assert running(server) == [second]
    assert until(lambda: count(server) == 2)
    second.stop()
    second.stop()
    assert second.ended.wait(WAIT_S)
    assert (repr(second), running(server)) == ("<Autoscale m between 2:3: ended; stopped>", [])


def test_what_cannot_be_scaled_is_refused(server: nt.Server):
    server.load(
        echo("instance_group [{ count: 1 kind: KIND_CPU }, { count: 1 kind: KIND_CPU }]"),
        gated(Gate(is_open=True)),
        name="m",
    )
    server.load(
        ensemble_text(
            ("m", {"IN": "X"}, {"OUT": "Y"}), inputs={"X": "FP32[4]"}, outputs={"Y": "FP32[4]"}
        ),
        name="e",
    )
    with pytest.raises(UnsupportedError, match="has 0 instance groups"):
        nt.autoscale(server, "e", p99_ms=20)
    with pytest.raises(UnsupportedError, match="has 2 instance groups"):
        nt.autoscale(server, "m", p99_ms=20)
    with pytest.raises(NotFoundError):
        nt.autoscale(server, "other", p99_ms=20)
    with pytest.raises(InvalidArgumentError, match="p99_ms must be a number above 0"):
        nt.autoscale(server, "m")
    for wrong in ((2, 1), (0, 1), (1,), "1:8"):
        with pytest.raises(InvalidArgumentError, match="between must be the fewest and the most"):
            nt.autoscale(server, "m", between=wrong, p99_ms=20)
    with nt.Server(gpus=(), recorder=False) as bare:
        bare.load(echo(), gated(Gate(is_open=True)), name="m")
        with pytest.raises(UnavailableError, match="has no recorder"):
            nt.autoscale(bare, "m", p99_ms=20)
