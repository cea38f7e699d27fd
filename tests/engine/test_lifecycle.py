"""Load, replace, unload, close: accepted requests are answered, unloaded models leave nothing behind."""

# ruff: noqa: N803 - a model function names its tensors
from __future__ import annotations

import contextlib
import gc
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from nbtriton.common.errors import (
    ConfigError,
    ConfigWarning,
    EngineStoppedError,
    InvalidArgumentError,
    LoadError,
    NotFoundError,
    UnavailableError,
)
from nbtriton.runtime.engine import InferenceResult, Server
from nbtriton.runtime.engine.core.ensemble_runtime import EnsembleRuntime
from nbtriton.runtime.engine.core.model_runtime import ModelRuntime
from nbtriton.runtime.engine.core.request import RequestOwner, ResponseSink
from nbtriton.runtime.engine.core.runtime import Runtime
from tests.engine.support import (
    WAIT_S,
    Gate,
    echo,
    ensemble_text,
    fields,
    gated,
    ones,
    row,
    waited,
)
from tests.until import until

FP32 = "FP32[4]"


def plus(amount: float):
    return lambda IN: {"OUT": IN + amount}


def counted(log: list[str], amount: float = 0, *, gate: Gate | None = None) -> type:
    """A model that records when it begins and ends, and adds `amount`."""
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            log.append(f"begin {args['model_instance_name']}")
            self.name = args["model_instance_name"]

        def execute(self, requests):
            if gate is not None:
                gate.stand([request.request_id() for request in requests])
            log.append(f"execute {len(requests)}")
            return [
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("OUT", r.inputs()[0].as_numpy() + amount)]
                )
                for r in requests
            ]

        def finalize(self):
            log.append(f"end {self.name}")

    return TritonPythonModel


# -- load errors -------------------------------------------------------------------------------------


class NoInitialize:
    """Its constructor is fine, its initialize is not."""

    def initialize(self, args):
        raise RuntimeError("no weights here")

    def execute(self, requests):
        return []


def test_V93_a_load_error_has_tritons_text_and_the_models_line(server: Server):
    with pytest.raises(LoadError) as caught:
        server.load(echo(), NoInitialize, name="m")
    error = caught.value
    assert error.message.startswith(
        "load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: "
        "RuntimeError: no weights here\n\nAt:\n  "
    )
    assert __file__ in error.message
    assert "): initialize\n" in error.message
    assert 'raise RuntimeError("no weights here")' in error.user_traceback
    assert "nbtriton/backends" not in error.user_traceback
    assert server.engine.inspection.model_names() == ()


def test_a_failed_load_leaves_what_was_loaded_serving(server: Server, gate: Gate):
    server.load(echo(), gated(gate), name="m")
    flying = server.submit("m", {"IN": row(7)})
    gate.wait_entered()
    for config, model in (
        (echo(), NoInitialize),
        ("max_batch_size: -1", plus(1)),
        (echo("dynamic_batching { preferred_batch_size: 99 }"), plus(1)),
    ):
        with pytest.raises(InvalidArgumentError):
            server.load(config, model, name="m")
    gate.open()
    assert flying.result(WAIT_S)["OUT"][0, 0] == 7
    assert server.infer("m", {"IN": row(3)})["OUT"][0, 0] == 3
    assert fields(server.statistics(), "m")["success"] == 2


def test_one_failing_instance_ends_the_others(server: Server):
    log: list[str] = []
    barrier = threading.Barrier(2, timeout=WAIT_S)

    class TritonPythonModel:
        def initialize(self, args):
            barrier.wait()
            self.name = args["model_instance_name"]
            if self.name.endswith("1"):
                raise ValueError("the second one fails")
            log.append("begin")

        def execute(self, requests):
            return []

        def finalize(self):
            log.append("end")

    config = echo("instance_group { count: 2 kind: KIND_CPU }")
    with pytest.raises(LoadError, match="the second one fails"):
        server.load(config, TritonPythonModel, name="m")
    assert log == ["begin", "end"]
    assert not [t.name for t in threading.enumerate() if t.name.startswith("nbtriton-m")]


def test_a_name_is_needed_and_must_agree(server: Server):
    with pytest.raises(ConfigError, match="must specify 'name'"):
        server.load(echo(), plus(1))
    with pytest.raises(ConfigError, match="unexpected name 'a' in the configuration of model 'b'"):
        server.load(f'name: "a" {echo()}', plus(1), name="b")
    with pytest.raises(InvalidArgumentError, match="no code for model 'm'"):
        server.load(echo(), name="m")


