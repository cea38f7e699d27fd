"""Outputs of a batch, cut into the responses of its requests."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nbtriton.backends.core.batching import scatter_outputs
from tests.backends.fakes import Request

TABLE = np.arange(12, dtype=np.float32).reshape(6, 2)
ROWS = ((0, 1), (1, 4), (4, 6))


def requests_of(*sizes: int, wants: frozenset[str] = frozenset({"OUT"})) -> list[Request]:
    return [Request({"IN": np.zeros((n, 2), np.float32)}, wants) for n in sizes]


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_each_response_has_its_rows_as_views(convert):
    whole = convert(TABLE)
    responses = scatter_outputs(requests_of(1, 3, 2), {"OUT": whole}, batches=True, model="m")
    assert len(responses) == 3
    for response, (start, end) in zip(responses, ROWS, strict=True):
        assert type(response.outputs["OUT"]) is type(whole)
        np.testing.assert_array_equal(np.asarray(response.outputs["OUT"]), TABLE[start:end])
        assert np.shares_memory(np.asarray(response.outputs["OUT"]), TABLE)


def test_responses_are_a_sequence():
    responses = scatter_outputs(requests_of(1, 3, 2), {"OUT": TABLE}, batches=True, model="m")
    np.testing.assert_array_equal(responses[-1].outputs["OUT"], TABLE[4:])
    first, second = responses[:2]
    assert [len(first.outputs["OUT"]), len(second.outputs["OUT"])] == [1, 3]
    with pytest.raises(IndexError):
        responses[3]


def test_each_request_gets_the_outputs_that_it_asked_for():
    requests = requests_of(2, wants=frozenset({"A", "B"})) + requests_of(4, wants=frozenset({"B"}))
    responses = scatter_outputs(requests, {"A": TABLE, "B": -TABLE}, batches=True, model="m")
    assert [list(response.outputs) for response in responses] == [["A", "B"], ["B"]]
    np.testing.assert_array_equal(responses[1].outputs["B"], -TABLE[2:])


def test_without_batching_requests_run_one_at_a_time():
    with pytest.raises(ValueError, match="too many values to unpack"):
        scatter_outputs(requests_of(1, 1), {"OUT": TABLE}, batches=False, model="m")
    (response,) = scatter_outputs(requests_of(1), {"OUT": TABLE}, batches=False, model="m")
    assert response.outputs["OUT"] is TABLE
