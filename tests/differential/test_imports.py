"""Modules beside a model.py, imported at load and at run time: the same in both servers."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nbtriton
from tests.differential.harness import Model, write
from tests.differential.servers import COMPLETE, ISOLATION, noted

pytestmark = [pytest.mark.reference, pytest.mark.slow]

CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }
"""

SOURCE = r"""
import importlib
import json
import os
import pathlib
import pickle
import pkgutil
import sys
import threading
import typing
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module, util
import numpy as np
import triton_python_backend_utils as pb_utils

HERE = os.path.dirname(os.path.abspath(__file__))
ME = "me"


class Mine:
    pass


def statement():
    import helper
    return helper.WHO


def names():
    from helper import WHO as who, Thing
    return who, Thing().who()


def importlib_module():
    return importlib.import_module("lazy").WHO


def imported_function():
    return import_module("lazy").WHO, import_module(".inner", "package").WHO


def dunder():
    return __import__("lazy").WHO, __import__("package.inner").inner.WHO


def executed():
    scope = {}
    exec("import lazy\nwho = lazy.WHO", scope)
    return scope["who"]


def package():
    import package.inner
    import package.inner as inner
    from package import inner as again, other
    assert package.inner is inner is again is __import__("package.inner").inner
    return package.WHO, inner.WHO, other.WHO


def relative():
    from . import lazy
    return lazy.WHO


def one_of_each():
    import helper, lazy
    return helper is __import__("helper"), lazy.helper is helper, helper.lazy() is lazy


def thread():
    seen = []
    def run():
        import in_thread
        seen.append(in_thread.WHO)
    one = threading.Thread(target=run)
    one.start()
    one.join()
    return seen


def pool():
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(__import__, "in_pool").result().WHO


def own_path():
    sys.path.append(os.path.join(HERE, "lib"))
    import deep
    return deep.WHO, sys.path[-1] == os.path.join(HERE, "lib")


def inserted_path():
    folder = os.path.join(HERE, "vendored")
    sys.path.insert(0, folder)
    try:
        import vendored
        return vendored.WHO
    finally:
        sys.path.remove(folder)


def of_sys_modules():
    import helper
    return getattr(sys.modules[__name__], "ME"), sys.modules[helper.__name__] is helper, "lazy2" in sys.modules


def made():
    spec = util.spec_from_file_location("made", os.path.join(HERE, "lib", "by_path.py"))
    module = util.module_from_spec(spec)
    sys.modules["made"] = module
    spec.loader.exec_module(module)
    import made
    return made is module, made.WHO, import_module("made") is module


def by_path():
    spec = util.spec_from_file_location("by_path", os.path.join(HERE, "lib", "importing.py"))
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.WHO


def pickled():
    import helper
    return pickle.loads(pickle.dumps(helper.Thing())).who(), type(pickle.loads(pickle.dumps(Mine()))) is Mine


def unpickled():
    import io
    data = pathlib.Path(HERE, "thing.pickle").read_bytes()
    return [
        pickle.loads(data).who(),
        pickle._loads(data).who(),
        pickle.Unpickler(io.BytesIO(data)).load().who(),
        pickle.loads(b"cpackage.inner\nThing\n)R.").who(),
        pickle.loads(b"cpickled_only\nThing\n)R.").who(),
    ]


def published():
    import helper
    before = sys.modules.get("helper")
    sys.modules["helper"] = helper
    try:
        found = pickle.loads(pathlib.Path(HERE, "thing.pickle").read_bytes())
        return found.who(), type(found) is helper.Thing, import_module("helper") is helper
    finally:
        del sys.modules["helper"]
        if before is not None:
            sys.modules["helper"] = before


def hints():
    import helper
    return [hint.__name__ for hint in typing.get_type_hints(helper.Hinted).values()]


def installed_wins():
    import colorsys
    return hasattr(colorsys, "rgb_to_hls")


def missing():
    said = []
    for name in ("nothing_here", "package.nothing_here", "helper.nothing_here"):
        try:
            __import__(name)
        except ImportError as error:
            said.append(str(error))
    return len(said), util.find_spec("nothing_here") is None


def resources():
    import importlib.resources
    import package
    return (
        pathlib.Path(__file__).with_name("word.txt").read_text(),
        pathlib.Path(pb_utils.get_model_dir(), "word.txt").read_text(),
        pkgutil.get_data(package.__name__, "word.txt").decode(),
        importlib.resources.files(package).joinpath("word.txt").read_text(),
        [found.name for found in pkgutil.iter_modules(package.__path__)],
    )


def reloaded():
    import again
    before = again.count
    again.count = 5
    same = importlib.reload(again) is again
    return before, again.count, same


class TritonPythonModel:
    def initialize(self, args):
        import at_start
        word = pathlib.Path(args["model_repository"], "1", "word.txt").read_text()
        self.start = [at_start.WHO, word]

    def execute(self, requests):
        responses = []
        for request in requests:
            name = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0].decode()
            answer = self.start if name == "start" else globals()[name]()
            tensor = pb_utils.Tensor("OUT", np.array([json.dumps(answer).encode()], dtype=object))
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
"""

