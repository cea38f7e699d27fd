"""SavedModels of TensorFlow, which has more than a gigabyte: skipped where it is not installed."""

from __future__ import annotations

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import LoadError

tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed, which no extra brings")

TYPES = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32",
         "FP64", "STRING")  # fmt: skip


@pytest.fixture
def server():
    with nt.Server(gpus=()) as running:
        yield running


@pytest.fixture
def saved(tmp_path):
    """Write a SavedModel with two signatures: the rows, and twice as much of them."""

    def write(dims=(None, 3), dtype=None):
        module = tf.Module()
        spec = tf.TensorSpec(dims, dtype or tf.float32, name="IN")
        module.weight = tf.Variable(2.0)
        same = tf.function(lambda IN: {"OUT": tf.identity(IN)}, input_signature=[spec])  # noqa: N803
        signatures = {"serving_default": same}
        if dtype is None:
            signatures["twice"] = tf.function(
                lambda IN: {"OUT": IN * module.weight},  # noqa: N803
                input_signature=[spec],
            )
        path = tmp_path / "m" / "1" / "model.savedmodel"
        tf.saved_model.save(module, str(path), signatures=signatures)
        return tmp_path

    return write


def test_a_repository_of_a_saved_model(server, saved):
    server.load_repository(saved())
    config = server.config("m")
    assert (config.platform, config.max_batch_size) == ("tensorflow_savedmodel", 4)
    assert config.HasField("dynamic_batching")
    rows = [np.full((n, 3), n, np.float32) for n in (1, 2)]
    futures = [server.submit("m", {"IN": array}) for array in rows]
    assert [f.result(60)["OUT"].tolist() for f in futures] == [array.tolist() for array in rows]


def test_another_signature(server, saved):
    (saved() / "m" / "config.pbtxt").write_text(
        'platform: "tensorflow_savedmodel" parameters { key: "TF_SIGNATURE_DEF" value { string_value: "twice" } }'
    )
    server.load_repository(saved())
    assert server.infer("m", {"IN": np.ones((1, 3), np.float32)})["OUT"].tolist() == [[2.0] * 3]


@pytest.mark.parametrize("data_type", TYPES)
def test_datatypes(server, saved, data_type):
    name = {"FP16": "float16", "FP32": "float32", "FP64": "float64"}.get(
        data_type, data_type.lower()
    )
    path = saved(dtype=getattr(tf, name)) / "m" / "1" / "model.savedmodel"
    server.load('backend: "tensorflow" platform: "tensorflow_savedmodel"', path, name="m")
    given = (
        np.array([["", "x", "long" * 99]], object)
        if data_type == "STRING"
        else np.array([[0, 1, 1]])
    )
    given = given if data_type == "STRING" else given.astype(name)
    found = server.infer("m", {"IN": given})["OUT"]
    if data_type == "STRING":
        assert [one.decode() for one in found[0]] == given[0].tolist()
    else:
        assert (found.dtype, found.tolist()) == (given.dtype, given.tolist())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('input { name: "X" data_type: TYPE_FP32 dims: 3 } output { name: "OUT" data_type: TYPE_FP32 dims: 3 } max_batch_size: 2', "unexpected inference input 'X', allowed inputs are: IN"),
        ('parameters { key: "TF_SIGNATURE_DEF" value { string_value: "twise" } }', "model 'm' has no signature 'twise'"),
    ],
)  # fmt: skip
def test_a_configuration_that_does_not_fit(saved, text, message):
    path = saved() / "m" / "1" / "model.savedmodel"
    with nt.Server(gpus=()) as running, pytest.raises(LoadError) as caught:
        running.load(
            f'backend: "tensorflow" platform: "tensorflow_savedmodel" {text}', path, name="m"
        )
    assert message in caught.value.message
