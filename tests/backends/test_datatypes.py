"""Every data type of the ModelConfig table through every backend that has it, and the words for the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import nbtriton as nt
from nbtriton.common.errors import TritonError
from tests.backends.onnx_models import same

TYPES = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
         "FP32", "FP64", "STRING", "BF16")  # fmt: skip
LIMITS = {
    "BOOL": (False, True),
    "FP16": (-0.5, 65504.0),
    "FP32": (-1.5, 3e38),
    "FP64": (-2.5, 1e300),
}
ROWS = "max_batch_size: 4 "
WHOLE = "max_batch_size: 0 "


class Same(torch.nn.Module):
    def forward(self, x):
        return x


class SameText(torch.nn.Module):
    def forward(self, x: list[str]) -> list[str]:
        return x


def config(backend, data_type, *, dims="3", names=("IN", "OUT"), size=ROWS):
    return f"""backend: "{backend}" {size}
    input {{ name: "{names[0]}" data_type: TYPE_{data_type} dims: [ {dims} ] }}
    output {{ name: "{names[1]}" data_type: TYPE_{data_type} dims: [ {dims} ] }}"""


def values(data_type):
    """Return a row of three: the limits of the type, and another value."""
    if data_type == "STRING":
        return np.array([["", "snow \u2603", "x" * 300]], object)
    if data_type == "BF16":
        return torch.tensor([[-0.5, 3e38, 1.25]], dtype=torch.bfloat16)
    dtype = np.dtype(
        {"BOOL": bool, "FP16": "f2", "FP32": "f4", "FP64": "f8"}.get(data_type, data_type.lower())
    )
    if data_type not in LIMITS:
        limits = np.iinfo(dtype)
        return np.array([[limits.min, limits.max, 7]], dtype)
    return np.array([[*LIMITS[data_type], LIMITS[data_type][1]]], dtype)


def check_equal(found, given, data_type):
    if data_type == "BF16":
        assert found.dtype == torch.bfloat16
        assert torch.equal(torch.as_tensor(found), given.reshape(found.shape))
    elif data_type == "STRING":
        assert [item.decode() for item in found.reshape(-1)] == given.reshape(-1).tolist()
    else:
        assert found.dtype == given.dtype
        assert found.tolist() == given.reshape(found.shape).tolist()


@pytest.fixture(scope="module")
def server():
    with nt.Server(gpus=(), stand_in=True) as running:
        yield running


def through(server, text, model, data_type, names=("IN", "OUT")):
    server.load(text, model, name="m")
    given = values(data_type)
    if "max_batch_size: 0" in text:
        given = given[0]
    return server.infer("m", {names[0]: given})[names[1]], given


@pytest.mark.parametrize("data_type", TYPES)
def test_python(server, data_type):
    found, given = through(server, config("python", data_type), lambda IN: {"OUT": IN}, data_type)  # noqa: N803
    check_equal(found, given, data_type)


@pytest.mark.parametrize("data_type", TYPES)
def test_pytorch(server, data_type):
    text = config("pytorch", data_type)
    module: torch.nn.Module = Same()
    if data_type == "STRING":  # lists of text, which have one dimension
        text, module = config("pytorch", data_type, size=WHOLE), SameText()
    found, given = through(server, text, module, data_type)
    check_equal(found, given, data_type)


@pytest.mark.parametrize("data_type", TYPES)
def test_onnxruntime(server, data_type):
    proto = same(("b", 3), "BYTES" if data_type == "STRING" else data_type)
    found, given = through(server, config("onnxruntime", data_type), proto, data_type)
    check_equal(found, given, data_type)


@pytest.mark.parametrize("data_type", TYPES)
def test_openvino(server, tmp_path, data_type):
    pytest.importorskip("openvino", reason="openvino is not installed (extra openvino)")
    path = tmp_path / "model.onnx"
    path.write_bytes(
        same((1, 3), "BYTES" if data_type == "STRING" else data_type).SerializeToString()
    )
    text = config("openvino", data_type, dims="1, 3", size="")
    if data_type in ("FP64", "STRING", "BF16"):
        with pytest.raises(TritonError) as caught:
            server.load(text, path, name="m")
        assert (
            f"unsupported datatype TYPE_{data_type} for input 'IN' for model 'm'"
            in caught.value.message
        )
        return
    server.load(text, path, name="m")
    given = values(data_type)
    if data_type == "INT64":  # OpenVINO's processor device has 32 bits for it
        given = given.clip(-(2**31), 2**31 - 1)
    check_equal(server.infer("m", {"IN": given})["OUT"], given, data_type)


@pytest.mark.parametrize("data_type", [one for one in TYPES if one != "FP32"])
def test_fil_has_fp32_alone(server, data_type):
    """Its values: tests/backends/test_fil.py."""
    ensemble = pytest.importorskip("sklearn.ensemble", reason="scikit-learn is not installed")
    pytest.importorskip("treelite", reason="treelite is not installed (extra fil)")
    forest = ensemble.RandomForestRegressor(1, max_depth=1, random_state=0)
    forest.fit(np.eye(3), np.arange(3))
    with pytest.raises(
        TritonError, match=f"input__0 is TYPE_{data_type}, a forest takes and gives"
    ):
        server.load(config("fil", data_type, names=("input__0", "output__0")), forest, name="m")


@pytest.mark.parametrize("data_type", TYPES)
def test_identity(server, data_type):
    names = ("INPUT0", "OUTPUT0")
    found, given = through(
        server, config("identity", data_type, names=names), None, data_type, names
    )
    check_equal(found, given, data_type)


@pytest.mark.parametrize("data_type", TYPES)
def test_stand_ins(server, data_type):
    found, given = through(server, config("tensorrt", data_type), None, data_type)
    if data_type == "STRING":
        assert found.tolist() == [[b""] * 3]
    else:
        assert found.dtype == given.dtype
        assert tuple(found.shape) == (1, 3)
        assert not found.any()
