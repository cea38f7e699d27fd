"""Instances and versions that come and go while a model serves: both servers do the same (L16).

The models write down when an instance begins and ends. Each case is a script of loads by explicit
control, with traffic in between; after each load as many instances have begun and ended as the
rule says, and the statistics have gone on or begun again, on both sides.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nbtriton
from nbtriton.extensions.verify.reference import RunningServer
from nbtriton.model.config import as_config, format_pbtxt, to_reported_dict
from nbtriton.serving.clients.http import HttpClient
from tests.differential.harness import Model, write
from tests.differential.servers import COMPLETE, ISOLATION, noted
from tests.until import until

pytestmark = [pytest.mark.reference, pytest.mark.slow]
# tritonserver takes a second for every process of an instance: the rest is for the command.
full_run = pytest.mark.skipif(
    "NBTRITON_CASES" not in os.environ, reason="played by python -m tests.differential"
)

WAIT_S = 30.0
ONE = np.array([[1]], np.int32)
SOURCE = """
import json
import os
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        folder = os.path.dirname(os.path.dirname(os.path.abspath(args["model_repository"])))
        self.journal = os.path.join(folder, args["model_name"] + ".journal")
        self.version = args["model_version"]
        self.executed = 0
        if os.path.exists(os.path.join(folder, "full")):
            raise ValueError("no room")
        closed = os.path.join(folder, "closed")
        if os.path.exists(closed):
            self.note("wait")
        while os.path.exists(closed):
            time.sleep(0.002)
        self.note("begin")

    def note(self, what):
        with open(self.journal, "a") as journal:
            journal.write(what + " " + self.version + "\\n")

    def execute(self, requests):
        self.note("enter")
        answers = []
        for request in requests:
            asked = json.loads(request.parameters())
            time.sleep(asked.get("hold_ms", 0) / 1000)
            gate = asked.get("gate")
            while gate is not None and not os.path.exists(gate):
                time.sleep(0.002)
            self.executed += 1
            out = np.array([[self.executed]], np.int32)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        self.note("leave")
        return answers

    def finalize(self):
        self.note("end")
"""
TENSORS = {
    "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}],
}
PLAIN = {"backend": "python", "max_batch_size": 1, **TENSORS}
SEQUENCES = {**PLAIN, "sequence_batching": {"max_sequence_idle_microseconds": 60_000_000}}
ENSEMBLE = """
platform: "ensemble" max_batch_size: 1
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
ensemble_scheduling { step [ { model_name: "member" model_version: -1
  input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } ] }
"""
NAMES = ("member", "model", "policy", "sequences")


def pbtxt(config: dict[str, Any]) -> str:
    return format_pbtxt(as_config(json.dumps(config)))


def group(count: int, **more: Any) -> dict[str, Any]:
    return {"count": count, "kind": "KIND_CPU", **more}


def awaited(now: Callable[[], Any], expected: Any) -> Any:
    """Return the value once it is as expected, or the last one."""
    until(lambda: now() == expected, WAIT_S)
    return now()


class Side:
    """One of the two servers, over a repository of its own."""

    def __init__(self, url: str, folder: Path, server: RunningServer | None = None) -> None:
        self.client = HttpClient(url)
        self.folder = folder
        self._server = server

    def play(self, script: Callable[[Side], list[Any]]) -> list[Any]:
        with contextlib.nullcontext() if self._server is None else noted("real", self._server):
            return script(self)

    def load(self, name: str, *groups: dict[str, Any], base: Any = PLAIN, **more: Any) -> str:
        """Load a model by configuration; return the error, empty without one."""
        config = {**base, "instance_group": list(groups), **more}
        return self.load_as_it_is(name, {"config": json.dumps(config)})

    def load_as_it_is(self, name: str, parameters: dict[str, str] | None = None) -> str:
        try:
            self.client.load(name, parameters)
        except nbtriton.TritonError as error:
            return f"{error.status} {error.message}".replace(str(self.folder), "")
        return ""

    def unload(self, name: str) -> None:
        self.client.unload(name)

    def infer(self, name: str, *, version: int = -1, **parameters: Any) -> int:
        reply = self.client.infer(name, {"IN": ONE}, version=version, parameters=parameters)
        return int(reply.outputs["OUT"].item())

    def counted(self, name: str, expected: dict[str, int]) -> dict[str, int]:
        """Return the executions of each version in the statistics, which are written after answers."""

        def now() -> dict[str, int]:
            models = self.client.statistics(name)["model_stats"]
            return {model["version"]: model["execution_count"] for model in models}

        return awaited(now, expected)

    def journal(self, name: str) -> list[str]:
        path = self.folder / f"{name}.journal"
        return path.read_text().splitlines() if path.exists() else []

    def lives(self, name: str, begun: int, ended: int) -> dict[str, int]:
        """Return how many instances have begun and ended, once it is as expected."""

        def now() -> dict[str, int]:
            lines = [line.split()[0] for line in self.journal(name)]
            return {what: lines.count(what) for what in ("begin", "end")}

        return awaited(now, {"begin": begun, "end": ended})

    def together(self, name: str, *, since: int = 0) -> int:
        """Return the largest number of parallel executions since a line of the journal."""
        most = now = 0
        for line in self.journal(name)[since:]:
            now += {"enter": 1, "leave": -1}.get(line.split()[0], 0)
            most = max(most, now)
        return most

    def index(self, name: str) -> list[dict[str, str]]:
        """Return the entries of the repository's index for serving versions."""
        return [
            {**entry, "reason": entry.get("reason", "").replace(str(self.folder), "")}
            for entry in self.client.index()
            if entry["name"] == name and entry.get("state") == "READY"
        ]


