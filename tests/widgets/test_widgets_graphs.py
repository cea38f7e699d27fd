"""From a configuration to the graph that is drawn."""

from __future__ import annotations

from nbtriton.config import as_config
from nbtriton.drawing import dag_text, layout
from nbtriton.widgets import DagView, Hub, graph_of, server_graph

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

    def config(self, name):
        return self.configs[name]

    def models(self):
        from tests.widgets.samples import model

        return tuple(model(name) for name in self.configs)


def test_the_graph_of_a_loaded_ensemble():
    server = Loaded(as_config(ENSEMBLE), *members().values())
    graph = server_graph(server, "ensemble_model")
    assert graph == graph_of(as_config(ENSEMBLE), members())
    view = DagView.of(server, "ensemble_model", on_hub=Hub(threaded=False))
    assert [node["label"] for node in view.nodes if node["live"] >= 0] == [
        "image_preprocess_model",
        "classification_model",
        "segmentation_model",
    ]
