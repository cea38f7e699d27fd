"""The memory of a model's instances, measured: what each further one takes, and what they share."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbtriton.config import ModelConfig
from nbtriton.perf.sweep import Configurator
from nbtriton.perf.usage import process_tree_mb

if TYPE_CHECKING:
    from nbtriton.api import Server

__all__ = ["InstanceMemory", "measure_memory"]

# Loaded beside each other: the mean of two further ones.
INSTANCES = 3
# Below it a difference is what the allocator does by itself.
_LEAST_MB = 0.1


@dataclass(frozen=True, slots=True)
class InstanceMemory:
    """The memory of one model's instances.

    Parameters
    ----------
    each_mb : float
        Megabytes of each instance: resident memory of this process and of its workers, and memory of
        devices. 0 where it is less than can be measured.
    shared_mb : float
        Megabytes of devices that they have in common: their weights, by the devices' accounts.
    """

    each_mb: float
    shared_mb: float = 0.0

    def of(self, instances: int) -> float:
        """Return the megabytes of a number of instances.

        Examples
        --------
        >>> InstanceMemory(10.0, 25.0).of(3)
        55.0
        """
        return self.shared_mb + instances * self.each_mb


def measure_memory(
    server: Server,
    model: str,
    others: Mapping[str, ModelConfig],
    load: Callable[[], object],
    report: Callable[[str], None],
) -> dict[str, InstanceMemory]:
    """Measure the memory of the instances of a model, or of each composing model of an ensemble.

    One instance of each has answered requests; then one model after the other has three. At the end
    they have their own configurations again.

    Parameters
    ----------
    server : Server
    model : str
    others : mapping of str to ModelConfig
        The models that have instances.
    load : callable
        Sends requests to `model` that keep the instances busy.
    report : callable
        Called with what comes next.
    """
    found: dict[str, InstanceMemory] = {}
    one: dict[str, Any] = {name: {"instances": 1} for name in others}
    configurator = Configurator(server, model, [{"instances": 1}, {"instances": INSTANCES}])
    try:
        for name in others:
            report(f"{name}: memory of an instance")
            configurator.apply_each(one)
            load()
            before_mb = _used_mb(server)
            configurator.apply_each(one | {name: {"instances": INSTANCES}})
            load()
            each_mb = (_used_mb(server) - before_mb) / (INSTANCES - 1)
            weights = (
                device.memory().by_owner.get(name, 0) for device in server.devices.managed.values()
            )
            found[name] = InstanceMemory(
                each_mb if each_mb >= _LEAST_MB else 0.0, sum(weights) / 1e6
            )
    finally:
        configurator.restore()
    return found


def _used_mb(server: Server) -> float:
    """Return the megabytes of this process, its workers and the devices, without what is free to use."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of the GNU C library
    if trim is not None:
        trim(0)
    on_devices = sum(device.memory().used_bytes for device in server.devices.managed.values())
    return process_tree_mb() + on_devices / 1e6
