"""READ_ONLY_INPUTS: a parameter of nbtriton's own for models that get their inputs uncopied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbtriton.errors import ConfigError

if TYPE_CHECKING:
    from nbtriton.config._proto import ModelConfig

__all__ = ["READ_ONLY_INPUTS", "reads_only"]

READ_ONLY_INPUTS = "READ_ONLY_INPUTS"


def reads_only(config: ModelConfig) -> bool:
    """Return True if the configuration says that the model only reads its inputs.

    Raises
    ------
    ConfigError
        The parameter is neither yes nor no.
    """
    if READ_ONLY_INPUTS not in config.parameters:
        return False
    value = config.parameters[READ_ONLY_INPUTS].string_value
    if value not in ("yes", "no"):
        raise ConfigError(
            f"Incorrect value for {READ_ONLY_INPUTS} of model '{config.name}': '{value}'",
            field=f"parameters.{READ_ONLY_INPUTS}",
            hint="yes: the model only reads its inputs, which are not copied for it; or no",
        )
    return value == "yes"
