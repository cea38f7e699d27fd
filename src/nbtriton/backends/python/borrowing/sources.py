"""The text of a function, proven to be what the function was compiled from."""

from __future__ import annotations

import ast
import linecache
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType

__all__ = ["Definition", "Sources"]

# CPython counts how deep a tree is once for all threads: of two that parse at a time one may get a
# SystemError ("AST constructor recursion depth mismatch"), as instances that are created side by side
# did. What others parse meanwhile can still do it.
_parsing = threading.Lock()


@dataclass(frozen=True, slots=True)
class Definition:
    """A function in its file or cell.

    Attributes
    ----------
    function : function
    node : ast.FunctionDef or ast.AsyncFunctionDef
    place : str
        Of its file or cell, for people.
    global_names, attributes : frozenset of str
        Names that some function of the file declares as global, and attributes that some code of it
        assigns: what they stand for now they need not stand for later.
    """

    function: FunctionType
    node: ast.FunctionDef | ast.AsyncFunctionDef
    place: str
    global_names: frozenset[str]
    attributes: frozenset[str]


@dataclass(slots=True)
class _File:
    tree: ast.Module
    codes: list[CodeType]
    global_names: frozenset[str]
    attributes: frozenset[str]


@dataclass(slots=True)
class Sources:
    """Files and cells, each read once."""

    _files: dict[str, _File | None] = field(default_factory=dict)

    def definition(self, function: FunctionType) -> Definition | None:
        """Return where a function stands; None if its text is not known, or another one by now."""
        code = function.__code__
        name = code.co_filename
        if name not in self._files:
            self._files[name] = _read(name)
        file = self._files[name]
        # Equal: name, line, bytecode and constants. A file may have been edited since its import.
        if file is None or code not in file.codes:
            return None
        found = [
            node
            for node in ast.walk(file.tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == code.co_name
            and _first_line(node) == code.co_firstlineno
        ]
        if len(found) != 1:
            return None
        place = "cell" if name.startswith("<") or "ipykernel" in name else Path(name).name
        return Definition(function, found[0], place, file.global_names, file.attributes)


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _read(name: str) -> _File | None:
    linecache.checkcache(name)
    text = "".join(linecache.getlines(name))
    try:
        with _parsing:
            tree = ast.parse(text)
        code = compile(text, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, SystemError):
        return None
    global_names: set[str] = set()
    attributes: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            global_names.update(node.names)
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            attributes.add(node.attr)
    return _File(tree, list(_within(code)), frozenset(global_names), frozenset(attributes))


def _within(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _within(constant)
