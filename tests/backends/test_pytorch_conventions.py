"""The pytorch backend beyond plain tensors: dictionaries, sequence controls, implicit state.

After ValidateInputs, ValidateOutputs and GetNamingConvention of Triton's libtorch.cc.
"""

# ruff: noqa: N803, UP006, UP035 - tensors have Triton's names, and torch.jit wants typing.Dict

from typing import Dict, List

import numpy as np
import pytest
import torch
from torch import Tensor

from nbtriton.common.errors import ConfigError, InternalError, LoadError
from nbtriton.extensions.pytorch.files import save_torchscript
from nbtriton.runtime.engine import Server

ignore_jit_warnings = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def server():
    with Server(gpus=()) as running:
        yield running


def tensors(kind, *names):
    return "".join(f'{kind} {{ name: "{n}" data_type: TYPE_FP32 dims: 2 }} ' for n in names)


def row(*values):
    return np.array([values], np.float32)


# -- dictionaries -----------------------------------------------------------------------------------


class ByName(torch.nn.Module):
    def forward(self, x: Dict[str, Tensor]):
        return x["A"] + x["B"], x["A"] - x["B"]


class Mapped(torch.nn.Module):
    def forward(self, given: dict[str, torch.Tensor]):
        return given["A"] + given["B"], given["A"] - given["B"]


@pytest.fixture(params=["class", "module", "builtin", "script", "file", "program"])
def by_name(request, tmp_path):
    if request.param == "program":
        given = {name: torch.ones(2, 2) for name in "AB"}
        rows = {name: {0: torch.export.Dim.DYNAMIC} for name in given}
        program = torch.export.export(ByName(), (given,), dynamic_shapes=(rows,))
        torch.export.save(program, tmp_path / "model.pt2")
        return tmp_path / "model.pt2"
    scripted = request.param in ("script", "file")
    source = torch.jit.script(ByName()) if scripted else ByName()
    if request.param == "file":
        torch.jit.save(source, str(tmp_path / "model.pt"))
        return tmp_path / "model.pt"
    return {"class": ByName, "builtin": Mapped}.get(request.param, source)


@pytest.mark.medium
@ignore_jit_warnings
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_dictionary_holds_the_inputs_by_their_names(server, by_name):
    config = "max_batch_size: 4 " + tensors("input", "B", "A") + tensors("output", "SUM", "REST")
    server.load(config, by_name, name="by_name")
    found = server.infer("by_name", {"A": row(5, 7), "B": row(1, 2)})
    assert found["SUM"].tolist() == [[6, 9]]
    assert found["REST"].tolist() == [[4, 5]]


def test_an_example_completes_a_module_that_takes_a_dictionary(server):
    server.load(
        "max_batch_size: 4",
        ByName,
        name="completed",
        example={"A": row(1, 2), "B": row(3, 4)},
    )
    config = server.config("completed")
    assert [tensor.name for tensor in config.input] == ["A", "B"]
    found = server.infer("completed", {"A": row(5, 7), "B": row(1, 2)})
    assert found["OUTPUT__0"].tolist() == [[6, 9]]


class TwoDictionaries(torch.nn.Module):
    def forward(self, x: Dict[str, Tensor], y: Dict[str, Tensor]):
        return x["A"] + y["A"]


class DictionaryAndTensor(torch.nn.Module):
    def forward(self, x: Dict[str, Tensor], y: Tensor):
        return x["A"] + y


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (TwoDictionaries, "Multiple inputs of kind DictType were detected. Only a single input"),
        (DictionaryAndTensor, "Only a single input of type Dict(str, Tensor) or input(s) of type"),
    ],
)
def test_a_dictionary_stands_alone(server, module, message):
    config = tensors("input", "A", "y") + tensors("output", "OUT")
    with pytest.raises(LoadError) as caught:
        server.load(config, module, name="refused")
    assert message in caught.value.message


def test_another_number_of_inputs_is_refused_in_triton_s_words(server):
    config = tensors("input", "A") + tensors("output", "OUT")
    with pytest.raises(LoadError) as caught:
        server.load(config, TwoTensors, name="refused")
    assert (
        "unable to load model 'refused', configuration expects 1 inputs, model provides 2"
        in caught.value.message
    )


class TwoTensors(torch.nn.Module):
    def forward(self, x, y):
        return x + y


# -- strings ----------------------------------------------------------------------------------------


class Shout(torch.nn.Module):
    def forward(self, words: List[str]) -> List[str]:
        return [word.upper() for word in words]


class Both(torch.nn.Module):
    def forward(self, words: List[str], x: Tensor):
        return [word + "!" for word in words], x + len(words)


TEXT = """
input { name: "words" data_type: TYPE_STRING dims: -1 }
output { name: "OUT" data_type: TYPE_STRING dims: -1 }
"""


@pytest.mark.parametrize("scripted", [False, True])
@ignore_jit_warnings
def test_strings_are_lists_of_text(server, scripted):
    server.load(TEXT, torch.jit.script(Shout()) if scripted else Shout, name="shout")
    for words in (["hello", "", "a"], []):
        found = server.infer("shout", {"words": np.array(words, object)})["OUT"]
        assert [item.decode() for item in found] == [word.upper() for word in words]


def test_strings_stand_beside_tensors(server):
    more = tensors("input", "x") + tensors("output", "Y")
    read_only = 'parameters { key: "READ_ONLY_INPUTS" value { string_value: "yes" } }'
    sent = {"words": np.array(["é"], object), "x": np.zeros(2, np.float32)}
    for text in (TEXT + more, TEXT + more + read_only):
        server.load(text, Both, name="both")
        found = server.infer("both", sent)
        assert (found["OUT"].tolist(), found["Y"].tolist()) == (["é!".encode()], [1, 1])


