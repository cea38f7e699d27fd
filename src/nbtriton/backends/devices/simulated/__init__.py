"""GPUs that are simulated: for machines without one, and to judge the path to a real one."""

from nbtriton.backends.devices.simulated.array import SimulatedArray
from nbtriton.backends.devices.simulated.device import SimulatedDevice

__all__ = ["SimulatedArray", "SimulatedDevice"]
