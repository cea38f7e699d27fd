"""Values of a configuration's ``parameters``, read as by Triton's C++ backends."""

from __future__ import annotations

import re

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.model.config import ModelConfig
from nbtriton.model.config.parameters import text_parameter

_TRUE, _FALSE = ("true", "on", "1"), ("false", "off", "0")


def integer_parameter(config: ModelConfig, key: str) -> int:
    """Return a numeric parameter, 0 if it is not set; see `integer_value`.

    Raises
    ------
    InvalidArgumentError
        It is not a 32-bit number.
    """
    text = text_parameter(config, key)
    return 0 if text is None else integer_value(text, f"it is parameter {key}")


def integer_value(text: str, hint: str = "") -> int:
    """Return a number as C++'s ``stoi`` reads it: text after the digits does not count.

    Raises
    ------
    InvalidArgumentError
        The text is not a 32-bit number.
    """
    match = re.match(r"\s*[+-]?\d+", text, re.ASCII)
    if match is None or not -(2**31) <= int(match[0]) < 2**31:
        raise InvalidArgumentError(f"failed to convert '{text}' to integral number", hint=hint)
    return int(match[0])


def boolean_parameter(config: ModelConfig, key: str, default: bool) -> bool:
    """Return a boolean parameter.

    Raises
    ------
    InvalidArgumentError
        Its value is neither true nor false.
    """
    text = text_parameter(config, key)
    return default if text is None else boolean_value(text, f"it is parameter {key}")


def boolean_value(text: str, hint: str = "") -> bool:
    """Return a boolean value of a text.

    Raises
    ------
    InvalidArgumentError
        It is neither true nor false.
    """
    if text.lower() not in (*_TRUE, *_FALSE):
        raise InvalidArgumentError(
            f"failed to convert '{text}' to boolean",
            hint=f"{hint}: true or false, on or off, 1 or 0",
        )
    return text.lower() in _TRUE