@pytest.mark.parametrize("text", [TEXT + "max_batch_size: 4", TEXT.replace("-1", "[ -1, 2 ]")])
def test_strings_have_one_dimension(server, text):
    with pytest.raises(LoadError) as caught:
        server.load(text, Shout, name="refused")
    assert (
        "Triton only supports 1 dimensional List of String as input for 'words' for model 'refused'"
        in caught.value.message
    )


def test_text_where_the_configuration_says_numbers_is_an_error(server):
    numbers = TEXT.replace('"OUT" data_type: TYPE_STRING', '"OUT" data_type: TYPE_FP32')
    server.load(numbers, Shout, name="wrong")
    with pytest.raises(InternalError, match="output must be of type Tensor"):
        server.infer("wrong", {"words": np.array(["a"], object)})


# -- sequences --------------------------------------------------------------------------------------


SUM = """
max_batch_size: 4
input { name: "INPUT__0" data_type: TYPE_FP32 dims: 1 }
output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: 1 }
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input {
    name: "START__1" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] }
  }
  STATE
}
"""
STATE = """
state {
  input_name: "STATE__2" output_name: "STATE__1" data_type: TYPE_FP32 dims: 1
  initial_state { name: "ten" data_type: TYPE_FP32 dims: 1 zero_data: true }
}
"""


class Started(torch.nn.Module):
    """Returns where a sequence starts."""

    def forward(self, x, start):
        return x + 100 * start


class Accumulate(torch.nn.Module):
    """Adds up; its state is its second result."""

    def forward(self, x, start, total):
        total = x + total
        return total + 100 * start, total


def play(server, name, values, sequence):
    last = len(values) - 1
    return [
        server.infer(
            name,
            {"INPUT__0": row(value)},
            sequence_id=sequence,
            sequence_start=index == 0,
            sequence_end=index == last,
        )["OUTPUT__0"].item()
        for index, value in enumerate(values)
    ]


def test_controls_are_arguments_by_their_index(server):
    server.load(SUM.replace("STATE", ""), Started, name="started")
    assert play(server, "started", [1, 2, 3], 7) == [101, 2, 3]


@pytest.mark.parametrize("form", ["class", "exported"])
@ignore_jit_warnings
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_implicit_state_is_an_argument_and_a_result_by_its_index(server, tmp_path, form):
    source = Accumulate
    text = SUM.replace("STATE", STATE, 1)
    if form == "exported":
        server.load(text, Accumulate, name="summing")
        source = tmp_path / "model.pt"
        save_torchscript(Accumulate(), server.config("summing"), source)
    server.load(text, source, name="summing")
    first = play(server, "summing", [1, 2], 1)
    assert first == [101, 3]
    assert play(server, "summing", [5, 5, 5], 2) == [105, 10, 15]
    result = server.infer(
        "summing", {"INPUT__0": row(1)}, sequence_id=3, sequence_start=True, sequence_end=True
    )
    assert set(result) == {"OUTPUT__0"}  # the state is no output


def test_a_control_without_an_index_is_refused_in_triton_s_words(server):
    text = SUM.replace("STATE", "").replace("START__1", "START")
    with pytest.raises(LoadError) as caught:
        server.load(text, Started, name="refused")
    assert (
        "input 'START' does not follow <name>__<index> naming convention." in caught.value.message
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("INPUT__0", "IN", "not all inputs and outputs follow the <name>__<index> naming"),
        ("INPUT__0", "x", "not all inputs and outputs follow the <name>__<index> naming"),
        ("OUTPUT__0", "OUT", "not all inputs and outputs follow the <name>__<index> naming"),
        ("STATE__2", "S", "state 'S' does not follow the <name>__<index> naming convention."),
        ("STATE__1", "S", "state 'S' does not follow the <name>__<index> naming convention."),
    ],
)
def test_names_around_a_state_have_an_index(server, old, new, message):
    text = SUM.replace("STATE", STATE, 1).replace(f'"{old}"', f'"{new}"')
    with pytest.raises(LoadError) as caught:
        server.load(text, Accumulate, name="refused")
    assert message in caught.value.message
    assert "using sequence batching with state" in caught.value.message


# -- results by index ---------------------------------------------------------------------------------


@ignore_jit_warnings
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_results_by_index_stay_in_their_places_in_a_file(server, tmp_path):
    config = "max_batch_size: 4 " + tensors("input", "A", "B") + tensors("output", "O__1", "O__0")
    server.load(config, TwoResults, name="places")
    asked = {"A": row(5, 7), "B": row(1, 2)}
    wanted = server.infer("places", asked)
    save_torchscript(TwoResults(), server.config("places"), tmp_path / "model.pt")
    server.load(config, tmp_path / "model.pt", name="places")
    found = server.infer("places", asked)
    assert {name: found[name].tolist() for name in found} == {
        "O__1": [[4, 5]],
        "O__0": [[6, 9]],
    }
    assert found["O__1"].tolist() == wanted["O__1"].tolist()


class TwoResults(torch.nn.Module):
    def forward(self, A, B):
        return A + B, A - B


def test_errors_are_of_the_statuses_of_triton():
    from nbtriton.extensions.pytorch.check import check
    from nbtriton.extensions.pytorch.core.naming import Forward
    from nbtriton.model.config import as_config

    with pytest.raises(ConfigError):
        check(as_config(tensors("input", "A")), Forward(("x", "y"), 2))
    with pytest.raises(InternalError):
        check(as_config(SUM.replace("STATE", "").replace("START__1", "S")), Forward(("x", "y"), 2))
