"""Triton's messages: the class of ModelConfig, and helpers that other modules share.

Their definitions are Triton's own, in ``messages.binpb`` (``scripts/messages.py`` writes it). They
live in a separate descriptor pool, so that any version of tritonclient can be imported in the same
process.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from nbtriton.common.errors import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from google.protobuf.message import Message

    from nbtriton.model.config._messages import ModelConfig as ModelConfig  # noqa: PLC0414 - for others

# Descriptors have one class per protobuf implementation, and no common base in the type stubs.
Descriptor: TypeAlias = Any


def _read_classes() -> dict[str, Any]:
    """Return the classes of all messages by their full names."""
    pool = descriptor_pool.DescriptorPool()
    data = Path(__file__).with_name("messages.binpb").read_bytes()
    files = descriptor_pb2.FileDescriptorSet.FromString(data).file
    for file in files:
        pool.Add(file)
    outer = [
        message for file in files
        for message in pool.FindFileByName(file.name).message_types_by_name.values()
    ]  # fmt: skip
    return {
        message.full_name: message_factory.GetMessageClass(message)
        for message in _with_nested(outer)
    }


def _with_nested(messages: Iterable[Descriptor]) -> Iterator[Descriptor]:
    for message in messages:
        yield message
        yield from _with_nested(message.nested_types)


# All of them, for good: protobuf makes a class again that nobody refers to, and hands out one that the garbage
# collector is about to free, which ends the process.
_CLASSES = _read_classes()

if not TYPE_CHECKING:
    ModelConfig = _CLASSES["inference.ModelConfig"]

_FILE: Descriptor = ModelConfig.DESCRIPTOR.file


def _values(enum: Descriptor) -> dict[str, int]:
    return {value.name: value.number for value in enum.values}


# Enum names to numbers: TYPE_FP32, ... and KIND_AUTO, KIND_GPU, ...
DATA_TYPES: dict[str, int] = _values(_FILE.enum_types_by_name["DataType"])
KINDS: dict[str, int] = _values(
    _FILE.message_types_by_name["ModelInstanceGroup"].enum_types_by_name["Kind"]
)


def protocol_name(data_type: int) -> str:
    """Return the inference protocol's name of a data type: ``TYPE_STRING`` is ``BYTES``.

    Triton loads a model whose data type is a number that it does not know; its name is the number.
    """
    known = (name for name, number in DATA_TYPES.items() if number == data_type)
    name = next(known, str(data_type))
    return "BYTES" if name == "TYPE_STRING" else name.removeprefix("TYPE_")


# The inference protocol's names (FP32, BYTES, ...) to numbers.
PROTOCOL_TYPES: dict[str, int] = {
    protocol_name(number): number for number in DATA_TYPES.values() if number
}


def copy_config(config: ModelConfig) -> ModelConfig:
    """Return a separate message with the same fields."""
    copy = ModelConfig()
    copy.CopyFrom(config)
    return copy


def is_repeated(field: Descriptor) -> bool:
    """Return True for a list or a map."""
    # protobuf 6.31 renamed it; versions with either name are in use.
    repeated = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if repeated is None else repeated)


def is_map(field: Descriptor) -> bool:
    """Return True for a map."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def enum_name(message: Message, field: str) -> str:
    """Return the name of an enum field's value, or its number as text if it has none."""
    number = getattr(message, field)
    descriptor: Descriptor = message.DESCRIPTOR.fields_by_name[field]
    value = descriptor.enum_type.values_by_number.get(number)
    return value.name if value else str(number)


# By name, such as `messages.ModelInferRequest`; the classes are made at run time.
messages: Any = SimpleNamespace(
    **{kind.__name__: kind for name, kind in _CLASSES.items() if name.count(".") == 1}
)


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
