"""Update of a serving model's instances without a reload (L16, T6, W6)."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from nbtriton.common.errors import ConfigError, LoadError
from nbtriton.model.config import InstancePlan
from nbtriton.runtime.engine import Server
from nbtriton.runtime.engine.core.instance_set import match_instances
from tests.engine.sequence_models import accumulator
from tests.engine.sequence_models import config as sequences
from tests.engine.support import WAIT_S, Gate, echo, ensemble_text, fields, ones, row
from tests.until import until

ONE = np.ones((1, 1), np.float32)


def count(number: int, rest: str = "") -> str:
    return echo(f"instance_group {{ count: {number} kind: KIND_CPU {rest} }}")


class Journal:
    """The events of a model's instances: begin, execute, end."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.may_begin = True
        self._news = threading.Condition()

    def record(self, line: str) -> None:
        with self._news:
            self.lines.append(line)
            self._news.notify_all()

    def of(self, what: str) -> list[str]:
        return [line.split()[1] for line in self.lines if line.startswith(what)]

    def wait_for_ends(self, number: int) -> list[str]:
        with self._news:
            assert self._news.wait_for(lambda: len(self.of("end")) >= number, WAIT_S)
        return sorted(self.of("end"))

    def model(self, gate: Gate | None = None) -> type:
        journal = self

        class TritonPythonModel:
            def initialize(self, args):
                self.name = args["model_instance_name"]
                if not journal.may_begin:
                    raise ValueError("not now")
                self.executed = 0
                journal.record(f"begin {self.name}")

            def execute(self, requests):
                import triton_python_backend_utils as pb_utils

                if gate is not None:
                    gate.stand([request.request_id() for request in requests])
                self.executed += 1
                journal.record(f"execute {self.name}")
                rows = [r.inputs()[0].as_numpy() for r in requests]
                return [
                    pb_utils.InferenceResponse(
                        [pb_utils.Tensor("OUT", np.full_like(value, self.executed))]
                    )
                    for value in rows
                ]

            def finalize(self):
                journal.record(f"end {self.name}")

        return TritonPythonModel


@pytest.fixture
def journal() -> Journal:
    return Journal()


def executed(server: Server) -> float:
    """Send one request; return how many its instance has executed by then."""
    return float(server.infer("m", {"IN": ones()})["OUT"][0, 0])


def instances(server: Server, name: str = "m") -> list[str]:
    (model,) = (model for model in server.models() if model.name == name)
    return sorted(instance.name for instance in model.instances)


# -- what stays, what comes, what goes -----------------------------------------------------------


def test_L16_only_the_missing_instances_are_made(server: Server, journal: Journal):
    server.load(count(1), journal.model(), name="m")
    assert [executed(server) for _ in range(3)] == [1, 2, 3]
    server.load(count(3), name="m")
    assert sorted(journal.of("begin")) == ["m_0_0", "m_0_1", "m_0_2"]
    assert journal.of("end") == []
    assert instances(server) == ["m_0_0", "m_0_1", "m_0_2"]
    assert server.config("m").instance_group[0].count == 3
    executed(server)
    assert fields(server.statistics(), "m")["success"] == 4


def test_L16_surplus_instances_are_removed_and_the_last_one_stays(server: Server, journal: Journal):
    server.load(count(3), journal.model(), name="m")
    server.load(count(1), name="m")
    assert journal.wait_for_ends(2) == ["m_0_0", "m_0_1"]
    assert instances(server) == ["m_0_2"]
    assert [executed(server) for _ in range(2)] == [1, 2]
    server.load(count(2), name="m")
    server.load(count(1), name="m")
    assert len(journal.of("begin")) == 4
    assert journal.wait_for_ends(3) == ["m_0_0", "m_0_1", "m_0_2"]
    assert instances(server) == ["m_0_1"]


def test_L16_requests_in_flight_finish_on_their_instance(
    server: Server, journal: Journal, gate: Gate
):
    server.load(count(3), journal.model(gate), name="m")
    flying = [server.submit("m", {"IN": ones()}) for _ in range(3)]
    gate.wait_entered(3)
    waiting = [server.submit("m", {"IN": ones()}) for _ in range(3)]
    server.load(count(1), name="m")
    assert journal.of("end") == []  # neither waits for the other
    gate.open()
    for future in (*flying, *waiting):
        future.result(WAIT_S)
    assert journal.wait_for_ends(2) == ["m_0_0", "m_0_1"]
    assert journal.of("execute").count("m_0_2") == 4
    assert fields(server.statistics(), "m")["success"] == 6


