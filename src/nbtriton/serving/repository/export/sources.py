"""Source text and names of code from a notebook, for a ``model.py``."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import symtable
import sys
import sysconfig
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from nbtriton.common.errors import UnsupportedError

# Attribute with the text of a model's cell.
SOURCE = "__nbtriton_source__"

_PB_UTILS = "triton_python_backend_utils"
# Names that every module has without an assignment.
_MODULE_NAMES = frozenset({"__file__", "__name__", "__doc__", "__package__", "__spec__"})


def source_of(thing: Any) -> str:
    """Return the text that defines a class or a function: the whole cell if a magic stored it.

    Raises
    ------
    UnsupportedError
        The text was not stored, or it is a ``lambda``.
    """
    text_of_cell = vars(thing).get(SOURCE)
    if isinstance(text_of_cell, str):
        return text_of_cell
    name = thing.__name__
    for function in _functions(thing):
        code = function.__code__
        text = "".join(linecache.getlines(code.co_filename))
        if not text:
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue  # a cell with magics
        node = _definition(tree, name, code.co_firstlineno)
        if node is not None:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            lines = text.splitlines(keepends=True)[first - 1 : node.end_lineno]
            return textwrap.dedent("".join(lines))
    raise UnsupportedError(
        f"the text of '{name}' is not known, so it cannot be written to a file",
        hint="define it in a cell of %%triton_model, or with def or class in a file or cell",
    )


def namespace_of(thing: Any) -> dict[str, Any]:
    """Return the variables in scope of a class or a function."""
    found: dict[str, Any] = {}
    for function in _functions(thing):
        found |= function.__globals__
    for function in _functions(thing):
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                found[name] = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
    if not found and isinstance(thing, type):
        found |= vars(sys.modules[thing.__module__])
    return found


def free_names(text: str) -> list[str]:
    """Return the names that a module of this text uses and does not define, in order of use."""
    table = symtable.symtable(text, "model.py", "exec")
    defined = defined_names(text)
    used = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_referenced()}
    _walk(table, used, defined)
    used -= defined | set(vars(builtins)) | _MODULE_NAMES
    places: dict[str, tuple[int, int]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and node.id in used:
            place = (node.lineno, node.col_offset)
            places[node.id] = min(place, places.get(node.id, place))
    # A mangled name does not occur in the text.
    return sorted(used, key=lambda name: places.get(name, (0, 0)))


def defined_names(text: str) -> set[str]:
    """Return the names that a module of this text defines."""
    return {
        symbol.get_name()
        for symbol in symtable.symtable(text, "model.py", "exec").get_symbols()
        if symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
    }


def annotation_names(text: str) -> set[str]:
    """Return the names that a text uses only in annotations."""
    nodes = list(ast.walk(ast.parse(text)))
    hints = [getattr(node, name, None) for node in nodes for name in ("annotation", "returns")]
    inside = {id(node) for found in hints if found is not None for node in ast.walk(found)}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    elsewhere = {node.id for node in names if id(node) not in inside}
    return {node.id for node in names} - elsewhere


def split_future(text: str) -> tuple[str, str]:
    """Return the ``from __future__`` lines of a text, which must come first, and the rest."""
    lines = text.splitlines(keepends=True)
    future: list[str] = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                future.append(lines[number])
                lines[number] = ""
    return "".join(future), "".join(lines)


def split_imports(text: str) -> tuple[str, str]:
    """Return the imports at the beginning of a text, and the rest."""
    last = 0
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            break
        last = node.end_lineno or node.lineno
    lines = text.splitlines(keepends=True)
    return "".join(lines[:last]), "".join(lines[last:])


def import_line(name: str, value: object) -> str | None:
    """Return the import statement of a name: of a module, or a class or function by its own name.

    None if no import gives the same value.
    """
    if isinstance(value, ModuleType):
        module = _PB_UTILS if value is sys.modules.get(_PB_UTILS) else value.__name__
        if module == "__main__" or sys.modules.get(module) is not value:
            return None
        parent, _, last = module.rpartition(".")
        if parent and last == name:
            return f"from {parent} import {name}"
        return f"import {module}" if module == name else f"import {module} as {name}"
    called = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(called, str) or not called.isidentifier():
        return None
    module = getattr(value, "__module__", None) or type(value).__module__
    if module == "__main__" or getattr(sys.modules.get(module), called, None) is not value:
        return None
    return f"from {module} import {called}" + ("" if called == name else f" as {name}")


def is_notebooks_own(value: object, namespace: Mapping[str, Any]) -> bool:
    """Return True for a class or function defined in the notebook or script."""
    if not isinstance(value, type | FunctionType):
        return False
    return bool(value.__module__ == namespace.get("__name__", "__main__"))


def is_local(value: object) -> Path | None:
    """Return the file of a module that is not installed, such as one beside the notebook.

    For a package its directory; for a class or function the file of its module.
    """
    if not isinstance(value, ModuleType):
        value = sys.modules.get(getattr(value, "__module__", None) or "")
    file = getattr(
        sys.modules.get(getattr(value, "__name__", "").partition(".")[0]), "__file__", ""
    )
    if not file or value is sys.modules.get(_PB_UTILS):
        return None
    path = Path(file).resolve()
    installed = {Path(p).resolve() for p in sysconfig.get_paths().values()}
    installed |= {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    if "site-packages" in path.parts or "dist-packages" in path.parts:
        return None
    if any(path.is_relative_to(place) for place in installed):
        return None
    return path.parent if path.name == "__init__.py" else path


def _walk(table: symtable.SymbolTable, used: set[str], defined: set[str]) -> None:
    for child in table.get_children():
        for symbol in child.get_symbols():
            if symbol.is_global():
                (defined if symbol.is_assigned() else used).add(symbol.get_name())
        _walk(child, used, defined)


def _functions(thing: Any) -> list[FunctionType]:
    """Return a function itself, or the functions of a class."""
    members = vars(thing).values() if isinstance(thing, type) else (thing,)
    plain = (inspect.unwrap(getattr(member, "__func__", member)) for member in members)
    return [function for function in plain if isinstance(function, FunctionType)]


def _definition(
    tree: ast.Module, name: str, line: int
) -> ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the innermost definition of a name around a line."""
    found = None
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if node.name == name and first <= line <= (node.end_lineno or first):
                found = node
    return found
