"""Statistics: rules T1 to T6 and the table of Y2, batches and snapshots."""

# ruff: noqa: N803 - a model function names its tensors
from __future__ import annotations

import threading

import numpy as np
import pytest

from nbtriton.common.errors import InternalError, ModelError, TritonError, UnavailableError
from nbtriton.runtime.engine import Server
from nbtriton.runtime.engine.core import execution
from nbtriton.runtime.engine.status import status
from nbtriton.scheduling import REASONS
from tests.engine.support import (
    WAIT_S,
    Gate,
    echo,
    ensemble_text,
    failing,
    fields,
    gated,
    ones,
    row,
    streaming,
)
from tests.until import until

DURATIONS = ("queue", "compute_input", "compute_infer", "compute_output")


def test_T1_each_request_is_charged_the_whole_batch(server: Server, gate: Gate):
    server.load(echo("dynamic_batching {}"), gated(gate), name="m")
    futures = [server.submit("m", {"IN": row(*[0.0] * 8)})]
    gate.wait_entered()
    futures += [server.submit("m", {"IN": ones(size)}) for size in (1, 3)]
    gate.open()
    timings = [future.result(WAIT_S).timing for future in futures]
    (found,) = server.statistics("m")["model_stats"]
    stats = found["inference_stats"]
    per_size = {entry["batch_size"]: entry for entry in found["batch_stats"]}
    assert set(per_size) == {8, 4}
    for field in ("compute_input", "compute_infer", "compute_output"):
        of_eight, of_four = (per_size[size][field] for size in (8, 4))
        assert of_eight["count"] == of_four["count"] == 1
        assert stats[field] == {"count": 3, "ns": of_eight["ns"] + 2 * of_four["ns"]}
        assert stats[field]["ns"] == sum(getattr(timing, f"{field}_ns") for timing in timings)
    assert stats["queue"]["ns"] == sum(timing.queue_ns for timing in timings)
    assert [timing.batch_size for timing in timings] == [8, 4, 4]


def test_T2_T3_counts_of_inferences_executions_and_sizes(server: Server, gate: Gate):
    server.load(echo("dynamic_batching {}"), gated(gate), name="m")
    futures = [server.submit("m", {"IN": row(*[0.0] * 8)})]
    gate.wait_entered()
    futures += [server.submit("m", {"IN": ones(size)}) for size in (1, 2, 4, 3, 1)]
    gate.open()
    for future in futures:
        future.result(WAIT_S)
    assert fields(server.statistics(), "m") == {
        "inference_count": 19,
        "execution_count": 3,
        "success": 6,
        "fail": 0,
        "queue": 6,
        "compute_input": 6,
        "compute_infer": 6,
        "compute_output": 6,
        "cache_hit": 0,
        "cache_miss": 0,
        "batches": {4: 1, 7: 1, 8: 1},
    }


def test_T9_success_covers_queue_and_compute(server: Server):
    server.load(echo(), lambda IN: {"OUT": IN}, name="m")
    for _ in range(20):
        server.infer("m", {"IN": ones()})
    (found,) = server.statistics("m")["model_stats"]
    stats = found["inference_stats"]
    assert found["last_inference"] > 1_600_000_000_000
    assert all(stats[field]["ns"] > 0 for field in ("success", *DURATIONS))
    assert sum(stats[field]["ns"] for field in DURATIONS) <= stats["success"]["ns"]


def test_the_time_of_the_last_inference_stays(server: Server, monkeypatch):
    server.load(echo(), lambda IN: {"OUT": IN}, name="m")
    server.infer("m", {"IN": ones()})
    told = server.statistics("m")
    monkeypatch.setattr(execution, "time_ns", lambda: 0)  # the clock is set
    assert server.statistics("m") == told


