"""Arguments and enums that behave as pybind11's in Triton's module, and warnings of its gaps."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from enum import Enum

__all__ = ["BoundEnum", "as_text", "as_texts", "incompatible", "warn_newer"]


class BoundEnum(Enum):
    """An enum whose members equal their numbers and have no order; their text is their name."""

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, int) and other == self.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


def incompatible(function: str, expected: str, found: object) -> TypeError:
    """Return the error for an argument of the wrong type; an empty function name means the constructor."""
    what = (
        f"{function}(): incompatible function"
        if function
        else "__init__(): incompatible constructor"
    )
    return TypeError(f"{what} arguments. Expected {expected}, found type {type(found).__name__}")


def as_text(value: str | bytes | bytearray) -> str:
    """Return text; ``bytes``, such as a BYTES tensor's element, may name a model.

    Parameters
    ----------
    value : str, bytes or bytearray
        Bytes that are not UTF-8 are replaced: such a name is not found, and reported readably.

    Raises
    ------
    TypeError
        Another type.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="replace")
    raise TypeError(
        f"incompatible function arguments. Expected str or bytes, found type {type(value).__name__}"
    )


def as_texts(values: Iterable[str | bytes | bytearray]) -> list[str]:
    """Return each of several texts as `as_text` does."""
    return [value if type(value) is str else as_text(value) for value in values]


def warn_newer(what: str, difference: str) -> None:
    """Warn of a feature that Triton 2.51 refuses and newer versions have, once per line of the model.

    Parameters
    ----------
    what : str
        The model's code.
    difference : str
        The section of ``docs/differences.md`` about it.
    """
    frame = sys._getframe(1)  # noqa: SLF001 - no other way leads to the caller's line
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("nbtriton."):
        frame = frame.f_back
    warnings.warn_explicit(
        f"{what} needs a newer version of Triton: 2.51 refuses it (docs/differences.md: {difference})",
        UserWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
