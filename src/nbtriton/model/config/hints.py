"""Suggestions for names that ModelConfig does not have."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nbtriton.common.errors import nearest
from nbtriton.model.config._proto import DATA_TYPES, Descriptor, ModelConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["hint_for_json", "hint_unknown_field", "hint_unknown_value", "known_data_type"]

# Frameworks' names of Triton's data types, in capitals and without the "TYPE_".
_OTHER_NAMES = {
    "FLOAT": "FP32", "FLOAT32": "FP32", "SINGLE": "FP32", "F32": "FP32",
    "DOUBLE": "FP64", "FLOAT64": "FP64", "F64": "FP64",
    "HALF": "FP16", "FLOAT16": "FP16", "F16": "FP16", "BFLOAT16": "BF16",
    "INT": "INT32", "INTEGER": "INT32", "I32": "INT32", "LONG": "INT64", "I64": "INT64",
    "SHORT": "INT16", "CHAR": "INT8", "BYTE": "UINT8", "UINT": "UINT32", "BOOLEAN": "BOOL",
    "BYTES": "STRING", "STR": "STRING", "TEXT": "STRING", "OBJECT": "STRING",
}  # fmt: skip


def known_data_type(name: str) -> str:
    """Return the configuration's name of a data type that is written another way, or ``""``.

    Examples
    --------
    >>> known_data_type("TYPE_FLOAT"), known_data_type("float32"), known_data_type("blob")
    ('TYPE_FP32', 'TYPE_FP32', '')
    """
    short = name.upper().removeprefix("TYPE_")
    known = f"TYPE_{_OTHER_NAMES.get(short, short)}"
    return known if known in DATA_TYPES else ""


def hint_unknown_value(enum: str, value: str) -> str:
    """Return a hint for a value that the enum of this full name does not have."""
    if enum == "inference.DataType" and (known := known_data_type(value)):
        return f"did you mean '{known}'?"
    descriptor = ModelConfig.DESCRIPTOR.file.pool.FindEnumTypeByName(enum)
    names = [one.name for one in descriptor.values]
    ends = [name for name in names if name.endswith(f"_{value.upper()}")]
    return nearest(ends[0] if len(ends) == 1 else value, names)


def hint_unknown_field(message: Descriptor, name: str) -> str:
    """Return a hint for a field that this message does not have."""
    guess = nearest(name, [field.name for field in message.fields])
    if guess.startswith("did you mean"):
        return guess
    elsewhere = [
        ".".join((*path, name))
        for kind, path in _messages(ModelConfig.DESCRIPTOR, ())
        if name in kind.fields_by_name
    ]
    return f"'{name}' belongs elsewhere: {', '.join(elsewhere)}" if elsewhere else guess


def hint_for_json(detail: str) -> tuple[str, str]:
    """Return a hint, and the field at fault, for a sentence of protobuf's JSON parser."""
    if match := re.search(r'Message type "(.+?)" has no field named "(.+?)"', detail):
        for message, path in _messages(ModelConfig.DESCRIPTOR, ()):
            if message.full_name == match[1]:
                return hint_unknown_field(message, match[2]), ".".join((*path, match[2]))
        return "", match[2]
    if match := re.search(r"Invalid enum value (\S+) for enum type ([\w.]+\w)", detail):
        return hint_unknown_value(match[2], match[1]), ""
    return "", ""


def _messages(
    message: Descriptor, path: tuple[str, ...]
) -> Iterator[tuple[Descriptor, tuple[str, ...]]]:
    """Yield every message type below this one with a path that leads to it."""
    yield message, path
    for field in message.fields:
        if field.message_type is not None:
            yield from _messages(field.message_type, (*path, field.name))