def test_L16_instances_with_changed_group_settings_are_replaced(server: Server, journal: Journal):
    server.load(count(2), journal.model(), name="m")
    server.load(count(2, 'name: "other"'), name="m")  # a name is no setting
    assert instances(server) == ["m_0_0", "m_0_1"]
    server.load(count(2, 'host_policy: "fast"'), name="m")
    assert journal.wait_for_ends(2) == ["m_0_0", "m_0_1"]
    assert len(journal.of("begin")) == 4
    assert [executed(server) for _ in range(4)] == [1, 1, 2, 2]  # idle instances take turns


def test_L16_P7_passive_instances_come_and_go(server: Server, journal: Journal):
    server.load(count(1), journal.model(), name="m")
    passive = 'instance_group { count: 2 name: "p" kind: KIND_CPU passive: true }'
    server.load(count(1) + passive, name="m")
    first, *others = journal.of("begin")
    assert (first, sorted(others)) == ("m_0_0", ["p_0", "p_1"])
    assert [executed(server) for _ in range(4)] == [1, 2, 3, 4]
    server.load(count(1), name="m")
    assert journal.wait_for_ends(2) == ["p_0", "p_1"]
    assert executed(server) == 5


def test_W6_only_new_instances_warm_up(server: Server, journal: Journal):
    warmup = (
        'model_warmup { name: "w" batch_size: 2 inputs { key: "IN" '
        "value { data_type: TYPE_FP32 dims: 4 zero_data: true } } }"
    )
    server.load(count(1) + warmup, journal.model(), name="m")
    server.load(count(3) + warmup, name="m")
    assert sorted(journal.of("execute")) == ["m_0_0", "m_0_1", "m_0_2"]
    assert fields(server.statistics(), "m")["inference_count"] == 6


def test_instances_have_names_of_their_own():
    """Triton would call two of them m_0_2."""

    def plan(name: str, settings: bytes = b"", device: int = 0) -> InstancePlan:
        return InstancePlan(name, "KIND_CPU", device, "cpu", False, settings=settings)

    three = [plan(f"m_0_{number}") for number in range(3)]
    added, removed = match_instances({5: plan("m_0_2")}, three)
    assert ([p.name for p in added], removed) == (["m_0_1", "m_0_0"], [])
    # A name is unique on its device; a removed instance releases it.
    added, removed = match_instances(
        {1: plan("m_0_0", b"old")}, [plan("m_0_0", b"new"), plan("m_0_0", b"new", device=1)]
    )
    assert ([(p.name, p.device_id) for p in added], removed) == (
        [("m_0_0", 0), ("m_0_0", 1)],
        [1],
    )


# -- what is no light update ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        count(2) + "dynamic_batching { }",
        count(2).replace("max_batch_size: 8", "max_batch_size: 4"),
        count(2) + 'parameters { key: "a" value { string_value: "b" } }',
    ],
)
def test_L15_another_field_makes_it_a_reload(server: Server, journal: Journal, other: str):
    server.load(count(1), journal.model(), name="m")
    executed(server)
    server.load(other, name="m")
    assert journal.wait_for_ends(1) == ["m_0_0"]
    assert len(journal.of("begin")) == 3
    assert fields(server.statistics(), "m")["success"] == 0


def test_the_configuration_that_the_server_returns_can_be_loaded(server: Server, journal: Journal):
    """It is completed: more than the user wrote, and the same model."""

    def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803, UP037
        return {"OUT": IN * 2}

    server.load("max_batch_size: 8", double, name="f")
    server.infer("f", {"IN": ones()})
    config = server.config("f")
    config.instance_group[0].count = 3
    server.load(config, name="f")
    assert len(instances(server, "f")) == 3
    assert fields(server.statistics(), "f")["success"] == 1
    server.load("max_batch_size: 8", name="f")
    assert len(instances(server, "f")) == 1
    assert fields(server.statistics(), "f")["success"] == 1


