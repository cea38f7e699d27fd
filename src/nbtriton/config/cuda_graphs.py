"""CUDA_GRAPHS: a parameter of nbtriton's own, for an ensemble that is to run as one CUDA graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbtriton.errors import ConfigError

if TYPE_CHECKING:
    from nbtriton.config._proto import ModelConfig

__all__ = ["CUDA_GRAPHS", "runs_as_graph"]

CUDA_GRAPHS = "CUDA_GRAPHS"


def runs_as_graph(config: ModelConfig) -> bool:
    """Return True if an ensemble is to run as one CUDA graph where it can.

    A parameter, as Triton refuses an ensemble with ``optimization`` and ignores parameters that it does not know.

    Raises
    ------
    ConfigError
        The parameter is neither yes nor no.
    """
    if CUDA_GRAPHS not in config.parameters:
        return False
    value = config.parameters[CUDA_GRAPHS].string_value
    if value not in ("yes", "no"):
        raise ConfigError(
            f"Incorrect value for {CUDA_GRAPHS} of ensemble '{config.name}': '{value}'",
            field=f"parameters.{CUDA_GRAPHS}",
            hint="yes: a request alone runs all steps as one CUDA graph; or no",
        )
    return value == "yes"
