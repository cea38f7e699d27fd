"""``%%triton_model``: what a cell may hold, where its errors point, what a second run does."""

from __future__ import annotations

import inspect
import os
import threading

import numpy as np
import pytest

from nbtriton.common.errors import ConfigError, LoadError, ModelError
from nbtriton.serving.server import server
from tests.magics.cells import DOUBLE

PYTHON_MODEL = """\
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "UPPER", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(4)
        return config

    def execute(self, requests):
        texts = [pb_utils.get_input_tensor_by_name(r, "TEXT").as_numpy() for r in requests]
        upper = [np.array([[t.upper()] for t in text[:, 0]], object) for text in texts]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("UPPER", u)]) for u in upper]
"""

MODULE = """\
import torch
class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = factor
    def forward(self, IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        return IN * self.factor
"""


def ones(rows: int = 1) -> np.ndarray:
    return np.ones((rows, 4), np.float32)


def test_a_function_becomes_a_model(notebook):
    handle = notebook.ok(f"%%triton_model double --max-batch-size 8\n{DOUBLE}").value
    assert handle.name == "double"
    assert handle(IN=ones(2))["OUT"].tolist() == [[2.0] * 4] * 2


def test_an_unmodified_python_model_imports_pb_utils(notebook):
    handle = notebook.ok(f"%%triton_model upper\n{PYTHON_MODEL}").value
    answer = handle(TEXT=np.array([[b"ab"], [b"c"]], object))
    assert answer["UPPER"].tolist() == [[b"AB"], [b"C"]]
    assert handle.config.max_batch_size == 4


def test_a_torch_module_sees_the_notebooks_variables(notebook):
    notebook.ok("factor = 3")
    handle = notebook.ok(f"%%triton_model scale --max-batch-size 8\n{MODULE}").value
    assert handle.config.backend == "pytorch"
    assert handle(IN=ones())["OUT"].tolist() == [[3.0] * 4]


def test_a_torch_module_learns_its_tensors_from_an_example(notebook):
    notebook.ok("sample = np.ones((2, 4), np.float32)")
    body = (
        "import torch\nclass Plain(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
    )
    handle = notebook.ok(f"%%triton_model m --max-batch-size 8 --example sample\n{body}").value
    assert [list(tensor.dims) for tensor in handle.config.input] == [[4]]


def test_the_cells_names_are_defined_as_by_any_cell(notebook):
    notebook.ok(f"%%triton_model double\nhelper = 42\n{DOUBLE}")
    assert notebook.names["helper"] == 42
    assert notebook.ok('double(np.ones(4))["OUT"].sum()').value == 8


def test_options_become_the_configuration(notebook):
    line = "--max-batch-size 8 --instances 2 --kind cpu --max-queue-delay-us 300 --preferred 2,4"
    config = notebook.ok(f"%%triton_model double {line} --version 3\n{DOUBLE}").value.config
    assert config.max_batch_size == 8
    assert [(group.count, group.kind) for group in config.instance_group] == [(2, 2)]
    assert list(config.dynamic_batching.preferred_batch_size) == [2, 4]
    assert config.dynamic_batching.max_queue_delay_microseconds == 300
    assert server().metadata("double")["versions"] == ["3"]


@pytest.mark.parametrize("given", ["text", "dict", "file"])
def test_a_configuration_is_merged_under_the_options(notebook, given, tmp_path):
    text = "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 7 }"
    (tmp_path / "my config.pbtxt").write_text(text)
    notebook.names["base"] = {
        "text": text,
        "dict": {
            "max_batch_size": 4,
            "dynamic_batching": {"max_queue_delay_microseconds": 7},
        },
        "file": tmp_path / "my config.pbtxt",
    }[given]
    place = f"'{tmp_path}/my config.pbtxt'" if given == "file" else "base"
    for option in ("base", place):
        cell = f"%%triton_model double --config {option} --max-batch-size 16\n{DOUBLE}"
        config = notebook.ok(cell).value.config
        assert config.max_batch_size == 16
        assert config.dynamic_batching.max_queue_delay_microseconds == 7


