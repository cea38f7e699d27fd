# ruff: noqa: F821, N803, N806 - annotations of tensors, by their names
"""Ensembles as one graph, on a simulated GPU: results, statistics, batching, memory, and every way back."""

import gc
import logging
import random
import threading

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.backends import registry
from nbtriton.backends.base import Backend, BackendInstance, Response
from nbtriton.common.errors import CancelledError, ConfigError, TritonError
from tests.devices.walk import GRAPHS, config_of

GPU = "max_batch_size: 16 dynamic_batching { } instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]"
# The processor's own time is of no account: an operation takes its launch alone.
GPUS = "simulated:1,launch_us=100,elementwise=1e9,reduction=1e9,matmul=1e9,module=1e9"
ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def double(A: "FP32[4]") -> {"OUT": "FP32[4]"}:
    A *= 2  # in place: its memory is its own
    return {"OUT": A + 1}


def add(A: "FP32[4]", B: "FP32[4]") -> {"OUT": "FP32[4]"}:
    return {"OUT": A + B}


def same(A: "FP32[4]") -> {"OUT": "FP32[4]"}:
    return {"OUT": A}


CHAIN = [("double", ["T0"]), ("same", ["T1"]), ("double", ["T2"]), ("add", ["T2", "T3"])]


@pytest.fixture
def server():
    with nt.Server(gpus=GPUS) as found:
        for model in (double, add, same):
            found.load(GPU, model, name=model.__name__)
        yield found
        for name in [one.name for one in found.models()]:
            found.unload(name, unload_dependents=True, timeout_s=None)
        check_books(found)


def check_books(server):
    """Check that no work was unordered, and that nothing leaks."""
    device = server.devices[0]
    if device.memory().used_bytes:  # tracebacks of a test hold arrays
        gc.collect()
    assert device.memory().used_bytes == 0
    assert device.faults == []


def load(server, name, steps, outputs=None, graphs=True):
    """Load an ensemble; every step writes the tensor of its number from 1 on."""
    text = config_of(steps, outputs or [f"T{len(steps)}"]).replace('"walk"', f'"{name}"')
    server.load(text + (GRAPHS if graphs else ""))


def load_pair(server, steps, outputs=None):
    """Load one ensemble as a graph and the same one without."""
    load(server, "graph", steps, outputs)
    load(server, "plain", steps, outputs, graphs=False)


def instances(server, model):
    """Return the instances that have executed a model's batches, in their order."""
    return [batch.instance for batch in server.batches(model)]


def counts(server, model):
    (one,) = server.statistics(model)["model_stats"]
    return (
        one["inference_count"],
        one["execution_count"],
        one["inference_stats"]["success"]["count"],
    )


def test_random_ensembles_give_what_separate_launches_give(server):
    import torch

    class Linear(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(16.0).reshape(4, 4) / 8)

        def forward(self, A: "FP32[4]") -> {"OUT": "FP32[4]"}:
            A += 1
            return A @ self.weight

    server.load(GPU, Linear(), name="linear")
    choose = random.Random(3)
    for _ in range(8):
        tensors, steps = ["T0"], []
        for number in range(choose.randrange(1, 7)):
            model = choose.choice(["double", "add", "same", "linear"])
            steps.append((model, [choose.choice(tensors) for _ in range(1 + (model == "add"))]))
            tensors.append(f"T{number + 1}")
        read = {name for _, reads in steps for name in reads}
        outputs = [name for name in tensors[1:] if name not in read]
        outputs += choose.sample(sorted(read - {"T0"}), min(1, len(read - {"T0"})))
        load_pair(server, steps, outputs)
        for _ in range(6):
            rows = np.random.default_rng(choose.randrange(99)).normal(
                size=(choose.randrange(1, 4), 4)
            )
            sent = {"T0": rows.astype(np.float32)}
            found, expected = server.infer("graph", sent), server.infer("plain", sent)
            for name in outputs:
                np.testing.assert_allclose(
                    found[name], expected[name], rtol=1e-6, err_msg=str(steps)
                )
            np.testing.assert_array_equal(sent["T0"], rows.astype(np.float32))
        assert "graph_graph" in instances(server, steps[0][0])
        for name in ("graph", "plain"):
            server.unload(name, timeout_s=None)


