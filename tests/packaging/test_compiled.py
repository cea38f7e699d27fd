"""The compiled build: what its globs name can be compiled, and nothing compiles by accident."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
import sysconfig
import tomllib
from abc import ABC, ABCMeta
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement

from scripts.compiled import GUARD, build_guard, compiled_modules, missing
from tests.children import run_python

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
HOOK = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
    "wheel"
]["hooks"]["custom"]


COMPILED = [SOURCES / m for m in compiled_modules(SOURCES, HOOK["include"], HOOK["exclude"])]


def module(path: Path) -> str:
    return ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")


def subclasses(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield (module, class) that a file imports by name and inherits from."""
    origin = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                name = base.value if isinstance(base, ast.Subscript) else base
                if isinstance(name, ast.Name) and name.id in origin:
                    yield origin[name.id]


def test_every_glob_names_modules():
    for glob in [*HOOK["include"], *HOOK["exclude"]]:
        assert list(SOURCES.glob(glob)), glob
    assert SOURCES / "nbtriton/scheduling/batcher.py" in COMPILED


@pytest.mark.parametrize("path", COMPILED, ids=module)
def test_no_attribute_is_a_word_of_c(path: Path):
    """mypyc puts an underscore before each attribute: `_thread` would be C's `__thread`."""
    words = {
        "_thread",
        "_int128",
        "_float128",
        "_func__",
        "_restrict",
        "_inline",
        "_asm",
        "_typeof",
    }
    found = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    assert not found & words


@pytest.mark.parametrize("path", COMPILED, ids=module)
def test_no_argument_is_deleted(path: Path):
    """Mypyc would release a reference that is the caller's."""
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        arguments = {
            argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)
        }
        deleted = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Delete)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        assert not deleted & arguments, f"{function.name} deletes {deleted & arguments}"


def annotated(node: ast.AST) -> str:
    """Return the attribute that a statement declares with a type, in a class or by ``self``; empty for none."""
    if not isinstance(node, ast.AnnAssign) or "ClassVar" in ast.unparse(node.annotation):
        return ""
    if isinstance(node.target, ast.Name):
        return node.target.id
    is_own = isinstance(node.target, ast.Attribute) and ast.unparse(node.target.value) == "self"
    return node.target.attr if is_own else ""


def declared(node: ast.ClassDef) -> tuple[set[str], set[str]]:
    """Return the attributes that a class declares whatever its bases have, and all that it sets."""
    anew = {annotated(child) for child in node.body} | {
        target.id
        for child in node.body
        if isinstance(child, ast.Assign)
        for target in child.targets
        if isinstance(target, ast.Name) and not target.id.startswith("__")
    }
    anew |= {
        annotated(child)
        for method in node.body
        if isinstance(method, ast.FunctionDef)
        for child in ast.walk(method)
        if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Attribute)
    }
    sets = {
        child.attr
        for child in ast.walk(node)
        if isinstance(child, ast.Attribute)
        and isinstance(child.ctx, ast.Store)
        and ast.unparse(child.value) == "self"
    }
    return anew - {""}, anew | sets