# -- replace -----------------------------------------------------------------------------------------


def test_L15_replace_under_64_in_flight(server: Server, gate: Gate):
    """Each request is answered once; the old version ends after its last one, never before."""
    log: list[str] = []
    config = echo("dynamic_batching {}")
    server.load(config, counted(log, 0, gate=gate), name="m")
    answers: list[int] = []
    old = [server.submit("m", {"IN": row(n)}) for n in range(64)]
    for number, future in enumerate(old):
        future.add_done_callback(lambda _, n=number: answers.append(n))
    gate.wait_entered()
    server.load(config, counted(log, 1000), name="m")
    new = [server.submit("m", {"IN": row(n)}) for n in range(64)]
    assert [float(f.result(WAIT_S)["OUT"][0, 0]) for f in new] == [1000 + n for n in range(64)]
    assert not any(future.done() for future in old), "the old version is still at its gate"
    assert "end m_0" not in log
    gate.open()
    assert [float(f.result(WAIT_S)["OUT"][0, 0]) for f in old] == list(range(64))
    server.close(timeout_s=WAIT_S)
    assert sorted(answers) == list(range(64))
    assert log.count("begin m_0") == log.count("end m_0") == 2
    first_end = log.index("end m_0")
    assert sum(int(e.split()[1]) for e in log[:first_end] if e.startswith("execute")) == 128


@pytest.mark.medium
def test_requests_never_fail_while_a_model_is_replaced_again_and_again(server: Server):
    config = echo("dynamic_batching {}")
    server.load(config, plus(0), name="m")
    stop = threading.Event()
    wrong: list[object] = []
    served = [0] * 4

    def ask(worker: int) -> None:
        while not stop.is_set():
            try:
                if worker % 2:
                    out = server.infer("m", {"IN": row(5)})["OUT"]
                else:
                    out = server.submit("m", {"IN": row(5)}).result(WAIT_S)["OUT"]
                if out[0, 0] < 5:
                    wrong.append(out)
            except Exception as error:
                wrong.append(error)
            served[worker] += 1

    workers = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    assert until(lambda: all(served))
    for number in range(40):
        server.load(config, plus(number), name="m")
    stop.set()
    for worker in workers:
        worker.join(WAIT_S)
    assert not wrong, wrong[0]


def test_loading_without_code_keeps_the_code(server: Server):
    server.load(echo(), plus(7), name="m")
    server.load(echo("dynamic_batching {}"), name="m")
    assert server.infer("m", {"IN": row(0)})["OUT"][0, 0] == 7
    assert server.config("m").HasField("dynamic_batching")
    server.load(model=plus(8), name="m")  # and the other way round
    assert server.infer("m", {"IN": row(0)})["OUT"][0, 0] == 8
    assert server.config("m").HasField("dynamic_batching")


@pytest.mark.medium
def test_a_replaced_model_is_forgotten(server: Server):
    class TritonPythonModel:
        def initialize(self, args):
            seen.append(weakref.ref(self))

        def execute(self, requests):
            return []

    seen: list[weakref.ref] = []
    server.load(echo(), TritonPythonModel, name="m")
    server.load(echo(), plus(1), name="m")
    server.unload("m", timeout_s=WAIT_S)
    server.close(timeout_s=WAIT_S)
    gc.collect()
    assert seen[0]() is None


# -- versions ----------------------------------------------------------------------------------------


def versions(server: Server, name: str = "m") -> list[int]:
    return [model.version for model in server.models() if model.name == name]


def test_L2_the_default_policy_keeps_the_latest(server: Server):
    log: list[str] = []
    server.load(echo(), counted(log), name="m", version=1)
    server.load(echo(), counted(log), name="m", version=2)
    assert versions(server) == [2]
    with pytest.raises(UnavailableError, match="'m' version 1 is not at ready state"):
        server.infer("m", {"IN": ones()}, version=1)


def test_L2_a_version_that_the_policy_excludes_is_not_found(server: Server):
    log: list[str] = []
    server.load(echo(), counted(log), name="m", version=2)
    server.load(echo(), counted(log), name="m", version=1)
    assert versions(server) == [2]
    with pytest.raises(NotFoundError, match="'m' version 1 is not found"):
        server.infer("m", {"IN": ones()}, version=1)
    server.load(echo("version_policy { all {} }"), counted(log), name="m", version=1)
    server.load(echo(), counted(log), name="m", version=1)
    assert versions(server) == [2]
    with pytest.raises(UnavailableError, match="'m' version 1 is not at ready state"):
        server.infer("m", {"IN": ones()}, version=1)
    server.load(echo(), counted(log), name="m", version=1)  # as it did serve once
    with pytest.raises(UnavailableError, match="'m' version 1 is not at ready state"):
        server.infer("m", {"IN": ones()}, version=1)


