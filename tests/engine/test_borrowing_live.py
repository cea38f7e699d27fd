"""Callers' arrays on their way through models that only read them."""

from __future__ import annotations

import importlib.util
import logging
import sys

import numpy as np
import pytest

from nbtriton.backends.python import install_pb_utils
from nbtriton.backends.python.function import FunctionInstance
from nbtriton.backends.python.instance import PythonInstance
from nbtriton.backends.python.running import Running
from nbtriton.config import parse_pbtxt
from nbtriton.engine import Server
from nbtriton.errors import ModelError
from tests.backends.fakes import Request, Timer
from tests.engine.support import ensemble_text, ones

SOURCE = """
import numpy as np
import torch
import triton_python_backend_utils as pb_utils

MINE = None

class Model:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.made(x))])

class Passing(Model):
    def made(self, x):
        return x

class Cutting(Model):
    def made(self, x):
        return x[:, :2]

class Doubling(Model):
    def made(self, x):
        return x * 2

class InPlace(Model):
    def made(self, x):
        x *= 2
        return x

class Looking(Model):
    '''Answers whether it sees the memory of MINE.'''

    def made(self, x):
        return np.full((len(x), 4), np.shares_memory(x, MINE), np.float32)

class Both(Model):
    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUT", x), pb_utils.Tensor("ALSO", x)]
        )

class Sharing(Model):
    '''Its buffer leaves by DLPack, which always is writable.'''

    def answer(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "IN")
        x = tensor.as_numpy()
        shared = torch.utils.dlpack.from_dlpack(tensor.to_dlpack())
        shared *= 3
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", shared.numpy() + x)])

class Calling(Model):
    def made(self, x):
        request = pb_utils.InferenceRequest(
            model_name="passing",
            inputs=[pb_utils.Tensor("IN", x)],
            requested_output_names=["OUT"],
        )
        y = pb_utils.get_output_tensor_by_name(request.exec(), "OUT").as_numpy()
        y += 1
        return y

class Bits(Model):
    def made(self, x):
        return x.view(np.uint8).view(np.float32) if np.require(x, None, ["A"]) is x else x * 0

def bits(IN):
    whole = np.require(IN, None, ["A"]) is IN
    return {"OUT": IN.view(np.uint8).view(np.float32) if whole else IN * 0}

def look(IN):
    return {"OUT": np.full((len(IN), 4), np.shares_memory(IN, MINE), np.float32)}

def passing(IN):
    return {"OUT": IN}

def in_place(IN):
    IN *= 2
    return {"OUT": IN}
"""


@pytest.fixture
def models(tmp_path):
    install_pb_utils()
    file = tmp_path / "borrowing_models.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("borrowing_models", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["borrowing_models"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["borrowing_models"]


def chain(server: Server, *steps: object, dims: int = 4) -> None:
    """Load the ensemble that takes X through all of the models to Y."""
    tensors = ["X", *(f"T{at}" for at in range(1, len(steps))), "Y"]
    parts = []
    for at, model in enumerate(steps):
        server.load(config(dims), model, name=f"m{at}")
        parts.append((f"m{at}", {"IN": tensors[at]}, {"OUT": tensors[at + 1]}))
    text = ensemble_text(*parts, inputs={"X": f"FP32[{dims}]"}, outputs={"Y": "FP32[-1]"})
    server.load(text, name="e")


def config(dims: int = 4) -> str:
    return (
        f'max_batch_size: 8 input {{ name: "IN" data_type: TYPE_FP32 dims: [ {dims} ] }} '
        'output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }'
    )


def test_64_megabytes_reach_the_fourth_step_uncopied(server: Server, models):
    chain(server, models.Passing, models.Passing, models.Passing, models.Looking, dims=16_000_000)
    models.MINE = np.ones((1, 16_000_000), np.float32)
    assert server.infer("e", {"X": models.MINE})["Y"].tolist() == [[1] * 4]


def test_functions_get_them_uncopied_too(server: Server, models):
    chain(server, models.passing, models.Passing, models.look)
    models.MINE = ones()
    assert server.infer("e", {"X": models.MINE})["Y"].tolist() == [[1] * 4]


def test_a_view_is_passed_on_as_one(server: Server, models):
    models.MINE = np.arange(4, dtype=np.float32).reshape(1, 4)
    server.load(config(), models.Cutting, name="cut")
    server.load(config(2), models.Looking, name="look")
    steps = (("cut", {"IN": "X"}, {"OUT": "T"}), ("look", {"IN": "T"}, {"OUT": "Y"}))
    text = ensemble_text(*steps, inputs={"X": "FP32[4]"}, outputs={"Y": "FP32[4]"})
    server.load(text, name="e")
    assert server.infer("e", {"X": models.MINE})["Y"].tolist() == [[1] * 4]


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("held", [True, False])
def test_what_comes_back_is_the_callers_own(server: Server, models, steps: int, held: bool):
    chain(server, *[models.Passing] * steps)
    for name, tensor in (("e", "Y"), ("m0", "OUT")):
        mine = ones()
        given = mine if held else ones()
        future = server.submit(name, {("X" if name == "e" else "IN"): given})
        del given
        out = future.result()[tensor]
        mine[:] = 7
        assert out.tolist() == [[1] * 4]
        out[:] = 8
        assert mine.tolist() == [[7] * 4]


def test_a_callers_own_read_only_array_comes_back_writable(server: Server, models):
    server.load(config(), models.Passing, name="passing")
    mine = ones()
    mine.flags.writeable = False
    out = server.infer("passing", {"IN": mine})["OUT"]
    out[:] = 8
    assert mine.tolist() == [[1] * 4]


