"""The backend of stand-ins, under the name of the missing backend."""

from __future__ import annotations

import logging
from typing import ClassVar

from nbtriton.backends.base import Backend, BackendInstance, InstanceContext, ModelContext
from nbtriton.backends.stand_in.cost import Cost, cost_of
from nbtriton.backends.stand_in.instance import StandInInstance
from nbtriton.common.errors import ConfigError
from nbtriton.model.config import ModelConfig, scheduling_choice

__all__ = ["stand_in_for"]

_log = logging.getLogger("nbtriton.stand_in")


def stand_in_for(backend: str, platform: str, reason: str) -> type[Backend]:
    """Return the backend of stand-ins for another one.

    Parameters
    ----------
    backend, platform : str
        Of the configuration; the platform may be empty.
    reason : str
        What is missing.
    """
    members = {"name": backend, "platform": f"{platform or backend} (stand-in)", "stand_in": reason}
    return type("StandInBackend", (_StandInBackend,), members)


class _StandInBackend(Backend):
    """Runs models of which only the configuration is available."""

    needs_source: ClassVar[bool] = False

    def __init__(self) -> None:
        self._cost: Cost | None = None

    def complete_config(self, context: ModelContext) -> ModelConfig:
        """Enable batching for a TensorRT model without a scheduler, as Triton does.

        Raises
        ------
        ConfigError
            Inputs or outputs are missing, and cannot be completed.
        """
        config = context.config
        for field in ("input", "output"):
            if not getattr(config, field):
                raise ConfigError(
                    f"a stand-in for model '{context.name}' needs the {field}s in its configuration",
                    hint=f"{self.stand_in}, so only the configuration can describe them",
                    field=field,
                )
        if self.name == "tensorrt" and config.max_batch_size > 1 and not scheduling_choice(config):
            batching = ModelConfig()
            batching.CopyFrom(config)
            batching.dynamic_batching.SetInParent()
            return batching
        return config

    def check(self, context: ModelContext) -> None:
        """Check the cost."""
        self._cost = cost_of(context.config, context.model_directory)

    def prefers_gpu(self) -> bool:
        """Return True: missing backends mostly run on a GPU."""
        return True

    def batching(self, context: ModelContext) -> object:  # noqa: ARG002
        """Return None: a stand-in has no code for custom batching."""
        return None

    def open(self, context: ModelContext) -> None:
        """Log that a stand-in runs."""
        cost = self._cost_of(context)
        _log.warning(
            "model '%s' is a stand-in for %s: %s; %s, its outputs are zeros",
            context.name, self.name, self.stand_in, cost.source,
        )  # fmt: skip

    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Create one instance; its device makes no difference."""
        return StandInInstance(context.model.config, self._cost_of(context.model))

    def _cost_of(self, context: ModelContext) -> Cost:
        if self._cost is None:
            self._cost = cost_of(context.config, context.model_directory)
        return self._cost
