"""The use of devices by a simulated model: where it computes, and which tensors are copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Copied", "DeviceUse"]


@dataclass(frozen=True, slots=True)
class Copied:
    """A tensor that is copied for each batch.

    Parameters
    ----------
    engine : str
        What copies it, one tensor after the other: ``"to gpu:0"``, ``"from gpu:0"``.
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
        Where it computes, such as ``"gpu:0"``, one batch after the other; empty for the host.
    before, after : tuple of Copied
        Inputs, and outputs that a caller gets.
    on_host : bool
        It is placed on the host: the sender of tensors of a device waits until they are written.
    """

    device: str
    before: tuple[Copied, ...] = ()
    after: tuple[Copied, ...] = ()
    on_host: bool = True