def test_L2_all_and_specific(server: Server):
    for version in (1, 3, 2):
        server.load(echo("version_policy { all {} }"), plus(version), name="m", version=version)
    assert versions(server) == [1, 2, 3]
    assert server.infer("m", {"IN": row(0)})["OUT"][0, 0] == 3
    for version in (1, 2, 3):
        assert server.infer("m", {"IN": row(0)}, version=version)["OUT"][0, 0] == version
    server.load(
        echo("version_policy { specific { versions: [ 1, 3 ] } }"), plus(30), name="m", version=3
    )
    assert versions(server) == [1, 3]
    assert server.infer("m", {"IN": row(0)})["OUT"][0, 0] == 30


def test_L2_a_policy_that_leaves_nothing_is_refused(server: Server):
    with pytest.raises(ConfigError) as caught:
        server.load(
            echo("version_policy { specific { versions: 7 } }"), plus(1), name="m", version=1
        )
    assert caught.value.message == (
        "at least one version must be available under the version policy of model 'm'"
    )
    assert server.engine.inspection.model_names() == ()


def test_L17_a_version_beyond_the_policy_finishes_its_requests(server: Server, gate: Gate):
    server.load(echo(), gated(gate), name="m", version=1)
    flying = server.submit("m", {"IN": row(4)})
    gate.wait_entered()
    server.load(echo(), plus(1), name="m", version=2)
    gate.open()
    assert flying.result(WAIT_S)["OUT"][0, 0] == 4
    assert flying.result().model_version == 1


# -- unload, close -----------------------------------------------------------------------------------


def test_L18_unload_refuses_at_once_and_finishes_accepted_requests(server: Server, gate: Gate):
    log: list[str] = []
    server.load(echo("dynamic_batching {}"), counted(log, gate=gate), name="m")
    futures = [server.submit("m", {"IN": row(n)}) for n in range(20)]
    gate.wait_entered()
    assert server.unload("m") is False  # not unloaded yet
    with pytest.raises(NotFoundError, match="'m' has no available versions"):
        server.submit("m", {"IN": ones()})
    assert not server.is_ready("m")
    gate.open()
    assert [float(f.result(WAIT_S)["OUT"][0, 0]) for f in futures] == list(range(20))
    assert server.unload("m") is True  # unknown by now, which is no error


def test_unload_waits_for_its_timeout(server: Server):
    log: list[str] = []
    server.load(echo("instance_group { count: 3 kind: KIND_CPU }"), counted(log), name="m")
    server.infer("m", {"IN": ones()})
    assert server.unload("m", timeout_s=WAIT_S) is True
    assert sorted(entry for entry in log if entry.startswith("end")) == [
        "end m_0_0" if "begin m_0_0" in log else "end m_0",
        "end m_0_1" if "begin m_0_1" in log else "end m_1",
        "end m_0_2" if "begin m_0_2" in log else "end m_2",
    ]


def test_P7_a_passive_instance_is_loaded_and_never_scheduled(server: Server):
    log: list[str] = []
    groups = (
        "instance_group [ { name: 'at_work' kind: KIND_CPU }, "
        "{ name: 'spare' kind: KIND_CPU passive: true } ]"
    )
    server.load(echo(groups), counted(log), name="m")
    assert {"begin at_work_0", "begin spare_0"} <= set(log)
    for _ in range(4):
        server.infer("m", {"IN": ones()})
    (model,) = server.models()
    assert {one.name: one.executions for one in model.instances} == {"at_work_0": 4, "spare_0": 0}
    assert server.unload("m", timeout_s=WAIT_S)
    assert {"end at_work_0", "end spare_0"} <= set(log)


def test_close_answers_everything_that_waits(gate: Gate):
    server = Server(gpus=())
    log: list[str] = []
    server.load(echo("dynamic_batching {}"), counted(log, gate=gate), name="m")
    running = server.submit("m", {"IN": ones(8)})
    gate.wait_entered()
    waiting = [server.submit("m", {"IN": ones(8)}) for _ in range(50)]
    closer = threading.Thread(target=server.close, kwargs={"timeout_s": WAIT_S})
    closer.start()
    for future in waiting:  # while the running one stands at its gate
        error = future.exception(WAIT_S)
        assert isinstance(error, EngineStoppedError)
        assert error.status == "UNAVAILABLE"
    gate.open()
    closer.join(WAIT_S)
    assert running.result(WAIT_S)["OUT"].shape == (8, 4)
    assert log[-1] == "end m_0"
    server.close()