def test_a_small_model_ensemble_takes_a_third_of_the_time_at_most(server):
    load_pair(server, CHAIN)
    ledger = server.devices.ledger
    took = {}
    for name in ("plain", "graph"):
        for _ in range(2):  # the first one is captured
            ledger.clear()
            result = server.infer(name, {"T0": ROWS})
        took[name] = sum(one.time_ns for one in ledger.computations())
        waits, copies = ledger.waits(), ledger.copies()
        result["T4"]
        assert sum(waits.values()) == 1  # for the caller: none between two steps
        assert [one.writer for one in copies] == ["host"]
    launch_ns = server.devices[0].settings.launch_ns
    assert took["graph"] == 2 * launch_ns  # the graph, and its output's copy
    assert took["plain"] >= 3 * took["graph"]


def test_steps_and_ensemble_count_as_without_a_graph(server):
    load_pair(server, CHAIN)
    for name in ("graph", "plain"):
        for rows in (1, 2, 2):
            server.infer(name, {"T0": ROWS[:rows]}, request_id=f"{name} {rows}")
    assert counts(server, "graph") == counts(server, "plain") == (5, 3, 3)
    assert counts(server, "double") == (20, 12, 12)
    assert counts(server, "add") == (10, 6, 6)
    (one,) = server.statistics("double")["model_stats"]
    sizes = {each["batch_size"]: each["compute_infer"]["count"] for each in one["batch_stats"]}
    assert sizes == {1: 4, 2: 8}
    assert instances(server, "add") == ["graph_graph"] * 3 + ["add_0_0"] * 3
    # What the graph took is what its steps took together.
    (whole,) = server.statistics("graph")["model_stats"]
    server.unload("plain")
    parts = [
        batch
        for model in ("double", "same", "add")
        for batch in server.batches(model)
        if batch.instance == "graph_graph"
    ]
    assert len(parts) == 12
    together = sum(batch.end_ns - batch.start_ns for batch in parts)
    fields = ("compute_input", "compute_infer", "compute_output")
    assert together <= sum(whole["inference_stats"][field]["ns"] for field in fields)
    assert all(batch.infer_end_ns > batch.infer_start_ns for batch in parts)


def test_requests_at_once_keep_their_batches(server):
    entered, go_on = threading.Event(), threading.Event()

    def gate(A: "FP32[4]") -> {"OUT": "FP32[4]"}:
        if blocks:
            entered.set()
            assert go_on.wait(60)
        return {"OUT": A + 1}

    blocks = []
    server.load(GPU, gate, name="gate")
    load(server, "graph", [("gate", ["T0"]), ("double", ["T1"])])
    server.infer("graph", {"T0": ROWS})
    assert instances(server, "gate") == ["graph_graph"]
    blocks.append(1)
    direct = server.submit("gate", {"A": ROWS})
    assert entered.wait(60)
    blocks.clear()
    sent = [server.submit("graph", {"T0": ROWS + n}) for n in range(6)]
    go_on.set()
    np.testing.assert_array_equal(direct.result(60)["OUT"], ROWS + 1)
    for n, future in enumerate(sent):
        np.testing.assert_array_equal(future.result(60)["T2"], (ROWS + n + 1) * 2 + 1)
    (one,) = server.statistics("gate")["model_stats"]
    assert 12 in [each["batch_size"] for each in one["batch_stats"]]
    (one,) = server.statistics("double")["model_stats"]
    assert 12 in [each["batch_size"] for each in one["batch_stats"]]


def test_an_ensemble_within_another_one(server):
    load(server, "graph", CHAIN)

    def halve(A: "FP32[4]") -> {"OUT": "FP32[4]"}:
        return {"OUT": A / 2}

    server.load(GPU, halve, name="halve")
    text = config_of([("halve", ["T0"]), ("graph", ["T1"])], ["T2"]).replace("walk", "outer")
    server.load(
        text.replace('key: "A" value: "T1"', 'key: "T0" value: "T1"').replace(
            'key: "OUT" value: "T2"', 'key: "T4" value: "T2"'
        )
    )
    for n in range(3):
        found = server.infer("outer", {"T0": ROWS + n})["T2"]
        np.testing.assert_array_equal(found, (ROWS + n) * 3 + 4)
    assert instances(server, "add") == ["graph_graph"] * 3


