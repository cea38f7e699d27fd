"""Triton's demonstration backends by name: identity and repeat."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import nbtriton as nt
from nbtriton.backends.python.api.metrics import families_of
from nbtriton.common.errors import LoadError

PREFIX = "load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid argument: "
DECOUPLED = " model_transaction_policy { decoupled: true }"


def tensors(what, **named):
    found = ((name, *about.partition(" ")[::2]) for name, about in named.items())
    return " ".join(
        f'{what} {{ name: "{name}" data_type: TYPE_{datatype} dims: [ {dims} ] }}'
        for name, datatype, dims in found
    )


def parameter(key, value):
    return f' parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


PAIR = (
    'backend: "identity" ' + tensors("input", INPUT0="FP32 4") + tensors("output", OUTPUT0="FP32 4")
)
REPEAT_IN = {"IN": "INT32 -1", "DELAY": "UINT32 -1", "WAIT": "UINT32 1"}
REPEAT_OUT = {"OUT": "INT32 1", "IDX": "UINT32 1"}


def repeat(inputs=(), outputs=()):
    return (
        'backend: "repeat" '
        + tensors("input", **{**REPEAT_IN, **dict(inputs)})
        + tensors("output", **{**REPEAT_OUT, **dict(outputs)})
        + DECOUPLED
    )


@pytest.fixture
def server():
    with nt.Server(gpus=()) as running:
        yield running


# -- identity ---------------------------------------------------------------------------------------


def test_identity_copies_every_pair(server):
    text = tensors("input", INPUT0="FP32 4", INPUT1="BYTES -1") + tensors(
        "output", OUTPUT1="BYTES -1", OUTPUT0="FP32 4"
    )
    server.load(
        'backend: "identity" max_batch_size: 8 ' + text.replace("BYTES", "STRING"), name="m"
    )
    given = {"INPUT0": np.ones((2, 4), np.float32), "INPUT1": np.array([[b"a"], [b""]], object)}
    found = server.infer("m", given)
    given["INPUT0"][:] = 7
    assert found["OUTPUT0"].tolist() == [[1] * 4] * 2
    assert found["OUTPUT1"].tolist() == [[b"a"], [b""]]
    assert list(server.infer("m", given, outputs=["OUTPUT1"])) == ["OUTPUT1"]


def test_identity_takes_torch_and_bf16(server):
    server.load(PAIR.replace("FP32", "BF16"), name="m")
    given = torch.tensor([1.5, 2, 3, 4], dtype=torch.bfloat16)
    assert torch.equal(server.infer("m", {"INPUT0": given})["OUTPUT0"], given)


def test_identity_puts_zeros_for_an_optional_input(server):
    optional = "max_batch_size: 4 " + PAIR.replace(
        "dims: [ 4 ] }", "dims: [ 4 ] optional: true }", 1
    )
    more = tensors("input", INPUT1="INT8 -1") + tensors("output", OUTPUT1="INT8 -1")
    server.load(optional + more, name="m")
    found = server.infer("m", {"INPUT1": np.ones((3, 2), np.int8)})
    assert found["OUTPUT0"].tolist() == [[0] * 4] * 3
    assert found["OUTPUT1"].tolist() == [[1, 1]] * 3


def test_identity_counts_bytes(server):
    server.load(PAIR, name="m")
    for _ in range(3):
        server.infer("m", {"INPUT0": np.ones(4, np.float32)})
    (family,) = families_of(server.engine.model_server)
    (sample,) = family.samples.values()
    assert family.name == "input_byte_size_counter"
    assert (dict(sample.labels), sample.value) == ({"model": "m", "version": "1"}, 48)


def test_identity_waits(server):
    delays = parameter("execute_delay_ms", 20) + parameter("instance_wise_delay_multiplier", 2)
    server.load(PAIR + delays + " instance_group { count: 3 }", name="m")
    delays_s = sorted(
        i._model._delay_s
        for i in server.engine.registry.entries["m"].latest._instances.active.values()
    )
    assert delays_s == [0.02, 0.04, 0.08]
    timing = server.infer("m", {"INPUT0": np.ones(4, np.float32)}).timing
    assert timing.compute_infer_ns >= 20_000_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            PAIR + tensors("input", INPUT1="FP32 4"),
            "model configuration must have equal input/output pairs",
        ),
        (
            PAIR.replace("INPUT0", "IN"),
            "expected input name to follow INPUT<index> pattern, got 'IN'",
        ),
        (
            PAIR.replace("OUTPUT0", "OUT"),
            "expected output name to follow OUTPUT<index> pattern, got 'OUT'",
        ),
        (PAIR.replace("OUTPUT0", "OUTPUT1"), "expected input and output indices to match"),
        (
            PAIR.replace("FP32", "INT8", 1),
            "expected input and output datatype to match, got TYPE_INT8 and TYPE_FP32",
        ),
        (
            PAIR.replace("[ 4 ]", "[ -1, 4 ]", 1),
            "expected input and output shape to match, got [-1,4] and [4]",
        ),
        (
            PAIR + parameter("execute_delay_ms", "soon"),
            "failed to convert 'soon' to integral number",
        ),
    ],
)
def test_identity_refuses(server, text, message):
    refused(server, text, message)


# -- repeat -----------------------------------------------------------------------------------------


def ask(values, delays=None, wait=0):
    return {
        "IN": np.array(values, np.int32),
        "DELAY": np.array([0] * len(values) if delays is None else delays, np.uint32),
        "WAIT": np.array([wait], np.uint32),
    }


def test_repeat_sends_each_element_with_its_index(server):
    server.load(repeat(), name="m")
    found = [(int(r["OUT"][0]), int(r["IDX"][0])) for r in server.stream("m", ask([4, 2, 0, 1]))]
    assert found == [(4, 0), (2, 1), (0, 2), (1, 3)]
    assert list(server.stream("m", ask([]))) == []
    assert [list(r) for r in server.stream("m", ask([5]), outputs=["IDX"])] == [["IDX"]]


def test_repeat_refuses_other_delays_than_values(server):
    server.load(repeat(), name="m")
    with pytest.raises(nt.TritonError) as caught:
        list(server.stream("m", ask([1, 2], delays=[0])))
    assert caught.value.message == "expected IN and DELAY shape to match, got [2] and [1]"


def test_repeat_answers_while_its_instance_waits(server, monkeypatch):
    server.load(repeat(), name="m")
    over = threading.Event()
    waiting = SimpleNamespace(sleep=lambda seconds: seconds == 0.3 and over.wait(60))
    monkeypatch.setattr("nbtriton.extensions.demonstration.time", waiting)
    first = next(iter(server.stream("m", ask([1], wait=300))))
    (snapshot,) = server.models()
    over.set()
    assert int(first["OUT"][0]) == 1
    assert snapshot.instances[0].batch_size == 1


def test_repeat_finishes_requests_before_it_is_unloaded(server):
    server.load(repeat(), name="m")
    stream = iter(server.stream("m", ask([1, 2], delays=[0, 30])))
    assert int(next(stream)["OUT"][0]) == 1
    server.unload("m", timeout_s=0)
    assert [int(r["OUT"][0]) for r in stream] == [2]


def test_repeat_stops_when_its_request_is_cancelled(server):
    server.load(repeat(), name="m")
    came = threading.Event()
    delays = [0] + [1] * 100_000
    future = server.submit("m", ask(delays, delays), on_response=lambda *_: came.set())
    assert came.wait(60)
    future.cancel()
    assert server.unload("m", timeout_s=60)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            repeat() + " max_batch_size: 1",
            "repeat backend only supports models with max_batch_size == 0",
        ),
        (repeat({"MORE": "INT32 1"}), "expected 3 inputs, got 4"),
        (repeat((), {"MORE": "INT32 1"}), "expected 2 outputs, got 3"),
        (
            repeat().replace('"WAIT"', '"PAUSE"'),
            "expected third input tensor name to be WAIT, got PAUSE",
        ),
        (
            repeat().replace('"OUT"', '"OUTPUT"'),
            "expected first output tensor name to be OUT, got OUTPUT",
        ),
        (repeat({"IN": "INT32 2,2"}), "expected IN shape to have one dimension, got [2,2]"),
        (repeat({"IN": "INT32 3"}), "expected IN and DELAY shape to match, got [3] and [-1]"),
        (repeat({"WAIT": "UINT32 2"}), "expected WAIT shape to be [1], got [2]"),
        (repeat({"IN": "FP32 -1"}), "expected IN datatype to be INT32, got TYPE_FP32"),
        (repeat((), {"IDX": "INT32 1"}), "expected IDX datatype to be UINT32, got TYPE_INT32"),
    ],
)
def test_repeat_refuses(server, text, message):
    refused(server, text, message)


# -- all --------------------------------------------------------------------------------------------


def refused(server, text, message):
    with pytest.raises(LoadError) as caught:
        server.load(text, name="m")
    assert caught.value.message == f"{PREFIX}{message};"


def test_they_are_written_and_read_as_configurations(server, tmp_path):
    server.load(PAIR, name="i")
    server.load(repeat(), name="r")
    assert {m.kind for m in server.export(tmp_path / "out").models} == {"configuration"}
    with nt.Server(gpus=()) as again:
        again.load_repository(tmp_path / "out")
        for name in ("i", "r"):
            assert again.config(name) == server.config(name)
        assert len(list(again.stream("r", ask([1, 2])))) == 2


def test_code_for_them_is_not_needed_and_other_backends_ask_for_it(server):
    with pytest.raises(nt.TritonError, match="no code for model 'm'"):
        server.load('backend: "python"', name="m")
