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
        # By its bare name it is the notebook's for all others.
        assert ask(instance, "importlib.import_module('helper').WHO") == "notebook"
        assert sys.modules["helper"] is helper
        assert helper.WHO == "notebook"
        # In its process the model would not find that; here the notebook's folder comes last.
        assert ask(instance, "__import__('only_here').WHO") == "notebook"
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
    with pytest.raises(ModuleNotFoundError, match="No module named 'helper'"):
        from helper import WHO
    (tmp_path / "helper.py").write_text(HELPER.format("notebook"))
    monkeypatch.syspath_prepend(tmp_path)
    try:
        from helper import WHO

        assert WHO == "notebook"
        assert ask(instance, "__import__('helper').WHO") == "model"
    finally:
        sys.modules.pop("helper", None)


BY_NAME = {
    "pickle": f"pickle.loads({PICKLE!r}).who()",
    "Python's pickle": f"pickle._loads({PICKLE!r}).who()",
    "importlib": "importlib.import_module('helper').WHO",
}


@pytest.mark.parametrize("way", BY_NAME)
def test_libraries_find_a_model_s_module_where_it_has_given_them_the_name(
    way, make, ask, model_file
):
    """`module-names`: bare names are the process's; the error says how a model publishes one."""
    instance = make(model_file(ASKED, helper=HELPER.format("model")))
    with pytest.raises(ModelError, match="ModuleNotFoundError: No module named 'helper'") as caught:
        ask(instance, BY_NAME[way])
    assert "sys.modules['helper'] = helper" in caught.value.hint
    assert ask(instance, "sys.modules.setdefault('helper', __import__('helper')).WHO") == "model"
    assert ask(instance, BY_NAME[way]) == "model"
    assert ask(instance, "__import__('helper').WHO") == "model"
    instance.finalize()
    assert "helper" not in sys.modules


def test_an_unpickler_of_its_own_needs_no_name_in_the_process(make, ask, model_file):
    """The way for two models that have different modules of one name."""
    unpickler = (
        "\nclass Unpickler(pickle.Unpickler):\n"
        "    def find_class(self, module, name):\n"
        "        return getattr(__import__(module, fromlist=[name]), name)\n"
    )
    models = [make(model_file(ASKED + unpickler, who, helper=HELPER.format(who))) for who in "ab"]
    read = f"Unpickler(__import__('io').BytesIO({PICKLE!r})).load().who()"
    assert [ask(model, read) for model in models] == ["a", "b"]
    assert "helper" not in sys.modules


def test_an_import_that_fails_elsewhere_has_no_hint(make, ask, model_file):
    instance = make(model_file(ASKED, helper=HELPER.format("model")))
    with pytest.raises(ModelError, match="No module named 'nothing_here'") as caught:
        ask(instance, "importlib.import_module('nothing_here')")
    assert caught.value.hint == ""


def test_pickles_of_an_instance_are_read_by_the_next_one(make, ask, model_file):
    source = model_file(ASKED, helper=HELPER.format("model"))
    before = make(source)
    dumped = "[pickle.dumps(__import__('helper').Thing()).hex(), pickle.dumps(type(self)).hex()]"
    pickles = ask(before, dumped)
    before.finalize()
    thing, model = (f"pickle.loads(bytes.fromhex({text!r}))" for text in pickles)
    after = make(source, instance="m_0_1")
    for _ in range(2):
        assert ask(after, f"type({thing}) is __import__('helper').Thing")
        assert ask(after, f"{model} is type(self)")
    elsewhere = make(model_file(ASKED, "other", helper=HELPER.format("other")), name="other")
    after.finalize()
    gc.collect()
    with pytest.raises(ModelError, match="No module named 'nbtriton_model_"):
        ask(elsewhere, thing)


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


def test_PB2_modules_go_when_a_configuration_was_only_completed(model_file):
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


def test_folders_of_a_model_that_it_adds_to_sys_path_are_its_own(
    make, ask, model_file, monkeypatch
):
    monkeypatch.setattr(sys, "path", [*sys.path])
    models = []
    for who in "ab":
        source = model_file(ASKED, who)
        (source.parent / "lib").mkdir()
        (source.parent / "lib" / "helper.py").write_text(HELPER.format(who))
        models.append(make(source, name=who))
        assert ask(models[-1], f"sys.path.append({str(source.parent / 'lib')!r})") is None
    assert [ask(model, "__import__('helper').WHO") for model in models] == ["a", "b"]
    assert "helper" not in sys.modules