def to_the_host(A: "FP32[4]") -> {"OUT": "FP32[4]"}:
    return {"OUT": A / float(A.max())}


def large(A: "FP32[4]") -> {"OUT": "FP32[4]"}:
    for _ in range(8):  # one after the other fits, all of them do not
        filler = A.reshape(-1)[:1] + np.zeros_like(A, shape=(2**16,))
    return {"OUT": A + filler[0]}


@pytest.mark.parametrize(
    ("model", "reason", "gpus"),
    [
        pytest.param(to_the_host, "is capturing: a copy to the host", GPUS, id="host"),
        pytest.param(large, "CUDA out of memory", f"{GPUS},memory_mib=1.5", id="memory"),
    ],
)
def test_what_cannot_be_captured_runs_step_by_step(model, reason, gpus, caplog):
    with nt.Server(gpus=gpus) as server:
        server.load(GPU, double, name="double")
        server.load(GPU, model, name="odd")
        load_pair(server, [("double", ["T0"]), ("odd", ["T1"])])
        with caplog.at_level(logging.WARNING):
            for n in range(1, 4):
                for rows in (ROWS + n, ROWS[:1] + n):
                    found = server.infer("graph", {"T0": rows})["T2"]
                    np.testing.assert_array_equal(found, server.infer("plain", {"T0": rows})["T2"])
        said = [one.getMessage() for one in caplog.records if "CUDA graph" in one.getMessage()]
        assert len(said) == 1
        assert said[0].startswith("ensemble 'graph' runs without a CUDA graph: ")
        assert reason in said[0]
        assert counts(server, "graph") == counts(server, "plain")
        assert "graph_graph" not in instances(server, "odd")
        server.unload("graph", timeout_s=None)
        server.unload("plain", timeout_s=None)
        check_books(server)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("max_batch_size: 16 instance_group [ { kind: KIND_CPU } ]", "does not run on one GPU"),
        (
            f"{GPU} dynamic_batching {{ max_queue_delay_microseconds: 100 }}",
            "waits for more requests",
        ),
        (f"{GPU} dynamic_batching {{ preserve_ordering: true }}", "preserves the order"),
    ],
)
def test_an_ensemble_that_cannot_be_one_says_why(server, config, reason, caplog):
    server.load(config.replace("dynamic_batching { } ", "", 1), double, name="other")
    load(server, "graph", [("double", ["T0"]), ("other", ["T1"])])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = server.infer("graph", {"T0": ROWS})["T2"]
            np.testing.assert_array_equal(found, (ROWS * 2 + 1) * 2 + 1)
    (said,) = [one.getMessage() for one in caplog.records if "CUDA graph" in one.getMessage()]
    assert said.startswith("ensemble 'graph' runs without a CUDA graph: step 'other' ")
    assert reason in said
    server.unload("graph", timeout_s=None)


class _Odd(BackendInstance):
    """Nothing of it can be captured."""

    def execute(self, requests, timer):
        return [Response({"OUT": request.inputs["A"]}) for request in requests]

    def finalize(self):
        raise ValueError("no end")


class OddBackend(Backend):
    name = "odd"

    @classmethod
    def accepts(cls, source):
        return False

    def create_instance(self, context):
        return _Odd()


def test_a_finalize_that_raises_keeps_nothing_of_what_was_to_be_a_graph(server, monkeypatch):
    # As an entry point of an installed package would be found.
    monkeypatch.setitem(registry._BUILT_IN, "odd", f"{__name__}:OddBackend")
    tensors = (
        'input { name: "A" data_type: TYPE_FP32 dims: 4 } '
        'output { name: "OUT" data_type: TYPE_FP32 dims: 4 }'
    )
    server.load(f'{GPU} backend: "odd" {tensors}', object(), name="odd")
    load(server, "graph", [("double", ["T0"]), ("odd", ["T1"])])
    streams = set(server.devices[0].timeline.streams)
    np.testing.assert_array_equal(server.infer("graph", {"T0": ROWS})["T2"], ROWS * 2 + 1)
    assert set(server.devices[0].timeline.streams) == streams