def test_close_answers_the_requests_of_ensembles(gate: Gate):
    server = Server(gpus=())
    server.load(echo(), gated(gate), name="slow")
    server.load(
        ensemble_text(
            ("slow", {"IN": "X"}, {"OUT": "m"}),
            ("slow", {"IN": "m"}, {"OUT": "Y"}),
            inputs={"X": FP32},
            outputs={"Y": FP32},
        ),
        name="e",
    )
    futures = [server.submit("e", {"X": ones()}) for _ in range(5)]
    gate.wait_entered()
    closer = threading.Thread(target=server.close, kwargs={"timeout_s": WAIT_S})
    closer.start()
    for future in futures[1:]:
        assert isinstance(future.exception(WAIT_S), EngineStoppedError)
    gate.open()
    closer.join(WAIT_S)
    assert isinstance(futures[0].exception(WAIT_S), EngineStoppedError)  # its second step


def test_close_answers_requests_in_their_queue_delay():
    server = Server(gpus=())
    server.load(
        echo("dynamic_batching { max_queue_delay_microseconds: 3600000000 }"), plus(1), name="m"
    )
    future = server.submit("m", {"IN": ones()})
    server.close()
    assert isinstance(future.exception(0), EngineStoppedError)


def test_a_server_is_a_context_manager_and_leaves_no_thread():
    before = set(threading.enumerate())
    with Server(gpus=()) as server:
        server.load(
            echo(
                "dynamic_batching { max_queue_delay_microseconds: 1000 } "
                "instance_group { count: 3 kind: KIND_CPU }"
            ),
            plus(1),
            name="m",
        )
        server.infer("m", {"IN": ones()})
        assert len(set(threading.enumerate()) - before) == 4  # 3 instances and the scheduler
        server.close(timeout_s=WAIT_S)
    assert set(threading.enumerate()) <= before
    assert "closed" in repr(server)
    server.close()


def test_two_servers_are_independent():
    with Server(gpus=()) as one, Server(gpus=()) as two:
        one.load(echo(), plus(1), name="m")
        two.load(echo(), plus(2), name="m")
        two.load(
            ensemble_text(
                ("m", {"IN": "X"}, {"OUT": "Y"}), inputs={"X": FP32}, outputs={"Y": FP32}
            ),
            name="e",
        )
        assert one.infer("m", {"IN": row(0)})["OUT"][0, 0] == 1
        assert two.infer("e", {"X": row(0)})["Y"][0, 0] == 2
        with pytest.raises(NotFoundError):
            one.infer("e", {"X": row(0)})
        one.close()
        assert two.infer("m", {"IN": row(0)})["OUT"][0, 0] == 2


# -- warmup ------------------------------------------------------------------------------------------


def warm(sample: str, more: str = "") -> str:
    return echo(f'model_warmup {{ name: "w" {sample} }} {more}')


ZERO = 'inputs { key: "IN" value { data_type: TYPE_FP32 dims: 4 zero_data: true } }'


def watching(seen: list) -> type:
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            seen.append(
                (threading.current_thread().name, [r.inputs()[0].as_numpy() for r in requests])
            )
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())])
                for r in requests
            ]

    return TritonPythonModel


def test_W1_W2_samples_run_on_every_instance_before_it_is_ready(server: Server):
    seen: list = []
    server.load(
        warm(f"batch_size: 3 count: 2 {ZERO}", "instance_group { count: 2 kind: KIND_CPU }"),
        watching(seen),
        name="m",
    )
    assert len(seen) == 4  # 2 instances, twice each
    assert len({thread for thread, _ in seen}) == 2
    for _, values in seen:
        # Separate requests of one item each, in one execution.
        assert [value.shape for value in values] == [(1, 4)] * 3
        assert not any(value.any() for value in values)
    # W5: Triton counts them.
    counts = fields(server.statistics(), "m")
    assert (counts["inference_count"], counts["execution_count"]) == (12, 4)
    assert counts["batches"] == {3: 4}


def test_W5_samples_count_in_the_summaries():
    """As seen on the server."""
    with Server(gpus=(), summaries=True) as server:
        server.load(warm(f"batch_size: 2 count: 3 {ZERO}"), watching([]), name="m")
        server.infer("m", {"IN": ones()})
        found = server.engine.inspection.summaries("m", 1)
        assert found is not None
        for stage in ("request", "queue", "compute_input", "compute_infer", "compute_output"):
            assert found.of[stage].count == 7


