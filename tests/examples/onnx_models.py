"""The example models as ONNX files, built from nothing but their signatures.

Each function returns the bytes of a ``model.onnx`` for the model of a name.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.examples.repository import weights

__all__ = ["add_sub", "classifier", "sequence"]

_OPSET = 17
# The newest that every ONNX Runtime with that opset reads.
_IR = 8


def add_sub(name: str) -> bytes:
    """Build sums and differences of 16 numbers; they are computed as INT32."""
    element = {"simple_int8": TensorProto.INT8, "simple_string": TensorProto.STRING}.get(
        name, TensorProto.INT32
    )
    nodes = [
        *(helper.make_node("Cast", [f"INPUT{i}"], [f"in{i}"], to=TensorProto.INT32) for i in (0, 1)),
        helper.make_node("Add", ["in0", "in1"], ["sum"]),
        helper.make_node("Sub", ["in0", "in1"], ["difference"]),
        helper.make_node("Cast", ["sum"], ["OUTPUT0"], to=element),
        helper.make_node("Cast", ["difference"], ["OUTPUT1"], to=element),
    ]  # fmt: skip
    tensors = {
        kind: [
            helper.make_tensor_value_info(f"{kind}{index}", element, ["batch", 16])
            for index in (0, 1)
        ]
        for kind in ("INPUT", "OUTPUT")
    }
    return _model(name, nodes, tensors["INPUT"], tensors["OUTPUT"])


def sequence(name: str) -> bytes:
    """Build ``READY * (INPUT + START)``; with an end, also its correlation id."""
    inputs = ["INPUT", "START", "READY"]
    nodes = [helper.make_node("Add", ["INPUT", "START"], ["started"])]
    total = "started"
    if name == "simple_dyna_sequence":
        inputs.append("END")
        nodes += [
            helper.make_node("Cast", ["CORRID"], ["id"], to=TensorProto.INT32),
            helper.make_node("Mul", ["END", "id"], ["id at the end"]),
            helper.make_node("Add", ["started", "id at the end"], ["total"]),
        ]
        total = "total"
    nodes.append(helper.make_node("Mul", ["READY", total], ["OUTPUT"]))
    infos = [helper.make_tensor_value_info(i, TensorProto.INT32, ["batch", 1]) for i in inputs]
    if name == "simple_dyna_sequence":
        infos.append(helper.make_tensor_value_info("CORRID", TensorProto.UINT64, ["batch", 1]))
    output = helper.make_tensor_value_info("OUTPUT", TensorProto.INT32, ["batch", 1])
    return _model(name, nodes, infos, [output])


def classifier(name: str) -> bytes:
    """Build a stand-in for an image network: the mean colour times weights."""
    if name == "densenet_onnx":
        source, target, classes = "data_0", "fc6_1", 1000
        shape: list[int | str] = [1, 3, 224, 224]
        result: list[int | str] = [1, classes, 1, 1]
    else:
        batched = name == "inception_batched"
        source, target = (
            ("IMAGE", "Softmax") if batched else ("input:0", "InceptionV3/Predictions/Softmax:0")
        )
        classes = 1001
        shape = ["batch" if batched else 1, 299, 299, 3]
        result = [shape[0], classes]
    width, height = (3, 2) if name == "densenet_onnx" else (2, 1)
    nodes = [
        # One after the other: a sum of all pixels at once is too long for FP32.
        helper.make_node("ReduceMean", [source], ["column"], axes=[width], keepdims=0),
        helper.make_node("ReduceMean", ["column"], ["colour"], axes=[height], keepdims=0),
        helper.make_node("MatMul", ["colour", "weights"], ["scores"]),
    ]
    constants = [numpy_helper.from_array(weights(classes), "weights")]
    if name == "densenet_onnx":
        constants.append(helper.make_tensor("shape", TensorProto.INT64, [4], result))
        nodes.append(helper.make_node("Reshape", ["scores", "shape"], [target]))
    else:
        nodes.append(helper.make_node("Softmax", ["scores"], [target], axis=1))
    return _model(
        name,
        nodes,
        [helper.make_tensor_value_info(source, TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(target, TensorProto.FLOAT, result)],
        constants,
    )


def _model(
    name: str,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: list[onnx.TensorProto] | None = None,
) -> bytes:
    graph = helper.make_graph(nodes, name, inputs, outputs, constants or [])
    opset = [helper.make_opsetid("", _OPSET)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=_IR)
    onnx.checker.check_model(made)
    return made.SerializeToString()
