"""Values of ``parameters``, and nbtriton's own, which Triton ignores as it does all that it does not know."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from nbtriton.common import entries
from nbtriton.common.errors import ConfigError, InvalidArgumentError, nearest
from nbtriton.model.config._proto import ModelConfig, copy_config
from nbtriton.options.reading import ISOLATIONS


def text_parameter(config: ModelConfig, key: str) -> str | None:
    """Return the text of a parameter; None if it is not set."""
    return config.parameters[key].string_value if key in config.parameters else None


# As Triton's C++ backends read them.
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


READ_ONLY_INPUTS: Final = "READ_ONLY_INPUTS"
MAX_UNREAD_RESPONSES: Final = "MAX_UNREAD_RESPONSES"
INSTANCE_ISOLATION: Final = "INSTANCE_ISOLATION"
INSTANCE_RESOURCES: Final = "INSTANCE_RESOURCES"
INSTANCE_RESTARTS: Final = "INSTANCE_RESTARTS"
INSTANCE_SHARING: Final = "INSTANCE_SHARING"


def reads_only(config: ModelConfig) -> bool:
    """Return True if the configuration declares that the model only reads its inputs.

    Raises
    ------
    ConfigError
        The parameter ``READ_ONLY_INPUTS`` is neither yes nor no.
    """
    hint = "yes: the model only reads its inputs, which are not copied for it; or no"
    return _word_of(config, READ_ONLY_INPUTS, ("yes", "no"), hint) == "yes"


def max_unread_responses(config: ModelConfig) -> int:
    """Return how many responses of a request may wait for their reader; 0 for any number.

    Raises
    ------
    ConfigError
        The parameter ``MAX_UNREAD_RESPONSES`` is no whole number.

    Examples
    --------
    >>> value = '{ key: "MAX_UNREAD_RESPONSES" value { string_value: "4" } }'
    >>> max_unread_responses(parse_pbtxt(f"parameters {value}"))
    4
    """
    value = text_parameter(config, MAX_UNREAD_RESPONSES)
    if value is None:
        return 0
    if not (value.isascii() and value.isdigit()):
        raise ConfigError(
            f"Incorrect value for {MAX_UNREAD_RESPONSES} of model '{config.name}': '{value}'",
            field=f"parameters.{MAX_UNREAD_RESPONSES}",
            hint="a whole number of responses; 0 for any number",
        )
    return int(value)


def sharing_of(config: ModelConfig) -> int:
    """Return how many instances share one actor of a Ray cluster, and its model object.

    Raises
    ------
    ConfigError
        The parameter ``INSTANCE_SHARING`` is no whole number from 1 to 8, or the instances are asked to live elsewhere.

    Examples
    --------
    >>> value = '{ key: "INSTANCE_SHARING" value { string_value: "2" } }'
    >>> sharing_of(parse_pbtxt(f"parameters {value}"))
    2
    """
    allowed = tuple("12345678") if isolation_of(config) in (None, "ray") else ()
    hint = "with isolation ray: how many instances share an actor, 1 to 8"
    return int(_word_of(config, INSTANCE_SHARING, allowed, hint) or 1)


def isolation_of(config: ModelConfig) -> str | None:
    """Return how a configuration isolates its instances; None if it does not set it.

    Returns
    -------
    {"thread", "process", "auto", "ray"} or None
        The value of the parameter ``INSTANCE_ISOLATION``.

    Raises
    ------
    ConfigError
        The parameter has another value; with the nearest one.
    """
    value = text_parameter(config, INSTANCE_ISOLATION)
    return None if value is None else _word_of(config, INSTANCE_ISOLATION, _isolations(value))


def check_isolation(value: str) -> None:
    """Check the option for the isolation of instances.

    Raises
    ------
    InvalidArgumentError
        It is not one of them; with the nearest one.
    """
    allowed = _isolations(value)
    if value not in allowed:
        raise InvalidArgumentError(
            f"unknown isolation '{value}': it is {_alternatives(allowed)}",
            hint=nearest(str(value), allowed),
        )


def numbers_parameter(config: ModelConfig, key: str, hint: str) -> dict[str, float]:
    """Return the numbers of a parameter ``NAME=NUMBER,…``, none below 0; empty if it is not set.

    Raises
    ------
    ConfigError
        It has another form; with the hint.

    Examples
    --------
    >>> from nbtriton.model.config import INSTANCE_RESTARTS, parse_pbtxt
    >>> config = parse_pbtxt(
    ...     'parameters { key: "INSTANCE_RESTARTS" value { string_value: "number=3,pause_s=1" } }'
    ... )
    >>> numbers_parameter(config, INSTANCE_RESTARTS, hint="")
    {'number': 3.0, 'pause_s': 1.0}
    """
    numbers: dict[str, float] = {}
    for part in filter(None, (text_parameter(config, key) or "").split(",")):
        name, _, number = part.partition("=")
        try:
            numbers[name.strip()] = float(number)
        except ValueError:
            number = "nan"
        if not 0 <= float(number) < float("inf"):
            raise ConfigError(
                f"Incorrect value for {key} of model '{config.name}': '{part}'",
                field=f"parameters.{key}",
                hint=hint,
            )
    return numbers


def _isolations(value: str) -> tuple[str, ...]:
    """Return the allowed words; those of other packages are only looked for where they matter."""
    if value in ISOLATIONS:
        return ISOLATIONS
    return tuple(dict.fromkeys((*ISOLATIONS, *entries.places("isolations"))))


def _alternatives(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _word_of(config: ModelConfig, key: str, allowed: Sequence[str], hint: str = "") -> str | None:
    """Return the value of a parameter, None if it is not set; an error has the nearest word, or the hint."""
    value = text_parameter(config, key)
    if value is not None and value not in allowed:
        raise ConfigError(
            f"Incorrect value for {key} of model '{config.name}': '{value}'",
            field=f"parameters.{key}",
            hint=hint or f"{_alternatives(allowed)}; {nearest(value, allowed)}",
        )
    return value


_MARK = "STAND_IN"


def stand_in_reason(config: ModelConfig) -> str:
    """Return why a model is a stand-in; empty if it is not."""
    return text_parameter(config, _MARK) or ""


def mark_stand_in(config: ModelConfig, reason: str) -> ModelConfig:
    """Return the configuration of a stand-in."""
    marked = copy_config(config)
    marked.parameters[_MARK].string_value = reason
    return marked


def without_stand_in(config: ModelConfig) -> ModelConfig:
    """Return a configuration without the mark of a stand-in, so that it may be loaded again with its backend."""
    if _MARK not in config.parameters:
        return config
    plain = copy_config(config)
    del plain.parameters[_MARK]
    return plain