def test_one_input_as_two_outputs_is_two_arrays(server: Server, models):
    more = config() + ' output { name: "ALSO" data_type: TYPE_FP32 dims: [ 4 ] }'
    server.load(more, models.Both, name="both")
    result = server.infer("both", {"IN": ones()})
    result["OUT"][:] = 5
    assert result["ALSO"].tolist() == [[1] * 4]


@pytest.mark.parametrize("at", range(4))
def test_a_step_that_works_in_place_gets_a_copy_wherever_it_stands(server: Server, models, at: int):
    steps = [models.Passing, models.Doubling, models.Passing]
    steps.insert(at, models.InPlace)
    chain(server, *steps)
    mine = ones()
    assert server.infer("e", {"X": mine})["Y"].tolist() == [[4] * 4]
    assert mine.tolist() == [[1] * 4]


def test_two_readers_of_what_was_passed_on_do_not_meet(server: Server, models):
    for name, model in (("p", models.Passing), ("w", models.InPlace), ("r", models.Doubling)):
        server.load(config(), model, name=name)
    steps = (
        ("p", {"IN": "X"}, {"OUT": "T"}),
        ("w", {"IN": "T"}, {"OUT": "W"}),
        ("r", {"IN": "T"}, {"OUT": "R"}),
        ("p", {"IN": "T"}, {"OUT": "P"}),
    )
    outputs = {"W": "FP32[4]", "R": "FP32[4]", "P": "FP32[4]", "T": "FP32[4]"}
    server.load(ensemble_text(*steps, inputs={"X": "FP32[4]"}, outputs=outputs), name="e")
    mine = ones()
    result = server.infer("e", {"X": mine})
    for name in outputs:
        assert result[name].tolist() == [[2 if name in "WR" else 1] * 4]
    result["T"][:] = 9
    result["P"][:] = 8
    assert mine.tolist() == [[1] * 4]
    assert result["T"].tolist() == [[9] * 4]


def test_dlpack_of_a_borrowed_tensor_is_a_copy(server: Server, models):
    server.load(config(), models.Sharing, name="m")
    mine = ones()
    assert server.infer("m", {"IN": mine})["OUT"].tolist() == [[4] * 4]
    assert mine.tolist() == [[1] * 4]


def test_the_answer_of_a_called_model_is_the_callers_own(server: Server, models):
    server.load(config(), models.Passing, name="passing")
    server.load(config(), models.Calling, name="calling")
    mine = ones()
    assert server.infer("calling", {"IN": mine})["OUT"].tolist() == [[2] * 4]
    assert mine.tolist() == [[1] * 4]


def test_should_the_model_change_behind_its_back_a_write_fails(server: Server, models):
    server.load(config(), models.Doubling, name="m")
    models.Doubling.made = models.InPlace.made
    mine = ones()
    with pytest.raises(ModelError, match="read-only"):
        server.infer("m", {"IN": mine})
    assert mine.tolist() == [[1] * 4]


@pytest.mark.parametrize("kind", ["Bits", "bits"])
def test_what_lies_otherwise_in_memory_is_copied(server: Server, models, kind: str):
    server.load(config(), getattr(models, kind), name="m")
    mine = np.arange(8, dtype=np.float32).reshape(1, 8)[:, ::2]
    assert server.infer("m", {"IN": mine})["OUT"].tolist() == [[0, 2, 4, 6]]
    shifted = np.frombuffer(b" " + mine.tobytes(), np.float32, offset=1).reshape(1, 4)
    assert not shifted.flags.aligned
    assert server.infer("m", {"IN": shifted})["OUT"].tolist() == [[0, 2, 4, 6]]


@pytest.fixture
def instance_of():
    """Makes instances without a server, and finalizes them at the end."""
    made = []

    def make(model: type) -> PythonInstance:
        running = Running("m", "m_0_0")
        instance = PythonInstance(
            model, running, {}, force_cpu=True, source_name="m", release=lambda: None
        )
        made.append(instance)
        return instance

    yield make
    for instance in made:
        instance.finalize()


@pytest.mark.parametrize("inner", [True, False])
def test_only_on_its_way_to_further_steps_it_stays_what_it_is(models, instance_of, inner: bool):
    instance = instance_of(models.Passing)
    sent = ones()
    sent.flags.writeable = False
    names = frozenset({"OUT"}) if inner else frozenset()
    requests = [Request({"IN": sent}, inner_outputs=names) for _ in range(2)]
    first, second = instance.execute(requests, Timer())
    for response in (first, second):
        assert (response.outputs["OUT"] is sent) is inner
    # A batch of both kinds: nothing says which request an output came from.
    requests[0].inner_outputs = frozenset()
    for response in instance.execute(requests, Timer()):
        assert not np.shares_memory(response.outputs["OUT"], sent)


def test_the_reason_for_copies_is_told(models, instance_of, caplog):
    with caplog.at_level(logging.DEBUG, "nbtriton.python"):
        instance = instance_of(models.InPlace)
    line = SOURCE.splitlines().index("        x *= 2") + 1
    why = f"borrowing_models.py line {line}: x is changed in place"
    assert instance.copies_because == why
    assert f"inputs of 'm_0_0' that are read-only are copied: {why}" in caplog.text
    assert instance_of(models.Passing).copies_because == ""


def test_a_function_that_works_in_place_gets_a_copy(server: Server, models):
    instance = FunctionInstance(models.in_place, parse_pbtxt(config()), Running("m", "m_0_0"))
    assert "IN is changed in place" in instance.copies_because
    instance.finalize()
    server.load(config(), models.in_place, name="m")
    mine = ones()
    assert server.infer("m", {"IN": mine})["OUT"].tolist() == [[2] * 4]
    assert mine.tolist() == [[1] * 4]
