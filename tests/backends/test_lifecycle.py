"""Loading, initialize, finalize and auto-complete of python models."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from nbtriton.backends import ModelContext, find_backend
from nbtriton.backends.python import install_pb_utils
from nbtriton.common.errors import InternalError, ModelError, UnsupportedError
from nbtriton.model.config import as_config, normalize
from tests.backends.fakes import DEFAULT, ones

install_pb_utils()

ECHO = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.answer(r))]) for r in requests
        ]
"""


def complete(source, config=DEFAULT, name="m"):
    backend = find_backend("python")()
    return backend.complete_config(
        ModelContext(name, 1, normalize(as_config(config), name=name), source)
    )


def value(responses):
    return responses[0].outputs["OUT"].tolist()


# -- initialize and finalize ------------------------------------------------------------------------


def test_Y1_initialize_execute_finalize(make, run):
    seen = []

    class TritonPythonModel:
        def initialize(self, args):
            seen.append("initialize")

        def execute(self, requests):
            seen.append("execute")
            import triton_python_backend_utils as pb_utils

            return [pb_utils.InferenceResponse() for _ in requests]

        def finalize(self):
            seen.append("finalize")

    instance = make(TritonPythonModel)
    run(instance, ones())
    run(instance, ones())
    instance.finalize()
    assert seen == ["initialize", "execute", "execute", "finalize"]


def test_PB3_initialize_gets_strings_and_the_completed_configuration(make, model_file):
    seen = []

    class TritonPythonModel:
        def initialize(self, args):
            seen.append(args)

    make(
        TritonPythonModel, instance="m_0_3", kind="KIND_GPU", directory=Path("/repo/m"), device_id=1
    )
    (args,) = seen
    config = json.loads(args.pop("model_config"))
    assert config["name"] == "m"
    assert config["max_batch_size"] == 8
    assert config["input"][0]["dims"] == [4]
    assert args == {
        "model_instance_kind": "GPU",
        "model_instance_name": "m_0_3",
        "model_instance_device_id": "1",
        "model_repository": "/repo/m",
        "model_version": "1",
        "model_name": "m",
    }


def test_PB6_an_error_in_initialize_is_a_load_error_with_triton_s_text(make):
    class TritonPythonModel:
        def initialize(self, args):
            raise ValueError("msg")

    line = TritonPythonModel.initialize.__code__.co_firstlineno + 1
    with pytest.raises(ModelError) as caught:
        make(TritonPythonModel)
    assert caught.value.message == f"ValueError: msg\n\nAt:\n  {__file__}({line}): initialize\n"
    assert 'raise ValueError("msg")' in caught.value.user_traceback


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def x(:\n", "SyntaxError: invalid syntax (model.py, line 1)"),
        ("x = 1\n", "AttributeError: module '1.model' has no attribute 'TritonPythonModel'"),
        ("import nope_nope\n", "ModuleNotFoundError: No module named 'nope_nope'"),
        ("raise ValueError('msg')\n", "ValueError: msg\n\nAt:\n  {path}(1): <module>\n"),
    ],
)
def test_PB6_a_file_that_does_not_import_is_a_load_error(make, model_file, text, message):
    path = model_file(text)
    with pytest.raises(ModelError) as caught:
        make(path)
    assert caught.value.message.startswith(message.format(path=path))
    assert "nbtriton/backends" not in caught.value.user_traceback


def test_PB6_a_missing_file_fails_at_once(make, tmp_path):
    with pytest.raises(InternalError) as caught:
        make(tmp_path / "model.py")
    assert caught.value.message == (
        f"Failed to preinitialize Python stub: Python model file not found in '{tmp_path}/model.py'"
    )


@pytest.mark.parametrize("error", [ValueError("late"), SystemExit("late")])
def test_PB7_an_error_in_finalize_is_only_logged(make, caplog, error):
    class TritonPythonModel:
        def finalize(self):
            raise error

    make(TritonPythonModel).finalize()
    assert f"{type(error).__name__}: late" in caplog.text


@pytest.mark.medium
def test_the_model_object_goes_with_its_instance(make):
    import gc
    import weakref

    alive = []

    class TritonPythonModel:
        def initialize(self, args):
            alive.append(weakref.ref(self))

        def execute(self, requests):
            return []

    make(TritonPythonModel).finalize()
    gc.collect()
    assert alive[0]() is None


# -- files ------------------------------------------------------------------------------------------


