"""Configurations of the pipeline, with the published names of models and tensors."""

from __future__ import annotations

__all__ = ["configs"]

# Without it an input on a GPU is copied to the host for Python's steps.
ON_DEVICE = """parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value { string_value: "no" } }"""

PREPROCESS = """name: "preprocess"
backend: "python"
max_batch_size: {batch}
input {{ name: "INPUT0" data_type: TYPE_STRING dims: [ -1 ] }}
output [
  {{ name: "BERT_IDS" data_type: TYPE_INT32 dims: [ {tokens} ] }},
  {{ name: "BERT_AM" data_type: TYPE_INT32 dims: [ {tokens} ] }},
  {{ name: "TREE_FEATS" data_type: TYPE_FP32 dims: [ 207 ] }}
]
instance_group [ {{ kind: KIND_CPU }} ]
dynamic_batching {{ }}
{on_device}
"""

BERT = """name: "bert-large"
backend: "pytorch"
max_batch_size: {batch}
input [
  {{ name: "INPUT__0" data_type: TYPE_INT32 dims: [ {tokens} ] }},
  {{ name: "INPUT__1" data_type: TYPE_INT32 dims: [ {tokens} ] }}
]
output {{ name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 1 ] }}
instance_group [ {{ kind: KIND_CPU }} ]
dynamic_batching {{ }}
"""

# The forest's output has only the batch dimension; the reshape adds a dimension for a row.
FOREST = """name: "cuml"
backend: "fil"
max_batch_size: {batch}
input {{ name: "input__0" data_type: TYPE_FP32 dims: [ 207 ] }}
output {{ name: "output__0" data_type: TYPE_FP32 dims: [ 1 ] reshape {{ shape: [ ] }} }}
instance_group [ {{ kind: KIND_CPU }} ]
dynamic_batching {{ }}
parameters {{ key: "model_type" value {{ string_value: "treelite_checkpoint" }} }}
parameters {{ key: "output_class" value {{ string_value: "false" }} }}
"""

POSTPROCESS = """name: "postprocess"
backend: "python"
max_batch_size: {batch}
input [
  {{ name: "BERT_WEIGHT_INPUT" data_type: TYPE_FP32 dims: [ -1 ] }},
  {{ name: "BERT_LARGE_SCORE" data_type: TYPE_FP32 dims: [ 1 ] }},
  {{ name: "CUML_SCORE" data_type: TYPE_FP32 dims: [ 1 ] }}
]
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] }}
instance_group [ {{ kind: KIND_CPU }} ]
dynamic_batching {{ }}
{on_device}
"""

ENSEMBLE = """name: "ensemble_all"
platform: "ensemble"
max_batch_size: {batch}
input [
  {{ name: "excerpt" data_type: TYPE_STRING dims: [ -1 ] }},
  {{ name: "BERT_WEIGHT" data_type: TYPE_FP32 dims: [ -1 ] }}
]
output {{ name: "SCORE" data_type: TYPE_FP32 dims: [ 1 ] }}
ensemble_scheduling {{
  step [
    {{
      model_name: "preprocess"
      model_version: 1
      input_map {{ key: "INPUT0" value: "excerpt" }}
      output_map {{ key: "BERT_IDS" value: "bert_input_ids" }}
      output_map {{ key: "BERT_AM" value: "bert_attention_masks" }}
      output_map {{ key: "TREE_FEATS" value: "tree_feats" }}
    }},
    {{
      model_name: "bert-large"
      model_version: 1
      input_map {{ key: "INPUT__0" value: "bert_input_ids" }}
      input_map {{ key: "INPUT__1" value: "bert_attention_masks" }}
      output_map {{ key: "OUTPUT__0" value: "bert_large_score" }}
    }},
    {{
      model_name: "cuml"
      model_version: 1
      input_map {{ key: "input__0" value: "tree_feats" }}
      output_map {{ key: "output__0" value: "cuml_score" }}
    }},
    {{
      model_name: "postprocess"
      model_version: 1
      input_map {{ key: "BERT_WEIGHT_INPUT" value: "BERT_WEIGHT" }}
      input_map {{ key: "BERT_LARGE_SCORE" value: "bert_large_score" }}
      input_map {{ key: "CUML_SCORE" value: "cuml_score" }}
      output_map {{ key: "OUTPUT0" value: "SCORE" }}
    }}
  ]
}}
"""


def configs(tokens: int, max_batch_size: int) -> dict[str, str]:
    """Return the text of each model's ``config.pbtxt``, the ensemble last.

    Parameters
    ----------
    tokens : int
        Tokens of each excerpt.
    max_batch_size : int
        Excerpts of a request.
    """
    texts = {
        "preprocess": PREPROCESS,
        "bert-large": BERT,
        "cuml": FOREST,
        "postprocess": POSTPROCESS,
        "ensemble_all": ENSEMBLE,
    }
    return {
        name: text.format(tokens=tokens, batch=max_batch_size, on_device=ON_DEVICE)
        for name, text in texts.items()
    }
