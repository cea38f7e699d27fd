"""Devices: where arrays live and work runs. Importing this imports no framework."""

from nbtriton.backends.devices.base import Device, Event, Memory, Reservation, Stream
from nbtriton.backends.devices.device_set import DeviceSet, checked_gpus
from nbtriton.backends.devices.errors import CaptureError, OutOfMemoryError
from nbtriton.backends.devices.graphs import Graphs
from nbtriton.backends.devices.ledger import Computed, Copied, CopyLedger
from nbtriton.backends.devices.settings import SimulatedGPUs
from nbtriton.backends.devices.visible import visible_gpus

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