def test_the_line_is_expanded_and_the_body_never(notebook):
    notebook.ok("size, factor = 16, 5")
    body = DOUBLE.replace("IN * 2", 'IN * len("{size}$size")')
    handle = notebook.ok(f"%%triton_model double --max-batch-size {{size}}\n{body}").value
    assert handle.config.max_batch_size == 16
    assert handle(IN=ones())["OUT"][0, 0] == len("{size}$size")


def test_a_result_is_kept_and_silenced(notebook):
    ran = notebook.ok(f"%%triton_model double -o handle\n{DOUBLE}pass;")
    assert notebook.names["handle"].name == "double"
    assert "FP32" not in ran.out


def test_a_handle_shows_itself_in_both_forms(doubled):
    handle = doubled.ok(f"%%triton_model double --max-batch-size 8\n{DOUBLE}").value
    forms = doubled.forms(handle)
    for form in ("text/plain", "text/html"):
        assert "double" in forms[form]
        assert "max_batch_size 8" in forms[form]
        assert "[4]" in forms[form]


def test_sources_can_be_read_later(notebook):
    notebook.ok(f"%%triton_model double\n{DOUBLE}")
    function = server().engine.inspection.source("double")
    assert inspect.getsource(function) == DOUBLE
    assert function.__nbtriton_source__ == DOUBLE
    notebook.ok(f"%%triton_model upper\n{PYTHON_MODEL}")
    model = server().engine.inspection.source("upper")
    assert inspect.getsource(model.execute).startswith("    def execute(self, requests):")
    assert model.__nbtriton_source__ == PYTHON_MODEL


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("x = 1\n", "found none of them"),
        ("class A:\n    pass\n", "found class A"),
        (DOUBLE + DOUBLE.replace("double", "triple"), "found 2: function double, function triple"),
    ],
)
def test_a_cell_holds_exactly_one_model(notebook, body, found):
    ran = notebook(f"%%triton_model m\n{body}")
    assert found in ran.err
    assert "Traceback" not in ran.text
    assert server().engine.inspection.model_names() == ()


def test_a_python_model_may_have_helpers(notebook):
    notebook.ok(f"%%triton_model upper\n{DOUBLE}{MODULE}{PYTHON_MODEL}")
    assert server().config("upper").backend == "python"


def test_a_function_may_have_helpers(notebook):
    body = "def helper(x: int) -> int:\n    return x\n" + DOUBLE
    assert notebook.ok(f"%%triton_model double\n{body}").value.name == "double"


# -- what goes wrong leaves what is loaded untouched ---------------------------------------------


def assert_untouched(notebook) -> None:
    assert server().infer("double", {"IN": ones()})["OUT"].tolist() == [[2.0] * 4]
    assert server().engine.inspection.model_names() == ("double",)


def test_a_cell_that_does_not_compile_shows_its_line(doubled):
    ran = doubled('%%triton_model double\nx = 1\ndef double(IN: "FP32[4]")\n    return IN\n')
    assert type(ran.error).__name__ == "SyntaxError"
    assert "line 3" in ran.out
    assert 'def double(IN: "FP32[4]")' in ran.out
    assert "nbtriton" not in ran.out.replace("triton_model", "")
    assert_untouched(doubled)


def test_a_cell_that_raises_shows_its_line_and_not_ours(doubled):
    ran = doubled(f"%%triton_model double\nx = 1\ny = nowhere + 1\n{DOUBLE}")
    assert isinstance(ran.error, NameError)
    assert "----> 3 y = nowhere + 1" in ran.out
    assert "magics" not in ran.out
    assert_untouched(doubled)


def test_initialize_that_raises_points_at_the_cell(doubled):
    body = "class TritonPythonModel:\n    def initialize(self, args):\n        self.x = 1 / 0\n"
    ran = doubled(f"%%triton_model double\n{body}    def execute(self, requests): ...\n")
    assert isinstance(ran.error, LoadError)
    cell = doubled.shell.execution_count - 1
    assert f"Cell In[{cell}], line 4, in initialize" in ran.out
    assert "self.x = 1 / 0" in ran.out
    assert ran.out.rstrip().splitlines()[-1] == (
        "LoadError [INVALID_ARG]: load failed for model 'double': version 1 is at UNAVAILABLE "
        "state: Internal: ZeroDivisionError: division by zero"
    )
    assert_untouched(doubled)


