"""The restart policy of an instance in a process, without a clock or a process.

It gets events with their times, and returns the next action. Triton 2.51 never restarts a stub process: each
later request to its instance fails until the model is loaded again (PB92).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from nbtriton.common.errors import ConfigError, nearest
from nbtriton.model.config import INSTANCE_RESTARTS, ModelConfig, numbers_parameter

_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The number and the delays of restarts; times in nanoseconds.

    Parameters
    ----------
    limit : int
        Restarts without a quiet time between them; after these the instance stays down.
    first_ns, factor, longest_ns : int
        The first restart is immediate; the second waits for `first_ns`, each further one `factor` times as
        long as the one before, at most `longest_ns`.
    quiet_ns : int
        An instance that has run for this time counts its restarts from the beginning.
    """

    limit: int = 10
    first_ns: int = _S // 10
    factor: int = 2
    longest_ns: int = 30 * _S
    quiet_ns: int = 60 * _S

    def delay_ns(self, restarts: int) -> int:
        """Return the delay of the next restart after this number of restarts.

        Examples
        --------
        >>> [RestartPolicy().delay_ns(n) // 1_000_000 for n in (0, 1, 2, 3, 20)]
        [0, 100, 200, 400, 30000]
        """
        if not restarts:
            return 0
        return int(min(self.longest_ns, self.first_ns * self.factor ** min(restarts - 1, 64)))


@dataclass(frozen=True, slots=True)
class RestartState:
    """The restarts of an instance, for its status.

    Attributes
    ----------
    restarts : int
        Total number, including those before a quiet time.
    cause : str
        The reason of its last end; empty if it never ended.
    due_ns : int or None
        Time of its restart; None while it runs, and when it stays down.
    left : int
        While it waits for a restart: the number of further ones without a quiet time between them.
    down : bool
        It is not restarted any more.
    """

    restarts: int = 0
    cause: str = ""
    due_ns: int | None = None
    left: int = 0
    down: bool = False


NEVER_LOST: Final = RestartState()
# For every instance: some 50 s of restarts, after which the model is broken rather than unlucky.
DEFAULT = RestartPolicy()
# What the parameter may set; times in seconds.
_FIELDS: Final = {
    "number": "limit",
    "pause_s": "first_ns",
    "longest_pause_s": "longest_ns",
    "quiet_s": "quiet_ns",
}


def restart_policy(config: ModelConfig) -> RestartPolicy:
    """Return the policy of a model's instances: `DEFAULT`, unless the parameter ``INSTANCE_RESTARTS`` says more.

    Raises
    ------
    ConfigError
        The parameter cannot be read.

    Examples
    --------
    >>> from nbtriton.model.config import parse_pbtxt
    >>> value = '{ key: "INSTANCE_RESTARTS" value { string_value: "number=3,pause_s=1" } }'
    >>> restart_policy(parse_pbtxt(f"parameters {value}")).delay_ns(1)
    1000000000
    """
    hint = f"{', '.join(_FIELDS)}, such as number=3,pause_s=1; number=0 restarts nothing, as Triton does"
    found: dict[str, int] = {}
    for name, value in numbers_parameter(config, INSTANCE_RESTARTS, hint).items():
        if name not in _FIELDS:
            raise ConfigError(
                f"Incorrect value for {INSTANCE_RESTARTS} of model '{config.name}': '{name}'",
                field=f"parameters.{INSTANCE_RESTARTS}",
                hint=f"{nearest(name, list(_FIELDS))}; {hint}",
            )
        found[_FIELDS[name]] = int(value if name == "number" else value * _S)
    return replace(DEFAULT, **found)


class Supervisor:
    """The restarts of one instance.

    Parameters
    ----------
    policy : RestartPolicy

    Attributes
    ----------
    state : RestartState
        A new object with each change: any thread may read it.
    """

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._recent = 0  # restarts since the last quiet time
        self._running_since: int | None = None
        self.state = NEVER_LOST

    def started(self, now: int) -> None:
        """Handle a start or a restart of the instance."""
        if self.state.due_ns is not None:
            self.state = replace(self.state, restarts=self.state.restarts + 1, due_ns=None, left=0)
        self._running_since = now

    def ended(self, now: int, cause: str) -> int | None:
        """Handle its end, or a failed restart; return the time of its restart, None for never."""
        policy = self._policy
        since = self._running_since
        self._running_since = None
        if since is not None and now - since >= policy.quiet_ns:
            self._recent = 0
        if self.state.down or self._recent >= policy.limit:
            self.state = replace(self.state, cause=cause, due_ns=None, left=0, down=True)
            return None
        due = now + policy.delay_ns(self._recent)
        self._recent += 1
        left = policy.limit - self._recent
        self.state = replace(self.state, cause=cause, due_ns=due, left=left)
        return due
