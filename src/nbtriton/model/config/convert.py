"""Conversion between `ModelConfig` and dicts, JSON text and protobuf text."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, SupportsIndex, cast

from google.protobuf import json_format
from google.protobuf.message import Message

from nbtriton.common.errors import ConfigError, InternalError
from nbtriton.model.config._proto import (
    Descriptor,
    ModelConfig,
    copy_config,
    hint_for_json,
    is_map,
    is_repeated,
)
from nbtriton.model.config.normalize import scheduling_choice
from nbtriton.model.config.pbtxt import lay_over_pbtxt, parse_pbtxt

_FULL_NAME = str(ModelConfig.DESCRIPTOR.full_name)

# Protobuf writes 64-bit integers as JSON strings; Triton turns them into numbers, but forgets these.
_REPORTED_AS_STRINGS = frozenset(
    {
        "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
        "inference.ModelSequenceBatching.InitialState.dims",
        "inference.ModelInstanceGroup.SecondaryDevice.device_id",
    }
)

# Fields that Triton 2.51 does not have: they are not reported while they have their default.
_NEWER = frozenset({"inference.ModelEnsembling.max_inflight_requests"})


class Dumpable(Protocol):
    """The one method of pydantic's models that is used here."""

    def model_dump(self, *, mode: str, exclude_none: bool) -> dict[str, Any]:
        """Return the fields as plain values."""


def as_config(value: object) -> ModelConfig:
    """Return a configuration from any of its forms.

    Parameters
    ----------
    value : str, bytes, mapping, ModelConfig or object
        Protobuf text, JSON text (it starts with ``{``, which protobuf text cannot), a dict as
        `to_dict` gives it, a message (tritonclient's own too), which is copied, or an object with
        pydantic's ``model_dump``, of which what is None is left out.

    Returns
    -------
    ModelConfig
        A separate message; nothing is filled in.

    Raises
    ------
    ConfigError
        The value cannot be read; with line and column where it is text.

    Examples
    --------
    >>> as_config({"max_batch_size": 8}) == as_config("max_batch_size: 8")
    True
    """
    if isinstance(value, Mapping):
        return from_dict(value)
    if isinstance(value, str | bytes):
        is_json = value.lstrip()[:1] in ("{", b"{")
        return from_dict(read_json(value)) if is_json else parse_pbtxt(value)
    if isinstance(value, ModelConfig):
        return copy_config(value)
    # Another class of the same message: the one of tritonclient's generated code.
    if getattr(getattr(value, "DESCRIPTOR", None), "full_name", "") == _FULL_NAME:
        return ModelConfig.FromString(cast("Message", value).SerializeToString())
    if callable(dump := getattr(value, "model_dump", None)) and not isinstance(value, type):
        return from_dict(dump(mode="json", exclude_none=True))
    raise ConfigError(
        f"a model configuration cannot be read from a {type(value).__name__}",
        hint="give pbtxt text, JSON text, a dict, a pydantic model or a ModelConfig",
    )


def to_dict(config: ModelConfig) -> dict[str, Any]:
    """Return the fields that are set, with enum names and plain numbers; `from_dict` reverses it.

    Map keys are strings and floats that JSON lacks are ``"NaN"``, ``"Infinity"``, ``"-Infinity"``,
    as in protobuf's JSON.

    Examples
    --------
    >>> to_dict(as_config("max_batch_size: 8  input { name: 'IN' data_type: TYPE_FP32 }"))
    {'max_batch_size': 8, 'input': [{'name': 'IN', 'data_type': 'TYPE_FP32'}]}
    """
    return _plain(config, defaults=False)


def to_json(config: ModelConfig) -> str:
    """Return `to_dict` as JSON text; `as_config` gives the same message back.

    Examples
    --------
    >>> to_json(as_config("max_batch_size: 8"))
    '{"max_batch_size": 8}'
    """
    return json.dumps(to_dict(config), ensure_ascii=False)


def to_reported_dict(config: ModelConfig) -> dict[str, Any]:
    """Return the JSON of Triton's ``/v2/models/<m>/config``.

    Every scalar, list and map has its default, a sub-message is left out unless it is set, and keys
    are in the order of Triton's model_config.proto. 64-bit integers are numbers, except three
    fields that the real server leaves as protobuf's strings; floats without a fraction are integers.
    """
    return _plain(config, defaults=True)