def test_W2_a_sample_of_no_items_is_skipped(server: Server):
    seen: list = []
    server.load(warm(f"batch_size: 0 {ZERO}"), watching(seen), name="m")
    assert seen == []


def test_W3_random_data_is_of_the_inputs_type(server: Server):
    seen: list = []
    server.load(
        warm('batch_size: 1 inputs { key: "IN" value { data_type: TYPE_FP32 dims: 4 '
             "random_data: true } }"),
        watching(seen),
        name="m",
    )  # fmt: skip
    ((_, (value,)),) = seen
    assert value.dtype == np.float32
    assert value.shape == (1, 4)


def test_W4_a_failing_sample_fails_the_load(server: Server):
    def model(IN):
        raise ValueError("cold")

    with pytest.raises(LoadError) as caught:
        server.load(warm(f"batch_size: 1 {ZERO}"), model, name="m")
    assert "state: Invalid argument: failed to run warmup sample 'w': " in caught.value.message
    assert "ValueError: cold" in caught.value.message
    assert not server.is_ready("m")
    assert not [t.name for t in threading.enumerate() if t.name.startswith("nbtriton-m")]


@pytest.mark.parametrize(("limit", "size"), [(2, 3), (0, 2)])
def test_W4b_a_sample_that_no_batch_holds_fails_the_load(server: Server, limit: int, size: int):
    config = warm(f"batch_size: {size} {ZERO}").replace("size: 8", f"size: {limit}")
    seen: list = []
    with pytest.raises(LoadError) as caught:
        server.load(config, watching(seen), name="m")
    refused = f"batch size {size} for 'm_0', max allowed is {limit}; "
    assert f"failed to run warmup sample 'w': {refused * size}" in caught.value.message
    assert seen == []


DECOUPLED = "model_transaction_policy { decoupled: true }"


def streaming_later(seen: list, error: str = "") -> type:
    """Answers from threads of its own, after `execute` has returned."""
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            returned = threading.Event()
            for request in requests:
                threading.Thread(target=self.play, args=(request, returned)).start()
            returned.set()

        def play(self, request, returned):
            waited(returned)
            sender = request.get_response_sender()
            value = request.inputs()[0].as_numpy()
            for _ in range(2):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value)]))
            if error:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(error)))
            seen.append(value.shape)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    return TritonPythonModel


def test_W1_a_decoupled_model_is_ready_when_it_has_answered(server: Server, caplog):
    caplog.set_level("DEBUG", "nbtriton.warmup")
    seen: list = []
    config = warm(f"batch_size: 2 count: 2 {ZERO}", DECOUPLED)
    server.load(config, streaming_later(seen), name="m")
    assert seen == [(1, 4)] * 4
    running = "model 'm' instance m_0 is running warmup sample 'w' for iteration"
    assert caplog.messages == [f"{running} 1", f"{running} 2"]
    counts = fields(server.statistics(), "m")
    assert (counts["inference_count"], counts["batches"]) == (4, {2: 2})
    responses = [r["OUT"].shape for r in server.stream("m", {"IN": ones()}) if "OUT" in r]
    assert responses == [(1, 4)] * 2
    server.unload("m")  # nothing of the warmup is waited for
    assert server.engine.inspection.model_names() == ()


def test_W4_an_error_in_a_stream_fails_the_load(server: Server, caplog):
    caplog.set_level("DEBUG", "nbtriton.warmup")
    config = warm(f"batch_size: 1 {ZERO}", DECOUPLED)
    with pytest.raises(LoadError) as caught:
        server.load(config, streaming_later([], "planned"), name="m")
    assert "Invalid argument: failed to run warmup sample 'w': planned; ;" in caught.value.message
    assert caplog.messages[-1] == "model 'm' instance m_0 failed to run warmup sample 'w'"


def other(name: str) -> str:
    return f'inputs {{ key: "{name}" value {{ data_type: TYPE_INT32 dims: 1 zero_data: true }} }}'


def test_W3_a_sample_may_have_control_inputs(server: Server):
    control = (
        'sequence_batching { control_input { name: "START" control '
        "{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } }"
    )
    seen: list = []
    config = warm(f"batch_size: 1 {ZERO} {other('START')}", control)
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            seen.extend({t.name(): t.as_numpy().shape for t in r.inputs()} for r in requests)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", ones())]) for _ in requests]

    server.load(config, TritonPythonModel, name="m")
    assert seen == [{"IN": (1, 4), "START": (1, 1)}]


