"""From a configuration to the graph that is drawn."""

from __future__ import annotations

import pytest

from nbtriton.common.errors import NotFoundError
from nbtriton.drawing.dag import dag_scene, dag_text
from nbtriton.drawing.graph import folded
from nbtriton.drawing.layering import layout
from nbtriton.drawing.scene import to_svg
from nbtriton.model.config import as_config
from nbtriton.widgets.dag import server_graph
from nbtriton.widgets.graphs import graph_of, with_calls
from tests.widgets.samples import chain, ensemble, numbers

PREPROCESS = """
name: "image_preprocess_model" backend: "python" max_batch_size: 64
input [ { name: "IMAGE" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 1, 8, 8 ] } ]
instance_group [ { count: 2 kind: KIND_CPU }, { count: 1 kind: KIND_GPU gpus: [ 0, 1 ] } ]
dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 500 }
"""
CLASSIFY = """
name: "classification_model" backend: "pytorch" max_batch_size: 32
input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 1, 8, 8 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 10 ] } ]
"""
ENSEMBLE = """
name: "ensemble_model" platform: "ensemble" max_batch_size: 8
input [ { name: "IMAGE" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "CLASSIFICATION" data_type: TYPE_FP32 dims: [ 10 ] },
         { name: "SEGMENTATION" data_type: TYPE_FP32 dims: [ 8, 8 ] } ]
ensemble_scheduling { step [
  { model_name: "image_preprocess_model" model_version: -1
    input_map { key: "IMAGE" value: "IMAGE" }
    output_map { key: "OUTPUT" value: "preprocessed_image" } },
  { model_name: "classification_model" model_version: -1
    input_map { key: "INPUT__0" value: "preprocessed_image" }
    output_map { key: "OUTPUT__0" value: "CLASSIFICATION" } },
  { model_name: "segmentation_model" model_version: -1
    input_map { key: "INPUT__0" value: "preprocessed_image" }
    output_map { key: "OUTPUT__0" value: "SEGMENTATION" } } ] }
"""


def members():
    return {config.name: config for config in map(as_config, (PREPROCESS, CLASSIFY))}


def test_a_plain_model_is_one_node():
    graph = graph_of(as_config(PREPROCESS))
    (node,) = graph.nodes
    assert node.label == "image_preprocess_model"
    assert node.sublabel == "python · batch ≤ 64 · 2 \u00d7 CPU + 2 \u00d7 GPU"
    assert node.inputs == ("IMAGE BYTES[1]",)
    assert node.outputs == ("OUTPUT FP32[1,8,8]",)
    assert dict(node.details)["dynamic_batching"] == "delay 500 µs, preferred 8"
    assert not graph.edges


def test_the_ensemble_of_the_documentation():
    graph = graph_of(as_config(ENSEMBLE), members())
    assert [node.label for node in graph.nodes] == [
        "IMAGE",
        "image_preprocess_model",
        "classification_model",
        "segmentation_model",
        "CLASSIFICATION",
        "SEGMENTATION",
    ]
    labels = {(e.source, e.target): e.label for e in graph.edges}
    assert labels["step:0", "step:1"] == "preprocessed_image FP32[1,8,8]"
    assert labels["step:0", "step:2"] == "preprocessed_image FP32[1,8,8]"
    assert labels["input:IMAGE", "step:0"] == "IMAGE BYTES[1]"
    # The segmenter is not loaded: what is known of it is what the ensemble says.
    assert labels["step:2", "output:SEGMENTATION"] == "SEGMENTATION"
    assert graph.node("step:2").sublabel == "not loaded"
    assert "segmentation_model  not loaded" in dag_text(graph)
    assert layout(graph).boxes["step:1"].layer == 2


class Loaded:
    """What a view asks of a server about its models."""

    def __init__(self, *configs):
        self.configs = {config.name: config for config in configs}

    def config(self, name, version=-1):
        if name not in self.configs:
            raise NotFoundError(f"Request for unknown model: '{name}' is not found")
        return self.configs[name]

    def models(self):
        from tests.widgets.samples import model

        return tuple(model(name) for name in self.configs)


def test_the_graph_of_a_loaded_ensemble():
    server = Loaded(as_config(ENSEMBLE), *members().values())
    graph = server_graph(server, "ensemble_model")
    assert graph == graph_of(as_config(ENSEMBLE), members())


def test_a_nested_ensemble_is_opened_in_place():
    inner = ensemble("inner", ("b", "IN", "x"), ("c", "x", "OUT"))
    outer = ensemble("outer", ("a", "IN", "t"), ("inner", "t", "u"), ("d", "u", "OUT"))
    models = {name: numbers(name, ["IN"], ["OUT"]) for name in "abcd"}
    graph = graph_of(outer, {**models, "inner": inner})
    assert [(n.id, n.label, n.group) for n in graph.nodes if n.kind == "model"] == [
        ("step:0", "a", ""), ("step:1.0", "b", "inner"), ("step:1.1", "c", "inner"), ("step:2", "d", ""),
    ]  # fmt: skip
    assert [(e.source, e.target, e.label) for e in graph.edges] == [
        ("input:IN", "step:0", "IN FP32[16]"),
        ("step:0", "step:1.0", "t FP32[16]"),
        ("step:1.0", "step:1.1", "x FP32[16]"),
        ("step:1.1", "step:2", "OUT FP32[16]"),
        ("step:2", "output:OUT", "OUT FP32[16]"),
    ]
    assert {e.row_bytes for e in graph.edges} == {64.0}
    assert "inner (ensemble)" in to_svg(dag_scene(graph))
    assert "c  python · batch ≤ 8  in inner" in dag_text(graph)


def test_calls_are_dashed_and_a_circle_of_calls_ends():
    graph = graph_of(*chain(3))
    calls = {("stage_01", "scorer"): 12, ("scorer", "bert"): 40, ("stage_02", "stage_00"): 3}
    calls |= {("bert", "scorer"): 2}
    graph = with_calls(graph, calls, {"scorer": numbers("scorer", ["IN"], ["OUT"])})
    assert [(e.source, e.target, e.calls) for e in graph.edges if e.kind == "call"] == [
        ("step:1", "call:scorer", 12), ("step:2", "call:stage_00", 3), ("call:scorer", "call:bert", 40),
    ]  # fmt: skip
    assert graph.node("call:bert").sublabel == "not loaded"
    assert ("calls", "scorer, 2 \u00d7") in graph.node("call:bert").details
    assert "12 calls ╌▶ scorer" in dag_text(graph)


@pytest.mark.parametrize("length", [3, 12, 30])
@pytest.mark.parametrize("width", [540, 800, 1080])
def test_no_picture_is_wider_than_its_page(length, width):
    scene = dag_scene(graph_of(*chain(length)), width)
    attrs = dict(scene.attrs)
    assert attrs["width"] <= width
    # It is as large as it is drawn, whatever the page.
    assert attrs["style"].startswith("max-width:none")
    sizes = [dict(one.attrs).get("font-size", 11) for one in scene.walk() if one.tag == "text"]
    assert min(sizes) >= 11
    drawn = [dict(one.attrs).get("data-node", "") for one in scene.walk()]
    assert sum(name.startswith("step:") for name in drawn) == length


def test_a_long_chain_is_one_box_with_a_line_for_each_model():
    graph = folded(graph_of(*chain(12)))
    assert [node.kind for node in graph.nodes] == ["input", "chain", "output"]
    assert len(graph.node("chain:step:0").members) == 12
    assert graph.edges[0].target == "chain:step:0"
    assert folded(graph_of(*chain(6))) == graph_of(*chain(6))
