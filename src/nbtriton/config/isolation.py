"""INSTANCE_ISOLATION: a parameter of nbtriton's own, for instances in processes of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nbtriton.errors import ConfigError, InvalidArgumentError, nearest

if TYPE_CHECKING:
    from nbtriton.config._proto import ModelConfig

__all__ = ["INSTANCE_ISOLATION", "ISOLATIONS", "check_isolation", "isolation_of"]

INSTANCE_ISOLATION: Final = "INSTANCE_ISOLATION"
ISOLATIONS: Final = ("thread", "process", "auto")


def isolation_of(config: ModelConfig) -> str | None:
    """Return how a configuration isolates its instances; None where it does not say.

    Returns
    -------
    {"thread", "process", "auto"} or None
        The value of the parameter ``INSTANCE_ISOLATION``.

    Raises
    ------
    ConfigError
        The parameter has another value; with the nearest one.
    """
    if INSTANCE_ISOLATION not in config.parameters:
        return None
    value = str(config.parameters[INSTANCE_ISOLATION].string_value)
    if value not in ISOLATIONS:
        raise ConfigError(
            f"Incorrect value for {INSTANCE_ISOLATION} of model '{config.name}': '{value}'",
            field=f"parameters.{INSTANCE_ISOLATION}",
            hint=f"thread, process or auto; {nearest(value, ISOLATIONS)}",
        )
    return value


def check_isolation(value: str) -> None:
    """Check an option that says how instances are isolated.

    Raises
    ------
    InvalidArgumentError
        It is neither of `ISOLATIONS`; with the nearest one.
    """
    if value not in ISOLATIONS:
        raise InvalidArgumentError(
            f"unknown isolation '{value}': it is thread, process or auto",
            hint=nearest(str(value), ISOLATIONS),
        )
