"""The part of a model's ``auto_complete_config`` that Triton takes over.

The rules are those of ``SetModelConfig`` in core's backend_model.cc (AC4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbtriton.common.errors import InternalError
from nbtriton.model.config._proto import ModelConfig, copy_of
from nbtriton.model.config.convert import from_dict
from nbtriton.model.config.normalize import scheduling_choice

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["complete_from"]


def complete_from(config: ModelConfig, completed: Mapping[str, Any]) -> ModelConfig:
    """Take over what auto-complete may change, and nothing else (AC4).

    Parameters
    ----------
    config : ModelConfig
        As it was before.
    completed : mapping
        What the model's ``pb_utils.ModelConfig`` holds afterwards.

    Returns
    -------
    ModelConfig
        With `max_batch_size`, `input`, `output`, ``model_transaction_policy.decoupled`` and, if
        none was configured, the scheduling choice of `completed`. Not normalised.

    Raises
    ------
    ConfigError
        The dict is no configuration.
    InternalError
        It changes a scheduling choice that was configured (Triton's status for it).
    """
    new = from_dict(completed)
    before, after = scheduling_choice(config), scheduling_choice(new)
    done = copy_of(config)
    done.max_batch_size = new.max_batch_size
    for tensors in ("input", "output"):
        done.ClearField(tensors)
        getattr(done, tensors).extend(getattr(new, tensors))
    if new.HasField("model_transaction_policy"):
        done.model_transaction_policy.decoupled = new.model_transaction_policy.decoupled
    if before and after != before:
        number = config.DESCRIPTOR.fields_by_name[before].number
        raise InternalError(
            f"Cannot update scheduling choice from {number} to {number} when auto-completing.",
            hint=f"the configuration says {before}: remove it there or leave it alone",
        )
    if after and not before:
        getattr(done, after).CopyFrom(getattr(new, after))
        getattr(done, after).SetInParent()
    return done