def test_W4_an_unknown_input_is_none_and_all_samples_are_read_first(server: Server):
    """Seen on the server: it counts the inputs that the model has."""
    seen: list = []
    config = warm(f"batch_size: 1 {ZERO}") + (
        f'model_warmup {{ name: "second" batch_size: 1 {other("NOPE")} }}'
    )
    with pytest.raises(LoadError) as caught:
        server.load(config, watching(seen), name="m")
    assert (
        "Invalid argument: [request id: <id_unknown>] expected 1 inputs but got 0 inputs for model "
        "'m'. Got input(s) [], but missing required input(s) ['IN']." in caught.value.message
    )
    assert seen == []


def test_a_handle_is_the_model_by_name(server: Server):
    handle = server.load(echo(), plus(1), name="m")
    assert handle(IN=row(1))["OUT"][0, 0] == 2
    server.load(echo(), plus(5), name="m")
    assert handle(IN=row(1))["OUT"][0, 0] == 6
    assert repr(handle).startswith("<model 'm': IN -> OUT | python, max_batch_size 8")
    handle.unload()
    assert repr(handle) == "<model 'm': not ready>"
    with pytest.raises(NotFoundError):
        handle(IN=row(1))


def test_an_idle_server_wakes_no_thread(server: Server):
    """No thread of an idle server runs: all of them wait for an event."""
    finished = threading.Event()
    server.load(echo(), plus(1), name="m")
    server.submit("m", {"IN": ones()}).add_done_callback(lambda _: finished.set())
    waited(finished)
    assert "nbtriton-scheduler" not in [thread.name for thread in threading.enumerate()]


def test_a_server_describes_its_models(server: Server):
    model = plus(1)
    server.load(echo("version_policy { all {} }"), model, name="m", version=3)
    server.load(echo("version_policy { all {} }"), model, name="m", version=5)
    assert server.metadata("m") == {
        "name": "m",
        "versions": ["3", "5"],
        "platform": "python",
        "inputs": [{"name": "IN", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "OUT", "datatype": "FP32", "shape": [-1, 4]}],
    }
    assert server.engine.inspection.source("m") is model
    assert server.engine.inspection.model_names() == ("m",)
    # A copy: changing it changes nothing.
    server.config("m").max_batch_size = 99
    assert server.config("m").max_batch_size == 8
    assert [group.name for group in server.config("m").instance_group] == ["m"]
    # As it was given, before it was completed.
    assert not server.engine.inspection.user_config("m").instance_group
    assert not server.engine.inspection.is_decoupled("m")


@pytest.mark.medium
def test_W3_data_from_a_file_of_the_models_own(server: Server, tmp_path):
    code = (
        "import numpy as np\n"
        "import triton_python_backend_utils as pb_utils\n"
        "seen = []\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        value = [r.inputs()[0].as_numpy().copy() for r in requests]\n"
        "        seen.extend(value)\n"
        "        first = np.full((len(value[0]), 4), seen[0][0, 1], np.float32)\n"
        "        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', first)])]\n"
    )
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "warmup").mkdir()
    (tmp_path / "m" / "1" / "model.py").write_text(code)
    (tmp_path / "m" / "warmup" / "data").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    sample = 'batch_size: 1 inputs { key: "IN" value { data_type: TYPE_FP32 dims: 4 %s } }'
    source = tmp_path / "m" / "1" / "model.py"
    server.load(warm(sample % 'input_data_file: "data"'), source, name="m")
    assert server.infer("m", {"IN": row(9)})["OUT"][0, 0] == 1  # from the file
    (tmp_path / "m" / "warmup" / "data").write_bytes(b"short")
    with pytest.raises(
        LoadError, match="16 bytes, but the data provided from dataonly has 5 bytes"
    ):
        server.load(warm(sample % 'input_data_file: "data"'), source, name="m")
    with pytest.raises(LoadError, match=r"failed to open text file for read .*absent"):
        server.load(warm(sample % 'input_data_file: "absent"'), source, name="m")
    assert server.is_ready("m")


