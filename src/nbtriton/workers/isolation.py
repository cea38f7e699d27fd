"""Where the instances of a model live: in threads of this process, or in processes of their own."""

from __future__ import annotations

from nbtriton.backends.parameters import text_parameter
from nbtriton.config import ModelConfig
from nbtriton.errors import ConfigError, nearest

__all__ = ["ISOLATION", "ISOLATIONS", "wants_process"]

ISOLATION = "INSTANCE_ISOLATION"
ISOLATIONS = ("thread", "process", "auto")


def wants_process(config: ModelConfig) -> bool:
    """Return whether the instances of a model are to have processes of their own.

    Raises
    ------
    ConfigError
        The parameter INSTANCE_ISOLATION has another value than those allowed.
    """
    value = text_parameter(config, ISOLATION)
    if value is not None and value not in ISOLATIONS:
        raise ConfigError(
            f"Incorrect value for {ISOLATION} of model '{config.name}': '{value}'",
            field=f"parameters.{ISOLATION}",
            hint=nearest(value, ISOLATIONS) or ", ".join(ISOLATIONS),
        )
    return value == "process"