def test_the_same_object_goes_on_another_one_does_not(server: Server, journal: Journal):
    model = journal.model()
    server.load(count(1), model, name="m")
    executed(server)
    server.load(count(2), model, name="m")
    assert fields(server.statistics(), "m")["success"] == 1
    server.load(count(2), model, name="m")  # nothing is different: who says so wants it anew
    assert fields(server.statistics(), "m")["success"] == 0
    executed(server)
    server.load(count(1), journal.model(), name="m")
    assert fields(server.statistics(), "m")["success"] == 0


@pytest.mark.medium
def test_a_file_that_was_written_to_is_read_again(server: Server, tmp_path: Path):
    source = (
        "import triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        return [pb_utils.InferenceResponse([pb_utils.Tensor("
        "'OUT', r.inputs()[0].as_numpy() + 1)]) for r in requests]\n"
    )
    path = tmp_path / "model.py"
    path.write_text(source)
    server.load(count(1), path, name="m")
    assert executed(server) == 2
    server.load(count(2), name="m")
    assert fields(server.statistics(), "m")["success"] == 1
    path.write_text(source.replace("+ 1", "+ 7"))
    stamp = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(stamp, stamp))
    server.load(count(3), name="m")
    assert executed(server) == 8
    assert fields(server.statistics(), "m")["success"] == 1


# -- failures --------------------------------------------------------------------------------------


def test_L16_a_new_instance_that_fails_changes_nothing(server: Server, journal: Journal):
    server.load(count(1), journal.model(), name="m")
    executed(server)
    journal.may_begin = False
    with pytest.raises(LoadError) as caught:
        server.load(count(3), name="m")
    assert caught.value.message.startswith(
        "load failed for model 'm': version 1 is at READY state: Internal: ValueError: not now\n\n"
        "At:\n  "
    )
    assert (instances(server), server.config("m").instance_group[0].count) == (["m_0_0"], 1)
    with pytest.raises(LoadError):
        server.load(count(1, 'host_policy: "fast"'), name="m")
    assert executed(server) == 2
    assert journal.of("end") == []
    journal.may_begin = True
    server.load(count(2), name="m")
    assert instances(server) == ["m_0_0", "m_0_1"]


def test_L16_of_several_new_instances_all_go_if_one_fails(server: Server):
    lines: list[str] = []
    first = threading.Barrier(2, timeout=WAIT_S)

    class TritonPythonModel:
        def initialize(self, args):
            self.name = args["model_instance_name"]
            if self.name != "m_0_0":
                first.wait()
            if self.name == "m_0_2":
                raise ValueError("the third one fails")
            lines.append(f"begin {self.name}")

        def execute(self, requests):
            return []

        def finalize(self):
            lines.append(f"end {self.name}")

    server.load(count(1), TritonPythonModel, name="m")
    with pytest.raises(LoadError, match="the third one fails"):
        server.load(count(3), name="m")
    assert lines == ["begin m_0_0", "begin m_0_1", "end m_0_1"]


def test_a_group_that_cannot_be_changes_nothing(server: Server, journal: Journal):
    server.load(count(1), journal.model(), name="m")
    with pytest.raises(ConfigError, match="has kind KIND_GPU but no GPUs are available") as caught:
        server.load(echo("instance_group { kind: KIND_GPU }"), name="m")
    assert caught.value.field == "instance_group[0].kind"
    assert executed(server) == 1


def test_L2_a_policy_that_leaves_no_version_changes_nothing(server: Server, journal: Journal):
    server.load(count(1), journal.model(), name="m")
    with pytest.raises(ConfigError, match="at least one version must be available"):
        server.load(count(3) + "version_policy { specific { versions: 7 } }", name="m")
    assert (instances(server), journal.wait_for_ends(2)) == (["m_0_0"], ["m_0_1", "m_0_2"])
    assert executed(server) == 1


# -- with the rest of the engine -----------------------------------------------------------------


def test_L16_L17_a_new_version_policy_alone_is_an_update_too(server: Server, journal: Journal):
    all_of_them = "version_policy { all { } }"
    for version in (1, 2):
        server.load(count(1) + all_of_them, journal.model(), name="m", version=version)
    executed(server)
    server.load(count(1) + "version_policy { latest { num_versions: 1 } }", name="m")
    assert [model.version for model in server.models()] == [2]
    assert fields(server.statistics(), "m", 2)["success"] == 1
    assert server.config("m").version_policy.latest.num_versions == 1
    assert executed(server) == 2


