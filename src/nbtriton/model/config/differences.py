"""Settings of a configuration that work here, but fail or misbehave in Triton 2.51.

The names are those of ``docs/differences.md``, which has the reasons. If only a model's code uses a
feature, the warning is given at its line (`nbtriton.backends.python.api.pybind.warn_newer`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from nbtriton.model.config._proto import ModelConfig, enum_name


class Difference(NamedTuple):
    """A section of ``docs/differences.md`` that applies to a model.

    Attributes
    ----------
    name : str
        Of the section.
    text : str
        What Triton 2.51 does, as a sentence without a full stop.

    Examples
    --------
    >>> print(Difference("cache-errors", "Triton 2.51 answers …"))
    Triton 2.51 answers … (docs/differences.md: cache-errors)
    """

    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.text} (docs/differences.md: {self.name})"


_LATER_DATATYPES = {"TYPE_BF16", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64"}


def _newer_fields(config: ModelConfig) -> bool:
    return bool(config.ensemble_scheduling.max_inflight_requests) or config.HasField(
        "model_metrics"
    )


def _name_with_space(config: ModelConfig) -> bool:
    names = [config.name, *(group.name for group in config.instance_group)]
    return config.backend == "python" and any(" " in name for name in names)


def _state_from_python(config: ModelConfig) -> bool:
    return config.backend == "python" and bool(config.sequence_batching.state)


def _text_ids(config: ModelConfig) -> bool:
    controls = [
        control for one in config.sequence_batching.control_input for control in one.control
    ]
    return any(enum_name(control, "data_type") == "TYPE_STRING" for control in controls)


def _later_datatypes(config: ModelConfig) -> bool:
    tensors = [*config.input, *config.output]
    return config.backend == "pytorch" and any(
        enum_name(tensor, "data_type") in _LATER_DATATYPES for tensor in tensors
    )


def _cached_in_order(config: ModelConfig) -> bool:
    return config.response_cache.enable and config.dynamic_batching.preserve_ordering


def _cached(config: ModelConfig) -> bool:
    # The others go wrong once an answer comes from the cache.
    return config.response_cache.enable and not config.dynamic_batching.preserve_ordering


def _cached_ambiguously(config: ModelConfig) -> bool:
    """Return True if equal bytes may be different requests: shapes with two free dimensions, or outputs."""
    free = sum(dim == -1 for tensor in config.input for dim in tensor.dims)
    free += config.max_batch_size > 0
    return _cached(config) and (free > 1 or len(config.output) > 1)


_TABLE: Final[tuple[tuple[Callable[[ModelConfig], bool], Difference], ...]] = tuple(
    (holds, Difference(name, f"Triton 2.51 {text}"))
    for holds, name, text in (
        (_newer_fields, "newer-fields", "knows neither model_metrics nor max_inflight_requests, and refuses the configuration"),
        (_name_with_space, "names-of-python-models", "does not load a Python model whose name has a space"),
        (_state_from_python, "state-from-python", "cannot write an implicit state from its python backend"),
        (_text_ids, "string-correlation-ids", "refuses correlation ids for a TYPE_STRING control that have not 128 characters"),
        (_later_datatypes, "pytorch-datatypes", "has no BF16, UINT16, UINT32 and UINT64 in its pytorch backend"),
        (_cached_in_order, "cache-with-order", "never answers what comes behind a hit of the response cache with preserve_ordering"),
        (_cached_ambiguously, "cache-key", "answers inputs of the same bytes in another shape, and requests for other outputs, from the response cache"),
        (_cached, "cache-errors", "answers a request that failed, when it comes again, from the response cache: without outputs"),
    )
)  # fmt: skip


def differences(config: ModelConfig, *, cache: bool = True) -> list[Difference]:
    """Return the settings of a completed configuration that work here but not in Triton 2.51.

    Parameters
    ----------
    config : ModelConfig
    cache : bool
        Whether the server has a response cache.

    Examples
    --------
    >>> [one.name for one in differences(as_config("response_cache { enable: true }"))]
    ['cache-errors']
    """
    if config.response_cache.enable and not cache:
        given, config = config, ModelConfig()
        config.CopyFrom(given)
        config.ClearField("response_cache")
    return [difference for holds, difference in _TABLE if holds(config)]
