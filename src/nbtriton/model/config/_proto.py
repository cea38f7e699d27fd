"""Triton's messages: the class of ModelConfig, and helpers that other modules share.

Their definitions are Triton's own, in ``messages.binpb`` (``scripts/messages.py`` writes it). They live in a
descriptor pool of their own, so that a tritonclient of any version can be imported beside them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from nbtriton.model.config._messages import ModelConfig

__all__ = [
    "DATA_TYPES",
    "KINDS",
    "PROTOCOL_TYPES",
    "Descriptor",
    "ModelConfig",
    "copy_of",
    "enum_name",
    "is_map",
    "is_repeated",
    "message_classes",
    "protocol_name",
]

# Descriptors have one class per protobuf implementation, and no common base in the type stubs.
Descriptor: TypeAlias = Any


def _read_definitions() -> Descriptor:
    """Return a pool with the definitions."""
    pool = descriptor_pool.DescriptorPool()
    data = Path(__file__).with_name("messages.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.Add(file)
    return pool


_POOL = _read_definitions()


def message_classes(file: str) -> dict[str, Any]:
    """Return the messages of a file of definitions by name: their classes."""
    described = _POOL.FindFileByName(file).message_types_by_name
    return {name: message_factory.GetMessageClass(found) for name, found in described.items()}


if not TYPE_CHECKING:
    ModelConfig = message_factory.GetMessageClass(
        _POOL.FindMessageTypeByName("inference.ModelConfig")
    )

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


def copy_of(config: ModelConfig) -> ModelConfig:
    """Return a message of its own with the same fields."""
    copy = ModelConfig()
    copy.CopyFrom(config)
    return copy


def is_repeated(field: Descriptor) -> bool:
    """Return True for a list or a map."""
    # protobuf 6.31 has another name for it; versions with either are in use.
    repeated = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if repeated is None else repeated)


def is_map(field: Descriptor) -> bool:
    """Return True for a map."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def enum_name(message: Message, field: str) -> str:
    """Return the name of an enum field's value, or its number as text where it has none."""
    number = getattr(message, field)
    descriptor: Descriptor = message.DESCRIPTOR.fields_by_name[field]
    value = descriptor.enum_type.values_by_number.get(number)
    return value.name if value else str(number)
