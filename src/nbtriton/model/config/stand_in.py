"""The mark of a stand-in: a model without its backend or its file, of the declared shapes.

The completed configuration of one has the parameter ``STAND_IN`` with the reason, so that everything
that shows a configuration shows it.
"""

from __future__ import annotations

from nbtriton.model.config._proto import ModelConfig, copy_of

__all__ = ["mark_stand_in", "stand_in_reason", "without_stand_in"]

_MARK = "STAND_IN"


def stand_in_reason(config: ModelConfig) -> str:
    """Return why a model is a stand-in; empty for one that is none."""
    return str(config.parameters[_MARK].string_value) if _MARK in config.parameters else ""


def mark_stand_in(config: ModelConfig, reason: str) -> ModelConfig:
    """Return the configuration of a stand-in."""
    marked = copy_of(config)
    marked.parameters[_MARK].string_value = reason
    return marked


def without_stand_in(config: ModelConfig) -> ModelConfig:
    """Return a configuration without the mark: one of a stand-in may be loaded again with its backend."""
    if _MARK not in config.parameters:
        return config
    plain = copy_of(config)
    del plain.parameters[_MARK]
    return plain
