"""Values of options as they are written on a line: argparse types for magics and command lines alike."""

from __future__ import annotations

import ast
from argparse import ArgumentTypeError
from typing import Any

__all__ = ["float_list", "int_list", "literal", "name_list", "switches", "unquoted"]

_WORDS = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}


def unquoted(text: str) -> str:
    """Undo the quotes that keep spaces together on a magic's line; IPython leaves them on."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


def int_list(text: str) -> list[int]:
    """Read ``4,8``."""
    try:
        return [int(part) for part in unquoted(text).split(",")]
    except ValueError:
        raise ArgumentTypeError(f"'{text}' is not a list of whole numbers such as 4,8") from None


def float_list(text: str) -> list[float]:
    """Read ``1,2.5,10``."""
    try:
        return [float(part) for part in unquoted(text).split(",")]
    except ValueError:
        raise ArgumentTypeError(f"'{text}' is not a list of numbers such as 1,2,10") from None


def name_list(text: str) -> list[str]:
    """Read ``A,B``."""
    return [part for part in unquoted(text).split(",") if part]


def switches(text: str) -> list[bool]:
    """Read ``on``, ``off`` or ``off,on``."""
    try:
        return [_WORDS[part.lower()] for part in unquoted(text).split(",")]
    except KeyError as error:
        raise ArgumentTypeError(f"{error} is neither on nor off; write off,on for both") from None


def literal(text: str) -> Any:
    """Read a value as Python writes it, where there are no variables."""
    try:
        return ast.literal_eval(unquoted(text))
    except (SyntaxError, ValueError):
        raise ArgumentTypeError(f"'{text}' is not a value as Python writes it") from None