def test_PB1_instances_of_a_file_share_no_globals(make, run, model_file):
    path = model_file(
        "import numpy as np\nimport counter\ncalls = 0\n" + ECHO + "\n"
        "    def answer(self, r):\n"
        "        global calls\n"
        "        calls += 1\n"
        "        counter.count += 10\n"
        "        return np.array([calls + counter.count])\n",
        counter="count = 0\n",
    )
    first, second = make(path), make(path, instance="m_0_1")
    assert [value(run(first, ones())) for _ in range(3)] == [[11], [22], [33]]
    assert value(run(second, ones())) == [11]


def test_PB1_two_models_have_modules_of_one_name(make, run, model_file):
    import sys

    text = (
        "import numpy as np\nimport helper\nfrom other import number\n" + ECHO + "\n"
        "    def answer(self, r):\n"
        "        return np.array([helper.NUMBER, number()])\n"
    )
    other = "import helper\ndef number():\n    return helper.NUMBER + 1\n"
    a = make(model_file(text, "a", helper="NUMBER = 1\n", other=other), name="a")
    b = make(model_file(text, "b", helper="NUMBER = 5\n", other=other), name="b")
    for model, numbers in ((a, [1, 2]), (b, [5, 6]), (a, [1, 2])):
        assert value(run(model, ones())) == numbers
    assert not {"1", "1.model"} & set(sys.modules)


def test_PB1_an_installed_module_wins_over_a_local_one(make, run, model_file):
    text = (
        "import numpy as np\nimport colorsys\n" + ECHO + "\n"
        "    def answer(self, r):\n        return np.array([hasattr(colorsys, 'rgb_to_hls')])\n"
    )
    assert value(run(make(model_file(text, colorsys="")), ones())) == [True]


def test_PB1_modules_beside_the_version_and_packages_and_relative_imports(make, run, model_file):
    path = model_file(
        "import numpy as np\nfrom . import beside\nfrom package.inner import THREE\nimport shared\n"
        + ECHO
        + "\n    def answer(self, r):\n"
        "        return np.array([beside.ONE, shared.TWO, THREE])\n",
        beside="ONE = 1\n",
    )
    (path.parents[1] / "shared.py").write_text("TWO = 2\n")
    package = path.parent / "package"
    package.mkdir()
    (package / "__init__.py").write_text("from package.values import three\n")
    (package / "values.py").write_text("three = 3\n")
    (package / "inner.py").write_text("from . import three as THREE\n")
    assert value(run(make(path, directory=path.parents[1]), ones())) == [1, 2, 3]


@pytest.mark.medium
def test_a_file_that_changed_a_moment_ago_is_read_again(make, run, model_file):
    text = (
        "import numpy as np\n"
        + ECHO
        + "\n    def answer(self, r):\n        return np.array([{}])\n"
    )
    for number in range(3):
        assert value(run(make(model_file(text.format(number))), ones())) == [number]
    assert not list(model_file(text).parent.glob("__pycache__"))


def test_dataclasses_and_enums_work_in_a_file(make, run, model_file):
    text = (
        "from __future__ import annotations\nimport enum\nimport numpy as np\n"
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Point:\n    x: int = 4\n"
        "class Color(enum.Enum):\n    RED = 2\n" + ECHO + "\n    def answer(self, r):\n"
        "        return np.array([Point().x, Color.RED.value])\n"
    )
    assert value(run(make(model_file(text)), ones())) == [4, 2]


def test_get_model_dir_is_the_version_directory(make, run, model_file):
    text = (
        "import numpy as np\n" + ECHO + "\n"
        "    def initialize(self, args):\n        self.at = pb_utils.get_model_dir()\n"
        "    def answer(self, r):\n"
        "        return np.array([self.at, pb_utils.get_model_dir()], dtype=object)\n"
    )
    path = model_file(text)
    assert value(run(make(path), ones())) == [str(path.parent).encode()] * 2


def test_c_python_backend_utils_can_be_imported_too():
    import c_python_backend_utils
    import triton_python_backend_utils

    assert c_python_backend_utils.Tensor is triton_python_backend_utils.Tensor


# -- FORCE_CPU_ONLY_INPUT_TENSORS -------------------------------------------------------------------


def force(text):
    return DEFAULT + (
        f'parameters {{ key: "FORCE_CPU_ONLY_INPUT_TENSORS" value {{ string_value: "{text}" }} }}'
    )


