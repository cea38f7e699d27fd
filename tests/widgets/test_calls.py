"""``nt.status``, ``nt.dag`` and ``nt.watch``: what the magics show, by a call."""

from __future__ import annotations

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.lab.explain.timeline import read_newest_batches
from nbtriton.widgets.publisher import Hub
from nbtriton.widgets.watch import WatchView


def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803, UP037
    return {"OUT": IN * 2}


@pytest.fixture(scope="module")
def server():
    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8", model=double, name="double")
        server.load("", model=double, name="other")
        server.infer("double", {"IN": np.ones((3, 4), np.float32)})
        yield server


def test_status_is_a_frame(server):
    frame = nt.status(server)
    assert list(frame["model"]) == ["double", "other"]
    assert list(frame["inferences"]) == [3, 0]
    assert list(nt.status(server, "other")["model"]) == ["other"]


def test_the_status_has_the_order_of_pipelines_and_columns_that_do_not_depend_on_numbers():
    ends = 'input [ { name: "%s" data_type: TYPE_FP32 dims: [ 4 ] } ]'
    steps = "".join(
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "IN" value: "{takes}" }} '
        f'output_map {{ key: "OUT" value: "{gives}" }} }}'
        for model, takes, gives in (("z", "X", "y"), ("b", "y", "DONE"))
    )
    with nt.Server(gpus=()) as server:
        for name in ("a", "b", "z"):
            server.load("max_batch_size: 8", model=double, name=name)
        server.load(
            f'platform: "ensemble" max_batch_size: 8 {ends % "X"} {(ends % "DONE").replace("input", "output")} '
            f"ensemble_scheduling {{ {steps} }}",
            name="pipeline",
        )
        before = nt.status(server)
        assert list(before["model"]) == ["pipeline", "z", "b", "a"]
        heads = before._repr_html_().partition("<details")[0].count("<th ")
        for _ in range(3):
            server.infer("pipeline", {"X": np.ones((3, 4), np.float32)})
        after = nt.status(server)._repr_html_().partition("<details")[0]
        assert after.count("<th ") == heads
        assert "mean batch size" in after


def test_a_server_as_the_value_of_a_cell_shows_its_models(server):
    shown = server._repr_mimebundle_()
    for form in ("text/plain", "text/html"):
        for word in ("nbtriton.Server: 2 models", "double", "other", "READY"):
            assert word in shown[form], (form, word)
    with nt.Server(gpus=()) as empty:
        assert empty._repr_mimebundle_() == {"text/plain": "<nbtriton.Server: 0 models>"}


def test_a_graph_and_a_live_view(server):
    assert "double" in repr(nt.dag(server, "double"))
    watch = nt.watch(server, "double")
    watch.stop()


@pytest.mark.parametrize("call", [nt.dag, nt.timeline, nt.watch, nt.why])
def test_what_is_no_server_and_what_is_no_model_is_refused(server, call):
    with pytest.raises(nt.TritonError, match="unknown model: 'dubble'") as caught:
        call(server, "dubble")
    assert caught.value.hint == "did you mean 'double'?"
    with pytest.raises(nt.TritonError, match="must be a"):
        call(server, ["double"])
    with pytest.raises(nt.TritonError, match=r"server must be a server.*found 'double'"):
        call("double", "double")


def test_views_of_a_model_beside_an_ensemble_that_has_lost_a_step():
    """It is listed as unavailable, and has no configuration."""
    ends = 'input { name: "IN" data_type: TYPE_FP32 dims: 4 } output { name: "OUT" data_type: TYPE_FP32 dims: 4 }'
    step = 'step { model_name: "lost" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } }'  # fmt: skip
    with nt.Server(gpus=()) as server:
        for name in ("double", "lost"):
            server.load("max_batch_size: 8", model=double, name=name)
        server.load(
            f'platform: "ensemble" max_batch_size: 8 {ends} ensemble_scheduling {{ {step} }}',
            name="around",
        )
        server.infer("double", {"IN": np.ones((1, 4), np.float32)})
        server.unload("lost")
        assert nt.status(server)["state"][0].startswith("UNAVAILABLE")
        assert repr(nt.timeline(server, "double")).startswith("double: 1 batch")
        assert read_newest_batches(server, "double") is not None  # as a measurement does
        # "copy the configuration cell" of a view that lists it first
        view = WatchView(server, on_hub=Hub(threaded=False))
        assert view._configuration_cell(["around", "double"]).startswith("%%triton_config double")
        assert view._configuration_cell(["around"]) == ""