def test_T6_statistics_are_per_version_and_start_again_with_a_replacement(server: Server):
    config = echo("version_policy { all {} }")
    for version in (1, 2):
        server.load(config, lambda IN: {"OUT": IN}, name="m", version=version)
    server.infer("m", {"IN": ones()}, version=1)
    server.infer("m", {"IN": ones(3)})
    assert fields(server.statistics(), "m", 1)["inference_count"] == 1
    assert fields(server.statistics(), "m", 2)["inference_count"] == 3
    assert len(server.statistics("m", 2)["model_stats"]) == 1
    server.load(config, lambda IN: {"OUT": IN}, name="m", version=2)
    assert fields(server.statistics(), "m", 1)["inference_count"] == 1
    assert fields(server.statistics(), "m", 2)["inference_count"] == 0
    with pytest.raises(TritonError, match="'m' version 9 is not found"):
        server.statistics("m", 9)


# how, error, whether the statistics call it a success
WRONG = {
    "raises": (1, "kaboom", False),
    "wrong length": (
        2,
        (
            "message: Number of InferenceResponse objects do not match the number of "
            "InferenceRequest objects. InferenceRequest(s) size is:1, and InferenceResponse(s) "
            "size is:0\n"
        ),
        False,
    ),
    "no list": (
        3,
        "message: Expected a list in the execute return, found type '<class 'tuple'>'.",
        False,
    ),
    "wrong items": (
        4,
        (
            "message: Expected an 'InferenceResponse' object in the execute function return list, "
            "found type '<class 'int'>'."
        ),
        False,
    ),
}


@pytest.mark.parametrize("direct", [True, False], ids=["infer", "submit"])
@pytest.mark.parametrize("case", WRONG)
def test_Y2_an_execution_that_goes_wrong(server: Server, case: str, direct: bool):
    how, text, _ = WRONG[case]
    server.load(echo(), failing(), name="x_raise")
    with pytest.raises(ModelError) as caught:
        if direct:
            server.infer("x_raise", {"IN": row(how, how)})
        else:
            server.submit("x_raise", {"IN": row(how, how)}).result(WAIT_S)
    assert caught.value.status == "INTERNAL"
    assert caught.value.message.startswith(
        "Failed to process the request(s) for model 'x_raise_0', message: "
    )
    assert text in caught.value.message
    assert server.infer("x_raise", {"IN": row(0)})["OUT"][0, 0] == 0
    counts = fields(server.statistics(), "x_raise")
    assert (counts["fail"], counts["success"]) == (1, 1)
    assert (counts["execution_count"], counts["inference_count"]) == (2, 1)
    assert counts["batches"] == {1: 1, 2: 1}
    assert [record.failed for record in server.batches("x_raise")] == [True, False]


def test_Y2_the_message_of_a_raise_names_the_models_line(server: Server):
    server.load(echo(), failing(), name="m")
    with pytest.raises(ModelError) as caught:
        server.infer("m", {"IN": row(1)})
    assert "message: ValueError: kaboom\n\nAt:\n  " in caught.value.message
    assert caught.value.message.endswith("): execute\n")
    assert "support.py" in caught.value.message
    assert 'raise ValueError("kaboom")' in caught.value.user_traceback
    assert "nbtriton/runtime/engine" not in caught.value.user_traceback


def test_Y2_a_raise_fails_every_request_of_the_batch(server: Server, gate: Gate):
    class TritonPythonModel:
        def execute(self, requests):
            gate.stand([request.request_id() for request in requests])
            raise ValueError(f"{len(requests)} requests")

    server.load(echo("dynamic_batching {}"), TritonPythonModel, name="m")
    futures = [server.submit("m", {"IN": row(*[0.0] * 8)})]
    gate.wait_entered()
    futures += [server.submit("m", {"IN": ones()}) for _ in range(3)]
    gate.open()
    errors = [future.exception(WAIT_S) for future in futures]
    assert ["3 requests" in str(error) for error in errors] == [False, True, True, True]
    counts = fields(server.statistics(), "m")
    assert (counts["fail"], counts["execution_count"], counts["inference_count"]) == (4, 2, 0)


def test_Y2_an_error_for_one_request_counts_as_success(server: Server):
    server.load(echo(), failing(), name="m")
    with pytest.raises(UnavailableError) as caught:
        server.infer("m", {"IN": row(6)})
    assert caught.value.message == "not today"
    counts = fields(server.statistics(), "m")
    assert (counts["success"], counts["fail"], counts["inference_count"]) == (1, 0, 1)


