"""The use of devices by a simulated model: the device that computes, and the tensors that are copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Copied:
    """A tensor that is copied for each batch.

    Parameters
    ----------
    engine : str
        The copy engine, which copies one tensor at a time: ``"to gpu:0"``, ``"from gpu:0"``.
    times_us : mapping of int to float
        By rows; not empty.
    from_host, to_host : bool
        Its source, or its target, is the host's memory.
    """

    engine: str
    times_us: Mapping[int, float]
    from_host: bool
    to_host: bool


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """The use of devices by one model.

    Parameters
    ----------
    device : str
        The device that computes, such as ``"gpu:0"``, one batch at a time; empty for the host.
    before, after : tuple of Copied
        Copied inputs, and copied outputs for a caller.
    on_host : bool
        The model is placed on the host: the sender of a device's tensors waits until they are written.
    """

    device: str
    before: tuple[Copied, ...] = ()
    after: tuple[Copied, ...] = ()
    on_host: bool = True