def test_a_model_that_raises_says_so_as_without_a_graph(server):
    def fussy(A: "FP32[4]") -> {"OUT": "FP32[4]"}:
        if len(A) == 1:
            raise ValueError("one row")
        return {"OUT": A}

    server.load(GPU, fussy, name="fussy")
    load_pair(server, [("double", ["T0"]), ("fussy", ["T1"])])
    said = []
    for name in ("plain", "graph"):
        with pytest.raises(TritonError) as caught:
            server.infer(name, {"T0": ROWS[:1]})
        said.append(caught.value.message.replace(f"'{name}'", "E"))
        found = server.infer(name, {"T0": ROWS})["T2"]
        np.testing.assert_array_equal(found, ROWS * 2 + 1)
    assert said[0] == said[1]
    (one,) = server.statistics("graph")["model_stats"]
    (other,) = server.statistics("plain")["model_stats"]
    for each in ("success", "fail"):
        assert one["inference_stats"][each]["count"] == other["inference_stats"][each]["count"]


def test_a_step_that_is_loaded_again_or_changed_is_captured_again(server):
    load(server, "graph", [("double", ["T0"]), ("same", ["T1"])])
    np.testing.assert_array_equal(server.infer("graph", {"T0": ROWS})["T2"], ROWS * 2 + 1)

    def triple(A: "FP32[4]") -> {"OUT": "FP32[4]"}:
        return {"OUT": A * 3}

    server.load(GPU, triple, name="double")
    for _ in range(2):
        np.testing.assert_array_equal(server.infer("graph", {"T0": ROWS})["T2"], ROWS * 3)
    assert instances(server, "double")[-1] == "graph_graph"
    server.load(GPU.replace("kind: KIND_GPU gpus: [ 0 ]", "kind: KIND_CPU"), triple, name="same")
    np.testing.assert_array_equal(server.infer("graph", {"T0": ROWS})["T2"], ROWS * 9)
    assert instances(server, "same")[-1] == "same_0_0"


def test_requests_in_any_number_and_cancelled_leave_nothing(server):
    before = set(threading.enumerate())
    load(server, "graph", CHAIN)
    choose = random.Random(5)
    for _ in range(20):
        sent = []
        for n in range(choose.choice([1, 1, 2, 5])):
            future = server.submit("graph", {"T0": ROWS + n})
            given_up = choose.random() < 0.3
            if given_up:
                future.cancel()
            sent.append((n, future, given_up))
        for n, future, given_up in sent:
            expected = (ROWS + n) * 2 + 1
            try:
                result = future.result(60)
            except CancelledError:
                assert given_up
                continue
            np.testing.assert_array_equal(result["T4"], expected * 3 + 1)
    del sent, future
    server.unload("graph", timeout_s=None)
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if "graph" in thread.name]


def test_planned_faults_of_a_step_reach_the_ensemble(server):
    load(server, "graph", CHAIN)
    server.infer("graph", {"T0": ROWS})
    report = nt.chaos(
        server, "graph", faults={"raise": 1.0}, count=3, concurrency=1, inputs={"T0": ROWS}
    )
    assert report.injected == {"raise": 3}
    before = len(instances(server, "add"))
    for _ in range(20):  # at first a step may not have heard yet that its last request has ended
        np.testing.assert_array_equal(server.infer("graph", {"T0": ROWS})["T4"], ROWS * 6 + 4)
    assert "graph_graph" in instances(server, "add")[before:]


def test_the_parameter_is_yes_or_no(server):
    text = config_of(CHAIN, ["T4"]) + GRAPHS.replace("yes", "true")
    with pytest.raises(
        ConfigError, match="Incorrect value for CUDA_GRAPHS of ensemble 'walk': 'true'"
    ):
        server.load(text)