def test_Y2_dtypes_are_passed_through_unchecked(server: Server):
    server.load(echo(), failing(), name="m")
    assert server.infer("m", {"IN": row(5)})["OUT"].dtype == np.float64


def test_T5_Y7_a_decoupled_request_counts_once_for_any_responses(server: Server):
    server.load(echo("model_transaction_policy { decoupled: true }"), streaming(), name="m")
    for count in (0, 1, 3):
        assert len(list(server.stream("m", {"IN": row(count)}))) == count

    def counted() -> tuple[int, int, int]:
        counts = fields(server.statistics(), "m")
        return counts["success"], counts["inference_count"], counts["execution_count"]

    # The last response may arrive before its request is counted.
    assert until(lambda: counted() == (3, 3, 3))
    assert counted() == (3, 3, 3)
    assert server.statistics("m")["model_stats"][0]["response_stats"] == {}


def test_T4_an_ensemble_sums_its_steps(server: Server):
    for name in ("one", "two"):
        server.load(echo(), lambda IN: {"OUT": IN + 1}, name=name)
    server.load(
        ensemble_text(
            ("one", {"IN": "X"}, {"OUT": "M"}),
            ("two", {"IN": "M"}, {"OUT": "Y"}),
            inputs={"X": "FP32[4]"},
            outputs={"Y": "FP32[4]"},
        ),
        name="both",
    )
    for size in (1, 3):
        result = server.infer("both", {"X": ones(size)})
        assert (result["Y"] == 3).all()
        assert result.timing.batch_size == size
    counts = fields(server.statistics(), "both")
    assert counts["batches"] == {1: 1, 3: 1}
    assert (counts["success"], counts["inference_count"], counts["execution_count"]) == (2, 4, 2)
    stats = {
        entry["name"]: entry["inference_stats"] for entry in server.statistics()["model_stats"]
    }
    for field in ("compute_input", "compute_infer", "compute_output"):
        assert stats["both"][field]["ns"] == stats["one"][field]["ns"] + stats["two"][field]["ns"]
    assert stats["both"]["success"]["ns"] > sum(
        stats["both"][field]["ns"] for field in ("compute_input", "compute_infer")
    )


def test_T4_a_failing_last_step_counts_twice_for_the_ensemble(server: Server):
    server.load(echo(), failing(), name="part")
    server.load(
        ensemble_text(
            ("part", {"IN": "X"}, {"OUT": "Y"}), inputs={"X": "FP32[4]"}, outputs={"Y": "FP32[4]"}
        ),
        name="whole",
    )
    with pytest.raises(InternalError):
        server.infer("whole", {"X": row(1)})
    counts = fields(server.statistics(), "whole")
    # For the answer, and for the end of the request.
    assert (counts["fail"], counts["success"], counts["execution_count"]) == (2, 0, 0)
    assert fields(server.statistics(), "part")["fail"] == 1


# -- what the views read -----------------------------------------------------------------------------


def test_batch_records_show_requests_and_reason(server: Server, gate: Gate):
    server.load(echo("dynamic_batching {}"), gated(gate), name="m")
    first = server.submit("m", {"IN": row(*[0.0] * 8)}, request_id="first")
    gate.wait_entered()
    rest = [server.submit("m", {"IN": ones(size)}, request_id=str(size)) for size in (1, 2)]
    assert server.batches("m") == ()  # it runs still
    gate.open()
    for future in (first, *rest):
        future.result(WAIT_S)
    one, two = server.batches("m")
    numbers = {request.request_id: request.number for request in server.requests("m")}
    assert (one.requests, two.requests) == ((numbers["first"],), (numbers["1"], numbers["2"]))
    assert (one.batch_size, two.batch_size) == (8, 3)
    assert {one.reason, two.reason} <= set(REASONS)
    assert one.start_ns <= one.end_ns <= two.start_ns <= two.end_ns
    assert two.queue_ns == rest[0].result().timing.queue_ns
    assert (one.model, one.version, one.instance, one.failed) == ("m", 1, "m_0", False)


