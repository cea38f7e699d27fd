"""The processors of workers: cores, memory near them, and threads of the libraries.

A host policy binds its instances to cores (``cpu-cores``) and to the memory of a node (``numa-node``), as in
Triton. Libraries with their own threads (torch, OpenBLAS, MKL, OpenMP) get a share of the cores, so that
all workers together have no more threads than there are cores.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from nbtriton.backends.base import InstanceContext
from nbtriton.common.errors import InvalidArgumentError, UnsupportedError, nearest
from nbtriton.model.config import ModelConfig
from nbtriton.model.config.parameters import integer_parameter

POLICY_SETTINGS: Final = ("cpu-cores", "numa-node")
# A model's parameters for the threads of its operators: torch's, onnxruntime's, OpenVINO's.
_THREAD_PARAMETERS: Final = (
    "INTRA_OP_THREAD_COUNT", "intra_op_thread_count", "INFERENCE_NUM_THREADS",
)  # fmt: skip


def check_fork(
    what: str = "an instance in a process of its own", *, hint: str = "INSTANCE_ISOLATION thread"
) -> None:
    """Check that this system can fork workers.

    Parameters
    ----------
    what : str
        The feature that needs them, for the message.
    hint : str
        An alternative without workers.

    Raises
    ------
    UnsupportedError
        On Windows.
    """
    if not can_fork():
        raise UnsupportedError(
            f"{what} needs a system that forks processes: Linux or macOS", hint=hint
        )


def can_fork() -> bool:
    """Return True if this system can fork workers: not on Windows."""
    return hasattr(os, "fork")


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """The settings of a host policy.

    Parameters
    ----------
    cores : frozenset of int
        Empty for all.
    numa_node : int or None
    """

    cores: frozenset[int] = frozenset()
    numa_node: int | None = None

    @classmethod
    def of(cls, name: str, settings: Mapping[str, str]) -> HostPolicy:
        """Read the settings of a policy.

        Raises
        ------
        InvalidArgumentError
            An unknown setting or an invalid value, with Triton's text.
        """
        for setting in settings:
            if setting not in POLICY_SETTINGS:
                raise InvalidArgumentError(
                    f"Unsupported host policy setting '{setting}' is specified, supported settings "
                    "are 'numa-node', 'cpu-cores'",
                    hint=f"of policy '{name}'; {nearest(setting, POLICY_SETTINGS)}",
                )
        cores, node = settings.get("cpu-cores"), settings.get("numa-node")
        return cls(
            frozenset() if cores is None else parse_cores(cores),
            None if node is None else _number("numa-node", node),
        )


_NO_POLICY: Final = HostPolicy()


def parse_cores(text: str) -> frozenset[int]:
    """Read ``cpu-cores``: ranges such as ``0-3`` or ``0-1,4-5``, both ends included.

    Raises
    ------
    InvalidArgumentError
        Another form, with Triton's text.

    Examples
    --------
    >>> sorted(parse_cores("0-1,4-5"))
    [0, 1, 4, 5]
    """
    cores: set[int] = set()
    for part in text.split(","):
        lower, dash, upper = part.partition("-")
        if not dash:
            raise InvalidArgumentError(
                "host policy setting 'cpu-cores' format is "
                f"'<lower_cpu_core_id>-<upper_cpu_core_id>'. Got {part}"
            )
        cores |= {*range(_number("cpu-cores", lower), _number("cpu-cores", upper) + 1)}
    return frozenset(cores)


def _number(setting: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) >= 1 << 31:
        raise InvalidArgumentError(
            f"Parsing '{setting}' value: Can't parse '{text}' to integer", hint="a number from 0 on"
        )
    return int(text)


class Limits:
    """The limits of one worker.

    Attributes
    ----------
    budget : ThreadBudget
        Of which it has a share.
    policy : HostPolicy
        Of the instance; an empty one if the server has none of its name.
    threads : int
        The threads that its libraries may use: changes with the number of workers; read before each execution.
    fixed : int
        The number in the model's configuration; 0 for a share of the cores.
    """

    __slots__ = ("budget", "fixed", "most", "policy", "threads")

    def __init__(self, budget: ThreadBudget, policy: HostPolicy, fixed: int, most: int) -> None:
        self.budget = budget
        self.policy = policy
        self.fixed = fixed
        self.most = most
        self.threads = fixed

    @classmethod
    def of(cls, context: InstanceContext, options: WorkerOptions) -> Limits:
        """Return the limits of a new worker; the caller releases them.

        Raises
        ------
        InvalidArgumentError
            An invalid number of threads in the model's configuration.
        """
        policy = options.policies.get(context.host_policy, _NO_POLICY)
        bounds = [count for count in (len(policy.cores), kernel_threads()) if count]
        fixed = fixed_threads(context.model.config)
        return options.budget.join(fixed, min(bounds, default=0), policy)

    def release(self) -> None:
        """Release the threads for other workers."""
        self.budget.leave(self)


class ThreadBudget:
    """Shares the machine's cores among workers, which have no more threads than there are cores.

    With more workers than cores, each has one thread.

    Parameters
    ----------
    cores : int
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self._lock = threading.Lock()
        self._shares: list[Limits] = []

    def join(self, fixed: int = 0, most: int = 0, policy: HostPolicy = _NO_POLICY) -> Limits:
        """Return the limits of a new worker, and reduce the others' shares.

        Parameters
        ----------
        fixed : int
            The number in its model's configuration; 0 for none.
        most : int
            The number of cores that it is bound to; 0 for all.
        policy : HostPolicy
            Of its instance.
        """
        share = Limits(self, policy, fixed, most or self.cores)
        with self._lock:
            self._shares.append(share)
            self._divide()
        return share

    def leave(self, share: Limits) -> None:
        """Release a share, and increase the others'."""
        with self._lock:
            if share in self._shares:
                self._shares.remove(share)
            self._divide()

    def total(self) -> tuple[int, int]:
        """Return the numbers of workers and of their threads."""
        with self._lock:
            return len(self._shares), sum(share.threads for share in self._shares)

    def _divide(self) -> None:
        open_shares = [share for share in self._shares if not share.fixed]
        left = self.cores - sum(share.fixed for share in self._shares)
        for index, share in enumerate(open_shares):
            part = left // (len(open_shares) - index)
            share.threads = max(1, min(part, share.most))
            left -= share.threads


def kernel_threads() -> int:
    """Return the user's limit on the threads of this process's libraries; 0 for none.

    By ``torch.set_num_threads``, or by ``OMP_NUM_THREADS`` if torch is not in use.
    """
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return int(torch.get_num_threads())
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdecimal() else 0


def fixed_threads(config: ModelConfig) -> int:
    """Return the number of threads for a model's operators in its configuration; 0 for none."""
    return max(0, *(integer_parameter(config, key) for key in _THREAD_PARAMETERS))


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
    ray : str
        The address of the Ray cluster of instances there.
    """

    timeout_s: float | None = None
    policies: Mapping[str, HostPolicy] = field(default_factory=dict)
    budget: ThreadBudget = field(default_factory=lambda: ThreadBudget(usable_cores()))
    ray: str = "auto"
