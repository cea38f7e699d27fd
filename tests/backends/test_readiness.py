"""`is_ready` of a model, for the endpoints and for other models."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("tritonclient.grpc", reason="Triton's stubs need grpcio")

import grpc

import nbtriton
from nbtriton.backends.python import readiness
from nbtriton.backends.python.running import Running
from nbtriton.serving.frontends import serve
from tests.frontends.cases import Case, ask
from tests.frontends.grpc_support import ask as ask_grpc
from tests.frontends.grpc_support import pb

CONFIG = """
name: "m" backend: "python"
input { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }
"""


class Model:
    """Says what the test wants, which may wait for it."""

    said: object = True
    asked = 0
    thinks = threading.Event()
    goes_on = threading.Event()

    def execute(self, requests):
        return [None for _ in requests]


class Plain(Model):
    def is_ready(self):
        Model.asked += 1
        if isinstance(Model.said, Exception):
            raise Model.said
        if Model.said == "wait":
            Model.thinks.set()
            assert Model.goes_on.wait(30)
            return True
        return Model.said


class Awaited(Model):
    async def is_ready(self):
        return Plain.is_ready(self)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(readiness, "TIMEOUT_S", 60.0)
    Model.said, Model.asked = True, 0
    Model.thinks.clear()
    Model.goes_on.clear()


@pytest.mark.parametrize("model", [Plain, Awaited])
@pytest.mark.parametrize(
    ("said", "ready"),
    [(True, True), (False, False), (1, False), (None, False), (ValueError("no"), False)],
)
def test_PB10_both_endpoints_ask_the_model(model, said, ready, caplog):
    Model.said = said
    with nbtriton.Server(gpus=()) as server:
        server.load(CONFIG, model)
        assert server.is_ready("m")  # a request would be taken all the same
        assert server.engine.inspection.is_model_ready("m") is ready
        with serve(server, http_port=0, grpc_port=0, metrics_port=None) as endpoints:
            seen = ask(endpoints.http_port, Case("", 0, "/v2/models/m/ready", method="GET"))
            assert seen.status == (200 if ready else 400)
            with grpc.insecure_channel(f"127.0.0.1:{endpoints.grpc_port}") as channel:
                answer = ask_grpc(channel, "ModelReady", pb.ModelReadyRequest(name="m"))
                assert answer.response.ready is ready
    assert Model.asked == 3
    assert ("is_ready of 'm_0'" in caplog.text) is not isinstance(said, bool)


class Asks(Model):
    """Asks for itself while it is asked: it can only be given the answer that it is to give."""

    server: nbtriton.Server

    def is_ready(self):
        Model.asked += 1
        Asks.server.engine.inspection.is_model_ready("m")
        Model.thinks.set()
        return True


def test_PB10_concurrent_questions_get_the_same_answer(monkeypatch):
    monkeypatch.setattr(readiness, "TIMEOUT_S", 0.02)
    with nbtriton.Server(gpus=()) as server:
        Asks.server = server
        server.load(CONFIG, Asks)
        server.engine.inspection.is_model_ready("m")
        assert Model.thinks.wait(30)
        assert Model.asked == 1


def test_PB10_a_model_that_thinks_too_long_is_not_ready(monkeypatch):
    monkeypatch.setattr(readiness, "TIMEOUT_S", 0.02)
    Model.said = "wait"
    with nbtriton.Server(gpus=()) as server:
        server.load(CONFIG, Plain)
        assert not server.engine.inspection.is_model_ready("m")
        assert Model.thinks.wait(30)
        Model.goes_on.set()


def test_PB10_a_question_that_had_no_thread_is_asked_the_next_time(monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    ask = readiness.Readiness(lambda: True, Running("m", "m_0")).ask
    with monkeypatch.context() as full, pytest.raises(RuntimeError):
        full.setattr(threading.Thread, "start", refuse)
        ask()
    monkeypatch.setattr(readiness, "TIMEOUT_S", 5.0)
    assert ask()


def test_PB10_only_models_that_have_a_say_are_asked():
    with nbtriton.Server(gpus=()) as server:
        server.load(CONFIG, Model)
        assert server.engine.inspection.is_model_ready("m")
        assert not server.engine.inspection.has_own_checks()
        server.load(CONFIG, Plain)
        assert server.engine.inspection.has_own_checks()
        assert not server.engine.inspection.is_model_ready("nope")
        server.unload("m", timeout_s=60)
        assert not server.engine.inspection.is_model_ready("m")
        assert not server.engine.inspection.has_own_checks()