def times(factor: float):
    def execute(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803, UP037
        return {"OUT": IN * factor}

    return execute


def versions_of(server: Server) -> dict[int, tuple[int, float]]:
    """Return the instances of each version, and the sum that it makes of four ones."""
    return {
        model.version: (
            len(model.instances),
            float(server.infer("m", {"IN": ones()}, version=model.version)["OUT"].sum()),
        )
        for model in server.models()
    }


def test_L16_L17_a_configuration_without_code_is_that_of_all_versions(server: Server):
    all_of_them = "version_policy { all { } }"
    for version in (1, 2, 3):
        source = times(version)
        server.load(count(1) + all_of_them, source, name="m", version=version)
    assert versions_of(server) == {1: (1, 4.0), 2: (1, 8.0), 3: (1, 12.0)}
    server.load(count(2) + all_of_them, name="m")  # other instances alone: each goes on
    assert versions_of(server) == {1: (2, 4.0), 2: (2, 8.0), 3: (2, 12.0)}
    assert [fields(server.statistics(), "m", v)["success"] for v in (1, 2, 3)] == [2, 2, 2]
    server.load(echo(all_of_them, max_batch_size=4), name="m")
    assert versions_of(server) == {1: (1, 4.0), 2: (1, 8.0), 3: (1, 12.0)}
    assert [server.config("m", v).max_batch_size for v in (1, 2, 3)] == [4, 4, 4]
    for wanted, left in (("latest { num_versions: 2 }", {2, 3}), ("specific { versions: 2 }", {2})):
        server.load(echo(f"version_policy {{ {wanted} }}"), name="m")
        assert set(versions_of(server)) == left
    assert versions_of(server) == {2: (1, 8.0)}


def test_L2_a_policy_without_versions_leaves_all_of_them(server: Server):
    for version in (1, 2):
        server.load(echo("version_policy { all { } }"), times(version), name="m", version=version)
    with pytest.raises(ConfigError, match="at least one version must be available"):
        server.load(echo("version_policy { specific { versions: 7 } }"), name="m")
    assert versions_of(server) == {1: (1, 4.0), 2: (1, 8.0)}


def test_of_versions_of_which_one_fails_none_is_replaced(server: Server, journal: Journal):
    every = "version_policy { all { } }"
    server.load(echo(every), times(1), name="m", version=1)
    server.load(echo(every), journal.model(), name="m", version=2)
    journal.may_begin = False
    with pytest.raises(LoadError, match="not now"):
        server.load(echo(every, max_batch_size=4), name="m")
    assert versions_of(server) == {1: (1, 4.0), 2: (1, 4.0)}
    assert [server.config("m", v).max_batch_size for v in (1, 2)] == [8, 8]


def test_L16_the_limiter_follows_added_and_removed_instances(journal: Journal):
    need = "rate_limiter { resources { name: 'R' count: 3 } }"
    with Server(gpus=(), rate_limit="execution_count") as server:
        gate = Gate()
        server.load(count(2, need), journal.model(gate), name="m")
        flying = [server.submit("m", {"IN": ones(8)}) for _ in range(4)]
        gate.wait_entered()
        assert server.engine.lifecycle.builder.limiter.resources() == {("r", 0): (3, 3)}
        server.load(count(2, need.replace("3", "6")), name="m")  # two others, of a larger pool
        assert server.engine.lifecycle.builder.limiter.resources() == {
            ("r", 0): (6, 6)
        }  # room for both of the old
        gate.open()
        for future in flying:
            future.result(WAIT_S)
        assert journal.wait_for_ends(2) == ["m_0_0", "m_0_1"]
        server.infer("m", {"IN": ones()})
        server.load(count(1), name="m")
        journal.wait_for_ends(4)
        server.infer("m", {"IN": ones()})
        assert server.engine.lifecycle.builder.limiter.resources() == {}


def test_R4_a_limit_that_is_too_small_refuses_the_update(journal: Journal):
    need = "rate_limiter { resources { name: 'R' count: 2 } }"
    with Server(gpus=(), rate_limit="execution_count", rate_limit_resources=["R:2"]) as server:
        server.load(count(1, need), journal.model(), name="m")
        with pytest.raises(LoadError, match='Resource count for "R" is limited to 2'):
            server.load(count(2, need.replace("2", "3")), name="m")
        assert journal.wait_for_ends(2) == ["m_0_0", "m_0_1"]
        assert [executed(server) for _ in range(2)] == [1, 2]
        limiter = server.engine.lifecycle.builder.limiter
        # A request is answered before its instance releases them.
        assert until(lambda: limiter.resources() == {("r", 0): (0, 2)})


@pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 1 }"])
def test_L16_sequences_stay_with_their_instance_and_state(server: Server, strategy: str):
    states = (
        strategy
        + 'state { input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_FP32 dims: 1 }'
    )

    def loaded(number: int) -> str:
        group = f"instance_group {{ count: {number} kind: KIND_CPU }}"
        return sequences(states, max_batch_size=1, rest=group)

    def send(name: int, start: bool = False, end: bool = False):
        return server.submit(
            "s", {"IN": ONE}, sequence_id=name, sequence_start=start, sequence_end=end
        )

    def total(future) -> float:
        return float(future.result(WAIT_S)["OUT"][0, 0])

    server.load(loaded(2), accumulator(), name="s")
    assert [total(send(name, start=True)) for name in (1, 2)] == [1, 1]
    server.load(loaded(1), name="s")
    assert [total(send(name)) for name in (1, 2)] == [2, 2]
    third = send(3, start=True)  # only the instance that stays has a slot for it
    assert [total(send(name, end=True)) for name in (1, 2)] == [3, 3]
    assert total(third) == 1
    server.load(loaded(3), name="s")
    assert [total(send(name, start=True)) for name in (4, 5)] == [1, 1]
    assert total(send(3, end=True)) == 2
    assert fields(server.statistics(), "s")["success"] == 10


