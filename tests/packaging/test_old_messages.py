"""The oldest tritonclient that is allowed knows less of ModelConfig; everything else works with it."""

from __future__ import annotations

from google.protobuf import descriptor_pb2

from nbtriton.config import ModelConfig
from tests.children import run_python

# Fields that tritonclient 2.50 does not have, by message.
NEWER = {"ModelConfig": ["model_metrics"], "ModelEnsembling": ["max_inflight_requests"]}

# The messages that are registered first are those of the process.
PROGRAM = """
import sys
from google.protobuf import descriptor_pool

descriptor_pool.Default().AddSerializedFile(bytes.fromhex(sys.argv[1]))

import numpy as np
import nbtriton
from nbtriton.config import ModelConfig

assert "max_inflight_requests" not in ModelConfig().ensemble_scheduling.DESCRIPTOR.fields_by_name

def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    return {"OUT": IN * 2}

with nbtriton.Server(gpus=()) as server:
    server.load("max_batch_size: 8", double, name="double")
    server.load('''
        name: "both" platform: "ensemble" max_batch_size: 8
        input { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }
        output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
        ensemble_scheduling {
          step {
            model_name: "double" model_version: -1
            input_map { key: "IN" value: "IN" }
            output_map { key: "OUT" value: "OUT" }
          }
        }
    ''')
    assert server.infer("both", {"IN": np.ones((1, 4), np.float32)})["OUT"].tolist() == [[2] * 4]
print("served")
"""


def test_an_ensemble_with_the_messages_of_an_older_tritonclient() -> None:
    file = descriptor_pb2.FileDescriptorProto()
    ModelConfig.DESCRIPTOR.file.CopyToProto(file)
    for message in file.message_type:
        known = [f for f in message.field if f.name not in NEWER.get(message.name, ())]
        del message.field[:]
        message.field.extend(known)
    done = run_python("-c", PROGRAM, file.SerializeToString().hex())
    assert done.stdout == "served\n", done.stderr
