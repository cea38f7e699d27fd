"""Results as DataFrames."""

from __future__ import annotations

import numpy as np
import pytest

from nbtriton.model.tensors.coerce import frame_of


def test_a_row_of_the_batch_is_a_row():
    frame = frame_of(
        {
            "LABEL": np.array([[b"cat"], ["d\u00f6g".encode()]], object),
            "SCORE": np.array([[0.5], [0.25]], np.float32),
            "BOX": np.arange(8, dtype=np.int64).reshape(2, 2, 2),
            "RAW": np.array([b"\xff", b"a"], object),
        }
    )
    assert list(frame.index) == [0, 1]
    assert list(frame["LABEL"]) == ["cat", "d\u00f6g"]
    assert list(frame["SCORE"]) == [0.5, 0.25]
    assert frame["SCORE"].dtype == np.float32
    assert list(frame["BOX"]) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert list(frame["RAW"]) == [b"\xff", "a"]


@pytest.mark.parametrize("other", [np.arange(3), np.array(5)])
def test_outputs_without_a_common_dimension_are_one_row(other):
    frame = frame_of({"A": np.arange(2), "B": other})
    assert frame["A"].tolist() == [[0, 1]]
    assert len(frame) == 1


def test_torch_tensors_and_empty_batches():
    torch = pytest.importorskip("torch")
    assert frame_of({"A": torch.ones(2, 1)})["A"].tolist() == [1.0, 1.0]
    assert len(frame_of({"A": np.empty((0, 4), np.float32)})) == 0
    assert frame_of({}).empty
