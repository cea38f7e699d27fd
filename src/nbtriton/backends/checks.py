"""Common parts of the checks of configurations against models."""

from __future__ import annotations

from collections.abc import Collection

from nbtriton.common.errors import ConfigError, InvalidArgumentError, TritonError
from nbtriton.model.config import ModelConfig, TensorSpec


def expect(
    holds: bool, message: str, hint: str = "", error: type[TritonError] = InvalidArgumentError
) -> None:
    """Raise an error with Triton's text unless a condition holds."""
    if not holds:
        raise error(message, hint=hint)


def expect_input_count(
    config: ModelConfig, expected: int, names: Collection[str], least: int, most: int
) -> None:
    """Check that a model with these inputs has as many as its configuration."""
    if not least <= expected <= most:
        raise ConfigError(
            f"unable to load model '{config.name}', configuration expects {expected} inputs, model "
            f"provides {len(names)}",
            hint=f"the model takes {', '.join(names) or 'nothing'}",
            field="input",
        )


def model_dims(spec: TensorSpec) -> tuple[int, ...]:
    """Return the shape for the model itself, without the batch dimension."""
    return spec.dims if spec.reshape is None else spec.reshape
