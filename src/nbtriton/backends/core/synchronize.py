"""Synchronization of arrays on a GPU with the host: one wait per batch, none without a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from nbtriton.model.tensors import Array, copy_of, is_on_device, kind_of

# Final: rule 13 of docs/compiled.md.
_ndarray: Final = np.ndarray


def _cuda() -> Any:
    """Return the module of real GPUs, imported on first use."""
    from nbtriton.backends.devices import cuda

    return cuda


def copies_of(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return complete copies: their receiver may use any stream, or the host."""
    copies: dict[str, Array] = {}
    is_plain = True
    for name, array in arrays.items():
        if type(array) is _ndarray:
            copies[name] = array.copy()
            continue
        is_plain = False
        if is_on_device(array):
            if kind_of(array) == "simulated":
                array.device.order_behind(array)
            else:
                _cuda().order_behind(array)
        copies[name] = copy_of(array)
    if not is_plain:
        wait_for_outputs(copies.values())
    return copies


def wait_for_outputs(arrays: Iterable[Array]) -> None:
    """Wait until the GPU has written these arrays, by an instance or in this thread's stream.

    Their receiver may then use another stream or another library without an event.
    """
    foreign = [array for array in arrays if type(array) is not _ndarray and is_on_device(array)]
    if not foreign:
        return
    for array in foreign:
        if kind_of(array) == "simulated":
            array.device.wait_for(array)
        else:
            _cuda().wait_for(array)


def to_host(array: Array, reader: str = "") -> Array:
    """Return a device array on the host; the copy ledger names `reader`.

    BF16 stays a torch tensor: numpy has no such dtype, and models reach it through DLPack.
    """
    if kind_of(array) == "simulated":
        return array.device.fetch(array, reader)
    return _cuda().fetch(array, reader)
