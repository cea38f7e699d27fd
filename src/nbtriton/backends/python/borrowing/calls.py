"""What calls do with the things that are followed."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import FunctionType, ModuleType
from typing import NoReturn

from nbtriton.backends.python import pb_utils
from nbtriton.backends.python.borrowing.facts import Facts, Frame
from nbtriton.backends.python.borrowing.known import (
    ARRAY_METHODS,
    TEXT_METHODS,
    Rule,
    Then,
    is_numeric,
    rule_of,
)
from nbtriton.backends.python.borrowing.values import (
    ARRAY,
    CONSTANT,
    FRESH,
    HOLDER,
    LENT,
    NOTHING,
    NUMERIC,
    OTHER,
    OWN_ARRAYS,
    SELF,
    TENSOR,
    Box,
    Kind,
    NotUnderstoodError,
    Ref,
    Value,
    text_of,
)
from nbtriton.backends.tracebacks import PRIVATE_PACKAGE

__all__ = ["Calls", "Given"]

_REQUEST_FACTS = frozenset(
    [
        "correlation_id",
        "flags",
        "is_cancelled",
        "parameters",
        "preferred_memory",
        "request_id",
        "requested_output_names",
        "set_release_flags",
        "timeout",
        "trace",
    ]
)
_TENSOR_FACTS = frozenset(["is_cpu", "name", "shape", "to_dlpack", "triton_dtype"])
# Not async_exec: nobody says that it is awaited before the model answers.
_HOLDER_FACTS = _TENSOR_FACTS | frozenset(["as_numpy", "error", "exec", "has_error", "parameters"])
_ADDING = frozenset(
    ["add", "append", "appendleft", "extend", "extendleft", "insert", "setdefault", "update"]
)
_REARRANGING = frozenset(["clear", "count", "discard", "index", "remove", "reverse", "sort"])


class Given:
    """The arguments of a call, each with what it may stand for.

    Attributes
    ----------
    node : ast.Call
    positional : list of Value
    keywords : dict
    starred : bool
        Some are unpacked: they stand for what is in them.
    """

    def __init__(
        self,
        node: ast.Call,
        value: Callable[[ast.expr], Value],
        elements: Callable[[ast.AST, Value], Value],
    ) -> None:
        self.node = node
        self.starred = False
        self.positional: list[Value] = []
        self.keywords: dict[str, Value] = {}
        for part in node.args:
            if isinstance(part, ast.Starred):
                self.starred = True
                self.positional.append(elements(part, value(part.value)))
            else:
                self.positional.append(value(part))
        for keyword in node.keywords:
            if keyword.arg is None:
                self.starred = True
            found = value(keyword.value)
            if keyword.arg is None:
                found = elements(keyword.value, found)
            name = keyword.arg or "**"
            self.keywords[name] = self.keywords.get(name, NOTHING) | found

    def all(self) -> list[tuple[ast.expr, Value]]:
        """Return all arguments."""
        found: list[tuple[ast.expr, Value]] = list(
            zip(self.node.args, self.positional, strict=True)
        )
        found += [(k.value, self.keywords[k.arg or "**"]) for k in self.node.keywords]
        return found

    def joined(self) -> Value:
        """Return what any of the arguments may be."""
        return NOTHING.union(*self.positional, *self.keywords.values())

    def keyword(self, name: str) -> ast.expr | None:
        """Return the argument of a name."""
        return next((k.value for k in self.node.keywords if k.arg == name), None)


class Calls(ABC):
    """The part of a walk that looks at calls."""

    def __init__(self, facts: Facts, frame: Frame) -> None:
        self.facts = facts
        self.frame = frame

    @abstractmethod
    def value(self, node: ast.expr) -> Value:
        """Return what an expression may stand for."""

    # -- what others may do ----------------------------------------------------------------------

    def refuse(self, node: ast.AST, text: str) -> NoReturn:
        """Give up: the model gets copies."""
        raise NotUnderstoodError(node, text)

    def give_away(self, node: ast.AST, value: Value, text: str) -> None:
        """Let code that is not followed have a value: nothing lent, and it may fill the lists."""
        for kind in self.facts.reachable(value):
            if kind in LENT:
                self.refuse(node, text)
            if isinstance(kind, Box):
                self.facts.box(kind.site, OTHER)

    def elements(self, node: ast.AST, value: Value) -> Value:
        """Return what iterating over a value gives."""
        found = NOTHING
        for kind in value:
            if isinstance(kind, Box):
                found |= self.facts.content(kind)
            elif kind in ARRAY | NUMERIC | CONSTANT:
                found |= {kind}
            elif kind in LENT:
                self.refuse(node, f"{text_of(node)} is iterated over")
            else:
                found |= OTHER
        return found

    def computed(self, node: ast.AST, value: Value) -> Value:
        """Return what an operator makes of such operands: something new, and they stay as they are."""
        # An operator of the model itself is the model's code.
        if value & (LENT - ARRAY) or (value & SELF and value & LENT):
            self.refuse(node, f"{text_of(node)} is not understood")
        if value <= CONSTANT:
            return value
        # An object of another library may answer with anything, as a list times a number does.
        return FRESH if value <= ARRAY | OWN_ARRAYS | CONSTANT else OTHER

    # -- calls -----------------------------------------------------------------------------------

    def call(self, node: ast.Call, *, awaited: bool) -> Value:
        """Return what a call returns; of a coroutine function what it returns once `awaited`."""
        given = Given(node, self.value, self.elements)
        found = NOTHING
        if isinstance(node.func, ast.Attribute):
            for kind in self.value(node.func.value):
                if isinstance(kind, Ref):
                    thing = member(kind.thing, node.func.attr)
                    found |= self._call_thing(thing, given, awaited=awaited)
                else:
                    found |= self._call_method(kind, node.func.attr, given, awaited=awaited)
            return found
        for kind in self.value(node.func):
            thing = kind.thing if isinstance(kind, Ref) else None
            if kind in LENT:
                self.refuse(node, f"{text_of(node.func)} is called")
            found |= self._call_thing(thing, given, awaited=awaited)
        return found

    def _call_unknown(self, given: Given) -> Value:
        for part, value in given.all():
            self.give_away(
                given.node, value, f"{text_of(part)} is passed to {text_of(given.node.func)}"
            )
        return OTHER

    def _call_thing(self, thing: object, given: Given, *, awaited: bool) -> Value:
        special = _SPECIAL.get(id(thing))
        if special is not None:
            found: Value = getattr(self, special)(given)
            return found
        rule = rule_of(thing)
        if rule is not None:
            return self._apply(rule, given)
        if isinstance(thing, FunctionType) and _is_models_own(thing):
            return self._follow(thing, given, (), awaited=awaited)
        return self._call_unknown(given)

    def _call_method(self, kind: Kind | Box, name: str, given: Given, *, awaited: bool) -> Value:
        if isinstance(kind, Box):
            return self._call_box(kind, name, given)
        if kind is Kind.SELF:
            found = self.facts.method(name)
            if found is None or name in self.frame.definition.attributes:
                return self._call_unknown(given)
            function, bound = found
            return self._follow(function, given, (SELF,) if bound else (), awaited=awaited)
        rule = ARRAY_METHODS.get(name)
        if rule is not None and kind in ARRAY | OWN_ARRAYS:
            return self._apply(rule, given, frozenset({kind}))
        if kind not in LENT:
            return OTHER if kind is Kind.CONSTANT else self._call_unknown(given)
        return self._call_lent(kind, name, given)

    def _call_lent(self, kind: Kind, name: str, given: Given) -> Value:
        self._call_unknown(given)
        if kind is Kind.TENSOR and name == "as_numpy":
            return ARRAY
        if kind is Kind.REQUEST and name == "inputs":
            return self.facts.box((id(given.node), "inputs"), TENSOR)
        if kind is Kind.HOLDER and name in ("inputs", "output_tensors"):
            return self.facts.box((id(given.node), "held"), HOLDER)
        if not (
            (kind is Kind.ARRAY and name in TEXT_METHODS)
            or (kind is Kind.REQUEST and name in _REQUEST_FACTS)
            or (kind is Kind.TENSOR and name in _TENSOR_FACTS)
            # exec(decoupled=True) returns before the other model is done with its inputs.
            or (kind is Kind.HOLDER and name in _HOLDER_FACTS and not given.all())
        ):
            self.refuse(given.node, f"{text_of(given.node.func)}() is called")
        return OTHER

    def _follow(
        self, function: FunctionType, given: Given, first: Sequence[Value], *, awaited: bool
    ) -> Value:
        """Return what a function of the model returns; of no interest unless it gets something."""
        if not any(isinstance(kind, Box) or kind in LENT for kind in given.joined()):
            return OTHER
        flags = function.__code__.co_flags
        frame = None
        if (
            not given.starred
            and not flags & (CO_GENERATOR | CO_ASYNC_GENERATOR)
            and bool(flags & CO_COROUTINE) is awaited
        ):
            frame = self.facts.enter(function, [*first, *given.positional], given.keywords)
        return self._call_unknown(given) if frame is None else frame.returns

    def _call_box(self, box: Box, name: str, given: Given) -> Value:
        """Look at a method of a list, dict, set or iterator that the code made itself."""
        content = self.facts.content(box)
        if name in _ADDING:
            added = given.joined()
            if name in ("extend", "extendleft", "update"):
                for part, value in given.all():
                    added |= self.elements(part, value)
            if name == "update":  # with pairs
                added |= self.elements(given.node, _boxes(added))
            self.facts.box(box.site, added)
            return content | added | OTHER if name == "setdefault" else OTHER
        if name in ("items", "popitem"):
            pair = self.facts.box((id(given.node), "pair"), content | OTHER)
            return pair if name == "popitem" else self.facts.box((id(given.node), "items"), pair)
        if name in ("copy", "keys", "values"):
            return self.facts.box((id(given.node), "copy"), content)
        if name in ("get", "pop", "popleft"):
            return content | given.joined() | OTHER
        if name in _REARRANGING and not (name == "sort" and given.all()):
            return OTHER
        receiver = frozenset({box})
        self.give_away(given.node, receiver, f"{text_of(given.node.func)}() is called")
        return self._call_unknown(given)

    # -- functions of others that only read ------------------------------------------------------

    def _apply(self, rule: Rule, given: Given, receiver: Value = NOTHING) -> Value:
        """Return what a known function makes of its arguments, or a known method of its array."""
        lent = bool(receiver & LENT)
        for at, (part, value) in enumerate(given.all()):
            if not self.facts.is_lent(value):
                continue
            lent = True
            if rule.then is Then.OTHER and not receiver:
                continue  # print, len
            only_arrays = self.facts.reachable(value) & LENT <= ARRAY
            behind = rule.data <= at < len(given.positional)
            if not only_arrays or behind or given.starred or part is given.keyword("out"):
                self._call_unknown(given)
        then = rule.then
        if given.keyword("copy") is not None or len(given.positional) > rule.most:
            then = rule.told
        if lent and (then is Then.WRITTEN or given.keyword("overwrite_input") is not None):
            self.refuse(given.node, f"{text_of(given.node)} may work in place")
        if then in (Then.OTHER, Then.WRITTEN):
            return OTHER
        numbers = self._of_numbers(rule, given)
        if lent and not (receiver or rule.joins or numbers):
            self._refuse_objects(rule, given)
        made = FRESH if self._only_arrays(given) else OTHER
        if given.keyword("out") is not None:
            return made
        if then is Then.FRESH:
            return NUMERIC if numbers else made
        # A view of the model's own array is one of numbers, if that is.
        value = ARRAY if lent else receiver or made
        return self.facts.box((id(given.node), "parts"), value) if then is Then.PARTS else value

    def _only_arrays(self, given: Given) -> bool:
        """Return whether numpy itself answers: objects of other libraries may, with what they like."""
        return all(
            isinstance(kind, Box) or kind in ARRAY | OWN_ARRAYS | CONSTANT
            for kind in self.facts.reachable(given.joined())
        )

    def _of_numbers(self, rule: Rule, given: Given) -> bool:
        """Return whether the array that a call makes is known to hold numbers."""
        if rule.dtype < 0:
            return False
        node = given.keyword("dtype")
        if node is None and rule.dtype < len(given.positional):
            node = given.node.args[rule.dtype]
        if node is None:
            return rule.numbers and not given.starred
        if isinstance(node, ast.Constant):
            return isinstance(node.value, str) and is_numeric(node.value)
        value = self.value(node)
        return bool(value) and all(isinstance(k, Ref) and is_numeric(k.thing) for k in value)

    def _refuse_objects(self, rule: Rule, given: Given) -> None:
        """Refuse to make an array of a list that may get arrays as its elements."""
        boxes = [boxes for _, v in given.all() if self.facts.is_lent(boxes := _boxes(v))]
        if not boxes:
            return
        told = rule.dtype >= 0 and (
            given.keyword("dtype") is not None or len(given.positional) > rule.dtype
        )
        inside = self.facts.reachable(NOTHING.union(*boxes))
        if told or any(kind not in ARRAY | OWN_ARRAYS for kind in inside if type(kind) is not Box):
            self.refuse(given.node, f"{text_of(given.node)} may keep an array as an element")

    # -- functions that are known one by one -----------------------------------------------------

    def _input_of(self, given: Given) -> Value:
        return TENSOR if self.facts.is_lent(given.joined()) else self._call_unknown(given)

    def _made_of(self, given: Given) -> Value:
        return HOLDER if self.facts.is_lent(given.joined()) else self._call_unknown(given)

    def _listed(self, given: Given) -> Value:
        content = NOTHING.union(*(self.elements(part, value) for part, value in given.all()))
        return self.facts.box((id(given.node), "list"), content)

    def _sorted(self, given: Given) -> Value:
        # A key is a function that gets the elements.
        return self._call_unknown(given) if given.keywords else self._listed(given)

    def _dict(self, given: Given) -> Value:
        content = NOTHING.union(OTHER, *given.keywords.values())
        for part, value in given.all()[: len(given.positional)]:
            inner = self.elements(part, value)
            content |= inner | self.elements(part, inner & _boxes(inner))
        if given.starred:
            self._call_unknown(given)
        return self.facts.box((id(given.node), "dict"), content)

    def _zipped(self, given: Given) -> Value:
        content = NOTHING.union(*(self.elements(part, value) for part, value in given.all()))
        return self._pairs(given, content)

    def _counted(self, given: Given) -> Value:
        return self._pairs(given, CONSTANT | self.elements(given.node, given.joined()))

    def _pairs(self, given: Given, content: Value) -> Value:
        pair = self.facts.box((id(given.node), "pair"), content)
        return self.facts.box((id(given.node), "pairs"), pair)

    def _next(self, given: Given) -> Value:
        first, *rest = given.all()
        return self.elements(*first).union(*(value for _, value in rest))

    def _one_of(self, given: Given) -> Value:
        """Of min and max: one of the arguments, or of the elements of the only one."""
        if given.keywords:
            return self._call_unknown(given)
        if len(given.positional) == 1 and not given.starred:
            return self.elements(given.node.args[0], given.positional[0])
        return given.joined() | self.elements(given.node, _boxes(given.joined()))

    def _sum(self, given: Given) -> Value:
        if len(given.all()) != 1 or given.starred:
            return self._call_unknown(given)
        inner = self.elements(given.node.args[0], given.positional[0])
        if _boxes(inner):
            return self._call_unknown(given)
        return self.computed(given.node, inner)


def member(thing: object, name: str) -> object:
    """Return what a name of a module stands for; None if that may be something else later."""
    if isinstance(thing, ModuleType):
        own = thing.__name__.partition(".")[0] == "numpy"  # it imports some parts when asked
        return getattr(thing, name, None) if own else vars(thing).get(name)
    return _FROM_DLPACK if thing is pb_utils.Tensor and name == "from_dlpack" else None


def _boxes(value: Value) -> Value:
    return frozenset(kind for kind in value if isinstance(kind, Box))


def _is_models_own(function: FunctionType) -> bool:
    """Return whether a function stands in a file of a model: nobody else gives its name away.

    One of a notebook may be another one as soon as its cell is run again.
    """
    return str(function.__globals__.get("__name__")).startswith(PRIVATE_PACKAGE)


_FROM_DLPACK = object()
# By the name of the method that knows them.
_SPECIAL: dict[int, str] = {
    id(thing): method
    for method, things in (
        ("_input_of", (pb_utils.get_input_tensor_by_name,)),
        (
            "_made_of",
            (pb_utils.Tensor, pb_utils.InferenceResponse, pb_utils.InferenceRequest, _FROM_DLPACK),
        ),
        ("_listed", (frozenset, iter, list, reversed, set, tuple)),
        ("_sorted", (sorted,)),
        ("_dict", (dict,)),
        ("_counted", (enumerate,)),
        ("_zipped", (zip,)),
        ("_next", (next,)),
        ("_one_of", (max, min)),
        ("_sum", (sum,)),
    )
    for thing in things
}
