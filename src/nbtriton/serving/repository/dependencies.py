"""Load order of ensembles: after the ensembles among their composing models."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

from nbtriton.common.errors import ConfigError
from nbtriton.model.config import ModelConfig

__all__ = ["by_dependency", "composing_models"]


def composing_models(config: ModelConfig) -> tuple[str, ...]:
    """Return the composing models of an ensemble, each once."""
    return tuple(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))


def by_dependency(
    ensembles: Mapping[str, ModelConfig],
) -> tuple[list[str], dict[str, ConfigError]]:
    """Order ensembles after their composing ensembles; return errors for ensembles in a cycle."""
    graph = {
        name: {member for member in composing_models(config) if member in ensembles}
        for name, config in ensembles.items()
    }
    cyclic: dict[str, ConfigError] = {}
    while True:
        try:
            return list(TopologicalSorter(graph).static_order()), cyclic
        except CycleError as error:
            cycle: list[str] = error.args[1][:-1]
            for index, name in enumerate(cycle):
                following = cycle[index - 1]
                cyclic[name] = ConfigError(
                    f"circular dependency between ensembles: {name} -> ... -> {following} -> {name}"
                )  # V116
                graph.pop(name)
            graph = {name: members & graph.keys() for name, members in graph.items()}
