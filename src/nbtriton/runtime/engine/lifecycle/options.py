"""The options of a server: the arguments of `nbtriton.Server`, which can be set anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any

from nbtriton.backends.devices import DeviceSet, SimulatedGPUs, checked_gpus
from nbtriton.common.checks import NAMES, SWITCH, Kind, check, is_number, optional
from nbtriton.common.errors import InvalidArgumentError, nearest
from nbtriton.model.config import check_isolation
from nbtriton.runtime.engine.core.cache import ResponseCache
from nbtriton.runtime.engine.core.history import Recorder
from nbtriton.runtime.engine.core.limiter import Limiter
from nbtriton.runtime.engine.core.scheduler_settings import parse_resources
from nbtriton.runtime.workers.resources import HostPolicy, ThreadBudget, WorkerOptions, usable_cores

__all__ = ["ServerOptions"]

_RATE_LIMITS = ("off", "execution_count")


def _is_settings(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(one, Mapping) for one in value.values())


_SETTINGS = optional(Kind(_is_settings, "a mapping by name, each a mapping of settings"))
_KINDS = {
    "cache_bytes": optional(Kind(is_number, "a number of bytes")),
    "rate_limit_resources": Kind(NAMES.accepts, "a list of texts such as 'R1:4'"),
    "backend_config": _SETTINGS,
    "summaries": SWITCH,
    "stand_in": SWITCH,
    "host_policies": _SETTINGS,
}
# Some 0.2 MB a busy model. What it costs is mostly the memory that comes and goes: of eight steps with 32
# in flight 3% of the processor time, with 2048 it was 5% (python -m bench recorder).
_RECORDED = 512


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options that hold for all models of a server; each as for `nbtriton.Server`.

    Raises
    ------
    InvalidArgumentError
        A value that no server could have.
    """

    gpus: Sequence[int] | str | SimulatedGPUs | None = None
    cache_bytes: int | None = None
    rate_limit: str = "off"
    rate_limit_resources: Sequence[str] = ()
    backend_config: Mapping[str, Mapping[str, str]] | None = None
    summaries: bool = False
    stand_in: bool = False
    recorder: bool | int = True
    isolation: str = "thread"
    worker_timeout_s: float | None = None
    host_policies: Mapping[str, Mapping[str, str]] | None = None

    def __post_init__(self) -> None:
        check({name: getattr(self, name) for name in _KINDS}, _KINDS)
        if self.rate_limit not in _RATE_LIMITS:
            raise InvalidArgumentError(
                f"unknown rate limit '{self.rate_limit}'",
                hint=nearest(self.rate_limit, _RATE_LIMITS),
            )
        check_isolation(self.isolation)
        limit = self.worker_timeout_s
        if limit is not None and not (isinstance(limit, Real) and limit > 0):
            raise InvalidArgumentError(
                f"worker_timeout_s={limit!r} is not a time above 0",
                hint="seconds that one execution in a worker process may take; None for any",
            )
        policies = {name: dict(values) for name, values in (self.host_policies or {}).items()}
        for name, values in policies.items():
            HostPolicy.of(name, values)
        parse_resources(self.rate_limit_resources)
        if not isinstance(self.recorder, int) or self.recorder < 0:
            raise InvalidArgumentError(
                f"recorder={self.recorder!r} is neither True, False nor a number of requests",
                hint="such as 20000: the requests that are kept of each model",
            )
        # Equal options shall be equal, however they were written.
        for name, value in (
            ("gpus", checked_gpus(self.gpus)),
            ("host_policies", policies),
            ("rate_limit_resources", tuple(self.rate_limit_resources)),
            ("recorder", _RECORDED if self.recorder is True else int(self.recorder)),
            ("backend_config", {k: dict(v) for k, v in (self.backend_config or {}).items()}),
        ):
            object.__setattr__(self, name, value)

    @property
    def limits(self) -> tuple[str, Sequence[str]]:
        """The options of the rate limiter."""
        return self.rate_limit, self.rate_limit_resources

    def changed(self, **changes: Any) -> ServerOptions:
        """Return these options with others in place of those that are named.

        Raises
        ------
        InvalidArgumentError
            No such option exists; with the nearest name.
        """
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                raise InvalidArgumentError(
                    f"a server has no option '{name}'", hint=nearest(name, known)
                )
        return replace(self, **changes)

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        from nbtriton.runtime.engine.shown import show_options

        return show_options(self._described())

    def _described(self) -> list[tuple[str, str]]:
        """Return each option as a person reads it."""
        from nbtriton.drawing import count, measure

        size, limit = self.cache_bytes, self.worker_timeout_s
        settings = [
            f"{backend or 'all backends'}: {key}={value}"
            for backend, values in (self.backend_config or {}).items()
            for key, value in values.items()
        ]
        policies = [
            f"{name}: {key}={value}"
            for name, values in (self.host_policies or {}).items()
            for key, value in values.items()
        ]
        devices = checked_gpus(self.gpus)
        gpus = (
            ", ".join(map(str, devices)) or "none"
            if isinstance(devices, tuple)
            else str(devices or "all")
        )
        resources = ", ".join(self.rate_limit_resources) or "as large as the largest need"
        return [
            ("rate_limit", self.rate_limit),
            ("rate_limit_resources", "not used" if self.rate_limit == "off" else resources),
            ("cache_bytes", "no response cache" if size is None else f"{count(size)} bytes"),
            ("gpus", gpus),
            ("backend_config", ", ".join(settings) or "none"),
            ("summaries", "on" if self.summaries else "off"),
            ("recorder", f"{count(self.recorder)} requests a model" if self.recorder else "off"),
            ("isolation", self.isolation),
            ("worker_timeout_s", "any time" if limit is None else measure(limit)),
            ("host_policies", ", ".join(policies) or "none"),
            ("stand_in", "on" if self.stand_in else "off"),
        ]

    def make_cache(self) -> ResponseCache | None:
        """Return an empty response cache of this size, None without one."""
        return None if self.cache_bytes is None else ResponseCache(self.cache_bytes)

    def make_recorder(self) -> Recorder | None:
        """Return an empty recorder of this size, None where it is off."""
        return Recorder(int(self.recorder)) if self.recorder else None

    def worker_options(self, budget: ThreadBudget | None) -> WorkerOptions:
        """Return the options of workers; they share a budget of threads, by default a new one."""
        policies = {
            name: HostPolicy.of(name, values) for name, values in (self.host_policies or {}).items()
        }
        budget = budget or ThreadBudget(usable_cores())
        return WorkerOptions(self.worker_timeout_s, policies, budget)

    def make_devices(self) -> DeviceSet:
        """Return the GPUs that models may use."""
        return DeviceSet(checked_gpus(self.gpus))

    def make_limiter(self) -> Limiter | None:
        """Return a rate limiter with these resources, None where rates are not limited."""
        if self.rate_limit == "off":
            return None
        return Limiter(parse_resources(self.rate_limit_resources))
