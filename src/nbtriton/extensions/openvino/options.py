"""OpenVINO's properties from a configuration's parameters (OV1)."""

from __future__ import annotations

from dataclasses import dataclass

from nbtriton.backends.parameters import text_parameter
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.model.config import ModelConfig

_HINTS = ("latency", "throughput", "cumulative_throughput")


@dataclass(frozen=True, slots=True)
class Options:
    """The parameters that are no device properties.

    Parameters
    ----------
    padding : bool
        ENABLE_BATCH_PADDING: smaller batches are padded with zeros.
    reshape : bool
        RESHAPE_IO_LAYERS: the model gets the shapes of its configuration.
    device : str
        TARGET_DEVICE.
    extension : str
        CPU_EXTENSION_PATH: a library of custom layers; may be empty.
    """

    padding: bool
    reshape: bool
    device: str
    extension: str


def options(config: ModelConfig) -> Options:
    """Return the options of a configuration: all but ``yes`` means no."""
    return Options(
        _is_yes(config, "ENABLE_BATCH_PADDING"),
        _is_yes(config, "RESHAPE_IO_LAYERS"),
        (text_parameter(config, "TARGET_DEVICE") or "CPU").upper(),
        text_parameter(config, "CPU_EXTENSION_PATH") or "",
    )


def properties(config: ModelConfig) -> dict[str, str]:
    """Return the properties for the compilation of a model.

    Raises
    ------
    InvalidArgumentError
        A value that Triton does not allow, with its text.
    """
    result = {}
    for key in ("INFERENCE_NUM_THREADS", "COMPILATION_NUM_THREADS"):
        value = _value(config, key)
        if value:
            if not _is_number(value):
                raise _wrong(key, "to be a non-negative number", value)
            result[key] = value
    value = _value(config, "HINT_BF16")
    if value:
        if value != "yes":
            raise _wrong("HINT_BF16", "to be YES", value)
        result["INFERENCE_PRECISION_HINT"] = "bf16"
    value = _value(config, "NUM_STREAMS")
    if value:
        if value not in ("auto", "numa") and not _is_number(value):
            raise _wrong("NUM_STREAMS", "to be either AUTO/NUMA/<int_value>", value)
        result["NUM_STREAMS"] = value.upper()
    value = _value(config, "PERFORMANCE_HINT")
    if value:
        if value not in _HINTS:
            raise _wrong("PERFORMANCE_HINT", f"to be {'/'.join(_HINTS).upper()}", value)
        result["PERFORMANCE_HINT"] = value.upper()
    return result


def _value(config: ModelConfig, key: str) -> str:
    return (text_parameter(config, key) or "").lower()


def _is_yes(config: ModelConfig, key: str) -> bool:
    return _value(config, key) == "yes"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _wrong(key: str, expected: str, found: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"expected the parameter '{key}' {expected}, got {found}")
