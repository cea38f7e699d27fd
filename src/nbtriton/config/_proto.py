"""Triton's ModelConfig message: its class, and helpers that other modules share.

The class is the one of ``tritonclient``. Importing it the usual way brings in grpc and numpy
(about 150 ms), so the one generated file is loaded by its path. Protobuf keeps one class for one
message name in a process, so it does not matter who loads it first.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from google.protobuf import descriptor_pool, message_factory

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from nbtriton.config._messages import ModelConfig

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
    "protocol_name",
]

_MESSAGE = "inference.ModelConfig"


def _message_class() -> Any:
    pool = descriptor_pool.Default()
    try:
        descriptor = pool.FindMessageTypeByName(_MESSAGE)
    except KeyError:
        _register()
        descriptor = pool.FindMessageTypeByName(_MESSAGE)
    return message_factory.GetMessageClass(descriptor)


def _register() -> None:
    """Run tritonclient's generated module, without its package, for its entry in the pool."""
    package = importlib.util.find_spec("tritonclient")
    folders = package.submodule_search_locations if package else None
    if not folders:
        raise ImportError("nbtriton needs the package 'tritonclient' for Triton's ModelConfig")
    path = Path(folders[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("nbtriton_model_config_pb2", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


if not TYPE_CHECKING:
    ModelConfig = _message_class()

# Descriptors have one class per protobuf implementation, and no common base in the type stubs.
Descriptor: TypeAlias = Any

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