def test_a_snapshot_shows_waiting_and_running_requests(server: Server, gate: Gate):
    server.load(echo("dynamic_batching {}"), gated(gate), name="m")
    futures = [server.submit("m", {"IN": row(*[0.0] * 8)})]
    gate.wait_entered()
    futures += [server.submit("m", {"IN": ones()}) for _ in range(3)]
    (model,) = server.snapshot().models
    assert (model.queued, model.executing) == (3, 1)
    (instance,) = model.instances
    assert (instance.batch_size, instance.executions) == (8, 0)
    gate.open()
    for future in futures:
        future.result(WAIT_S)
    # One request more: its thread adds up the statistics of the last batch.
    server.infer("m", {"IN": ones()})
    # A request is answered before it has ended.
    assert until(lambda: not server.models()[0].executing)
    (model,) = server.models()
    assert (model.queued, model.executing) == (0, 0)
    (instance,) = model.instances
    assert (instance.batch_size, instance.executions) == (0, 3)
    assert instance.busy_ns > 0
    assert model.batch_sizes == {1: 1, 3: 1, 8: 1}
    assert (model.state, model.platform, model.max_batch_size) == ("READY", "python", 8)


def test_snapshots_are_consistent_while_requests_run(server: Server):
    """At any moment the parts of a snapshot add up: nothing is read half written."""
    server.load(echo("dynamic_batching {}"), lambda IN: {"OUT": IN}, name="m")
    stop = threading.Event()
    seen: list[str] = []

    def look() -> None:
        while not stop.is_set():
            (found,) = server.statistics()["model_stats"]
            stats = found["inference_stats"]
            if len({stats[field]["count"] for field in ("success", *DURATIONS)}) != 1:
                seen.append(f"counts of one request differ: {stats}")
            done = sum(entry["compute_infer"]["count"] for entry in found["batch_stats"])
            if done != found["execution_count"]:
                seen.append(f"{done} executions by size, {found['execution_count']} in all")
            (model,) = server.models()
            if model.queued < 0 or model.executing < 0:
                seen.append(f"{model.queued} queued, {model.executing} executing")

    viewers = [threading.Thread(target=look) for _ in range(2)]
    for viewer in viewers:
        viewer.start()
    futures = [server.submit("m", {"IN": ones(1 + n % 3)}) for n in range(600)]
    for future in futures:
        future.result(WAIT_S)
    stop.set()
    for viewer in viewers:
        viewer.join(WAIT_S)
    assert not seen, seen[0]
    counts = fields(server.statistics(), "m")
    assert counts["success"] == 600
    assert counts["inference_count"] == sum(1 + n % 3 for n in range(600))
    assert sum(size * n for size, n in counts["batches"].items()) == counts["inference_count"]


def test_the_status_has_what_a_model_counts_itself(server: Server):
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            kind = pb_utils.MetricFamily.COUNTER
            self.family = pb_utils.MetricFamily("seen_rows", "Rows seen", kind)
            own = {"model": args["model_name"], "version": args["model_version"]}
            self.seen = self.family.Metric(own)
            self.others = self.family.Metric({"model": "another"})

        def execute(self, requests):
            self.seen.increment(3 * len(requests))
            self.others.increment(1)
            tensors = [pb_utils.get_input_tensor_by_name(one, "IN") for one in requests]
            arrays = [pb_utils.Tensor("OUT", one.as_numpy()) for one in tensors]
            return [pb_utils.InferenceResponse([one]) for one in arrays]

    server.load(echo(), TritonPythonModel, name="counts")
    server.load(echo(), failing(), name="plain")
    server.infer("counts", {"IN": ones(1)})
    found = status(server).set_index("model")["metrics"]
    assert found.to_dict() == {"counts": "seen_rows 3", "plain": ""}
    assert "metrics" not in status(server, "plain")


def test_executions_that_failed_make_no_batch_smaller(server: Server):
    def model(IN):
        if IN[0, 0] == 1:
            raise ValueError("one")
        return {"OUT": IN}

    server.load(echo(), model, name="m")
    server.infer("m", {"IN": row(0, 0)})
    with pytest.raises(ModelError):
        server.infer("m", {"IN": row(1, 0)})
    assert status(server, "m").mean_batch_size.item() == 2
