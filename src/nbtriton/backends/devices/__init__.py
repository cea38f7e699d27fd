"""Devices: where arrays live and work runs. Importing this imports no framework."""

from nbtriton.backends.devices.base import (
    CaptureError,
    Device,
    Event,
    Memory,
    OutOfMemoryError,
    Reservation,
    Stream,
)
from nbtriton.backends.devices.device_set import DeviceSet, checked_gpus, visible_gpus
from nbtriton.backends.devices.graphs import Graphs
from nbtriton.backends.devices.ledger import Computed, Copied, CopyLedger
from nbtriton.backends.devices.settings import SimulatedGPUs

__all__ = [
    "CaptureError",
    "Computed",
    "Copied",
    "CopyLedger",
    "Device",
    "DeviceSet",
    "Event",
    "Graphs",
    "Memory",
    "OutOfMemoryError",
    "Reservation",
    "SimulatedGPUs",
    "Stream",
    "checked_gpus",
    "visible_gpus",
]
