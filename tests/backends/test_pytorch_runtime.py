"""The parameters of the pytorch backend, and Triton's Python runtime of it: sources and torch.compile."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import nbtriton as nt
from nbtriton.common.errors import InternalError, InvalidArgumentError, LoadError
from nbtriton.extensions.pytorch.parameters import compile_options, module_parameters, set_threads
from nbtriton.model.config import as_config

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

PREFIX = "load failed for model 'm': version 1 is at UNAVAILABLE state: "
IO = """input [ { name: "b" data_type: TYPE_FP32 dims: 2 }, { name: "a" data_type: TYPE_FP32 dims: 2 } ]
output [ { name: "sum" data_type: TYPE_FP32 dims: 2 }, { name: "difference" data_type: TYPE_FP32 dims: 2 } ]
"""
SOURCE = """
import torch
from torch.nn import Linear, Parameter

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = Parameter(torch.ones(1))

    def forward(self, a, b):
        return self.scale * (a + b), self.scale * (a - b)
"""
EAGER = json.dumps({"backend": "eager", "fullgraph": True})


class Net(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a + b, a - b


@pytest.fixture
def server():
    with nt.Server(gpus=()) as running:
        yield running


def parameter(key, value):
    escaped = value.replace('"', '\\"')
    return f' parameters {{ key: "{key}" value {{ string_value: "{escaped}" }} }} '


def text(*more):
    return 'backend: "pytorch" runtime: "model.py" max_batch_size: 4 ' + IO + "".join(more)


def asked(server, b=(3, 4), a=(1, 1)):
    given = {name: np.array([value], np.float32) for name, value in (("b", b), ("a", a))}
    result = server.infer("m", given)
    return result["sum"].tolist(), result["difference"].tolist()


# -- parameters -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    ["DISABLE_OPTIMIZED_EXECUTION", "ENABLE_CACHE_CLEANING", "INFERENCE_MODE", "DISABLE_CUDNN",
     "ENABLE_TENSOR_FUSER", "ENABLE_WEIGHT_SHARING", "ENABLE_JIT_PROFILING", "ENABLE_JIT_EXECUTOR"],
)  # fmt: skip
def test_PT1_switches_are_yes_or_no(key):
    for value in ("true", "False", "ON", "off", "1", "0"):
        module_parameters(as_config(parameter(key, value)))
    with pytest.raises(InvalidArgumentError, match="failed to convert 'maybe' to boolean"):
        module_parameters(as_config(parameter(key, "maybe")))


def test_switches_of_torchscript_are_set_before_each_batch(server, tmp_path):
    jit = torch._C
    before = jit._jit_texpr_fuser_enabled(), jit._jit_set_profiling_mode(True)
    torch.jit.save(torch.jit.script(Net()), str(tmp_path / "model.pt"))
    switches = parameter("ENABLE_TENSOR_FUSER", "false") + parameter(
        "ENABLE_JIT_PROFILING", "false"
    )
    try:
        server.load(
            'backend: "pytorch" max_batch_size: 4 ' + IO + switches, tmp_path / "model.pt", name="m"
        )
        jit._jit_set_texpr_fuser_enabled(True)
        assert asked(server) == ([[4.0, 5.0]], [[-2.0, -3.0]])
        assert not jit._jit_texpr_fuser_enabled()
        assert jit._jit_set_profiling_mode(True) is False  # what it was
    finally:
        jit._jit_set_texpr_fuser_enabled(before[0])
        jit._jit_set_profiling_mode(before[1])


def test_what_has_no_effect_is_reported(server, compiled):
    given = parameter("ENABLE_NVFUSER", "true") + parameter("ENABLE_WEIGHT_SHARING", "true")
    given += parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", "{}")
    with pytest.warns(nt.errors.ConfigWarning):
        server.load('backend: "pytorch" max_batch_size: 4 ' + IO + given, Net, name="m")
    assert {key.partition("[")[2] for key in server.ignored("m")} == {
        "ENABLE_NVFUSER]", "ENABLE_WEIGHT_SHARING]", "TORCH_COMPILE_OPTIONAL_PARAMETERS]",
    }  # fmt: skip
    with pytest.warns(nt.errors.ConfigWarning):
        server.load(text(given), Net, name="m")
    assert "parameters[TORCH_COMPILE_OPTIONAL_PARAMETERS]" not in server.ignored("m")


def test_thread_counts_have_other_names_with_the_python_runtime():
    before = torch.get_num_threads()
    names = parameter("NUM_THREADS", "1"), parameter("INTRA_OP_THREAD_COUNT", "1")
    try:
        for runtime, name, applied in (
            ('runtime: "model.py"', names[0], True), ('runtime: "model.py"', names[1], False),
            ("", names[0], False), ("", names[1], True),
        ):  # fmt: skip
            torch.set_num_threads(2)
            set_threads(as_config(runtime + name))
            assert torch.get_num_threads() == (1 if applied else 2)
    finally:
        torch.set_num_threads(before)


# -- torch.compile ---------------------------------------------------------------------------------------


@pytest.fixture
def compiled(monkeypatch):
    """What was compiled, and with which arguments; it is not compiled, which takes seconds."""
    found = []

    def compile_(module, **options):
        found.append((type(module).__name__, options))
        return module

    monkeypatch.setattr(torch, "compile", compile_)
    return found


@pytest.mark.slow
def test_a_compiled_module_answers_as_it_does_by_itself(server):
    server.load(text(parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", EAGER)), Net, name="m")
    assert asked(server) == ([[4.0, 5.0]], [[2.0, 3.0]])


@pytest.mark.parametrize(
    ("options", "expected"), [("", {}), (EAGER, json.loads(EAGER)), ('{"disable": true}', {"disable": True})]
)  # fmt: skip
def test_PT4_a_module_is_compiled_with_the_options_of_its_configuration(
    server, compiled, options, expected
):
    more = parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", options) if options else ""
    server.load(text(more, "instance_group { count: 2 }"), Net, name="m")
    assert compiled == [("Net", expected)]  # once for all instances
    # PT3: by the order of the configuration, not by the names of the arguments.
    assert asked(server) == ([[4.0, 5.0]], [[2.0, 3.0]])


def test_without_the_runtime_nothing_is_compiled(server, compiled):
    server.load('backend: "pytorch" max_batch_size: 4 ' + IO, Net, name="m")
    assert compiled == []
    assert asked(server) == ([[4.0, 5.0]], [[-2.0, -3.0]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('{"model": 1}', "'model' is not an optional parameter for 'torch.compile'"),
        ("{dynamic}", "JSONDecodeError: Expecting property name"),
        ("[]", "is a list, expected a JSON object"),
    ],
)
def test_PT4_options_that_cannot_be(options, message):
    with pytest.raises(InternalError) as caught:
        compile_options(as_config(text(parameter("TORCH_COMPILE_OPTIONAL_PARAMETERS", options))))
    assert message in caught.value.message


# -- files -----------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path):
    """Write ``m/1/…`` and its configuration; return the repository."""

    def write(files, more=""):
        folder = tmp_path / "m" / "1"
        folder.mkdir(parents=True)
        (tmp_path / "m" / "config.pbtxt").write_text(text(more))
        for name, content in files.items():
            if isinstance(content, str):
                (folder / name).write_text(content)
            else:
                content(str(folder / name))
        return tmp_path

    return write


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("name", ["model", "net"])
def test_PT2_a_class_in_a_file_and_its_weights(server, repository, compiled, weights, name):
    files = {f"{name}.py": SOURCE}
    if weights:
        files[f"{name}.pt"] = lambda path: torch.save({"scale": torch.full((1,), 10.0)}, path)
    more = "" if name == "model" else f'default_model_filename: "{name}.py"'
    server.load_repository(repository(files, more))
    factor = 10.0 if weights else 1.0
    assert asked(server) == ([[4 * factor, 5 * factor]], [[2 * factor, 3 * factor]])
    assert compiled == [("Net", {})]


def test_PT2_torchscript_is_not_compiled(server, repository, compiled):
    save = lambda path: torch.jit.save(torch.jit.script(Net()), path)
    server.load_repository(repository({"model.pt": save}))
    assert asked(server) == ([[4.0, 5.0]], [[2.0, 3.0]])
    assert compiled == []


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"readme": ""}, "Internal: No model found in {folder}/['model.py', 'model.pt']"),
        ({"model.py": "class Net: pass"}, "Internal: Cannot find a subclass of torch.nn.Module"),
        ({"model.py": "import torch\n1 / 0"}, "Internal: ZeroDivisionError: division by zero"),
    ],
)
def test_PT2_files_without_a_module(repository, files, message):
    root = repository(files)
    with nt.Server(gpus=()) as running:
        error = running.load_repository(root).errors["m"]
    assert isinstance(error, LoadError)
    assert error.message.startswith(PREFIX + message.format(folder=root / "m" / "1"))
