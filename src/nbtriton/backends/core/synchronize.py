"""Synchronization of arrays on a GPU with the host: one wait per batch, none without a GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from nbtriton.tensors import Array, copy_of, is_on_device, kind_of, to_numpy

__all__ = ["copies_of", "to_host", "wait_for_outputs"]

# Final: rule 13 of docs/compiled.md.
_ndarray: Final = np.ndarray


def copies_of(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return copies that are complete: their receiver may use any stream, or the host."""
    copies = {name: copy_of(array) for name, array in arrays.items()}
    wait_for_outputs(copies.values())
    return copies


def wait_for_outputs(arrays: Iterable[Array]) -> None:
    """Wait until the GPU has written these arrays, as far as this thread's streams produce them.

    Their receiver may then use another stream or another library without an event.
    """
    foreign = [array for array in arrays if type(array) is not _ndarray and is_on_device(array)]
    if not foreign:
        return
    simulated = [array for array in foreign if kind_of(array) == "simulated"]
    for array in simulated:
        array.device.wait_for(array)
    if len(simulated) < len(foreign):
        _wait_for_streams([array for array in foreign if kind_of(array) != "simulated"])


def _wait_for_streams(foreign: list[Array]) -> None:
    for device in {getattr(array, "device", None) for array in foreign}:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(device, torch.device):
            torch.cuda.current_stream(device).synchronize()
        else:
            sys.modules["cupy"].cuda.get_current_stream().synchronize()


def to_host(array: Array, reader: str = "") -> Array:
    """Return an array from a device on the host; `reader` needed it, for the copy ledger."""
    if kind_of(array) == "simulated":
        return array.device.fetch(array, reader)
    # BF16 stays a torch tensor: numpy has no such dtype, and models reach it through DLPack.
    if str(array.dtype) == "torch.bfloat16":
        return array.cpu()
    return to_numpy(array)
