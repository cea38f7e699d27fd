"""perf_analyzer's files of input data."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from nbtriton.common.errors import NotFoundError, TritonError
from nbtriton.lab.perf.data import read_input_file
from nbtriton.model.config import normalize, parse_pbtxt

CONFIG = normalize(
    parse_pbtxt(
        """
max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: [ 2 ] }
input { name: "T" data_type: TYPE_STRING dims: [ -1 ] optional: true }
output { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }
"""
    ),
    name="m",
)


def b64(content: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(content).decode()}


@pytest.fixture
def read(tmp_path):
    def read(document, config=CONFIG, **options):
        path = tmp_path / "data.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return read_input_file(path, config, **options)

    return read


def rows(requests, name="X"):
    return [request[name].tolist() for request in requests]


def test_PA34_steps_are_requests_and_batches_of_those_that_follow(read):
    file = read({"data": [{"X": [1.0, 2.0]}, {"X": [[3, 4]]}, {"X": [5.0, 6.0]}]})
    assert rows(file.requests(batches=True, batch_size=1)) == [[[1, 2]], [[3, 4]], [[5, 6]]]
    assert rows(file.requests(batches=True, batch_size=2)) == [
        [[1, 2], [3, 4]],
        [[5, 6], [1, 2]],
        [[3, 4], [5, 6]],
    ]
    assert rows(file.requests(batches=False, batch_size=1)) == [[1, 2], [3, 4], [5, 6]]


def test_sequences_send_the_steps_of_streams(read):
    file = read({"data": [[{"X": [1.0, 2.0]}, {"X": [3.0, 4.0]}], [{"X": [5.0, 6.0]}]]})
    assert [rows(stream) for stream in file.sequences(batches=True)] == [
        [[[1, 2]], [[3, 4]]],
        [[[5, 6]]],
    ]


def test_PA34_content_shapes_and_base64(read):
    raw = np.array([1, 2], "<f4").tobytes()
    serialized = b"\2\0\0\0ab\1\0\0\0c"
    file = read(
        {
            "data": [
                {"X": b64(raw), "T": {"content": ["a", b64(b"\xff")], "shape": [2]}},
                {"X": {"content": b64(raw)}, "T": {"content": b64(serialized), "shape": [2]}},
                {
                    "X": {"content": [1, 2], "shape": [2]},
                    "T": {"content": b64(b"raw"), "shape": [1]},
                },
            ]
        }
    )
    requests = file.requests(batches=True, batch_size=1)
    assert rows(requests) == [[[1, 2]]] * 3
    assert rows(requests, "T") == [[[b"a", b"\xff"]], [[b"ab", b"c"]], [[b"raw"]]]


def test_PA30_a_directory_has_a_file_for_each_input(tmp_path):
    (tmp_path / "X").write_bytes(np.array([1, 2], "<f4").tobytes())
    (tmp_path / "T").write_text("one\ntwo\n")
    file = read_input_file(tmp_path, CONFIG, {"T": [2]})
    (request,) = file.requests(batches=True, batch_size=1)
    assert (request["X"].tolist(), request["T"].tolist()) == ([[1, 2]], [[b"one", b"two"]])
    (tmp_path / "X").unlink()
    with pytest.raises(NotFoundError, match="has no file 'X'"):
        read_input_file(tmp_path, CONFIG, {"T": [2]})


def test_unused_parts_of_a_file_are_noted(read):
    file = read({"data": [{"X": [1.0, 2.0]}], "validation_data": [{"Y": [1.0, 2.0]}]})
    assert file.notes == ("'validation_data' of data.json is not used",)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("{", "failed to parse the specified json file for reading provided data"),
        ([], "The json file doesn't contain data field"),
        ({"data": []}, "The json file doesn't contain data field"),
        ({"data": [{"X": [1.0]}]}, "for X. Expected: 8 bytes, Got: 4 bytes"),
        ({"data": [{"X": b64(b"1234")}]}, "for X. Expected: 8 bytes, Got: 4 bytes"),
        ({"data": [{"X": b64(b"123")}]}, "for X. Expected: 8 bytes, Got: 3 bytes"),
        ({"data": [[{"X": [1.0, 2.0]}, {}]]}, "tensor X ( Location stream id: 0, step id: 1)"),
        ({"data": [{"X": [1.0, 2.0], "T": ["a"]}]}, "input T contains dynamic shape"),
        ({"data": [{"X": ["a", "b"]}]}, "( Location stream id: 0, step id: 0)"),
        ({"data": [{"Z": [1.0, 2.0]}]}, "'Z' is not an input of the model"),
        ({"data": [{"X": {"shape": [2]}}]}, "missing content field."),
        ({"data": [{"X": {"b64": "?"}}]}, "the b64 data cannot be decoded"),
        ({"data": [[]]}, "stream 0 has no steps"),
        ({"data": [1]}, "a step is a mapping of inputs to data"),
    ],
)
def test_PA34_errors_of_a_file(read, document, text):
    with pytest.raises(TritonError) as caught:
        read(document)
    assert text in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(NotFoundError, match="no input data"):
        read_input_file(tmp_path / "nowhere.json", CONFIG)
