"""The examples in docstrings run, with `nt`, `np`, `ones` and a `server` that has the model `double`."""

from __future__ import annotations

import doctest
import importlib
import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import nbtriton as nt

SOURCES = Path(nt.__file__).parent
# Called by IPython, or measured for longer than an example should take, with what they return.
WITHOUT = {
    "environment", "load_ipython_extension", "unload_ipython_extension", "compare", "profile", "tune",
    "whatif", "Profile", "Tuning",
}  # fmt: skip


def modules() -> list[str]:
    files = [path for path in SOURCES.rglob("*.py") if ">>> " in path.read_text()]
    names = [path.relative_to(SOURCES.parent).with_suffix("").as_posix() for path in files]
    return sorted(name.replace("/", ".").removesuffix(".__init__") for name in names)


def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803, UP037
    return {"OUT": IN * 2}


@pytest.fixture
def names(own_progress) -> Iterator[dict[str, object]]:
    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8", double, name="double")
        yield {"nt": nt, "np": np, "server": server, "ones": np.ones((1, 4), np.float32)}


@pytest.mark.parametrize("module", modules())
def test_the_examples_run(module: str, names: dict[str, object]) -> None:
    found = importlib.import_module(module)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    written: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for test in doctest.DocTestFinder(exclude_empty=True).find(found, extraglobs=names):
            runner.run(test, out=written.append)
    assert not runner.failures, "".join(written)


def test_every_public_function_and_class_has_an_example_that_runs() -> None:
    parser = doctest.DocTestParser()
    bare = set()
    for name in nt.__all__:
        value = getattr(nt, name)
        if inspect.isroutine(value) or inspect.isclass(value):
            examples = parser.get_examples(inspect.getdoc(value) or "")
            if all(one.options.get(doctest.SKIP) for one in examples):
                bare.add(name)
    assert bare <= WITHOUT
