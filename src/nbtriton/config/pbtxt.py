"""Protobuf text (``config.pbtxt``) in and out, with errors that say where and what instead.

Protobuf's own parser does the parsing; this module prepares the text for it (comments, trailing
commas, bytes that are not UTF-8) and turns its errors into `ConfigError`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from google.protobuf import text_format

from nbtriton.config._proto import DATA_TYPES, Descriptor, ModelConfig
from nbtriton.errors import ConfigError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["format_pbtxt", "hint_for", "lay_over_pbtxt", "parse_pbtxt"]

_STRING = r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
_COMMENT = re.compile(rf"{_STRING}|(?P<gone>#[^\n]*)")
_LAST_COMMA = re.compile(rf"{_STRING}|(?P<gone>,(?=\s*\]))")


def parse_pbtxt(text: str | bytes, *, source: str = "config.pbtxt") -> ModelConfig:
    """Read a model configuration in protobuf text format.

    Parameters
    ----------
    text : str or bytes
        The text. Bytes that are not UTF-8 are accepted in comments, as Triton does.
    source : str
        What the text is called in errors.

    Returns
    -------
    ModelConfig
        Exactly what the text says; nothing is filled in.

    Raises
    ------
    ConfigError
        With Triton's ``failed to read text proto from …``, the parser's detail, `line`, `column`
        and the nearest known name as the hint.

    Notes
    -----
    Beyond what Triton's parser takes, a comma may end a list: ``[ {…}, {…}, ]``.
    """
    prepared = _prepared(text)
    _reject_surrogates(prepared, source)
    config = ModelConfig()
    try:
        text_format.Parse(prepared, config)
    except text_format.ParseError as error:
        raise _config_error(error, prepared, source) from None
    except ValueError as error:
        # Protobuf lets values that it cannot store escape as bare ValueErrors.
        raise ConfigError(f"failed to read text proto from {source}: {error}") from None
    return config


def lay_over_pbtxt(config: ModelConfig, text: str | bytes) -> None:
    """Set in a configuration what a text names that `parse_pbtxt` can read; lists get longer."""
    text_format.Merge(_prepared(text), config)


def _prepared(text: str | bytes) -> str:
    """Return the text as protobuf's parser takes it, with lines and columns as they were."""
    decoded = text.decode("utf-8", "surrogateescape") if isinstance(text, bytes) else text
    return _blank(_LAST_COMMA, _blank(_COMMENT, decoded.removeprefix("\ufeff")))


def format_pbtxt(config: ModelConfig) -> str:
    """Write a configuration as protobuf text; `parse_pbtxt` gives the same message back."""
    return text_format.MessageToString(config, as_utf8=True, use_short_repeated_primitives=True)


def _blank(pattern: re.Pattern[str], text: str) -> str:
    """Overwrite what the group ``gone`` matches with blanks, so that columns stay true."""
    return pattern.sub(
        lambda match: " " * len(match[0]) if match["gone"] is not None else match[0], text
    )


def _reject_surrogates(text: str, source: str) -> None:
    bad = re.search(r"[\ud800-\udfff]", text)
    if bad is None:
        return
    line = text.count("\n", 0, bad.start()) + 1
    column = bad.start() - text.rfind("\n", 0, bad.start())
    raise ConfigError(
        f"failed to read text proto from {source}: {line}:{column}: Invalid UTF-8 text.",
        hint="save the file as UTF-8; other bytes may stand in comments only",
        line=line,
        column=column,
    )


def _config_error(error: text_format.ParseError, text: str, source: str) -> ConfigError:
    line, column = error.GetLine() or 0, error.GetColumn() or 0
    detail = re.sub(r"^\d+(:\d+)? : ", "", str(error))
    lines = text.split("\n")
    if 0 < line <= len(lines):
        # The tokenizer quotes the whole line in front of its sentence.
        detail = detail.removeprefix(f"'{lines[line - 1]}': ")
    place = f"{line}:{column}: " if line else ""
    hint, field = hint_for(detail)
    if detail.startswith(("Enum type", "Couldn't parse", "Value out of range")):
        before = "\n".join([*lines[: line - 1], lines[line - 1][: column - 1]])
        key = re.search(r"(\w+)\s*:[^:{}]*$", before)
        field = key[1] if key else ""
    return ConfigError(
        f"failed to read text proto from {source}: {place}{detail}",
        hint=hint,
        field=field,
        line=line,
        column=column,
    )


def hint_for(detail: str) -> tuple[str, str]:
    """Return a hint, and the field at fault, for a sentence of protobuf's parsers."""
    if match := re.search(r'Message type "(.+?)" has no field named "(.+?)"', detail):
        return _hint_unknown_field(*match.groups())
    if match := re.search(r'Enum type "(.+?)" has no value named ([^.]+)', detail):
        return _hint_unknown_value(*match.groups()), ""
    if match := re.search(r"Invalid enum value (\S+) for enum type ([\w.]+\w)", detail):
        return _hint_unknown_value(match[2], match[1]), ""
    if match := re.search(r'should not have multiple "(.+?)" fields', detail):
        return f"'{match[1]}' is not a list: give it once", match[1]
    if match := re.search(r'Field "(.+?)" is specified along with field "(.+?)"', detail):
        return f"keep either '{match[1]}' or '{match[2]}'", match[1]
    if 'Expected "}"' in detail or 'Expected ">"' in detail:
        return "a block that was opened is not closed", ""
    return "", ""


def _hint_unknown_field(type_name: str, name: str) -> tuple[str, str]:
    types = dict(_descriptors(ModelConfig.DESCRIPTOR, ()))
    here = types.get(type_name)
    known = [field.name for field in here[0].fields] if here else []
    guess = nearest(name, known)
    if not guess.startswith("did you mean"):
        elsewhere = [
            ".".join((*path, name))
            for (kind, path) in types.values()
            if name in kind.fields_by_name
        ]
        if elsewhere:
            guess = f"'{name}' belongs elsewhere: {', '.join(elsewhere)}"
    return guess, ".".join((*here[1], name)) if here else name


def _hint_unknown_value(type_name: str, value: str) -> str:
    if type_name == "inference.DataType":
        short = value.upper().removeprefix("TYPE_")
        known = "TYPE_STRING" if short in ("BYTES", "STR") else f"TYPE_{short}"
        if known in DATA_TYPES:
            return f"did you mean '{known}'?"
    enum = ModelConfig.DESCRIPTOR.file.pool.FindEnumTypeByName(type_name)
    return nearest(value, [one.name for one in enum.values])


def _descriptors(
    descriptor: Descriptor, path: tuple[str, ...]
) -> Iterator[tuple[str, tuple[Descriptor, tuple[str, ...]]]]:
    """Yield every message type below this one with the first path that leads to it."""
    yield descriptor.full_name, (descriptor, path)
    for field in descriptor.fields:
        if field.message_type is not None:
            yield from _descriptors(field.message_type, (*path, field.name))
