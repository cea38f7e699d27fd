"""What a model passes on is the memory that it got, unless somebody else can still write to it."""

from __future__ import annotations

import numpy as np
import pytest

from nbtriton.backends.python import install_pb_utils
from nbtriton.engine import Server
from tests.engine.support import echo, ensemble_text, ones

install_pb_utils()
import triton_python_backend_utils as pb_utils  # noqa: E402


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def model(answer):
    """A model that answers each request with what ``answer(array)`` makes of its input."""

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", made) for made in answer(given)])
                for given in (
                    pb_utils.get_input_tensor_by_name(r, "IN").as_numpy() for r in requests
                )
            ]

    return TritonPythonModel


def chain(server: Server, *answers) -> None:
    """Load models m0, m1, … and the ensemble that takes X through all of them to Y."""
    tensors = ["X", *(f"T{at}" for at in range(1, len(answers))), "Y"]
    steps = []
    for at, answer in enumerate(answers):
        server.load(echo("dynamic_batching { }"), model(answer), name=f"m{at}")
        steps.append((f"m{at}", {"IN": tensors[at]}, {"OUT": tensors[at + 1]}))
    server.load(ensemble_text(*steps, inputs={"X": "FP32[4]"}, outputs={"Y": "FP32[4]"}), name="e")


def test_a_tensor_goes_through_an_ensemble_in_one_place(server: Server):
    seen = []

    def begin(given):
        return [given + 1]

    def look(given):
        seen.append(address(given))
        given += 1  # in place: nobody else has it
        return [given]

    chain(server, begin, look, look, look)
    out = server.infer("e", {"X": ones()})["Y"]
    assert out.tolist() == [[5] * 4]
    assert len(set(seen)) == 1
    assert address(out) == seen[0]


def test_the_callers_memory_is_copied_once_and_then_passed_on(server: Server):
    seen = []

    def look(given):
        seen.append(address(given))
        return [given]

    chain(server, look, look)
    mine = ones()
    out = server.infer("e", {"X": mine})["Y"]
    mine[:] = 7
    assert out.tolist() == [[1] * 4]
    assert address(mine) not in seen
    assert len(set(seen)) == 1


def test_what_the_model_keeps_is_not_passed_on(server: Server):
    kept = []

    def keep(given):
        kept.append(given)
        return [given]

    chain(server, lambda given: [given + 1], keep, lambda given: [given])
    out = server.infer("e", {"X": ones()})["Y"]
    kept[0][:] = 7
    assert out.tolist() == [[2] * 4]


def test_one_array_as_two_outputs_is_two_arrays(server: Server):
    config = """
    backend: "python" max_batch_size: 8
    input { name: "IN" data_type: TYPE_FP32 dims: 4 }
    output [ { name: "A" data_type: TYPE_FP32 dims: 4 }, { name: "B" data_type: TYPE_FP32 dims: 4 } ]
    """

    class Twice:
        def execute(self, requests):
            (request,) = requests
            given = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            return [
                pb_utils.InferenceResponse(
                    [pb_utils.Tensor("A", given), pb_utils.Tensor("B", given)]
                )
            ]

    server.load(config, Twice, name="m")
    found = server.infer("m", {"IN": ones()})
    found["A"][:] = 7
    assert found["B"].tolist() == [[1] * 4]


@pytest.mark.parametrize("readers", [1, 2])
def test_a_tensor_that_two_steps_read_is_changed_for_neither(server: Server, readers: int):
    def change(given):
        given += 10
        return [given]

    server.load(echo(), model(lambda given: [given + 1]), name="begin")
    steps = [("begin", {"IN": "X"}, {"OUT": "T"})]
    for at in range(readers):
        server.load(echo(), model(change), name=f"change{at}")
        steps.append((f"change{at}", {"IN": "T"}, {"OUT": f"Y{at}"}))
    outputs = {f"Y{at}": "FP32[4]" for at in range(readers)}
    server.load(ensemble_text(*steps, inputs={"X": "FP32[4]"}, outputs=outputs), name="e")
    found = server.infer("e", {"X": ones()})
    assert all(found[name].tolist() == [[12] * 4] for name in outputs)
