"""An ensemble beside its steps as requests of the client, in one table."""

# ruff: noqa: F821, N803, UP037 - function models: Triton's datatypes as annotations

from __future__ import annotations

import threading

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.lab.perf import driver
from nbtriton.lab.perf import run as run_module
from nbtriton.lab.perf.remote import remote_server
from nbtriton.lab.perf.run import ChainedSteps
from nbtriton.lab.perf.traffic import Repeated
from tests.simulate.profiles import profile
from tests.until import PATIENCE_S, until

TENSOR = "data_type: TYPE_FP32 dims: 4"
STEP = """step {{ model_name: "{model}" model_version: -1
  input_map {{ key: "{into}" value: "{taken}" }} {more} output_map {{ key: "{out}" value: "{given}" }} }}
"""
# The steps stand in the wrong order: the last one takes the tensors of both others.
ENSEMBLE = (
    f'name: "both" platform: "ensemble" max_batch_size: 8 input {{ name: "X" {TENSOR} }} '
    f'output {{ name: "Y" {TENSOR} }} ensemble_scheduling {{'
    + STEP.format(
        model="add", into="A", taken="twice", out="SUM", given="Y",
        more='input_map { key: "B" value: "less" }',
    )
    + STEP.format(model="double", into="IN", taken="X", out="OUT", given="twice", more="")
    + STEP.format(model="minus", into="IN", taken="twice", out="OUT", given="less", more="")
    + "}"
)  # fmt: skip
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    return {"OUT": IN * 2}


def minus(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    return {"OUT": IN - 1}


def add(A: "FP32[4]", B: "FP32[4]") -> {"SUM": "FP32[4]"}:
    return {"SUM": A + B}


@pytest.fixture(scope="module")
def server():
    with nt.Server(gpus=()) as server:
        for model in (double, minus, add):
            server.load("max_batch_size: 8", model, name=model.__name__)
        server.load(ENSEMBLE)
        server.serve(http_port=0, grpc_port=0, metrics_port=None)
        yield server


def counts(server, *names: str) -> dict[str, int]:
    return {
        name: int(server.statistics(name)["model_stats"][0]["inference_count"]) for name in names
    }


@pytest.mark.parametrize("protocol", ["inproc", "http", "grpc"])
def test_the_client_gives_the_ensembles_answer(server, protocol):
    expected = server.infer("both", {"X": X})["Y"]
    if protocol == "inproc":
        target = server
    else:
        if protocol == "grpc":
            pytest.importorskip("grpc", reason="grpcio is not installed")
        (served,) = server.endpoints
        target = remote_server(f"127.0.0.1:{getattr(served, f'{protocol}_port')}", protocol)
    before = counts(server, "both", "double", "minus", "add")
    with ChainedSteps(target, "both") as steps:
        done = threading.Event()
        assert (steps.infer("both", {"X": X})["Y"] == expected).all()
        pending = steps.submit("both", {"X": X}, priority=0)
        pending.add_done_callback(lambda _: done.set())
        assert done.wait(30)
        assert (pending.result()["Y"] == expected).all()
        with pytest.raises(nt.TritonError, match="unexpected shape"):
            steps.infer("both", {"X": X[:, :3]})
    if target is not server:
        target.close()
    after = counts(server, "both", "double", "minus", "add")
    assert {name: after[name] - before[name] for name in after} == {
        "both": 0, "double": 4, "minus": 4, "add": 4,
    }  # fmt: skip


@pytest.mark.medium
@pytest.mark.parametrize("protocol", ["inproc", "http"])
def test_both_stand_in_one_table(server, protocol):
    before = counts(server, "both")["both"]
    report = nt.perf(
        server, "both", chained=[False, True], protocol=protocol, concurrency=[1, 3], request_count=20,
    )  # fmt: skip
    assert [(p.configuration["chained"], p.value, p.request_count) for p in report.points] == [
        (False, 1, 20), (False, 3, 20), (True, 1, 20), (True, 3, 20),
    ]  # fmt: skip
    assert counts(server, "both")["both"] - before == 40
    assert report.frame["chained"].tolist() == [False, False, True, True]
    assert "chained by the client" in report._repr_mimebundle_()["text/html"]


def test_requests_that_wait_for_a_thread_are_cancelled_at_the_end_of_a_load(monkeypatch):
    monkeypatch.setattr(run_module, "_MOST_CHAINED", 1)
    monkeypatch.setattr(driver, "GRACE_S", 0.0)
    begun, release, ended = threading.Event(), threading.Event(), threading.Event()

    def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        begun.set()
        assert release.wait(PATIENCE_S)
        return {"OUT": IN}

    one = 'platform: "ensemble" max_batch_size: 8 input { name: "X" data_type: TYPE_FP32 dims: 4 } ' + (
        'output { name: "Y" data_type: TYPE_FP32 dims: 4 } ensemble_scheduling {'
        + STEP.format(model="double", into="IN", taken="X", out="OUT", given="Y", more="") + "}"
    )  # fmt: skip
    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8", double, name="double")
        server.load(one, name="one")
        with ChainedSteps(server, "one") as steps:
            run = driver.make_load(
                driver.LoadSpec(steps, "one", driver.Concurrency(3), Repeated([{"X": X}]))
            )
            run.start()
            assert begun.wait(PATIENCE_S)
            assert until(lambda: sum(slot.pending is not None for slot in run._slots) == 3)
            stopping = threading.Thread(target=lambda: (run.stop(), ended.set()), daemon=True)
            stopping.start()
            assert until(run._slots[2].pending.cancelled)
            release.set()
            assert ended.wait(PATIENCE_S)


def test_a_servers_configuration_elsewhere_is_no_matter(server):
    (served,) = server.endpoints
    report = nt.perf(
        None, "both", url=f"127.0.0.1:{served.http_port}", chained=True, request_count=4
    )
    assert [(p.request_count, p.error_count) for p in report.points] == [(4, 0)]


def test_what_cannot_be_chained_is_refused(server):
    for model, options, text in (
        ("double", {"chained": True}, "model 'double' is no ensemble"),
        ("both", {"chained": True, "streaming": True}, "neither streams nor sequences"),
        (
            "both",
            {"chained": True, "protocol": "http", "shared_memory": "system"},
            "none in shared",
        ),
        ("both", {"chained": "yes"}, "chained"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            nt.perf(server, model, request_count=2, **options)
    with pytest.raises(InvalidArgumentError, match="chained has no meaning"):
        nt.whatif(profile(), chained=True)
