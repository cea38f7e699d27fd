"""What is known of a model's code so far: what its names may stand for, and what its lists may hold."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import getattr_static
from types import FunctionType

from nbtriton.backends.python.borrowing.sources import Definition, Sources
from nbtriton.backends.python.borrowing.values import (
    LENT,
    NOTHING,
    OTHER,
    Box,
    Site,
    Value,
)

__all__ = ["Facts", "Frame"]


@dataclass(slots=True)
class Frame:
    """A function, whoever calls it."""

    definition: Definition
    local: frozenset[str]
    names: dict[str, Value] = field(default_factory=dict)
    returns: Value = NOTHING


class Facts:
    """They only ever grow."""

    def __init__(self, model: object) -> None:
        self._model = model
        self._sources = Sources()
        self._frames: dict[FunctionType, Frame] = {}
        self._boxes: dict[Site, Value] = {}
        self._grown = False

    def take_grown(self) -> bool:
        """Return whether anything was learnt since this was last asked."""
        grown, self._grown = self._grown, False
        return grown

    def frames(self) -> list[Frame]:
        """Return the functions that are reached."""
        return list(self._frames.values())

    def assign(self, frame: Frame, name: str, value: Value) -> None:
        """A name of a function may stand for this, too."""
        known = frame.names.get(name, NOTHING)
        if not value <= known:
            frame.names[name] = known | value
            self._grown = True

    def returned(self, frame: Frame, value: Value) -> None:
        """A function may return this, too."""
        if not value <= frame.returns:
            frame.returns |= value
            self._grown = True

    def box(self, site: Site, content: Value) -> Value:
        """Return the box of a place, which may hold this, too."""
        known = self._boxes.get(site)
        if known is None or not content <= known:
            self._boxes[site] = content if known is None else known | content
            self._grown = True
        return frozenset({Box(site)})

    def content(self, box: Box) -> Value:
        """Return what a box may hold."""
        return self._boxes[box.site]

    def reachable(self, value: Value) -> Value:
        """Return what a value stands for, and all that is in it at any depth."""
        found = set(value)
        waiting = list(value)
        while waiting:
            kind = waiting.pop()
            if isinstance(kind, Box):
                new = self._boxes[kind.site] - found
                found |= new
                waiting += new
        return frozenset(found)

    def is_lent(self, value: Value) -> bool:
        """Return whether something lent can be reached from a value."""
        return bool(self.reachable(value) & LENT)

    def method(self, name: str) -> tuple[FunctionType, bool] | None:
        """Return the function behind ``self.name``, and whether it gets the model."""
        model = self._model
        if model is None or name in getattr(model, "__dict__", {}):
            return None
        found = getattr_static(type(model), name, None)
        if isinstance(found, FunctionType):
            return found, True
        inner = found.__func__ if isinstance(found, staticmethod) else None
        return (inner, False) if isinstance(inner, FunctionType) else None

    def enter(
        self, function: FunctionType, values: Sequence[Value], keywords: Mapping[str, Value]
    ) -> Frame | None:
        """Return a function that is called with these, too; None if its source is not known."""
        frame = self._frames.get(function)
        if frame is None:
            definition = self._sources.definition(function)
            if definition is None:
                return None
            frame = Frame(definition, _local_names(definition.node))
            self._frames[function] = frame
            self._grown = True
        arguments = frame.definition.node.args
        positional = [a.arg for a in [*arguments.posonlyargs, *arguments.args]]
        by_keyword = {a.arg for a in [*arguments.args, *arguments.kwonlyargs]}
        more = [value for name, value in keywords.items() if name not in by_keyword]
        for name, value in zip(positional, values, strict=False):
            self.assign(frame, name, value)
        for name in by_keyword & keywords.keys():
            self.assign(frame, name, keywords[name])
        # Defaults are anything.
        for name in [*positional[len(positional) - len(arguments.defaults) :]]:
            self.assign(frame, name, OTHER)
        for argument in arguments.kwonlyargs:
            self.assign(frame, argument.arg, OTHER)
        if arguments.vararg is not None:
            rest = self.box((id(arguments), "*"), NOTHING.union(*values[len(positional) :]))
            self.assign(frame, arguments.vararg.arg, rest)
        if arguments.kwarg is not None:
            rest = self.box((id(arguments), "**"), OTHER.union(*more))
            self.assign(frame, arguments.kwarg.arg, rest)
        return frame


def _local_names(node: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    arguments = node.args
    names = {
        argument.arg
        for argument in [
            *arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs,
            *(a for a in (arguments.vararg, arguments.kwarg) if a is not None),
        ]
    }  # fmt: skip
    outer: set[str] = set()
    for inner in _of_this_scope(node.body):
        if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
            names.add(inner.id)
        elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(inner.name)
        elif isinstance(inner, ast.ExceptHandler):
            names.update([inner.name] if inner.name else [])
        elif isinstance(inner, ast.Import | ast.ImportFrom):
            names.update(a.asname or a.name.partition(".")[0] for a in inner.names)
        elif isinstance(inner, ast.Global | ast.Nonlocal):
            outer.update(inner.names)
    return frozenset(names - outer)


def _of_this_scope(nodes: Iterable[ast.AST], *, inner: bool = False) -> Iterator[ast.AST]:
    """Yield the nodes that bind names of a function; of comprehensions only what ``:=`` assigns."""
    for node in nodes:
        if isinstance(node, ast.NamedExpr):
            yield node.target
            yield from _of_this_scope([node.value], inner=inner)
            continue
        if not inner:
            yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        scope = isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp)
        yield from _of_this_scope(ast.iter_child_nodes(node), inner=inner or scope)
