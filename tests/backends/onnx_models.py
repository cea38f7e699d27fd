"""Small ONNX models."""

from __future__ import annotations

import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra test)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra onnx)")

from onnx import TensorProto, helper  # noqa: E402

OPSET = 17
# What every onnxruntime of the last years reads; onnx itself writes newer ones.
IR_VERSION = 9

ELEMENTS = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
    "BF16": TensorProto.BFLOAT16,
}


def tensor(name, dims, datatype="FP32"):
    """Describe an input or output; a dimension that is a string varies."""
    return helper.make_tensor_value_info(name, ELEMENTS[datatype], dims)


def model(nodes, inputs, outputs, weights=()):
    """Return a model of nodes ``(operator, inputs, outputs, attributes…)``, names parted by space."""
    made = [
        helper.make_node(operator, given.split(), gives.split(), **dict(*attributes))
        for operator, given, gives, *attributes in nodes
    ]
    graph = helper.make_graph(made, "g", inputs, outputs, initializer=list(weights))
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    proto.ir_version = IR_VERSION
    return proto


def sum_and_difference(dims=("b", 4), datatype="FP32"):
    """OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1."""
    names = ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
    tensors = [tensor(name, dims, datatype) for name in names]
    return model(
        [("Add", "INPUT0 INPUT1", "OUTPUT0"), ("Sub", "INPUT0 INPUT1", "OUTPUT1")],
        tensors[:2],
        tensors[2:],
    )


def same(dims=("b", 4), datatype="FP32", out=None):
    """OUT = IN."""
    return model(
        [("Identity", "IN", "OUT")],
        [tensor("IN", dims, datatype)],
        [tensor("OUT", dims if out is None else out, datatype)],
    )
