"""Modules beside a model.py share this interpreter with a notebook's, and neither meets the other.

What a model gets when it imports them is compared with the real server in
``tests/differential/test_imports.py``.
"""

from __future__ import annotations

import gc
import json
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import numpy as np
import pytest

from nbtriton.backends import ModelContext, find_backend
from nbtriton.config import as_config, normalize
from nbtriton.errors import ModelError
from tests.backends.fakes import DEFAULT

# A model that answers with what an expression is worth.
ASKED = """
import importlib, json, pickle, sys
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.answer(r))]) for r in requests]

    def answer(self, request):
        text = request.inputs()[0].as_numpy().tobytes().decode()
        return np.frombuffer(json.dumps(eval(text)).encode(), np.uint8)
"""
HELPER = "WHO = '{}'\nclass Thing:\n    def who(self):\n        return WHO\n"
NOTHING = "class TritonPythonModel:\n    pass\n"
PICKLE = b"chelper\nThing\n)R."


@pytest.fixture(autouse=True)
def clean():
    """What a process has of modules, and where it looks for them, is afterwards what it was."""
    gc.collect()  # what other tests have completed and not closed
    modules, path = set(sys.modules), list(sys.path)
    yield
    left = {name.partition(".")[0] for name in set(sys.modules) - modules}
    assert not left & {"helper", "1", "model"}
    assert not [name for name in left if name.startswith("nbtriton_model_")]
    assert sys.path == path
    if not any(name.startswith("nbtriton_model_") for name in sys.modules):
        assert not [finder for finder in sys.meta_path if "nbtriton" in type(finder).__module__]


@pytest.fixture
def ask(run):
    def ask(instance, expression):
        (found,) = run(instance, np.frombuffer(expression.encode(), np.uint8))
        return json.loads(found.outputs["OUT"].tobytes())

    return ask


def test_a_module_of_the_notebook_is_not_the_model_s(make, ask, model_file, tmp_path, monkeypatch):
    notebook = tmp_path / "notebook"
    notebook.mkdir()
    (notebook / "helper.py").write_text(HELPER.format("notebook"))
    (notebook / "only_here.py").write_text("WHO = 'notebook'\n")
    monkeypatch.syspath_prepend(notebook)
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    import helper

    try:
        instance = make(model_file(ASKED, helper=HELPER.format("model")))
        assert ask(instance, "__import__('helper').WHO") == "model"
        assert ask(instance, "importlib.import_module('helper').WHO") == "model"
        assert sys.modules["helper"] is helper
        assert helper.WHO == "notebook"
        # In its process the model would not find that; here the notebook's folder comes last.
        assert ask(instance, "importlib.import_module('only_here').WHO") == "notebook"
        assert type(pickle.loads(pickle.dumps(helper.Thing()))) is helper.Thing
    finally:
        sys.modules.pop("helper", None)
        sys.modules.pop("only_here", None)


def test_an_instance_s_modules_have_a_package_of_their_own(make, ask, model_file):
    names = "[__name__, __import__('helper').__name__, type(self).__module__]"
    instance = make(model_file(ASKED, helper=""))
    model, helper, of_class = ask(instance, names)
    package = model.removesuffix(".1.model")
    assert model == of_class != package
    assert helper == f"{package}.helper"
    assert set(sys.modules) > {package, model, helper}


def test_the_notebook_cannot_import_a_model_s_modules(make, ask, model_file, tmp_path, monkeypatch):
    instance = make(model_file(ASKED, helper=HELPER.format("model")))
    assert ask(instance, "__import__('helper').WHO") == "model"
    assert ask(instance, f"pickle.loads({PICKLE!r}).who()") == "model"
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="No module named 'helper'"):
            from helper import WHO
    assert ask(instance, f"pickle.loads({PICKLE!r}).who()") == "model"
    (tmp_path / "helper.py").write_text(HELPER.format("notebook"))
    monkeypatch.syspath_prepend(tmp_path)
    try:
        from helper import WHO

        assert WHO == "notebook"
        assert ask(instance, "importlib.import_module('helper').WHO") == "model"
    finally:
        sys.modules.pop("helper", None)


def test_what_is_imported_by_name_at_the_same_time_is_everyone_s_own(make, ask, model_file):
    """Two models unpickle what names ``helper``: each gets its own classes, every time."""
    models = {
        who: make(model_file(ASKED, who, helper=HELPER.format(who)), name=who) for who in "ab"
    }
    start = threading.Barrier(2)
    again = f"{{pickle.loads({PICKLE!r}).who() for _ in range(300)}}"

    def load(who):
        start.wait(30)
        return [ask(models[who], f"list({again})") for _ in range(5)]

    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(load, "ab")) == [[["a"]] * 5, [["b"]] * 5]
    finally:
        sys.setswitchinterval(switch_s)
    # For all others there is no such thing.
    assert not hasattr(sys.modules["helper"], "__file__")


def test_a_model_without_such_a_module_is_not_lent_another_s(make, ask, model_file):
    lender = make(model_file(ASKED, "a", helper=HELPER.format("a")), name="a")
    other = make(model_file(ASKED, "b"), name="b")
    # Imported by a library that sees the process's modules, not the model's.
    assert ask(lender, "sys.modules['importlib'].import_module('helper').WHO") == "a"
    assert "helper" in sys.modules
    for way in (f"pickle.loads({PICKLE!r}).who()", "importlib.import_module('helper').WHO"):
        with pytest.raises(ModelError, match="ModuleNotFoundError: No module named 'helper'"):
            ask(other, way)


