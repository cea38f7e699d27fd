"""Fragments of a configuration, as tutorials show them, laid over a whole one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nbtriton.model.config._proto import ModelConfig, copy_of, is_map, is_repeated
from nbtriton.model.config.convert import as_config, lay_over_dict, read_json
from nbtriton.model.config.pbtxt import lay_over_pbtxt, parse_pbtxt

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["amend", "is_whole"]


def is_whole(config: ModelConfig) -> bool:
    """Return True if a text describes a model, and not only a part of one.

    It does if it says which model it is about (``name``), what runs it (``platform`` or
    ``backend``), or both what goes in and what comes out (``input`` and ``output``).
    """
    described = bool(config.input) and bool(config.output)
    return bool(config.name or config.platform or config.backend) or described


def amend(
    base: ModelConfig,
    given: str | bytes | Mapping[str, Any] | ModelConfig,
    *,
    source: str = "config.pbtxt",
) -> ModelConfig:
    """Return what a whole configuration says, or `base` with what a fragment changes.

    A fragment changes the fields that it names, down to those of a message: ``dynamic_batching {
    max_queue_delay_microseconds: 100 }`` leaves the preferred sizes. A list is replaced as a whole,
    and of fields that exclude each other the named one stays. What is named counts also where it
    is 0, false or empty.

    Parameters
    ----------
    base : ModelConfig
        Not changed.
    given : str, bytes, mapping or ModelConfig
        As for `as_config`; whole or a fragment by `is_whole`.
    source : str
        Name of a text in errors.

    Raises
    ------
    ConfigError
        As `as_config`.

    Examples
    --------
    >>> base = parse_pbtxt("max_batch_size: 8  dynamic_batching { preferred_batch_size: 4 }")
    >>> config = amend(base, "dynamic_batching { max_queue_delay_microseconds: 100 }")
    >>> config.max_batch_size, list(config.dynamic_batching.preferred_batch_size)
    (8, [4])
    """
    value: Any = given
    if isinstance(given, str | bytes) and given.lstrip()[:1] in ("{", b"{"):
        value = read_json(given)
    is_text = isinstance(value, str | bytes)
    fragment = parse_pbtxt(value, source=source) if is_text else as_config(value)
    if is_whole(fragment):
        return fragment
    amended = copy_of(base)
    _clear_lists(amended, fragment)
    if is_text:
        lay_over_pbtxt(amended, value)
    elif isinstance(value, ModelConfig):
        amended.MergeFrom(value)
    else:
        lay_over_dict(amended, value)
    return amended


def _clear_lists(target: Message, fragment: Message) -> None:
    """Empty the lists that the fragment fills: protobuf appends."""
    for field, value in fragment.ListFields():
        if is_repeated(field) and not is_map(field):
            target.ClearField(field.name)
        elif field.message_type is not None and not is_map(field) and target.HasField(field.name):
            _clear_lists(getattr(target, field.name), value)
