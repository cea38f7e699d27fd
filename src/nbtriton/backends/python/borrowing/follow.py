"""Follows what a model is given through its code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR, CO_VARKEYWORDS
from types import FunctionType, MethodType

from nbtriton.backends.python.borrowing.facts import Facts
from nbtriton.backends.python.borrowing.values import (
    ARRAY,
    REQUEST,
    SELF,
    NotUnderstoodError,
    Value,
)
from nbtriton.backends.python.borrowing.walker import Walker

__all__ = ["borrows", "function_borrows"]


def borrows(execute: object) -> str:
    """Return why a model may not borrow its inputs; empty if it may.

    Parameters
    ----------
    execute : callable
        The model's bound ``execute``.
    """
    if execute is None:
        return "there is no execute"
    if not isinstance(execute, MethodType) or not isinstance(execute.__func__, FunctionType):
        return "execute is not a method of the model's class"
    model = execute.__self__
    if type(model).__getattribute__ is not object.__getattribute__:
        return "the model has a __getattribute__ of its own"
    facts = Facts(model)
    requests = facts.box((id(model), "requests"), REQUEST)
    return _why_not(facts, execute.__func__, (SELF, requests), {})


def function_borrows(function: FunctionType) -> str:
    """Return why a function that is a model may not borrow its inputs; empty if it may."""
    code = function.__code__
    names = [*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]
    if code.co_flags & CO_VARKEYWORDS:
        names.append("**")
    return _why_not(Facts(None), function, (), dict.fromkeys(names, ARRAY))


def _why_not(
    facts: Facts, function: FunctionType, values: Sequence[Value], keywords: Mapping[str, Value]
) -> str:
    if function.__code__.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR):
        return f"{function.__name__} is a generator"
    if facts.enter(function, values, keywords) is None:
        return f"the source of {function.__name__} is not known"
    # A name that stands for an array of the caller anywhere in a function stands for it everywhere,
    # and a list that may hold one always may. What a name stands for only grows: all functions are
    # walked again until nothing new is found.
    while facts.take_grown():
        for frame in facts.frames():
            try:
                Walker(facts, frame).walk(frame.definition.node.body)
            except NotUnderstoodError as found:
                return f"{frame.definition.place} line {found.line}: {found}"
    return ""
