"""The options of a server for its worker processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nbtriton.runtime.workers.resources import HostPolicy, ThreadBudget, usable_cores

__all__ = ["WorkerOptions"]


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Options of all workers of a server.

    Parameters
    ----------
    timeout_s : float or None
        Longest time of one execution in seconds; None for no limit.
    policies : mapping of str to HostPolicy
        By name; instances without a policy of their own have ``cpu``, ``gpu_<id>`` or ``model``.
    budget : ThreadBudget
        The cores that the workers share.
    """

    timeout_s: float | None = None
    policies: Mapping[str, HostPolicy] = field(default_factory=dict)
    budget: ThreadBudget = field(default_factory=lambda: ThreadBudget(usable_cores()))
