"""The one signature that a demonstration backend has: checks with Triton's texts."""

from __future__ import annotations

from collections.abc import Sequence

from nbtriton.config import ModelConfig, TensorSpec, input_specs, output_specs
from nbtriton.errors import InvalidArgumentError
from nbtriton.tensors import format_shape, to_config

__all__ = ["check_datatypes", "check_names", "check_one"]

_ORDINALS = ("first", "second", "third")


def check_names(config: ModelConfig, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Check how many inputs and outputs there are, and their names in order."""
    found = (
        ("input", list(input_specs(config)), inputs),
        ("output", list(output_specs(config)), outputs),
    )
    for what, given, names in found:
        if len(given) != len(names):
            raise InvalidArgumentError(
                f"expected {len(names)} {what}{'s' if len(names) > 1 else ''}, got {len(given)}",
                hint=f"{', '.join(names)}, in this order",
            )
    for what, given, names in found:
        for ordinal, one, name in zip(_ORDINALS, given, names, strict=False):
            if one != name:
                raise InvalidArgumentError(
                    f"expected {ordinal} {what} tensor name to be {name}, got {one}"
                )


def check_one(config: ModelConfig, *names: str) -> None:
    """Check that these tensors have one element."""
    tensors = _tensors(config)
    for name in names:
        if tensors[name].dims != (1,):
            raise InvalidArgumentError(
                f"expected {name} shape to be [1], got {format_shape(tensors[name].dims)}"
            )


def check_datatypes(config: ModelConfig, **expected: str) -> None:
    """Check the datatypes of tensors, such as ``IN="INT32"``."""
    tensors = _tensors(config)
    for name, datatype in expected.items():
        if tensors[name].datatype != datatype:
            raise InvalidArgumentError(
                f"expected {name} datatype to be {datatype}, got "
                f"{to_config(tensors[name].datatype)}"
            )


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return {**input_specs(config), **output_specs(config)}