def redeclared(trees: dict[str, ast.Module]) -> set[tuple[str, str, str]]:
    """Return (class, base, attribute) of the attributes that two classes of a line declare."""
    classes: dict[tuple[str, str], ast.ClassDef] = {}
    bases: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, tree in trees.items():
        known = {
            alias.asname or alias.name: (node.module or "", alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                known[node.name] = (name, node.name)
                found = [
                    base.value if isinstance(base, ast.Subscript) else base for base in node.bases
                ]
                # A class may be imported from its module or from its package.
                for home in (name, name.rpartition(".")[0]):
                    classes[home, node.name] = node
                    bases[home, node.name] = [
                        known[base.id]
                        for base in found
                        if isinstance(base, ast.Name) and base.id in known
                    ]

    def line(key: tuple[str, str]) -> Iterator[tuple[str, str]]:
        for base in bases.get(key, ()):
            yield base
            yield from line(base)

    return {
        (node.name, classes[base].name, attribute)
        for key, node in classes.items()
        for base in line(key)
        if base in classes
        for attribute in declared(node)[0] & declared(classes[base])[1]
    }


@pytest.mark.parametrize(
    ("derived", "found"),
    [
        ("x: str", {"x"}),
        ("x = 'a class has it'", {"x"}),
        ("def __init__(self) -> None: self.x: str = 'a'", {"x"}),
        ("def __init__(self) -> None: self.y: str = 'a'", {"y"}),
        ("def __init__(self) -> None: self.x = self.y = 'a'", set()),
        ("z: ClassVar[str] = 'a'", set()),
    ],
)
def test_a_second_declaration_is_found(derived: str, found: set[str]):
    base = "class Base:\n    x: str\n    z: ClassVar[str]\n    def set(self) -> None: self.y = ''"
    trees = {
        "p.one": ast.parse(base),
        "p.two": ast.parse(f"from p import Base\nclass Derived(Base):\n    {derived}"),
    }
    assert redeclared(trees) == {("Derived", "Base", name) for name in found}


@pytest.mark.medium
def test_no_attribute_is_declared_in_a_class_and_in_its_base():
    """The garbage collector would see it twice, and clear what is alive: rule 4 of docs/compiled.md."""
    trees = {module(path): ast.parse(path.read_text()) for path in COMPILED}
    assert not redeclared(trees)


@pytest.mark.medium
def test_no_interpreted_class_inherits_from_a_compiled_one():
    compiled = {module(path): path for path in COMPILED}
    homes = {
        (home, node.name)
        for name, path in compiled.items()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
        # A class may be imported from its module or from its package.
        for home in (name, name.rpartition(".")[0])
    }
    assert ("nbtriton.scheduling", "Ticket") in homes
    bases = {
        (module(path), base)
        for path in SOURCES.rglob("*.py")
        for base in subclasses(ast.parse(path.read_text()))
        if base in homes
    }
    assert ("nbtriton.runtime.engine.core.request", ("nbtriton.scheduling", "Ticket")) in bases
    assert {name for name, _ in bases} <= compiled.keys()


def test_no_compiled_class_has_a_base_in_c():
    """mypyc takes it and lays the class out as if it had none: threads then share or lose its memory."""
    bases = {
        (f"{name}.{found.__name__}", base)
        for name in map(module, COMPILED)
        for found in vars(importlib.import_module(name)).values()
        if inspect.isclass(found) and found.__module__ == name
        for base in found.__mro__
        if base.__module__ in sys.builtin_module_names
        # A named tuple, and an enum of numbers, are classes that Python makes in any case.
        if base is not object and not issubclass(found, (tuple, Enum))
    }
    assert {base for _, base in bases} <= {Exception, BaseException}, bases


def test_no_compiled_class_shares_the_caches_of_an_abc():
    """`isinstance` would mix up all that share them: rule 3 of docs/compiled.md."""
    found = {
        (one.__name__, base is not ABC and f"own_caches({one.__name__})" in path.read_text())
        for path in COMPILED
        for one in vars(importlib.import_module(module(path))).values()
        if inspect.isclass(one) and one.__module__ == module(path)
        for base in one.__bases__
        if type(base) is ABCMeta and not base.__module__.startswith("nbtriton")
    }
    assert ("InferenceResult", True) in found
    assert {name for name, own in found if not own} == set()


@pytest.mark.parametrize(("version", "wanted"), [("editable", "1"), ("standard", "0")])
def test_what_is_not_to_be_compiled_is_left_alone(
    version: str, wanted: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("NBTRITON_COMPILED", wanted)
    (hook,) = WheelBuilder(str(ROOT)).get_build_hooks(str(tmp_path)).values()
    data: dict[str, object] = {}
    hook.initialize(version, data)
    hook.finalize(version, data, "")
    assert data == {}


def test_only_a_build_that_can_compile_depends_on_a_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    if reason := missing():
        pytest.skip(reason)
    (hook,) = WheelBuilder(str(ROOT)).get_build_hooks(str(tmp_path)).values()
    monkeypatch.setenv("NBTRITON_COMPILED", "1")
    assert [Requirement(text).name for text in hook.dependencies()] == ["mypy", "setuptools"]
    monkeypatch.setenv("NBTRITON_COMPILED", "0")
    assert hook.dependencies() == []
    monkeypatch.setenv("NBTRITON_COMPILED", "1")
    # As on free-threaded Python, for which there is no mypy; what is compiled has no locks of its own.
    known = sysconfig.get_config_var
    monkeypatch.setattr(
        sysconfig, "get_config_var", lambda name: name == "Py_GIL_DISABLED" or known(name)
    )
    assert hook.dependencies() == []


def test_the_library_of_the_guard_is_built_or_its_error_is_told(tmp_path: Path):
    if reason := missing():
        pytest.skip(reason)
    if sys.platform != "linux":
        pytest.skip("clients register shared memory on Linux")
    assert not build_guard(SOURCES / GUARD, tmp_path / "guard.so")
    assert (tmp_path / "guard.so").read_bytes().startswith(b"\x7fELF")
    (tmp_path / "wrong.c").write_text("int wrong(void) { return }")
    told = build_guard(tmp_path / "wrong.c", tmp_path / "wrong.so")
    assert told.startswith("wrong.c could not be compiled:")


def build_without_a_compiler(folder: Path, wanted: str) -> subprocess.CompletedProcess[str]:
    return run_python(
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        str(folder),
        cwd=ROOT,
        env={**os.environ, "CC": "no-such-compiler", "NBTRITON_COMPILED": wanted},
    )


NO_COMPILER = "the compiled build needs a C compiler: there is no 'no-such-compiler' on the PATH"


@pytest.mark.slow
def test_a_build_without_a_compiler_is_pure_python(tmp_path: Path):
    done = build_without_a_compiler(tmp_path, "")
    assert done.returncode == 0
    assert f"nbtriton stays pure Python: {NO_COMPILER}" in done.stderr
    (wheel,) = tmp_path.iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")


@pytest.mark.slow
def test_a_compiled_build_that_was_asked_for_fails_without_a_compiler(tmp_path: Path):
    done = build_without_a_compiler(tmp_path, "1")
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1] == NO_COMPILER
    assert not list(tmp_path.iterdir())
