"""What an expression may stand for, as far as it matters who can write where."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from enum import Enum, auto

__all__ = [
    "ARRAY",
    "CONSTANT",
    "FRESH",
    "HOLDER",
    "LENT",
    "NOTHING",
    "NUMERIC",
    "OTHER",
    "OWN_ARRAYS",
    "REQUEST",
    "SELF",
    "TENSOR",
    "Box",
    "Kind",
    "NotUnderstoodError",
    "Ref",
    "Site",
    "Value",
    "text_of",
]


class Kind(Enum):
    """One thing that is told from others."""

    OTHER = auto()  # whatever else: nothing that was lent can be reached from it
    FRESH = auto()  # an array of the model's own
    NUMERIC = auto()  # the same, of numbers: what is assigned into it is copied
    CONSTANT = auto()  # nothing can be put into it
    SELF = auto()  # the model
    # What follows was lent, or refers to it.
    ARRAY = auto()  # perhaps also an element of one
    TENSOR = auto()  # an input, whose array `as_numpy` gives
    REQUEST = auto()
    HOLDER = auto()  # a tensor, response or request made of one; its `as_numpy` gives a copy


Site = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Box:
    """A list, tuple, set, dict or iterator that the code made itself, at one place of its text."""

    site: Site


class Ref:
    """A module, function or class that a name stands for: this very one."""

    __slots__ = ("thing",)

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and other.thing is self.thing

    def __hash__(self) -> int:
        return id(self.thing)


# Everything that it may be; nothing at all for what has not been assigned yet.
Value = frozenset[Kind | Box | Ref]

NOTHING: Value = frozenset()
OTHER: Value = frozenset({Kind.OTHER})
FRESH: Value = frozenset({Kind.FRESH})
NUMERIC: Value = frozenset({Kind.NUMERIC})
CONSTANT: Value = frozenset({Kind.CONSTANT})
SELF: Value = frozenset({Kind.SELF})
ARRAY: Value = frozenset({Kind.ARRAY})
TENSOR: Value = frozenset({Kind.TENSOR})
REQUEST: Value = frozenset({Kind.REQUEST})
HOLDER: Value = frozenset({Kind.HOLDER})
LENT: Value = ARRAY | TENSOR | REQUEST | HOLDER
OWN_ARRAYS: Value = FRESH | NUMERIC


class NotUnderstoodError(Exception):
    """Something may write to an array of the caller, or keep it.

    Attributes
    ----------
    line : int
    """

    def __init__(self, node: ast.AST, text: str) -> None:
        super().__init__(text)
        self.line: int = getattr(node, "lineno", 0)


def text_of(node: ast.AST) -> str:
    """Return a piece of code in one short line."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 60 else f"{text[:28]}...{text[-28:]}"
