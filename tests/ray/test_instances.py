"""An instance in an actor of Ray does what one in a thread does: the tests of processes, elsewhere."""

from __future__ import annotations

import json

import numpy as np
import pytest

import nbtriton
from nbtriton.common.errors import TritonError
from nbtriton.extensions.ray import cluster
from nbtriton.lab.explain.timeline import read_timeline
from nbtriton.widgets.dag import DagView
from tests.until import until
from tests.workers.conftest import ARRAY, CONFIG, MODELS
from tests.workers.test_instances import *  # noqa: F403 - they are run again

pytestmark = pytest.mark.slow


def test_an_instance_that_has_ended_leaves_its_room_to_the_next(server):
    for number in range(2):  # the last free processor of the cluster
        server.load(
            CONFIG.format(name="brief", isolation="ray")
            + "instance_group { count: 1 kind: KIND_CPU }",
            model=MODELS / "probe" / "1" / "model.py",
        )
        result = server.infer("brief", {"IN": ARRAY}, parameters={"program": "double"})
        assert result["OUT"].tolist() == (ARRAY * 2).tolist(), number
        assert server.unload("brief", timeout_s=None)


def test_an_instance_that_ray_terminates_is_told_as_one_that_has_ended(server):
    """Ray's workers answer SIGTERM with SystemExit, in whatever the main thread does."""

    class Ended:
        def execute(self, requests: object) -> None:
            import os
            import signal
            import time

            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(600)

    server.load(
        CONFIG.format(name="ended", isolation="ray")
        + "parameters { key: 'INSTANCE_RESTARTS' value { string_value: 'number=0' } }",
        Ended,
    )
    with pytest.raises(TritonError, match="Stub process 'ended_0_0' is not healthy"):
        server.infer("ended", {"IN": ARRAY})
    assert server.unload("ended", timeout_s=None)


def test_a_node_with_room_has_more_time_to_start_an_instance(server, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(15)")
    monkeypatch.setattr(cluster, "_START_S", 12.0)
    environment = json.dumps({"env_vars": {"PYTHONPATH": str(tmp_path)}})
    server.load(
        CONFIG.format(name="slow_to_start", isolation="ray")
        + f"parameters {{ key: 'INSTANCE_RUNTIME_ENV' value {{ string_value: '{environment}' }} }}",
        model=MODELS / "probe" / "1" / "model.py",
    )
    result = server.infer("slow_to_start", {"IN": ARRAY}, parameters={"program": "double"})
    assert result["OUT"].tolist() == (ARRAY * 2).tolist()
    assert server.unload("slow_to_start", timeout_s=None)


def test_the_node_its_bytes_and_the_time_of_the_way_are_told(server):
    array = np.ones(50_000, np.float32)
    nbtriton.copies(server, clear=True)
    (before,) = (one for one in server.models() if one.name == "apart")
    for _ in range(30):
        server.infer("apart", {"IN": array}, parameters={"program": "double"})
    (after,) = (one for one in server.models() if one.name == "apart")
    old, new = before.instances[0].placement, after.instances[0].placement
    way = (new.sent_bytes - old.sent_bytes, new.received_bytes - old.received_bytes)
    assert all(30 * array.nbytes < sent < 31 * array.nbytes for sent in way)
    assert new.node.startswith("127.0.0.1 (node ")
    frame = nbtriton.status(server).set_index("model")["nodes"]
    assert f"1 \u00d7 {new.node}; " in frame["apart"]
    assert not frame["here"]
    graph = DagView.of(server, "apart").graph
    (node,) = (one for one in graph.nodes if one.label == "apart")
    assert dict(node.details)["nodes"].startswith(f"1 \u00d7 {new.node}; ")
    copies = nbtriton.copies(server).query("copies == 30")
    assert copies["bytes"].tolist() == [*way]
    assert [*zip(copies["source"], copies["target"], strict=True)] == [
        ("CPU", new.node),
        (new.node, "CPU"),
    ]
    assert {*copies["cause"]} == {f"'apart' runs on {new.node}"}
    (lanes,) = (one for one in read_timeline(server, "apart").models if one.name == "apart")
    assert lanes.lanes == (f"{new.node}: {lanes.instances[0]}",)
    assert lanes.bars[-1].lane == 0
    assert new.node in " ".join(nbtriton.why(server, "apart").findings)


def test_a_model_that_is_too_small_to_be_sent_away_is_told(server):
    config = CONFIG.format(name="small", isolation="ray")
    server.load(config, model=MODELS / "probe" / "1" / "model.py")

    def found() -> list[str]:
        server.infer("small", {"IN": np.ones(50_000, np.float32)}, parameters={"program": "double"})
        findings = nbtriton.doctor(server, "small").findings
        return [one.cause for one in findings if "elsewhere" in one.text]

    # The sums of all ways and executions are compared: one of these may take long on a busy machine.
    assert until(found)
    assert "too small to be sent away" in found()[0]
    assert server.unload("small", timeout_s=None)
