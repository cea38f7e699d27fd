"""The examples in docstrings run.

With `nt`, `np`, `ones`, a `server` that has the model `double`, and the names of the module that documents them.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import nbtriton as nt
from scripts import docs

SOURCES = Path(nt.__file__).parent
# Names of `nbtriton` and of the modules that the site documents, and methods of their classes, that have no
# example: who calls them instead, or what they would need.
WITHOUT = {
    "ModelConfig": "a protobuf message",
    "environment": "installs packages",
    "BackendInstance": "in the example of Backend",
    "BackendRequest": "nbtriton makes it",
    "BatchTimer": "nbtriton makes it",
    "Control": "a repository's, nbtriton makes it",
    "Endpoint": "extensions subclass it",
    "HttpEndpoint": "extensions subclass it",
    "InstanceContext": "nbtriton makes it",
    "ModelContext": "nbtriton makes it",
    "ServerHandle": "nbtriton makes it",
    "PageFigure.add_subplot": "pyplot calls it",
    "SharedMemoryPool.free": "its blocks call it",
    "SharedMemoryPool.part": "its blocks call it",
    "sent_within": "in an exercise's notebook",
    "show": "needs a video",
    "took_about": "in an exercise's notebook",
    "TritonError.again": "nbtriton calls it",
}


def modules() -> list[str]:
    files = [path for path in SOURCES.rglob("*.py") if ">>> " in path.read_text()]
    names = [path.relative_to(SOURCES.parent).with_suffix("").as_posix() for path in files]
    return sorted(name.replace("/", ".").removesuffix(".__init__") for name in names)


def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803, UP037
    return {"OUT": IN * 2}


@pytest.fixture
def names(own_progress, tmp_path, monkeypatch) -> Iterator[dict[str, object]]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8", double, name="double")
        yield {"nt": nt, "np": np, "server": server, "ones": np.ones((1, 4), np.float32)}


@pytest.mark.medium  # all of them: six seconds of a processor
@pytest.mark.parametrize("module", modules())
def test_the_examples_run(module: str, names: dict[str, object]) -> None:
    found = importlib.import_module(module)
    parts = module.split(".")
    for around in (importlib.import_module(".".join(parts[:depth])) for depth in (2, 3)):
        names = {name: getattr(around, name) for name in getattr(around, "__all__", ())} | names
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    written: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for test in doctest.DocTestFinder(exclude_empty=True).find(found, extraglobs=names):
            runner.run(test, out=written.append)
    assert not runner.failures, "".join(written)


def _shown(value: object) -> str:
    """Return the code of the examples of an object that run."""
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(value) or "")
    return "".join(one.source for one in examples if not one.options.get(doctest.SKIP))


def _public_methods(kind: type) -> dict[str, object]:
    return {
        name: method
        for name, method in inspect.getmembers(kind, inspect.isroutine)
        if not name.startswith("_")
        and str(getattr(method, "__module__", "")).startswith("nbtriton")
    }


def test_everything_public_has_an_example_that_runs() -> None:
    bare = set()
    for module in docs.MODULES:
        for name in docs.public_names(module):
            value = getattr(importlib.import_module(module), name)
            if (inspect.isroutine(value) or inspect.isclass(value)) and not _shown(value):
                bare.add(name)
            if inspect.isclass(value) and module in {"nbtriton", "nbtriton.types"}:
                # In the method's own docstring, or in that of its class or of another method.
                methods = _public_methods(value)
                shown = "".join(map(_shown, [value, *methods.values()]))
                called = set(re.findall(r"\.(\w+)\(", shown))
                bare |= {f"{name}.{one}" for one in methods if one not in called}
    assert bare == set(WITHOUT)
