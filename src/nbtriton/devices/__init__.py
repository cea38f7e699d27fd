"""Devices: where arrays live and work runs. Importing this imports no framework."""

from nbtriton.devices.base import Device, Event, Graph, Memory, Reservation, Stream
from nbtriton.devices.device_set import DeviceSet, checked_gpus
from nbtriton.devices.errors import CaptureError, OutOfMemoryError
from nbtriton.devices.graphs import Captured, Graphs
from nbtriton.devices.ledger import Computed, Copied, CopyLedger
from nbtriton.devices.settings import SimulatedGPUs
from nbtriton.devices.visible import visible_gpus

__all__ = [
    "CaptureError",
    "Captured",
    "Computed",
    "Copied",
    "CopyLedger",
    "Device",
    "DeviceSet",
    "Event",
    "Graph",
    "Graphs",
    "Memory",
    "OutOfMemoryError",
    "Reservation",
    "SimulatedGPUs",
    "Stream",
    "checked_gpus",
    "visible_gpus",
]