def test_what_an_instance_pickled_is_read_by_the_next_one(make, ask, model_file):
    source = model_file(ASKED, helper=HELPER.format("model"))
    before = make(source)
    dumped = "[pickle.dumps(__import__('helper').Thing()).hex(), pickle.dumps(type(self)).hex()]"
    pickles = ask(before, dumped)
    before.finalize()
    thing, model = (f"pickle.loads(bytes.fromhex({text!r}))" for text in pickles)
    after = make(source, instance="m_0_1")
    assert ask(after, f"type({thing}) is __import__('helper').Thing")
    assert ask(after, f"{model} is type(self)")


def test_modules_go_with_a_model_that_cannot_be_loaded(make, model_file):
    faults = (
        "import helper\nraise ValueError('at the top')\n",
        (
            "import helper\nclass TritonPythonModel:\n"
            "    def initialize(self, args):\n        raise ValueError('in initialize')\n"
        ),
        (
            "import helper\nclass TritonPythonModel:\n    @staticmethod\n"
            "    def auto_complete_config(config):\n        raise ValueError('completing')\n"
        ),
        "from helper import nothing\n",
    )
    for text in faults:
        with pytest.raises(ModelError) as caught:
            make(model_file(text, helper=HELPER.format("model")))
        assert "nbtriton_model" not in caught.value.message + caught.value.user_traceback
        del caught
    assert not [name for name in sys.modules if name.startswith("nbtriton_model_")]


def test_modules_go_when_a_configuration_was_only_completed(model_file):
    text = (
        "import helper\nclass TritonPythonModel:\n    @staticmethod\n"
        "    def auto_complete_config(config):\n        return config\n"
    )
    source = model_file(text, helper=HELPER.format("model"))
    config = normalize(as_config(DEFAULT), name="m")
    backend = find_backend("python")()
    backend.complete_config(ModelContext("m", 1, config, source, source.parents[1]))
    assert [name for name in sys.modules if name.endswith(".helper")]
    del backend


def test_models_that_load_side_by_side_do_not_get_half_a_package(
    make, model_file, tmp_path, monkeypatch
):
    """As torch is: what imports its submodule waits for a package that imports it itself."""
    package = tmp_path / "circular"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import circular_hook\ncircular_hook.begun()\nfrom circular.inner import READY\n"
    )
    (package / "inner" / "__init__.py").write_text("import circular\nREADY = 1\n")
    (package / "inner" / "leaf.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    other = threading.Thread(
        target=lambda: make(model_file("import circular.inner.leaf\n" + NOTHING, "b"))
    )

    def begun():
        other.start()
        other.join(0.3)  # it gets as far as it can

    hook = ModuleType("circular_hook")
    hook.begun = begun
    monkeypatch.setitem(sys.modules, "circular_hook", hook)
    try:
        make(model_file("import circular\n" + NOTHING, "a"))
        other.join(30)
        assert not other.is_alive()
    finally:
        for name in ("circular", "circular.inner", "circular.inner.leaf"):
            sys.modules.pop(name, None)


def test_a_copy_of_pb_utils_beside_a_model_is_not_used(make, ask, model_file):
    source = model_file(ASKED, triton_python_backend_utils="raise RuntimeError\n")
    assert ask(make(source), "pb_utils.__name__") == "nbtriton.backends.python.api.pb_utils"


def test_a_folder_of_data_does_not_hide_a_package(make, ask, model_file, tmp_path, monkeypatch):
    """A folder without ``__init__.py`` comes after all packages, wherever those are."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "weights").mkdir(parents=True)
    (elsewhere / "weights" / "__init__.py").write_text("WHO = 'package'\n")
    monkeypatch.syspath_prepend(elsewhere)
    source = model_file(ASKED)
    (source.parent / "weights").mkdir()
    try:
        assert ask(make(source), "__import__('weights').WHO") == "package"
    finally:
        sys.modules.pop("weights", None)


def test_path_modules_and_argv_of_sys_are_the_model_s_own_and_nothing_else_is(
    make, ask, model_file
):
    instance = make(model_file(ASKED, helper=HELPER.format("model")))
    assert ask(instance, "sys.path.append('/nowhere')") is None
    assert "/nowhere" not in sys.path
    assert ask(instance, "sys.path[-1]") == "/nowhere"
    assert ask(instance, "setattr(sys, 'nbtriton_test', 5)") is None
    try:
        assert sys.nbtriton_test == 5
        assert ask(instance, "(delattr(sys, 'nbtriton_test'), hasattr(sys, 'nbtriton_test'))[1]") is False  # fmt: skip
        assert not hasattr(sys, "nbtriton_test")
    finally:
        vars(sys).pop("nbtriton_test", None)
    assert ask(instance, "[sys.modules.setdefault('tabnanny', 7), sys.modules.pop('tabnanny')]") == [7, 7]  # fmt: skip
    instead = "__import__('json'), sys.modules.update(json=sys), __import__('json') is sys"
    assert ask(instance, f"[{instead}][-1]")
    assert sys.modules["json"] is json
    assert ask(instance, "(__import__('helper'), len(sys.modules) == len(list(sys.modules)))[1]")
    assert ask(instance, "str(sys)") == str(sys)
    assert ask(instance, "sys.argv") == [""]
