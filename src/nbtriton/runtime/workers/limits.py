"""The processor limits of one worker: by its host policy, and by the number of all workers."""

from __future__ import annotations

from dataclasses import dataclass

from nbtriton.backends.base import InstanceContext
from nbtriton.runtime.workers.options import WorkerOptions
from nbtriton.runtime.workers.resources import (
    HostPolicy,
    ThreadBudget,
    ThreadShare,
    fixed_threads,
    kernel_threads,
)

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one worker.

    Parameters
    ----------
    policy : HostPolicy
        Of the instance; an empty one if the server has none of its name.
    share : ThreadShare
        Its threads; they change with the number of workers.
    budget : ThreadBudget
        The owner of the share.
    """

    policy: HostPolicy
    share: ThreadShare
    budget: ThreadBudget

    @classmethod
    def of(cls, context: InstanceContext, options: WorkerOptions) -> Limits:
        """Return the limits of a new worker; the caller releases them.

        Raises
        ------
        InvalidArgumentError
            An invalid number of threads in the model's configuration.
        """
        policy = options.policies.get(context.host_policy, HostPolicy())
        bounds = [count for count in (len(policy.cores), kernel_threads()) if count]
        share = options.budget.join(fixed_threads(context.model.config), min(bounds, default=0))
        return cls(policy, share, options.budget)

    def release(self) -> None:
        """Release the threads for other workers."""
        self.budget.leave(self.share)