def test_ignored_settings_get_a_warning_at_every_load_and_at_no_request(server: Server):
    text = echo("instance_group { host_policy: 'p' } response_cache { enable: true }")
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            server.load(text, counted([]), name="m")
        assert [str(one.message).split(" has no effect here: ")[0] for one in caught] == [
            "model 'm': instance_group[0].host_policy",
            "model 'm': response_cache",
        ]
        assert {one.category for one in caught} == {ConfigWarning}
        assert {one.filename for one in caught} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        server.infer("m", {"IN": ones()})
    assert list(server.ignored("m")) == ["instance_group[0].host_policy", "response_cache"]
    (shown,) = server.models()
    assert shown.ignored == ("instance_group[0].host_policy", "response_cache")


def test_the_first_tensor_of_a_name_counts(server: Server):
    tensor = '{ name: "%s" data_type: %s dims: %d }'
    ins = [tensor % ("IN", "TYPE_FP32", 4), tensor % ("IN", "TYPE_INT32", 2)]
    outs = [tensor % ("OUT", "TYPE_FP32", 4), tensor % ("OUT", "TYPE_FP32", 1)]
    text = " ".join(
        [
            "max_batch_size: 8",
            *(f"input {one}" for one in ins),
            *(f"output {one}" for one in outs),
        ]
    )
    server.load(text, plus(1), name="m")
    assert server.infer("m", {"IN": row(1)})["OUT"][0, 0] == 2
    metadata = server.metadata("m")
    assert [(one["datatype"], one["shape"]) for one in metadata["inputs"]] == [
        ("FP32", [-1, 4]), ("INT32", [-1, 2]),
    ]  # fmt: skip
    assert [one["shape"] for one in metadata["outputs"]] == [[-1, 4], [-1, 1]]


def test_labels_without_a_model_directory_get_a_warning(server: Server, tmp_path: Path):
    text = """
        input { name: "IN" data_type: TYPE_FP32 dims: 4 }
        output { name: "OUT" data_type: TYPE_FP32 dims: 4 label_filename: "labels.txt" }
    """
    with pytest.warns(ConfigWarning, match=r"output\[0\].label_filename has no effect here"):
        server.load(text, counted([]), name="m")
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text(
        "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
    )
    (tmp_path / "labels.txt").write_text("a")
    server.load(text, tmp_path / "1" / "model.py", name="m")
    assert not server.ignored("m")


@pytest.mark.parametrize("source", ["class", "function"])
def test_a_batch_input_is_of_no_effect_for_a_class_alone(server: Server, source: str):
    text = echo("""batch_input { kind: BATCH_ELEMENT_COUNT target_name: "N" data_type: TYPE_FP32
        source_input: "IN" }""")
    model = counted([]) if source == "class" else lambda IN, N: {"OUT": IN}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server.load(text, model, name="m")
    assert list(server.ignored("m")) == (["batch_input[0]"] if source == "class" else [])


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("X", ""),
        (
            "START",
            (
                "sequence_batching { control_input "
                '{ name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } } }'
            ),
        ),
    ],
)
def test_a_sample_may_name_an_unknown_input(server: Server, name: str, more: str):
    """Such as a control; tritonserver was seen to hand it to the model on top of the inputs."""
    seen: list[list[tuple[str, list[int]]]] = []
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            seen.extend([(t.name(), t.shape()) for t in r.inputs()] for r in requests)
            out = np.zeros((1, 4), np.float32)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]) for _ in requests]

    extra = f'inputs {{ key: "{name}" value {{ data_type: TYPE_FP32 dims: 1 zero_data: true }} }}'
    server.load(warm(f"batch_size: 1 {ZERO} {extra}", more), TritonPythonModel, name="m")
    assert [sorted(one) for one in seen] == [[("IN", [1, 4]), (name, [1, 1])]]


def test_a_sample_without_a_needed_input_is_refused_in_tritons_words(server: Server):
    sample = (
        'batch_size: 1 inputs { key: "X" value { data_type: TYPE_FP32 dims: 1 zero_data: true } }'
    )
    with pytest.raises(LoadError, match="expected 1 inputs but got 0 inputs for model 'm'"):
        server.load(warm(sample), watching([]), name="m")


class Slow:
    """A model that stands at its gate while it is created."""

    gate: Gate

    def initialize(self, args):
        self.gate.stand([])

    def execute(self, requests):
        raise AssertionError("never asked")


@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
def test_L18_an_unload_ends_the_loads_that_have_begun(server: Server, gate: Gate, again: bool):
    """In Triton's words for a load that another call was faster than."""
    if again:
        server.load(echo(), plus(1), name="m")
    model = type("Model", (Slow,), {"gate": gate})
    raised: list[Exception] = []

    def load():
        try:
            server.load(echo(), model, name="m")
        except LoadError as error:
            raised.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    gate.wait_entered()
    server.unload("m")
    gate.open()
    thread.join(WAIT_S)
    assert "Newer operation has been applied to the model lifecycle" in str(raised[0])
    assert not server.is_ready("m")
    assert server.engine.registry.absent["m"] == {1: "unloaded"}
    server.load(echo(), plus(1), name="m")
    assert server.infer("m", {"IN": row(3)})["OUT"][0, 0] == 4


