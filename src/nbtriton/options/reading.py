"""Values of options as they are written on a line: argparse types for magics and command lines alike."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from typing import Any

from nbtriton.common import entries
from nbtriton.common.errors import InvalidArgumentError

# Where instances can live: those of an extension are entry points as well.
ISOLATIONS = ("thread", "process", "auto", *entries.own_places("isolations"))
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


def placements(text: str) -> list[Any]:
    """Read placements: names, or devices of models such as ``bert=gpu:1+trees=cpu``."""
    found: list[Any] = []
    for part in unquoted(text).split(","):
        if "=" not in part:
            found.append(part.strip())
            continue
        pairs = [each.partition("=") for each in part.split("+")]
        found.append({model.strip(): device.strip() for model, _, device in pairs})
    return found


def size_lists(text: str) -> list[list[int]]:
    """Read ``4/8/4,8``."""
    return [int_list(part) for part in unquoted(text).split("/")]


def shape(text: str) -> tuple[str, list[int]]:
    """Read ``IN:3,224,224``."""
    name, colon, dims = unquoted(text).rpartition(":")
    if not colon:
        raise ArgumentTypeError(f"'{text}' is not NAME:DIMS, such as IN:3,224,224")
    return name, int_list(dims)


def switch(text: str) -> bool:
    """Read ``on`` or ``off``."""
    found = _WORDS.get(text.lower())
    if found is None:
        raise InvalidArgumentError(f"'{text}' is neither on nor off")
    return found


def gpu_ids(text: str) -> list[int] | str | None:
    """Read GPU ids, ``all``, ``none``, or simulated GPUs."""
    if text == "all":
        return None
    if text == "none":
        return []
    return int_list(text) if text.replace(",", "").isdigit() else text


def cache_bytes(text: str) -> int:
    """Read a size, as a number or in tritonserver's words."""
    try:
        return int(text.removeprefix("local,size="))
    except ValueError:
        raise InvalidArgumentError(f"'{text}' is neither a number of bytes nor 'none'") from None


def recorded(text: str) -> bool | int:
    """Read ``on``, ``off`` or a number of requests."""
    if text in ("on", "off"):
        return text == "on"
    try:
        return int(text)
    except ValueError:
        raise InvalidArgumentError(
            f"'{text}' is neither on, off nor a number of requests"
        ) from None


def one_or_several(text: str) -> int | list[int]:
    """Read ``4``, or ``1,2,4``."""
    found = int_list(text)
    return found if len(found) > 1 else found[0]


def milliseconds(text: str) -> float:
    """Read ``20``, ``20ms``, ``1.5s`` or ``500us``."""
    units = {"us": 0.001, "µs": 0.001, "ms": 1.0, "s": 1000.0}
    unit = next((unit for unit in units if text.endswith(unit)), "")
    try:
        return float(text.removesuffix(unit)) * units.get(unit, 1.0)
    except ValueError:
        raise ArgumentTypeError(f"'{text}' is not a time, such as 20ms") from None


# Characters that have no meaning in a magic's line: no separator, option, input, bracket or semicolon.
_PLAIN = re.compile(r"[\w./:+@][\w./:+@-]*")


def quoted(name: str) -> str:
    """Return a name as a word of a magic's line, in quotes where the line needs them.

    Quotes in IPython's lines have no escapes: a name with both kinds of quotes may be read as a
    different one.

    Examples
    --------
    >>> quoted("double"), quoted("my model")
    ('double', "'my model'")
    """
    if _PLAIN.fullmatch(name):
        return name
    quote = '"' if "'" in name else "'"
    return f"{quote}{name}{quote}"