def test_PB90_a_wrong_FORCE_CPU_ONLY_INPUT_TENSORS_is_a_load_error(make):
    class TritonPythonModel:
        pass

    with pytest.raises(UnsupportedError) as caught:
        make(TritonPythonModel, force("maybe"))
    assert caught.value.message == "Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: maybe'"


@pytest.mark.gpu
@pytest.mark.parametrize(("text", "on_cpu"), [("yes", True), ("no", False)])
def test_PB90_FORCE_CPU_ONLY_INPUT_TENSORS_brings_inputs_to_the_host(make, run, text, on_cpu):
    import torch
    import triton_python_backend_utils as pb_utils

    seen = []

    class TritonPythonModel:
        def execute(self, requests):
            tensor = requests[0].inputs()[0]
            seen.append(tensor.is_cpu())
            return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", tensor)])]

    (found,) = run(make(TritonPythonModel, force(text)), torch.ones((1, 4), device="cuda"))
    assert seen == [on_cpu]
    assert found.outputs["OUT"].tolist() == [[1] * 4]


# -- auto_complete_config ---------------------------------------------------------------------------


def test_AC4_auto_complete_config_fills_the_configuration(make):
    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            assert config.as_dict()["name"] == "m"
            config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4]})
            config.add_output({"name": "OUT", "data_type": "TYPE_STRING", "dims": [-1]})
            config.set_max_batch_size(4)
            config.set_dynamic_batching()
            config.set_model_transaction_policy({"decoupled": True})
            return config

    done = complete(TritonPythonModel, "")
    assert [t.name for t in done.input] == ["IN"]
    assert list(done.output[0].dims) == [-1]
    assert done.max_batch_size == 4
    assert done.HasField("dynamic_batching")
    assert done.model_transaction_policy.decoupled


def test_AC2_without_the_method_the_configuration_stays():
    class TritonPythonModel:
        pass

    assert complete(TritonPythonModel) == normalize(as_config(DEFAULT), name="m")


def test_AC2_it_must_return_the_object():
    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            return None

    with pytest.raises(InternalError) as caught:
        complete(TritonPythonModel)
    assert caught.value.message == (
        "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object."
    )


def test_AC2_an_exception_is_a_load_error_with_triton_s_text(model_file):
    path = model_file(
        "class TritonPythonModel:\n"
        "    @staticmethod\n"
        "    def auto_complete_config(config):\n"
        "        raise ValueError('no')\n"
    )
    with pytest.raises(ModelError) as caught:
        complete(path)
    assert caught.value.message == (f"ValueError: no\n\nAt:\n  {path}(4): auto_complete_config\n")


def test_AC2_a_conflict_names_both_sides(model_file):
    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            config.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [4]})
            return config

    with pytest.raises(ModelError, match="configuration expects datatype TYPE_FP32 for input 'IN'"):
        complete(TritonPythonModel)


def test_a_model_may_annotate_with_pb_utils_ModelConfig(model_file):
    path = model_file(
        "import triton_python_backend_utils as pb_utils\n"
        "class TritonPythonModel:\n"
        "    @staticmethod\n"
        "    def auto_complete_config(c: pb_utils.ModelConfig) -> pb_utils.ModelConfig:\n"
        "        assert isinstance(c, pb_utils.ModelConfig)\n"
        "        return c\n"
    )
    complete(path)


# -- Logger -----------------------------------------------------------------------------------------


def test_PB46_Logger_lines_show_the_model_s_file_and_line(make, run, model_file, caplog):
    text = (
        "import numpy as np\n" + ECHO + "\n    def answer(self, r):\n"
        "        pb_utils.Logger.log_info('hello')\n"
        "        pb_utils.Logger.log('bad', pb_utils.Logger.ERROR)\n"
        "        pb_utils.Logger.log_verbose('detail')\n"
        "        return np.zeros(1)\n"
    )
    path = model_file(text)
    line = text[: text.index("log_info")].count("\n") + 1
    with caplog.at_level(logging.INFO):
        run(make(path), ones())
    assert [(r.levelname, r.name, Path(r.pathname).name, r.lineno) for r in caplog.records] == [
        ("INFO", "nbtriton.model.m", "model.py", line),
        ("ERROR", "nbtriton.model.m", "model.py", line + 1),
    ]
    assert np.all([r.pathname == str(path) for r in caplog.records])
