"""Contiguous tensors: one piece of memory in C order, from any source, as in Triton."""

# ruff: noqa: N803 - a model function names its tensors
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nbtriton.backends.python import install_pb_utils
from nbtriton.runtime.engine import Server
from tests.engine.support import echo, ensemble_text

install_pb_utils()
import triton_python_backend_utils as pb_utils  # noqa: E402

torch = pytest.importorskip("torch")

SQUARE = echo().replace("dims: 4", "dims: [ 2, 2 ]")


def respond(array: np.ndarray) -> Any:
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])


class Bits:
    """Does what a model may do with any tensor of the real server."""

    def execute(self, requests):
        return [respond(self.looked_at(request.inputs()[0])) for request in requests]

    def looked_at(self, tensor):
        x = tensor.as_numpy()
        assert x.flags.carray
        passed_on = pb_utils.Tensor.from_dlpack("OUT", tensor.to_dlpack()).as_numpy()
        as_torch = torch.utils.dlpack.from_dlpack(tensor.to_dlpack()).view(-1)
        bits = x.view(np.uint8).view(np.float32)
        assert np.array_equal(passed_on, x)
        assert np.array_equal(as_torch.numpy(), x.reshape(-1))
        return bits


class Transposing:
    def execute(self, requests):
        return [
            respond(request.inputs()[0].as_numpy().reshape(-1, 2, 2).transpose(0, 2, 1))
            for request in requests
        ]


class Permuting(torch.nn.Module):
    def forward(self, IN):
        return IN.reshape(-1, 2, 2).permute(0, 2, 1)


def transposing(IN):
    return IN.reshape(-1, 2, 2).swapaxes(1, 2)


SOURCES = {"model": Transposing, "function": transposing, "module": Permuting}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("caller", ["numpy", "torch"])
@pytest.mark.parametrize("source", SOURCES)
def test_a_transposed_output_reaches_the_next_step_and_the_caller_contiguous(
    server: Server, source: str, caller: str, rows: int
):
    config = echo(backend="pytorch" if source == "module" else "python").replace(
        'name: "OUT" data_type: TYPE_FP32 dims: 4',
        'name: "OUT" data_type: TYPE_FP32 dims: [ 2, 2 ]',
    )
    server.load(config, SOURCES[source], name="t")
    server.load(SQUARE, Bits, name="bits")
    steps = (("t", {"IN": "X"}, {"OUT": "T"}), ("bits", {"IN": "T"}, {"OUT": "Y"}))
    text = ensemble_text(*steps, inputs={"X": "FP32[4]"}, outputs={"Y": "FP32[2,2]"})
    server.load(text, name="e")
    x: Any = np.tile(np.array([[1, 2, 3, 4]], np.float32), (rows, 1))
    if caller == "torch":
        x = torch.from_numpy(x)
    assert server.infer("e", {"X": x})["Y"].tolist() == [[[1, 3], [2, 4]]] * rows
    out = server.infer("t", {"IN": x})["OUT"]
    assert out.is_contiguous() if caller == "torch" else out.flags.carray


@pytest.mark.parametrize(
    "parameter", ["", 'parameters { key: "READ_ONLY_INPUTS" value { string_value: "yes" } }']
)
def test_what_a_caller_sends_arrives_contiguous(server: Server, parameter: str):
    class Looking(Bits):
        def looked_at(self, tensor):
            x = tensor.as_numpy()
            assert x.flags.c_contiguous
            assert x.flags.aligned
            return super().looked_at(tensor) if not parameter else x.view(np.uint8).view(np.float32)

    server.load(echo(parameter), Looking, name="m")
    strided = np.arange(8, dtype=np.float32).reshape(1, 8)[:, ::2]
    shifted = np.frombuffer(b" " + strided.tobytes(), np.float32, offset=1).reshape(1, 4)
    assert not shifted.flags.aligned
    for x in (strided, shifted, torch.arange(8.0).reshape(1, 8)[:, ::2]):
        assert server.infer("m", {"IN": x})["OUT"].tolist() == [[0, 2, 4, 6]]


@pytest.mark.parametrize("decoupled", [False, True])
def test_a_transposed_answer_of_a_called_model_is_contiguous(server: Server, decoupled: bool):
    class Calling:
        def execute(self, requests):
            call = pb_utils.InferenceRequest(
                model_name="t", requested_output_names=["OUT"], inputs=requests[0].inputs()
            )
            found = call.exec(decoupled=decoupled)
            (tensor,) = (next(iter(found)) if decoupled else found).output_tensors()
            return [respond(Bits().looked_at(tensor))]

    server.load(SQUARE, fortran_order, name="t")
    server.load(SQUARE, Calling, name="m")
    x = np.arange(4, dtype=np.float32).reshape(1, 2, 2)
    assert server.infer("m", {"IN": x})["OUT"].tolist() == x.tolist()


def fortran_order(IN):
    return np.asfortranarray(IN)


def test_a_tensor_of_a_model_is_contiguous_as_soon_as_it_is_made():
    tensor = pb_utils.Tensor("OUT", np.arange(6).reshape(2, 3).T)
    assert tensor.as_numpy().flags.c_contiguous
    assert pb_utils.Tensor.from_dlpack("OUT", tensor.to_dlpack()).shape() == [3, 2]
