"""One walk through one function."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, ModuleType
from typing import Any

from nbtriton.backends.python.borrowing.calls import Calls, member
from nbtriton.backends.python.borrowing.facts import Facts, Frame
from nbtriton.backends.python.borrowing.known import ARRAY_FACTS, ARRAY_VIEWS, DYNAMIC
from nbtriton.backends.python.borrowing.values import (
    ARRAY,
    CONSTANT,
    FRESH,
    LENT,
    NOTHING,
    NUMERIC,
    OTHER,
    OWN_ARRAYS,
    SELF,
    Box,
    Kind,
    Ref,
    Value,
    text_of,
)

__all__ = ["Walker"]


# Kinds of syntax that are to be looked at in the same way.
_LIKE = {
    "AsyncFunctionDef": "FunctionDef",
    "AsyncWith": "With",
    "Break": "Pass",
    "ClassDef": "FunctionDef",
    "Continue": "Pass",
    "GeneratorExp": "ListComp",
    "Global": "Pass",
    "If": "While",
    "Nonlocal": "Pass",
    "Set": "List",
    "SetComp": "ListComp",
    "TryStar": "Try",
    "Tuple": "List",
}


class Walker(Calls):
    """Statements by the methods `visit_...`, expressions by those that have only their type's name."""

    def __init__(self, facts: Facts, frame: Frame) -> None:
        super().__init__(facts, frame)
        # What the names of comprehensions around the current node are called among the function's.
        self._inner: dict[str, str] = {}

    def walk(self, body: Sequence[ast.stmt]) -> None:
        """Learn what the statements do."""
        for statement in body:
            self._method("visit_", statement)(statement)

    def value(self, node: ast.expr) -> Value:
        """Return what an expression may stand for."""
        found: Value = self._method("_", node)(node)
        return found

    def _method(self, prefix: str, node: ast.AST) -> Callable[[Any], Any]:
        name = type(node).__name__
        method: Callable[[Any], Any] | None = getattr(self, prefix + _LIKE.get(name, name), None)
        if method is None:
            self.refuse(node, f"'{name.lower()}' is not followed")
        return method

    # -- statements ------------------------------------------------------------------------------

    def visit_Pass(self, node: ast.stmt) -> None:
        pass

    def visit_Expr(self, node: ast.Expr) -> None:
        self.value(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self._store(target, value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._store(node.target, self.value(node.value))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        target, place = node.target, text_of(node.target)
        value, known = self.value(node.value), self.value(target)
        holder = NOTHING if isinstance(target, ast.Name) else self.value(target.value)
        if (known | holder) & LENT:
            self.refuse(node, f"{place} is changed in place")
        listed = any(isinstance(kind, Box) for kind in value)
        made = NOTHING
        for kind in known:
            if isinstance(kind, Box):
                made |= {kind}
                self.facts.box(kind.site, value | self.elements(node.value, value))
            elif kind not in OWN_ARRAYS | CONSTANT or not value & LENT <= ARRAY or listed:
                # It may be a list, to which the rows of an array would be added.
                self.give_away(node, value, f"{text_of(node.value)} is added to {place}")
        if rest := known - made:
            made |= self.computed(node, rest | (value - LENT)) | (OTHER if listed else NOTHING)
        self._store(target, made)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self._store(node.target, self.elements(node.iter, self.value(node.iter)))
        self.walk([*node.body, *node.orelse])

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        self._give_away(node.iter)
        self.visit_For(node)

    def visit_While(self, node: ast.While | ast.If) -> None:
        self.value(node.test)
        self.walk([*node.body, *node.orelse])

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self._give_away(item.context_expr)
            if item.optional_vars is not None:
                self._store(item.optional_vars, OTHER)
        self.walk(node.body)

    def visit_Try(self, node: Any) -> None:
        self.walk([*node.body, *node.orelse, *node.finalbody])
        for handler in node.handlers:
            if handler.type is not None:
                self.value(handler.type)
            if handler.name is not None:
                self._assign(handler.name, OTHER)
            self.walk(handler.body)

    def visit_Return(self, node: ast.Return) -> None:
        self.facts.returned(self.frame, OTHER if node.value is None else self.value(node.value))

    def visit_Raise(self, node: ast.Raise) -> None:
        for part in (node.exc, node.cause):
            if part is not None:
                self._give_away(part)

    def visit_Assert(self, node: ast.Assert) -> None:
        self.value(node.test)
        if node.msg is not None:
            self._give_away(node.msg)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            place = target.value if isinstance(target, ast.Attribute | ast.Subscript) else None
            if place is not None and self.value(place) & LENT:
                self.refuse(node, f"{text_of(target)} is deleted")

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            top = alias.name.partition(".")[0]
            # Only what everybody has under this name.
            module = sys.modules.get(top) if alias.name in ("numpy", _PB_UTILS) else None
            self._assign(alias.asname or top, OTHER if module is None else frozenset({Ref(module)}))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._assign(alias.asname or alias.name, OTHER)

    def visit_FunctionDef(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    ) -> None:
        self._give_captured_away(node)
        self._assign(node.name, OTHER)

    # -- where values go -------------------------------------------------------------------------

    def _give_away(self, node: ast.expr) -> None:
        self.give_away(node, self.value(node), f"{text_of(node)} is not followed")

    def _give_captured_away(self, node: ast.AST) -> None:
        """An inner function sees the names of this one, whenever it is called."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Nonlocal):
                self.refuse(inner, "an inner function assigns names of the outer one")
            if isinstance(inner, ast.Name):
                text = f"{inner.id} is used by an inner function"
                self.give_away(inner, self._local(inner.id), text)

    def _is_array(self, value: Value) -> bool:
        """Return whether the only lent things that can be reached from here are arrays."""
        return self.facts.reachable(value) & LENT <= ARRAY

    def _assign(self, name: str, value: Value) -> None:
        if name in self._inner:
            self.facts.assign(self.frame, self._inner[name], value)
        elif name in self.frame.local:
            self.facts.assign(self.frame, name, value)
        else:
            self.give_away(self.frame.definition.node, value, f"{name} is not a local variable")

    def _store(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self._assign(target.id, value)
        elif isinstance(target, ast.Starred):
            self._store(target.value, self.facts.box((id(target), "rest"), value))
        elif isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self._store(element, self.elements(target, value))
        elif isinstance(target, ast.Attribute):
            if any(kind in LENT or isinstance(kind, Ref) for kind in self.value(target.value)):
                self.refuse(target, f"{text_of(target)} is assigned")
            self.give_away(target, value, f"an input is kept in {text_of(target)}")
        elif isinstance(target, ast.Subscript):
            self._store_item(target, value)

    def _store_item(self, target: ast.Subscript, value: Value) -> None:
        key = self.value(target.slice)
        rows = _has_slice(target.slice) and value <= ARRAY | OWN_ARRAYS
        for kind in self.value(target.value):
            if kind in LENT:
                self.refuse(target, f"{text_of(target.value)} is written to")
            if isinstance(kind, Box):
                self.facts.box(kind.site, value | key)
                if isinstance(target.slice, ast.Slice):
                    self.facts.box(kind.site, self.elements(target, value))
                continue
            if (
                kind in OWN_ARRAYS
                and self._is_array(key | value)
                and (kind is Kind.NUMERIC or rows)
            ):
                continue  # copied, element by element
            text = f"an input is kept in {text_of(target)}"
            self.give_away(target, value | key, text)

    # -- expressions -----------------------------------------------------------------------------

    def _local(self, name: str) -> Value:
        return self.frame.names.get(self._inner.get(name, name), NOTHING)

    def _Name(self, node: ast.Name) -> Value:
        name = node.id
        if name in self.frame.local or name in self._inner:
            return self._local(name)
        function = self.frame.definition.function
        if name in function.__code__.co_freevars or name in self.frame.definition.global_names:
            return OTHER
        namespace = function.__globals__
        builtins: dict[str, Any] = function.__builtins__  # type: ignore[attr-defined]
        thing = namespace[name] if name in namespace else builtins.get(name)
        if isinstance(thing, BuiltinFunctionType) and thing in DYNAMIC:
            self.refuse(node, f"{name} is used")
        return _ref(thing)

    def _Constant(self, node: ast.Constant) -> Value:  # noqa: ARG002
        return CONSTANT

    def _several(self, node: ast.expr, parts: Sequence[ast.expr]) -> Value:
        content = NOTHING
        for part in parts:
            content |= self.value(part)
        return self.facts.box((id(node), ""), content)

    def _List(self, node: ast.List | ast.Tuple | ast.Set) -> Value:
        return self._several(node, node.elts)

    def _Starred(self, node: ast.Starred) -> Value:
        return self.elements(node, self.value(node.value))

    def _Dict(self, node: ast.Dict) -> Value:
        content = OTHER  # its keys are iterated over
        for key, value in zip(node.keys, node.values, strict=True):
            found = self.value(value)
            content |= self.elements(value, found) if key is None else found | self.value(key)
        return self.facts.box((id(node), ""), content)

    def _ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
        return self._comprehension(node, node.generators, [node.elt])

    def _DictComp(self, node: ast.DictComp) -> Value:
        return self._comprehension(node, node.generators, [node.key, node.value])

    def _comprehension(
        self, node: ast.expr, generators: Sequence[ast.comprehension], parts: Sequence[ast.expr]
    ) -> Value:
        names = {
            name.id: f"{name.id} {id(node)}"  # no name of Python has a space
            for generator in generators
            for name in ast.walk(generator.target)
            if isinstance(name, ast.Name)
        }
        first = self.value(generators[0].iter)  # outside of the comprehension
        outer, self._inner = self._inner, {**self._inner, **names}
        try:
            for generator in generators:
                given = first if generator is generators[0] else self.value(generator.iter)
                if generator.is_async:
                    self._give_away(generator.iter)
                self._store(generator.target, self.elements(generator.iter, given))
                for condition in generator.ifs:
                    self.value(condition)
            return self._several(node, parts)
        finally:
            self._inner = outer

    def _NamedExpr(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        self._assign(node.target.id, value)
        return value

    def _Lambda(self, node: ast.Lambda) -> Value:
        self._give_captured_away(node)
        return OTHER

    def _IfExp(self, node: ast.IfExp) -> Value:
        self.value(node.test)
        return self.value(node.body) | self.value(node.orelse)

    def _BoolOp(self, node: ast.BoolOp) -> Value:
        return NOTHING.union(*(self.value(part) for part in node.values))

    def _Compare(self, node: ast.Compare) -> Value:
        value = NOTHING.union(*(self.value(part) for part in (node.left, *node.comparators)))
        if value & SELF and value & LENT:
            self.refuse(node, f"{text_of(node)} is not understood")
        return FRESH if value <= ARRAY | OWN_ARRAYS | CONSTANT else OTHER

    def _UnaryOp(self, node: ast.UnaryOp) -> Value:
        value = self.value(node.operand)
        return OTHER if isinstance(node.op, ast.Not) else self.computed(node, value)

    def _BinOp(self, node: ast.BinOp) -> Value:
        value = self.value(node.left) | self.value(node.right)
        boxes = frozenset(kind for kind in value if isinstance(kind, Box))
        if boxes and isinstance(node.op, ast.Mod):
            return OTHER  # a text
        made = self.computed(node, value - boxes)
        if not boxes:
            return made
        # Lists, joined or repeated; or an array and a list of numbers.
        return made | self.facts.box((id(node), ""), self.elements(node, boxes))

    def _JoinedStr(self, node: ast.JoinedStr) -> Value:
        for part in node.values:
            self.value(part)
        return CONSTANT

    def _FormattedValue(self, node: ast.FormattedValue) -> Value:
        self.value(node.value)
        if node.format_spec is not None:
            self.value(node.format_spec)
        return OTHER

    def _Slice(self, node: ast.Slice) -> Value:
        for part in (node.lower, node.upper, node.step):
            if part is not None:
                self.value(part)
        return OTHER

    def _Subscript(self, node: ast.Subscript) -> Value:
        key = self.value(node.slice)
        found = NOTHING
        for kind in self.value(node.value):
            if isinstance(kind, Box):
                found |= self.facts.content(kind)
                if isinstance(node.slice, ast.Slice):
                    found |= {kind}
            elif kind in ARRAY | NUMERIC | CONSTANT or (
                kind is Kind.FRESH and _has_slice(node.slice)
            ):
                found |= {kind}
            elif kind in LENT or (kind is Kind.SELF and self.facts.is_lent(key)):
                self.refuse(node, f"{text_of(node)} is not understood")
            else:
                found |= OTHER
        return found

    def _Attribute(self, node: ast.Attribute) -> Value:
        found = NOTHING
        for kind in self.value(node.value):
            if isinstance(kind, Ref):
                found |= _ref(member(kind.thing, node.attr))
            elif node.attr in ARRAY_VIEWS and kind in ARRAY | OWN_ARRAYS:
                found |= {kind}
            elif kind is Kind.ARRAY and node.attr in ARRAY_FACTS:
                found |= OTHER
            else:
                text = f"{text_of(node)} is used"
                self.give_away(node, frozenset({kind}), text)
                found |= OTHER
        return found

    def _Await(self, node: ast.Await) -> Value:
        if isinstance(node.value, ast.Call):
            return self.call(node.value, awaited=True)
        self._give_away(node.value)
        return OTHER

    def _Call(self, node: ast.Call) -> Value:
        return self.call(node, awaited=False)


_PB_UTILS = "triton_python_backend_utils"


def _ref(thing: object) -> Value:
    return frozenset({Ref(thing)}) if isinstance(thing, ModuleType) or callable(thing) else OTHER


def _has_slice(index: ast.expr) -> bool:
    """Return whether an index takes a part of an array: then elements are copied one by one."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return any(
        isinstance(part, ast.Slice) or (isinstance(part, ast.Constant) and part.value is ...)
        for part in parts
    )
