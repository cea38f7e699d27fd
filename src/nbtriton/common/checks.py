"""Checks of arguments by their kind. The error names the argument, the allowed values and the value found."""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Callable, Collection, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

from nbtriton.common.errors import InvalidArgumentError, NotFoundError


class Kind(NamedTuple):
    """The kind of values that an argument may have, and its name in messages."""

    accepts: Callable[[Any], bool]
    words: str


def is_whole(value: object) -> bool:
    """Return True for a whole number, Python's or NumPy's; not for True and False."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return True for a finite number; not for True and False."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return isinstance(value, Integral) or math.isfinite(value)  # a large int does not fit a float


def is_list(value: object) -> bool:
    """Return True for a collection of values, of Python's or NumPy's; texts and mappings are none."""
    return isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)


def whole(least: int) -> Kind:
    """Return the kind of whole numbers with a minimum."""
    return Kind(lambda value: is_whole(value) and value >= least, f"a whole number from {least} on")


def number(*, above: float) -> Kind:
    """Return the kind of finite numbers above a bound."""
    return Kind(lambda value: is_number(value) and value > above, f"a number above {above:g}")


def optional(kind: Kind) -> Kind:
    """Return a kind that may be left out."""
    return Kind(lambda value: value is None or kind.accepts(value), kind.words)


def listed(kind: Kind) -> Kind:
    """Return the kind of lists of at least one."""
    return Kind(
        lambda value: is_list(value) and len(value) > 0 and all(map(kind.accepts, value)),
        f"a list, each {kind.words}",
    )


def _is_switch(value: object) -> bool:
    # NumPy's and pandas' comparisons give numpy.bool_, which is not a bool.
    return isinstance(value, bool) or (
        str(getattr(value, "dtype", "")) == "bool" and getattr(value, "shape", None) == ()
    )


SWITCH = Kind(_is_switch, "True or False")
NAME = Kind(lambda value: isinstance(value, str) and bool(value), "a name")
NAMES = Kind(lambda value: is_list(value) and all(map(NAME.accepts, value)), "a list of names")
PATH = Kind(lambda value: isinstance(value, str | os.PathLike), "the name of a file")
DIRECTORY = Kind(PATH.accepts, "a directory")
MAPPING = Kind(lambda value: isinstance(value, Mapping), "a mapping by name")
CALL = Kind(callable, "a function")
SERVER = Kind(lambda value: hasattr(value, "engine"), "a server, nt.Server() or nt.server()")
PROFILE = Kind(lambda value: hasattr(value, "is_declared"), "a profile of nt.profile")
SEED = whole(0)


def check(given: Mapping[str, object], kinds: Mapping[str, Kind]) -> None:
    """Refuse the first argument that is not of its kind.

    Raises
    ------
    InvalidArgumentError

    Examples
    --------
    >>> check({"rounds": 2.5}, {"rounds": whole(1)})
    Traceback (most recent call last):
    nbtriton.common.errors.InvalidArgumentError: rounds must be a whole number from 1 on; found 2.5
    """
    for name, kind in kinds.items():
        if not kind.accepts(given[name]):
            raise InvalidArgumentError(
                f"{name} must be {kind.words}; found {reprlib.repr(given[name])}"
            )


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path.

    Raises
    ------
    NotFoundError
        It is relative to a working directory that was deleted.
    """
    try:
        return Path(path).absolute()
    except FileNotFoundError:
        raise NotFoundError(
            f"failed to open '{os.fspath(path)}': the working directory was deleted",
            hint="change to another one (os.chdir, %cd), or give the whole path",
        ) from None
