"""The GPUs of this machine, found without importing a framework where none can exist."""

from __future__ import annotations

import functools
from pathlib import Path

__all__ = ["visible_gpus"]


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
    except Exception:  # CuPy raises its own errors where the driver is missing
        return ()
