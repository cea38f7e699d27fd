"""Modules beside a model.py in a thread are modules of this process, by their own names (`module-names`).

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
from nbtriton.backends.python.imports import LocalModules
from nbtriton.common.errors import ModelError
from nbtriton.model.config import as_config, normalize
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
    modules, path, finders = set(sys.modules), list(sys.path), list(sys.meta_path)
    yield
    left = {name.partition(".")[0] for name in set(sys.modules) - modules}
    assert not left & {"helper", "1", "model"}
    assert not [name for name in left if name.startswith("nbtriton_model_")]
    assert sys.path == path
    assert sys.meta_path == finders


@pytest.fixture
def ask(run):
    def ask(instance, expression):
        (found,) = run(instance, np.frombuffer(expression.encode(), np.uint8))
        return json.loads(found.outputs["OUT"].tobytes())

    return ask


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """A folder in front of `sys.path` with a ``helper.py``."""
    folder = tmp_path / "notebook"
    folder.mkdir()
    (folder / "helper.py").write_text(HELPER.format("notebook"))
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("helper", None)


@pytest.mark.medium
def test_a_module_of_the_notebook_is_not_the_model_s(make, ask, model_file, notebook):
    import helper

    (notebook / "only_here.py").write_text("WHO = 'notebook'\n")
    instance = make(model_file("import helper\n" + ASKED, helper=HELPER.format("model")))
    try:
        assert ask(instance, "helper.WHO") == "model"
        assert sys.modules["helper"] is helper
        assert helper.WHO == "notebook"
        assert type(pickle.loads(pickle.dumps(helper.Thing()))) is helper.Thing
        # In its process the model would not find that.
        assert ask(instance, "__import__('only_here').WHO") == "notebook"
    finally:
        sys.modules.pop("only_here", None)


@pytest.mark.medium
def test_a_name_of_the_notebook_s_folder_stays_the_notebook_s(make, ask, model_file, notebook):
    """Also where the notebook has not imported the module yet."""
    instance = make(model_file("import helper\n" + ASKED, helper=HELPER.format("model")))
    assert ask(instance, "helper.WHO") == "model"
    import helper

    assert helper.WHO == "notebook"


BY_NAME = {
    "statement": "__import__('helper').WHO",
    "pickle": f"pickle.loads({PICKLE!r}).who()",
    "Python's pickle": f"pickle._loads({PICKLE!r}).who()",
    "importlib": "importlib.import_module('helper').WHO",
}


@pytest.mark.medium
@pytest.mark.parametrize("way", BY_NAME)
@pytest.mark.parametrize("imported", [True, False])
def test_a_model_s_module_is_found_by_its_name(way, imported, make, ask, model_file):
    first = "import helper\n" if imported else ""
    instance = make(model_file(first + ASKED, helper=HELPER.format("model")))
    assert ask(instance, BY_NAME[way]) == "model"
    instance.finalize()
    assert "helper" not in sys.modules


@pytest.mark.medium
def test_instances_share_the_modules_beside_their_file(make_instances, ask, model_file):
    source = model_file("import helper\nMINE = []\n" + ASKED, helper=HELPER.format("model"))
    one, other = make_instances(source, 2)
    assert ask(one, "[setattr(helper, 'count', 1), MINE.append(1)]")
    assert ask(other, "[helper.count, MINE]") == [1, []]
    names = [ask(instance, "[__name__, type(self).__module__]") for instance in (one, other)]
    assert all(of_file == of_class for of_file, of_class in names)
    assert len({of_file.removesuffix(".1.model") for of_file, _ in names}) == 2
    one.finalize()
    assert ask(other, "__import__('helper').count") == 1
    other.finalize()
    assert "helper" not in sys.modules


@pytest.mark.medium
def test_of_two_models_with_a_module_of_one_name_the_first_one_keeps_it(
    make, ask, model_file, caplog
):
    """`module-names`: both import their own one at load; what needs it later needs a process."""
    source = "import helper\nfrom helper import Thing\n" + ASKED
    a, b = (make(model_file(source, who, helper=HELPER.format(who)), name=who) for who in "ab")
    asked = "[helper.WHO, Thing().who()]"
    assert [ask(model, asked) for model in (a, b)] == [["a", "a"], ["b", "b"]]
    assert [ask(model, BY_NAME["pickle"]) for model in (a, b)] == ["a", "a"]
    (warning,) = caplog.messages
    assert warning.startswith("model 'b' has a module 'helper', and so has this process: ")
    assert "/a/1/helper.py" in warning
    assert "INSTANCE_ISOLATION process" in warning
    a.finalize()
    assert [ask(b, expression) for expression in (asked, BY_NAME["statement"])] == [["b", "b"], "b"]


@pytest.mark.medium
def test_a_new_load_takes_the_names_and_a_failed_one_does_not(make, ask, model_file):
    old = make(model_file("import helper\n" + ASKED, helper=HELPER.format("old")))
    before = sys.modules["helper"]
    broken = "import helper\nassert helper.WHO == 'broken'\nraise ValueError('at the top')\n"
    with pytest.raises(ModelError, match="at the top"):
        make(model_file(broken, helper=HELPER.format("broken")))
    assert sys.modules["helper"] is before
    new = make(model_file("import helper\n" + ASKED, helper=HELPER.format("new")))
    assert [ask(one, "helper.WHO") for one in (old, new)] == ["old", "new"]
    old.finalize()
    assert ask(new, BY_NAME["statement"]) == "new"


@pytest.mark.medium
def test_what_a_model_pickles_is_read_by_the_next_one(make, ask, model_file):
    source = model_file(ASKED, helper=HELPER.format("model"))
    before = make(source)
    dumped = ask(before, "pickle.dumps(__import__('helper').Thing()).hex()")
    of_file = "pickle.loads(pickle.dumps(type(self))) is type(self)"
    assert ask(before, of_file)
    before.finalize()
    after = make(source, instance="m_0_1")
    assert ask(after, f"pickle.loads(bytes.fromhex({dumped!r})).who()") == "model"
    assert ask(after, of_file)


@pytest.mark.medium
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


@pytest.mark.medium
def test_PB2_modules_go_when_a_configuration_was_only_completed(model_file):
    text = (
        "import helper\nclass TritonPythonModel:\n    @staticmethod\n"
        "    def auto_complete_config(config):\n        return config\n"
    )
    source = model_file(text, helper=HELPER.format("model"))
    config = normalize(as_config(DEFAULT), name="m")
    find_backend("python")().complete_config(
        ModelContext("m", 1, config, source, source.parents[1])
    )
    assert "helper" not in sys.modules


@pytest.mark.medium
def test_another_thread_may_import_while_modules_go(make, model_file, monkeypatch):
    class Importing(str):
        """A name that imports a module when it is read, as another thread may just then."""

        __slots__ = ()

        def partition(self, separator):
            monkeypatch.setitem(sys.modules, f"imported_meanwhile_{len(sys.modules)}", sys)
            return super().partition(separator)

    monkeypatch.setitem(sys.modules, Importing("read"), sys)
    make(model_file(NOTHING))  # forgets what its configuration was completed with


@pytest.mark.medium
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


@pytest.mark.medium
def test_a_copy_of_pb_utils_beside_a_model_is_not_used(make, ask, model_file):
    source = model_file(ASKED, triton_python_backend_utils="raise RuntimeError\n")
    assert ask(make(source), "pb_utils.__name__") == "nbtriton.backends.python.api.pb_utils"


@pytest.mark.medium
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


@pytest.mark.medium
def test_a_folder_of_a_model_that_it_adds_to_sys_path(make, ask, model_file, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    source = model_file(ASKED)
    (source.parent / "lib").mkdir()
    (source.parent / "lib" / "helper.py").write_text(HELPER.format("lib"))
    instance = make(source)
    assert ask(instance, f"sys.path.append({str(source.parent / 'lib')!r})") is None
    assert ask(instance, "__import__('helper').WHO") == "lib"
    instance.finalize()
    assert "helper" not in sys.modules


@pytest.mark.medium
def test_a_script_beside_the_model_may_be_started_by_a_path_with_dots(tmp_path, monkeypatch):
    """``python ../folder/main.py``: Python writes ``..`` into `sys.path` and into the files of modules."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "beside.py").write_text("")
    dotted = folder / ".." / "folder"
    monkeypatch.syspath_prepend(dotted)
    __import__("beside")
    try:
        assert ".." in (sys.modules["beside"].__file__ or "")
        for directory in (folder, dotted):
            assert LocalModules(1, [directory]).clashes() == {}
    finally:
        del sys.modules["beside"]
