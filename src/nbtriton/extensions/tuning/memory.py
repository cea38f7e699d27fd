"""The measured memory of a model's instances: of each further one, and of all in common."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbtriton.lab.perf.conditions import process_tree_mb
from nbtriton.lab.perf.sweep import Configurator
from nbtriton.model.config import ModelConfig

if TYPE_CHECKING:
    from nbtriton.serving.server import Server

# Instances beside the first: their mean memory counts.
INSTANCES = 3
# Smaller differences are within the allocator's own variation.
_LEAST_MB = 0.1


@dataclass(frozen=True, slots=True)
class InstanceMemory:
    """The memory of one model's instances.

    Parameters
    ----------
    each_mb : float
        Megabytes of each instance: resident memory of this process and its workers, and device memory.
        0 where it is too small to measure.
    shared_mb : float
        Megabytes of device memory that all instances share, such as weights, as the devices report it.
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

    First each model has one instance, which has answered requests; then one model at a time has three. The
    models have their own configurations again at the end.

    Parameters
    ----------
    server : Server
    model : str
    others : mapping of str to ModelConfig
        The models that have instances.
    load : callable
        Sends requests to `model` that keep the instances busy.
    report : callable
        Called with a description of the next step.
    """
    memory: dict[str, InstanceMemory] = {}
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
            memory[name] = InstanceMemory(
                each_mb if each_mb >= _LEAST_MB else 0.0, sum(weights) / 1e6
            )
    finally:
        configurator.restore()
    return memory


def _used_mb(server: Server) -> float:
    """Return the megabytes of this process, its workers and the devices, without free heap memory."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # GNU C library only
        if trim is not None:
            trim(0)
    on_devices = sum(device.memory().used_bytes for device in server.devices.managed.values())
    return process_tree_mb() + on_devices / 1e6