def from_dict(value: Mapping[str, Any]) -> ModelConfig:
    """Read a configuration from a dict.

    Parameters
    ----------
    value : mapping
        Field names to values; enums by name or number; any mapping, sequence or integer type.

    Returns
    -------
    ModelConfig
        The message.

    Raises
    ------
    ConfigError
        A field or an enum value is unknown (the hint has the nearest one) or has a wrong type.

    Examples
    --------
    >>> from_dict({"input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [4]}]}).input[0].name
    'IN'
    """
    config = ModelConfig()
    lay_over_dict(config, value)
    return config


def lay_over_dict(config: ModelConfig, value: Mapping[str, Any]) -> None:
    """Set the fields that a dict names; lists are appended to. Raises as `from_dict`."""
    try:
        json_format.ParseDict(_jsonable(value), config)
    except (json_format.ParseError, ValueError, TypeError) as error:
        # Protobuf lists all fields in camel case on a second line; our hint is closer.
        detail = str(error).partition("\n")[0].rstrip(".")
        hint, field = hint_for_json(detail)
        raise ConfigError(
            f"failed to read model configuration: {detail}", hint=hint, field=field
        ) from None


def read_json(text: str | bytes) -> Any:
    """Read JSON text, also in the forms that protobuf takes; errors have line and column."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        with suppress(ValueError, RecursionError):
            plain = text if isinstance(text, str) else text.decode()
            return json.loads(_LENIENT.sub(_strict, plain), strict=False)
        raise ConfigError(
            f"failed to read model configuration: {error}",
            hint="text that starts with '{' is read as JSON",
            line=error.lineno,
            column=error.colno,
        ) from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"failed to read model configuration: {error}") from None


# Strings, keys without quotes, and commas before an end: what protobuf's reader takes beyond JSON.
_LENIENT = re.compile(
    r"""("(?:[^"\\]|\\.)*")|'((?:[^'\\]|\\.)*)'|(?!(?:true|false|null)\b)\b([A-Za-z_]\w*)(?=\s*:)|,(?=\s*[\]}])""",
    re.DOTALL,
)
_QUOTES = re.compile(r'\\.|"', re.DOTALL)
_SWAPPED = {"\\'": "'", '"': '\\"'}


def _strict(found: re.Match[str]) -> str:
    """Write a part of a text as JSON."""
    double, single, key = found.groups()
    if single is not None:
        return '"' + _QUOTES.sub(lambda one: _SWAPPED.get(one[0], one[0]), single) + '"'
    return double or (f'"{key}"' if key else "")


def _plain(message: Message, *, defaults: bool) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    descriptor: Descriptor = message.DESCRIPTOR
    for field in descriptor.fields:
        value = getattr(message, field.name)
        if is_repeated(field):
            is_given = bool(value) or defaults
        elif field.has_presence:
            is_given = message.HasField(field.name)
        else:
            # Minus zero is set although it compares equal to the default.
            is_negative = isinstance(value, float) and math.copysign(1.0, value) < 0
            is_given = bool(value) or is_negative or (defaults and field.full_name not in _NEWER)
        if not is_given:
            continue
        if is_map(field):
            item = field.message_type.fields_by_name["value"]
            plain[field.name] = {
                str(key): _plain_value(item, value[key], defaults=defaults) for key in sorted(value)
            }
        elif is_repeated(field):
            plain[field.name] = [_plain_value(field, one, defaults=defaults) for one in value]
        else:
            plain[field.name] = _plain_value(field, value, defaults=defaults)
    return plain


def _plain_value(field: Descriptor, value: Any, *, defaults: bool) -> Any:
    if field.message_type is not None:
        return _plain(value, defaults=defaults)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else value
    if isinstance(value, float):
        if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        written = _written_float32(value) if field.type == field.TYPE_FLOAT else repr(value)
        return int(written) if defaults and written.isdecimal() else float(written)
    return str(value) if defaults and field.full_name in _REPORTED_AS_STRINGS else value


def _written_float32(value: float) -> str:
    """Write a 32-bit float as protobuf does: 6 digits if they are enough (0.1), else 9."""
    short = f"{value:.6g}"
    try:
        if struct.pack("<f", float(short)) == struct.pack("<f", value):
            return short
    except OverflowError:
        pass  # rounding up passed the largest 32-bit float
    return f"{value:.9g}"


