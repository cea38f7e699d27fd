"""The options of a server: the arguments of `nbtriton.Server`, which can be set anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from nbtriton.backends.devices.device_set import DeviceSet, checked_gpus
from nbtriton.options.server import SERVER, ServerSettings, ray_address
from nbtriton.options.table import Option, read_settings
from nbtriton.runtime.engine.core.cache import ResponseCache
from nbtriton.runtime.engine.core.history import Recorder
from nbtriton.runtime.engine.core.instance_set import Limiter
from nbtriton.runtime.engine.core.scheduler_settings import parse_resources
from nbtriton.runtime.workers.resources import HostPolicy, ThreadBudget, WorkerOptions, usable_cores

# Some 0.2 MB a busy model. What it costs is mostly the memory that comes and goes: of eight steps with 32
# in flight 3% of the processor time, with 2048 it was 5% (python -m bench recorder).
_RECORDED = 512


class ServerOptions:
    """Options that hold for all models of a server, read-only; the names are those of `nbtriton.Server`.

    Raises
    ------
    InvalidArgumentError
        An option that does not exist, or a value that no server could have.
    """

    __slots__ = ("values",)

    def __init__(self, **given: Unpack[ServerSettings]) -> None:
        values = read_settings("a server", SERVER, given)
        policies = _plain(values["host_policies"])
        for name, settings in policies.items():
            HostPolicy.of(name, settings)
        parse_resources(values["rate_limit_resources"])
        # Equal options shall be equal, however they were written.
        self.values = values | {
            "gpus": checked_gpus(values["gpus"]),
            "host_policies": policies,
            "rate_limit_resources": tuple(values["rate_limit_resources"]),
            "recorder": _RECORDED if values["recorder"] is True else int(values["recorder"]),
            "backend_config": _plain(values["backend_config"]),
        }

    def __getattr__(self, name: str) -> Any:
        if name not in SERVER:
            raise AttributeError(name)
        return self.values[name]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerOptions) and self.values == other.values

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ServerOptions({', '.join(f'{name}={value!r}' for name, value in self.values.items())})"

    def changed(self, **changes: Unpack[ServerSettings]) -> ServerOptions:
        """Return these options with others in place of those that are named.

        Raises
        ------
        InvalidArgumentError
            No such option exists; with the nearest name.
        """
        return ServerOptions(**{**self.values, **changes})

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        from nbtriton.runtime.engine.shown import show_options

        shown = [(name, _shown(option, self.values[name])) for name, option in SERVER.items()]
        return show_options(shown)

    def make_cache(self) -> ResponseCache | None:
        """Return an empty response cache of this size, None without one."""
        return None if self.cache_bytes is None else ResponseCache(self.cache_bytes)

    def make_recorder(self) -> Recorder | None:
        """Return an empty recorder of this size, None where it is off."""
        return Recorder(self.recorder) if self.recorder else None

    def worker_options(self, budget: ThreadBudget | None) -> WorkerOptions:
        """Return the options of workers; they share a budget of threads, by default a new one."""
        policies = {name: HostPolicy.of(name, one) for name, one in self.host_policies.items()}
        budget = budget or ThreadBudget(usable_cores())
        return WorkerOptions(self.worker_timeout_s, policies, budget, ray_address(self.ray))

    def make_devices(self) -> DeviceSet:
        """Return the GPUs that models may use."""
        return DeviceSet(self.gpus)

    def make_limiter(self) -> Limiter | None:
        """Return a rate limiter with these resources, None where rates are not limited."""
        if self.rate_limit == "off":
            return None
        return Limiter(parse_resources(self.rate_limit_resources))


def _plain(settings: Mapping[str, Mapping[str, str]] | None) -> dict[str, dict[str, str]]:
    return {name: dict(values) for name, values in (settings or {}).items()}


def _shown(option: Option, value: Any) -> str:
    """Return the value of an option as a person reads it."""
    from nbtriton.drawing.numbers import count, measure

    if value is False or (value == 0 and option.parameter == "recorder"):
        return "off"
    if value is True:
        return "on"
    if isinstance(value, Mapping):
        items = [f"{of or 'all'}: {k}={v}" for of, one in value.items() for k, v in one.items()]
        return ", ".join(items) or option.unset
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or (
            "none" if option.parameter == "gpus" else option.unset
        )
    if isinstance(value, int | float):
        return f"{count(value) if isinstance(value, int) else measure(value)} {option.unit}"
    return option.unset if value is None else str(value)