@pytest.fixture(scope="module")
def sides(reference, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    folders = [tmp_path_factory.mktemp(side) for side in ("real", "ours")]
    for folder in folders:
        models = [Model(name, pbtxt(PLAIN), SOURCE, versions=(1, 2)) for name in NAMES]
        write(folder / "repository", [*models, Model("ensemble", ENSEMBLE)])
    flags = ("--model-control-mode=explicit", "--rate-limit=execution_count", COMPLETE)
    with contextlib.ExitStack() as stack:
        # tritonserver's python backend would write byte code beside a model.py that it reads first,
        # and then take the version's files for changed: let it find the code there.
        python = str(reference.directory / "venv" / "bin" / "python")
        subprocess.run([python, "-m", "compileall", "-q", str(folders[0])], check=True)
        real = stack.enter_context(
            reference.server(folders[0] / "repository", *flags, log=folders[0] / "log")
        )
        server = stack.enter_context(
            nbtriton.Server(gpus=(), rate_limit="execution_count", isolation=ISOLATION)
        )
        server.load_repository(folders[1] / "repository", control_mode="explicit")
        endpoints = stack.enter_context(server.serve(http_port=0, metrics_port=None))
        yield (
            Side(real.http_url, folders[0], real),
            Side(f"127.0.0.1:{endpoints.http_port}", folders[1]),
        )


def both(sides: tuple[Side, Side], script: Callable[[Side], list[Any]]) -> list[Any]:
    """Play a script to both; return what it saw on both."""
    theirs, mine = (side.play(script) for side in sides)
    for name in NAMES:
        for side in sides:
            side.unload(name)
            begun = sum(line.startswith("begin") for line in side.journal(name))
            side.lives(name, begun, begun)
            (side.folder / f"{name}.journal").unlink(missing_ok=True)
    assert mine == theirs
    return mine


def test_same_instances_and_state(sides: tuple[Side, Side]) -> None:
    def script(side: Side) -> list[Any]:
        seen: list[Any] = [side.load("model", group(1))]
        seen += [side.infer("model") for _ in range(3)]
        # A passive instance beside it, another name: the one that serves knows how far it was.
        passive = group(1, name="p", passive=True)
        for count, groups in ((4, [group(1), passive]), (5, [group(1, name="q")])):
            seen += [side.load("model", *groups), side.infer("model")]
            seen.append(side.counted("model", {"2": count}))
        seen.append(side.lives("model", 2, 1))
        for count, begun, ended, sent in ((3, 4, 1, 6), (1, 4, 3, 7), (2, 5, 3, 8)):
            seen += [side.load("model", group(count)), side.lives("model", begun, ended)]
            seen += [bool(side.infer("model")), side.counted("model", {"2": sent})]
        return seen

    seen = both(sides, script)
    assert seen[:4] == ["", 1, 2, 3]
    assert seen[5] == 4
    assert seen[8] == 5
    assert seen[10] == {"begin": 2, "end": 1}
    assert seen[-1] == {"2": 8}


@full_run
def test_same_settings_are_the_same_instances(sides: tuple[Side, Side]) -> None:
    changes = (
        (group(2, host_policy="fast"), 4, 2),
        (group(2, rate_limiter={"priority": 3}), 6, 4),
        ({"count": 2, "rate_limiter": {"priority": 3}}, 6, 4),  # the kind is what it was
        (group(0, rate_limiter={"priority": 3}), 6, 5),
    )

    def script(side: Side) -> list[Any]:
        seen: list[Any] = [side.load("model", group(2)), side.infer("model")]
        for one, begun, ended in changes:
            seen += [side.load("model", one), side.lives("model", begun, ended)]
            config = to_reported_dict(side.client.config("model"))
            seen += [side.counted("model", {"2": 1}), config["instance_group"]]
        return seen

    seen = both(sides, script)
    assert seen[3::4] == [{"begin": begun, "end": ended} for _, begun, ended in changes]


@full_run
def test_other_fields_are_a_reload(sides: tuple[Side, Side]) -> None:
    changes = (
        ({"max_batch_size": 2}, 2, 1),
        ({"max_batch_size": 2, "parameters": {"a": {"string_value": "b"}}}, 3, 2),
    )

    def script(side: Side) -> list[Any]:
        seen: list[Any] = [side.load("model", group(1)), side.infer("model")]
        for more, begun, ended in changes:
            seen += [side.load("model", group(1), **more), side.lives("model", begun, ended)]
            seen += [side.counted("model", {"2": 0}), side.infer("model")]
        return seen

    seen = both(sides, script)
    assert seen[4::4] == [{"2": 0}] * len(changes)


def test_a_failed_update_changes_nothing(sides: tuple[Side, Side]) -> None:
    def script(side: Side) -> list[Any]:
        seen: list[Any] = [side.load("model", group(1)), side.infer("model")]
        (side.folder / "full").touch()
        seen += [side.load("model", group(2)), side.index("model"), side.infer("model")]
        seen += [side.load("model", group(2, host_policy="fast")), side.infer("model")]
        (side.folder / "full").unlink()
        seen += [side.load("model", {"kind": "KIND_GPU"}), side.infer("model")]
        seen += [side.load("model", group(2)), side.counted("model", {"2": 4})]
        seen.append(side.index("model"))
        seen.append(side.lives("model", 2, 0))
        return seen

    seen = both(sides, script)
    assert seen[2].startswith(
        "INVALID_ARG load failed for model 'model': version 2 is at READY state: Internal: "
        "ValueError: no room"
    )
    assert "is at READY state: Invalid argument: instance group" in seen[7]
    assert [seen[at] for at in (1, 4, 6, 8)] == [1, 2, 3, 4]
    assert seen[3][0]["reason"].startswith("Internal: ValueError: no room\n\nAt:\n")
    assert seen[-1] == {"begin": 2, "end": 0}


def test_versions_go_on_too(sides: tuple[Side, Side]) -> None:
    changes = (
        # One more of version 2, both of version 1.
        ({"all": {}}, group(2), 4, 0, {"1": 0, "2": 1}),
        ({"specific": {"versions": [1]}}, group(1), 4, 3, {"1": 0}),
    )

    def script(side: Side) -> list[Any]:
        seen: list[Any] = [side.load("policy", group(1)), side.infer("policy")]
        for policy, one, begun, ended, counts in changes:
            seen.append(side.load("policy", one, version_policy=policy))
            seen += [side.lives("policy", begun, ended), side.counted("policy", counts)]
        none = {"specific": {"versions": [7]}}
        seen += [side.load("policy", group(3), version_policy=none), side.infer("policy")]
        return seen

    seen = both(sides, script)
    assert seen[3:-2:3] == [{"begin": begun, "end": ended} for _, _, begun, ended, _ in changes]
    assert seen[4] == {"1": 0, "2": 1}
    assert "at least one version must be available under the version policy" in seen[-2]


def test_a_model_without_versions_leaves_the_index(sides: tuple[Side, Side]) -> None:
    def script(side: Side) -> list[Any]:
        none = {"specific": {"versions": [7]}}
        seen: list[Any] = [side.load("member", group(1), version_policy=none)]
        seen.append([e for e in side.client.index() if e["name"] == "member"])
        return [*seen, side.load("member", group(1)), side.index("member")]

    seen = both(sides, script)
    assert "at least one version must be available" in seen[0]
    assert seen[1] == []
    assert seen[3] == [{"name": "member", "version": "2", "state": "READY", "reason": ""}]


def test_requests_in_flight_are_answered(sides: tuple[Side, Side]) -> None:
    def script(side: Side) -> list[Any]:
        seen: list[Any] = [side.load("model", group(3))]
        gate = side.folder / "gate"
        answers: list[int] = []

        def ask() -> None:
            answers.append(side.infer("model", gate=str(gate)))

        # The real server's load returns when the removed instances have ended.
        callers = [threading.Thread(target=ask) for _ in range(6)]
        change = threading.Thread(target=lambda: seen.append(side.load("model", group(1))))
        for thread in callers:
            thread.start()
        assert until(lambda: side.together("model") >= 3, WAIT_S)
        change.start()
        seen.append(side.lives("model", 3, 0))
        gate.touch()
        for thread in (*callers, change):
            thread.join(WAIT_S)
        gate.unlink()
        seen += [len(answers), side.lives("model", 3, 2), side.counted("model", {"2": 6})]
        return [seen[0], *sorted(map(str, seen[1:]))]

    seen = both(sides, script)
    assert "6" in seen
    assert "{'begin': 3, 'end': 2}" in seen


@full_run
def test_sequences_stay_where_they_are(sides: tuple[Side, Side]) -> None:
    def script(side: Side) -> list[Any]:
        def send(name: int, start: bool = False, end: bool = False) -> int:
            flags = {"sequence_start": start, "sequence_end": end}
            return side.infer("sequences", sequence_id=name, **flags)

        def load(count: int) -> str:
            return side.load("sequences", group(count), base=SEQUENCES)

        seen: list[Any] = [load(2), send(1, start=True), send(2, start=True), send(1)]
        seen += [load(1), send(1), send(2)]
        third = threading.Thread(target=lambda: seen.append(send(3, start=True) > 0))
        third.start()  # it waits for the slot of the instance that stays
        seen += [send(1, end=True), send(2, end=True)]
        third.join(WAIT_S)
        seen += [side.lives("sequences", 2, 1), load(3), side.lives("sequences", 4, 1)]
        # The new ones begin to count.
        seen += [send(4, start=True), send(5, start=True), side.counted("sequences", {"2": 10})]
        return sorted(map(str, seen))

    both(sides, script)


@full_run
def test_R3_resources_follow_the_instances(sides: tuple[Side, Side]) -> None:
    """Two instances need all of R each, until one that needs more makes the pool larger (R3)."""

    def needs(count: int) -> dict[str, Any]:
        return {"rate_limiter": {"resources": [{"name": "R", "count": count}]}}

    two, large = group(2, **needs(2)), group(1, name="large", **needs(4))

    def script(side: Side) -> list[Any]:
        seen: list[Any] = []
        for groups, begun, ended in (([two], 2, 0), ([two, large], 3, 0), ([two], 3, 1)):
            seen += [side.load("model", *groups), side.lives("model", begun, ended)]
            before = len(side.journal("model"))
            callers = [
                threading.Thread(target=side.infer, args=("model",), kwargs={"hold_ms": 150})
                for _ in range(6)
            ]
            for thread in callers:
                thread.start()
            for thread in callers:
                thread.join(WAIT_S)
            seen.append(side.together("model", since=before) > 1)
        return seen

    assert both(sides, script)[2::3] == [False, True, False]


@full_run
def test_ensembles_over_changed_models_begin_again(sides: tuple[Side, Side]) -> None:
    def script(side: Side) -> list[Any]:
        seen: list[Any] = [side.load("member", group(1)), side.load_as_it_is("ensemble")]
        seen += [side.infer("ensemble"), side.counted("ensemble", {"1": 1})]
        seen += [side.load("member", group(2)), side.lives("member", 2, 0)]
        seen += [side.counted("member", {"2": 1}), side.counted("ensemble", {"1": 0})]
        seen.append(bool(side.infer("ensemble")))
        side.unload("ensemble")
        return seen

    assert both(sides, script)[6:8] == [{"2": 1}, {"1": 0}]