def _jsonable(value: Any) -> Any:
    """Convert any mapping, sequence and integer type to one that protobuf's JSON reader knows."""
    if value is None or isinstance(value, str | bool | float | int):
        return value
    if isinstance(value, Mapping):
        return {
            str(key).lower() if isinstance(key, bool) else str(key): _jsonable(item)
            for key, item in value.items()
        }
    if isinstance(value, Sequence):
        return [_jsonable(item) for item in value]
    if isinstance(value, SupportsIndex):
        return int(value)
    return value


def complete_from(config: ModelConfig, completed: Mapping[str, Any]) -> ModelConfig:
    """Apply the changes that auto-complete may make, and no others (AC4).

    Parameters
    ----------
    config : ModelConfig
        The configuration before completion.
    completed : mapping
        What the model's ``pb_utils.ModelConfig`` holds afterwards.

    Returns
    -------
    ModelConfig
        With `max_batch_size`, `input`, `output`, ``model_transaction_policy.decoupled`` and, if
        none was configured, the scheduling choice of `completed`. Not normalised.

    Raises
    ------
    ConfigError
        The dict is not a configuration.
    InternalError
        It changes a scheduling choice that was configured (Triton's status for it).
    """
    new = from_dict(completed)
    before, after = scheduling_choice(config), scheduling_choice(new)
    done = copy_config(config)
    done.max_batch_size = new.max_batch_size
    for tensors in ("input", "output"):
        done.ClearField(tensors)
        getattr(done, tensors).extend(getattr(new, tensors))
    if new.HasField("model_transaction_policy"):
        done.model_transaction_policy.decoupled = new.model_transaction_policy.decoupled
    if before and after != before:
        number = config.DESCRIPTOR.fields_by_name[before].number
        raise InternalError(
            f"Cannot update scheduling choice from {number} to {number} when auto-completing.",
            hint=f"the configuration says {before}: remove it there or leave it unchanged",
        )
    if after and not before:
        getattr(done, after).CopyFrom(getattr(new, after))
        getattr(done, after).SetInParent()
    return done


def is_whole(config: ModelConfig) -> bool:
    """Return True if a text describes a whole model, not only a part of one.

    It does if it has a ``name``, a ``platform`` or ``backend``, or both ``input`` and ``output``.
    """
    described = bool(config.input) and bool(config.output)
    return bool(config.name or config.platform or config.backend) or described


def amend(
    base: ModelConfig,
    given: str | bytes | Mapping[str, Any] | ModelConfig,
    *,
    source: str = "config.pbtxt",
    whole: bool = True,
) -> ModelConfig:
    """Return a whole configuration as it is, or `base` with the changes of a fragment.

    A fragment changes the fields that it names, down to those of a message: ``dynamic_batching {
    max_queue_delay_microseconds: 100 }`` leaves the preferred sizes. A list is replaced as a whole,
    and a named field replaces the fields that it excludes. A named field counts even if it is 0,
    false or empty.

    Parameters
    ----------
    base : ModelConfig
        Not changed.
    given : str, bytes, mapping or ModelConfig
        As for `as_config`; whole or a fragment by `is_whole`.
    source : str
        Name of a text in errors.
    whole : bool
        False: a whole configuration, too, changes only the fields that it names.

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
    if whole and is_whole(fragment):
        return fragment
    amended = copy_config(base)
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


@dataclass(frozen=True, slots=True)
class ReadyModel:
    """A model's file and its configuration, such as those of a folder of a repository.

    Parameters
    ----------
    config : ModelConfig
        Without a name.
    source : Path
        As for `nbtriton.Server.load`.

    Examples
    --------
    >>> from pathlib import Path
    >>> ready = ReadyModel(parse_pbtxt("max_batch_size: 8"), Path("double/1/model.py"))
    >>> ready.configured("max_batch_size: 4").max_batch_size
    4
    """

    config: ModelConfig
    source: Path

    def configured(
        self, given: str | Mapping[str, Any] | ModelConfig | Dumpable | None
    ) -> ModelConfig:
        """Return the model's configuration, changed by what is given with it.

        Raises
        ------
        ConfigError
            As `as_config`.
        """
        if given is None:
            return self.config
        fields = given if isinstance(given, str | Mapping) else as_config(given)
        return amend(self.config, fields, whole=False)