def test_options_bring_no_model_back_that_was_unloaded_meanwhile(server: Server, gate: Gate):
    first = Gate(is_open=True)
    model = type("Model", (Slow,), {"gate": first})
    server.load(echo(), model, name="m")
    server.load(echo(), plus(1), name="n")
    model.gate = gate
    changed: list[tuple[str, ...]] = []
    thread = threading.Thread(target=lambda: changed.append(server.set_options(cache_bytes=1000)))
    thread.start()
    gate.wait_entered()
    server.unload("m")
    server.load(echo(), plus(2), name="n")
    gate.open()
    thread.join(WAIT_S)
    assert [model.name for model in server.models()] == ["n"]
    assert server.infer("n", {"IN": row(3)})["OUT"][0, 0] == 5
    assert "m" not in changed[0]


class Opened:
    """A model of which the next instance waits for the test, once it is told so."""

    def __init__(self, *, waits: bool = False) -> None:
        self.gate = Gate()
        self.waits = waits

    def model(self) -> type:
        opened = self

        class Model:
            def initialize(self, args):
                if opened.waits:
                    opened.waits = False
                    opened.gate.stand([])

            def execute(self, requests):
                return []

        return Model


@contextlib.contextmanager
def options_changing(server: Server, opened: Opened) -> Iterator[list[object]]:
    """Change the options in a thread, which waits for the model until the block ends; yields what came of it."""
    found: list[object] = []

    def change() -> None:
        try:
            found.append(server.set_options(cache_bytes=1000))
        except LoadError as error:
            found.append(error)

    opened.waits = True
    thread = threading.Thread(target=change)
    thread.start()
    opened.gate.wait_entered()
    yield found
    opened.gate.open()
    thread.join(WAIT_S)


def test_options_are_changed_by_one_caller_at_a_time(server: Server):
    opened = Opened()
    server.load(echo(), opened.model(), name="m")
    with (
        options_changing(server, opened) as found,
        pytest.raises(UnavailableError, match="being changed by another caller"),
    ):
        server.set_options(cache_bytes=2000)
    assert found == [("m",)]
    assert server.options.cache_bytes == 1000


def test_an_update_while_the_options_change_is_not_lost(server: Server):
    opened = Opened()
    server.load(echo(), opened.model(), name="m")
    with options_changing(server, opened) as found:
        server.load(echo("instance_group { count: 2 kind: KIND_CPU }"), name="m")
    assert "Newer operation" in str(found[0])
    assert server.options.cache_bytes is None
    assert len(server.models()[0].instances) == 2


def test_a_load_that_began_before_the_options_changed_is_refused(server: Server):
    opened = Opened(waits=True)
    found: list[object] = []

    def load() -> None:
        try:
            server.load(echo(), opened.model(), name="m")
        except LoadError as error:
            found.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    opened.gate.wait_entered()
    server.set_options(cache_bytes=1000)
    opened.gate.open()
    thread.join(WAIT_S)
    assert "Newer operation" in str(found[0])
    assert not server.models()


def test_a_version_is_of_its_own_classes_alone(server: Server):
    """In compiled code, too, and whatever was asked before (rule 3 of docs/compiled.md)."""
    server.load(echo(), gated(Gate(is_open=True)), name="m")
    steps = ensemble_text(
        ("m", {"IN": "X"}, {"OUT": "Y"}), inputs={"X": "FP32[4]"}, outputs={"Y": "FP32[4]"}
    )
    server.load(steps, name="e")
    model, ensemble = (server.engine.inspection.signature(name)._runtime for name in ("m", "e"))
    for _ in range(2):
        for kind in (Runtime, RequestOwner):
            assert isinstance(model, kind)
            assert isinstance(ensemble, kind)
        assert not isinstance(model, EnsembleRuntime | ResponseSink)
        assert not isinstance(ensemble, ModelRuntime | ResponseSink)


def test_a_result_is_no_other_mapping():
    """In compiled code, too, where the answer was kept for all mappings."""

    class Own(dict):
        pass

    assert not isinstance(Own(), InferenceResult)
    assert isinstance(Own(), Mapping)
    assert not isinstance(Own(), InferenceResult)
