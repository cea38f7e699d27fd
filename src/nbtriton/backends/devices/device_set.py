"""The devices of one server, and the GPUs of this machine, found without importing a framework if there can be none."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from nbtriton.backends.devices.base import Device
from nbtriton.backends.devices.ledger import CopyLedger
from nbtriton.backends.devices.settings import SIMULATED, SimulatedGPUs, parse_simulated
from nbtriton.common import entries
from nbtriton.common.errors import InvalidArgumentError, UnsupportedError


@functools.cache
def visible_gpus() -> tuple[int, ...]:
    """Return the ids of the GPUs that torch or CuPy can use.

    Importing torch takes about a second, so it is asked only on a machine that has a device file
    of an NVIDIA or AMD driver.
    """
    if not any(any(Path("/dev").glob(name)) for name in ("nvidia[0-9]*", "dxg", "kfd")):
        return ()
    try:
        import torch

        return tuple(range(torch.cuda.device_count()))
    except ImportError:
        pass
    try:
        import cupy

        return tuple(range(cupy.cuda.runtime.getDeviceCount()))
    except Exception:  # CuPy raises its own errors if the driver is missing
        return ()


# The checked value of ``nbtriton.Server(gpus=…)``; None for all visible GPUs.
Gpus = tuple[int, ...] | SimulatedGPUs | None


def checked_gpus(given: object) -> Gpus:
    """Return the meaning of a server's ``gpus``.

    Raises
    ------
    InvalidArgumentError
        It has no meaning.
    """
    if given is None or isinstance(given, SimulatedGPUs):
        return given
    if isinstance(given, str):
        return parse_simulated(given)
    if (
        isinstance(given, Sequence)
        and not isinstance(given, bytes)
        and all(isinstance(gpu, int) for gpu in given)
    ):
        return tuple(given)
    raise InvalidArgumentError(
        f"gpus={given!r} is not a list of GPU ids",
        hint="such as [0, 1]; None for all; simulated:2 for simulated ones",
    )


class DeviceSet(Mapping[int, "Device"]):
    """The GPUs that the models of a server may use, by id; each is made when it is first used.

    Attributes
    ----------
    ids : tuple of int
    simulated : SimulatedGPUs or None
        Their settings, if they are simulated.
    ledger : CopyLedger
        Shared by all devices.
    """

    def __init__(self, gpus: Gpus) -> None:
        self.simulated = gpus if isinstance(gpus, SimulatedGPUs) else None
        if isinstance(gpus, SimulatedGPUs):
            self.ids = tuple(range(gpus.count))
        else:
            self.ids = visible_gpus() if gpus is None else gpus
        self.ledger = CopyLedger()
        self._made: dict[int, Device] = {}

    def __getitem__(self, index: int) -> Device:
        if index not in self.ids:
            raise KeyError(index)
        device = self._made.get(index)
        if device is None:
            device = self._made.setdefault(index, self._make(index))
        return device

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def describe(self, index: int) -> str:
        """Return a device's name for reports."""
        return f"simulated GPU {index}" if self.simulated is not None else f"GPU {index}"

    @property
    def managed(self) -> Mapping[int, Device]:
        """The devices whose copies and order are managed here."""
        if self.simulated is not None:
            return self
        # Without torch, models that bring CuPy or onnxruntime with CUDA manage for themselves; and ids may be
        # given where there is no GPU.
        return self if self.ids and find_spec("torch") is not None and visible_gpus() else {}

    def close(self) -> None:
        """Release the devices' resources."""
        for device in list(self._made.values()):
            device.close()

    def _make(self, index: int) -> Device:
        if self.simulated is not None:
            place = entries.place_of("devices", SIMULATED)
            if place is None:
                raise UnsupportedError(
                    "there are no simulated GPUs in this installation of nbtriton"
                )
            device: Device = entries.load(place)(index, self.simulated, self.ledger)
            return device
        from nbtriton.backends.devices.cuda import CudaDevice

        return CudaDevice(index, self.ledger)