def test_execute_that_raises_points_at_the_cell_and_its_helpers(doubled):
    doubled.ok("def helper(x):\n    return x[7, 7]")
    helper = doubled.shell.execution_count - 1
    doubled.ok(f"%%triton_model bad --max-batch-size 8\n{DOUBLE.replace('IN * 2', 'helper(IN)')}")
    model = doubled.shell.execution_count - 1
    ran = doubled("%triton_infer bad IN=np.ones((1, 4), np.float32)")
    assert isinstance(ran.error, ModelError)
    assert f"Cell In[{model}], line 3, in double" in ran.out
    assert f"Cell In[{helper}], line 2, in helper" in ran.out
    assert "ModelError [INTERNAL]: Failed to process the request(s) for model 'bad_0'" in ran.out
    doubled.ok("%triton_unload bad")
    assert_untouched(doubled)


def test_a_wrong_option_is_one_line(doubled):
    for line, text in (
        ("--kind tpu", "argument --kind: invalid choice: 'tpu'"),
        ("--max-batch-size many", "argument --max-batch-size: invalid int value: 'many'"),
        ("--preferred 4,x", "'4,x' is not a list of whole numbers such as 4,8"),
        ("--nope", "unrecognized arguments: --nope"),
        ("--config missing.pbtxt", "neither a variable of this notebook nor a file"),
        ("-o 3x", "'3x' is not a name for a variable"),
        ("-o class", "'class' is not a name for a variable"),
    ):
        ran = doubled(f"%%triton_model double --max-batch-size 8 {line}\n{DOUBLE}")
        assert text in ran.err
        assert len(ran.text.strip().splitlines()) == 1
    assert_untouched(doubled)


def test_an_option_that_cannot_be_is_a_configuration_error(doubled):
    ran = doubled(f"%%triton_model double --max-batch-size 8 --preferred 16\n{DOUBLE}")
    assert isinstance(ran.error, ConfigError)
    assert "ConfigError [INVALID_ARG]: " in ran.out
    assert "Traceback" not in ran.text
    assert_untouched(doubled)


def test_running_a_cell_again_replaces_the_model_and_loses_nothing(notebook):
    gate, entered = threading.Event(), threading.Event()
    notebook.names.update(gate=gate, entered=entered)
    slow = DOUBLE.replace("    return", "    entered.set(); gate.wait(30)\n    return")
    notebook.ok(f"%%triton_model double --max-batch-size 8\n{slow}")
    old = [server().submit("double", {"IN": ones()}) for _ in range(5)]
    assert entered.wait(60)
    notebook.ok(f"%%triton_model double --max-batch-size 8\n{DOUBLE.replace('* 2', '* 3')}")
    new = server().infer("double", {"IN": ones()})
    assert new["OUT"][0, 0] == 3
    gate.set()
    assert [future.result(60)["OUT"][0, 0] for future in old] == [2.0] * 5


LOOKING = {
    "class": """\
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "OUT", "data_type": "TYPE_BOOL", "dims": [1]})
        return config

    def execute(self, requests):
        responses = []
        for request in requests:
            IN = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            out = np.array([np.shares_memory(IN, mine)])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)]))
        return responses
""",
    "function": """\
def look(IN: "FP32[4]") -> {"OUT": "BOOL[1]"}:
    return {"OUT": np.array([np.shares_memory(IN, mine)])}
""",
}


@pytest.mark.parametrize("option", ["", "--read-only-inputs"])
@pytest.mark.parametrize("cell", LOOKING.values(), ids=LOOKING)
def test_a_cells_model_that_is_said_to_only_read_gets_the_callers_array(notebook, cell, option):
    notebook.ok("mine = np.ones(4, np.float32)")
    handle = notebook.ok(f"%%triton_model look {option}\n{cell}").value
    assert handle(IN=notebook.names["mine"])["OUT"].tolist() == [bool(option)]
    assert ("READ_ONLY_INPUTS" in handle.config.parameters) is bool(option)


APART = """\
import os
offset = np.float32(3)
def apart(IN: "FP32[4]") -> {"OUT": "FP32[4]", "PID": "INT64[1]"}:
    if IN[0] < 0:
        raise ValueError("no negative numbers")
    return {"OUT": IN + offset, "PID": np.array([os.getpid()])}
"""