def test_an_ensemble_goes_on_over_a_model_that_is_updated(server: Server, journal: Journal):
    server.load(count(1), journal.model(), name="m")
    server.load(
        ensemble_text(
            ("m", {"IN": "X"}, {"OUT": "Y"}), inputs={"X": "FP32[4]"}, outputs={"Y": "FP32[4]"}
        ),
        name="e",
    )
    assert server.infer("e", {"X": ones()})["Y"][0, 0] == 1
    server.load(count(2), name="m")
    server.load(count(1), name="m")
    server.infer("e", {"X": ones()})
    assert fields(server.statistics(), "e")["success"] == 2


def test_unload_and_close_wait_for_removed_instances(server: Server, journal: Journal, gate: Gate):
    server.load(count(2), journal.model(gate), name="m")
    flying = [server.submit("m", {"IN": ones()}) for _ in range(2)]
    gate.wait_entered(2)
    server.load(count(1), name="m")
    assert server.unload("m") is False
    gate.open()
    for future in flying:
        future.result(WAIT_S)
    server.close(timeout_s=WAIT_S)
    assert sorted(journal.of("end")) == ["m_0_0", "m_0_1"]


@pytest.mark.medium
def test_requests_never_fail_while_instances_come_and_go(server: Server, journal: Journal):
    config = count(1) + "dynamic_batching { }"
    server.load(config, journal.model(), name="m")
    stop = threading.Event()
    wrong: list[object] = []
    served = [0] * 4

    def ask(worker: int) -> None:
        while not stop.is_set():
            try:
                if worker % 2:
                    server.infer("m", {"IN": row(5)})
                else:
                    server.submit("m", {"IN": row(5)}).result(WAIT_S)
            except Exception as error:
                wrong.append(error)
            served[worker] += 1

    workers = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    assert until(lambda: all(served))
    for number in range(60):
        server.load(config.replace("count: 1", f"count: {1 + number % 4}"), name="m")
    stop.set()
    for worker in workers:
        worker.join(WAIT_S)
    assert not wrong, wrong[0]
    statistics = fields(server.statistics(), "m")
    assert (statistics["success"], statistics["fail"]) == (sum(served), 0)
    server.close(timeout_s=WAIT_S)
    assert len(journal.of("begin")) == len(journal.of("end")) > 40


def test_an_instance_joined_by_its_own_thread_still_runs(server: Server):
    # One removed instance, at the end of its last batch, may be the thread that removes another.
    found: list[bool] = []

    class TritonPythonModel:
        def execute(self, requests):
            import triton_python_backend_utils as pb_utils

            runtime = server.engine.registry.resolve("m")
            found.append(runtime._instances.active[0].join(0))
            return [pb_utils.InferenceResponse([]) for _ in requests]

    server.load(count(1), TritonPythonModel, name="m")
    server.submit("m", {"IN": ones()}).result(WAIT_S)
    assert found == [False]