PROBES = (
    "start",
    "statement",
    "names",
    "dunder",
    "executed",
    "package",
    "one_of_each",
    "thread",
    "pool",
    "own_path",
    "inserted_path",
    "of_sys_modules",
    "made",
    "pickled",
    "published",
    "hints",
    "installed_wins",
    "missing",
    "resources",
    "reloaded",
    "relative",
    "importlib_module",
    "imported_function",
    "by_path",
    "unpickled",
)

HELPER = """
from __future__ import annotations
from dataclasses import dataclass

WHO = "{who}"


class Thing:
    def who(self):
        return WHO


@dataclass
class Hinted:
    thing: Thing
    number: int


def lazy():
    import lazy
    return lazy
"""


def model(name: str, *, who: str = "") -> Model:
    """A model whose modules say whose they are."""
    says = f'WHO = "{who or name} {{}}"\n'
    thing = "class Thing:\n    def who(self):\n        return WHO\n"
    files = {
        "helper.py": HELPER.format(who=who or name),
        "lazy.py": "import helper\n" + says.format("lazy"),
        "at_start.py": says.format("at start"),
        "in_thread.py": says.format("in thread"),
        "in_pool.py": says.format("in pool"),
        "pickled_only.py": says.format("pickled") + thing,
        "again.py": "count = 1\n",
        "colorsys.py": "",
        "word.txt": f"{name}'s word",
        "thing.pickle": "chelper\nThing\n)R.",
        "package/__init__.py": "from package.other import WHO\n",
        "package/other.py": says.format("other"),
        "package/inner.py": "from .other import WHO as other\n" + says.format("inner") + thing,
        "package/word.txt": f"{name}'s package's word",
        "lib/deep.py": "import helper\n" + says.format("deep"),
        "lib/by_path.py": says.format("by path"),
        "lib/importing.py": "import helper\nWHO = helper.WHO\n",
        "vendored/vendored.py": says.format("vendored"),
    }
    encoded = {f"1/{path}": text.encode() for path, text in files.items()}
    return Model(name, CONFIG, SOURCE, files=encoded)


Ask = Callable[[str, str], Any]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imports")
    write(folder, [model("a"), model("b")])
    return folder


def body(probe: str) -> bytes:
    tensor = {"name": "IN", "shape": [1], "datatype": "BYTES", "data": [probe]}
    return json.dumps({"inputs": [tensor]}).encode()


@pytest.fixture(scope="module")
def theirs(reference, repository: Path) -> Iterator[tuple[Ask, Callable[[str], None]]]:
    flags = ("--model-control-mode=explicit", "--load-model=*", COMPLETE)
    with reference.server(repository, *flags) as server:

        def post(path: str, data: bytes) -> Any:
            url = f"http://{server.http_url}/v2/{path}"
            with noted("real", server), urllib.request.urlopen(url, data=data) as reply:
                text = reply.read()
            return json.loads(text) if text else None

        def ask(name: str, probe: str) -> Any:
            answer = post(f"models/{name}/infer", body(probe))
            return json.loads(answer["outputs"][0]["data"][0])

        yield ask, lambda name: post(f"repository/models/{name}/load", b"{}")


@pytest.fixture(scope="module")
def ours(repository: Path) -> Iterator[tuple[Ask, Callable[[str], None]]]:
    before, path = set(sys.modules), list(sys.path)
    # The first one that is loaded keeps the names; the second one has a process.
    isolation = "auto" if ISOLATION == "thread" else ISOLATION
    with nbtriton.Server(isolation=isolation) as server:
        control = server.load_repository(repository, control_mode="explicit", load_models=["a"])
        control.load("b")
        assert server.models()[1].isolation == ("ray" if ISOLATION == "ray" else "process")

        def ask(name: str, probe: str) -> Any:
            answer = server.infer(name, {"IN": [probe]})
            return json.loads(answer["OUT"][0])

        yield ask, control.load
    left = {name.partition(".")[0] for name in set(sys.modules) - before}
    assert left.isdisjoint({"helper", "lazy", "package", "deep", "made"})
    assert not [name for name in left if name.startswith("nbtriton_model_")]
    added = sys.path[len(path) :]
    assert all(Path(entry).is_relative_to(repository) for entry in added)
    del sys.path[len(path) :]


@pytest.mark.parametrize("probe", PROBES)
def test_two_models_with_modules_of_the_same_names(probe: str, theirs, ours) -> None:
    for name in "ab":
        assert ours[0](name, probe) == theirs[0](name, probe)


def test_a_reload_takes_the_new_modules(repository: Path, theirs, ours) -> None:
    """Also where a request has imported the old ones before; unchanged files would be no reload."""
    probes = ("statement", "package", "pickled", "published", "reloaded")
    before = [[side[0]("a", probe) for probe in probes[:-1]] for side in (ours, theirs)]
    assert before[0] == before[1]
    write(repository, [model("a", who="new")])
    for side in (ours, theirs):
        side[1]("a")
    after = [[side[0]("a", probe) for probe in probes] for side in (ours, theirs)]
    assert after[0] == after[1]
    assert after[0][0] == "new"