@pytest.mark.slow
def test_a_cells_model_in_a_process_has_the_notebooks_variables_and_shows_its_own_lines(notebook):
    ran = notebook.ok(f"%%triton_model apart --isolation process\n{APART}")
    result = ran.value(IN=np.ones(4, np.float32))
    assert result["OUT"].tolist() == [4, 4, 4, 4]
    assert result["PID"][0] != os.getpid()
    ran = notebook("%triton_infer apart IN=-np.ones(4, np.float32)")
    assert "ValueError: no negative numbers" in ran.text
    assert 'raise ValueError("no negative numbers")' in ran.text
    assert "Cell In[" in ran.text
    notebook.ok("shared = open('/dev/null')")
    ran = notebook(
        "%%triton_model apart --isolation process\n" + APART.replace("IN + offset", "IN + shared")
    )
    assert (
        "'shared' cannot go to a worker process: it is an open file, used in Cell In[" in ran.text
    )
    notebook.ok("shared.close()")


BLOCKS = """\
import torch
class Block(torch.nn.Module):
    def forward(self, x):
        return x * 2
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
    def forward(self, IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        return self.block(IN)
"""


def test_of_several_torch_modules_the_last_is_the_model(notebook):
    ran = notebook.ok(f"%%triton_model net\n{BLOCKS}")
    assert "the model is Net, the last torch module of the cell after Block" in ran.out
    assert notebook.ok("%triton_infer net IN=[1, 2, 3, 4]").value["OUT"].tolist() == [2, 4, 6, 8]


def test_one_of_several_is_chosen_by_name(notebook):
    other = DOUBLE.replace("double", "other").replace("* 2", "* 3")
    ran = notebook.ok(f"%%triton_model m --class double\n{DOUBLE}{other}")
    assert ran.value(IN=np.ones(4, np.float32))["OUT"].tolist() == [2.0] * 4
    ran = notebook(f"%%triton_model m --class duoble\n{DOUBLE}{other}")
    assert "--class duoble: the cell defines double, other" in ran.err


@pytest.mark.parametrize(
    "given",
    ['"max_batch_size: 8"', "configs['a']", "made(8)", "text", '{"max_batch_size":8}', "{file}"],
)
def test_a_configuration_is_a_file_an_expression_or_a_text(notebook, tmp_path, given):
    file = tmp_path / "base.pbtxt"
    file.write_text("max_batch_size: 8")
    notebook.names |= {
        "configs": {"a": {"max_batch_size": 8}},
        "made": lambda size: f"max_batch_size: {size}",
        "text": "max_batch_size: 8",
    }
    given = given.replace("{file}", str(file))
    handle = notebook.ok(f"%%triton_model m --config {given}\n{DOUBLE}").value
    assert handle.config.max_batch_size == 8


def test_a_pydantic_model_is_a_configuration(notebook):
    class Config:
        """What nbtriton asks of one."""

        def model_dump(self, *, mode: str, exclude_none: bool) -> dict[str, object]:
            assert (mode, exclude_none) == ("json", True)
            return {"max_batch_size": 4, "instance_group": [{"count": 2}]}

    notebook.ok(DOUBLE)
    handle = server().load(Config(), notebook.names["double"], name="double")
    assert (handle.config.max_batch_size, handle.config.instance_group[0].count) == (4, 2)


@pytest.mark.parametrize("given", ["nowhere", "nowhere.pbtxt", "some/where"])
def test_a_configuration_that_is_not_there(notebook, given):
    ran = notebook(f"%%triton_model m --config {given}\n{DOUBLE}")
    assert f"--config {given}: neither a variable of this notebook nor a file" in ran.err


TYPED = """\
%%triton_model typed --max-batch-size 8
from typing import Annotated, TypedDict

class Outputs(TypedDict):
    OUT: Annotated[np.ndarray, "FP32[4]"]

def helper(array: np.ndarray) -> np.ndarray:
    return array * 2

def typed(IN: Annotated[np.ndarray, "FP32[4]"]) -> Outputs:
    return {"OUT": helper(IN)}
"""


def test_annotations_for_type_checkers_name_the_model_too(notebook):
    notebook.ok(TYPED)
    assert notebook.ok("%triton_infer typed IN=np.ones((1, 4), np.float32)").value["OUT"][0, 0] == 2
