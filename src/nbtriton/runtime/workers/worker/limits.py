"""Limits that a worker sets for its own process: cores, memory near them, threads of its libraries."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
from collections.abc import Collection
from typing import Final

from nbtriton.common.errors import InternalError

__all__ = ["bind", "set_threads"]

_MPOL_BIND: Final = 2
# Numbers of the system call set_mempolicy, for which libc has no function.
_SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237}
# Variables that the libraries read at their import.
_VARIABLES: Final = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS",
)  # fmt: skip


def bind(cores: Collection[int], numa_node: int | None) -> None:
    """Bind this process and its children to cores and to the memory of a node.

    Parameters
    ----------
    cores : collection of int
        Empty for all.
    numa_node : int or None

    Raises
    ------
    InternalError
        The system refuses, with Triton's text.
    """
    if cores and hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, cores)
        except OSError as error:
            raise InternalError(f"Unable to set NUMA thread affinity: {error.strerror}") from error
    if numa_node is not None:
        _bind_memory(numa_node)


def _bind_memory(node: int) -> None:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None or not sys.platform.startswith("linux"):
        return
    words = node // 64 + 1
    mask = (ctypes.c_ulong * words)()
    mask[node // 64] = 1 << node % 64
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit less than the given number.
    if libc.syscall(number, _MPOL_BIND, mask, ctypes.c_ulong(64 * words + 1)) != 0:
        text = os.strerror(ctypes.get_errno())
        raise InternalError(f"Unable to set NUMA memory policy: {text}")


def set_threads(count: int) -> None:
    """Set the number of threads of this process's libraries.

    It also holds for libraries imported later. Called on the executing thread: OpenMP keeps the number for
    each thread that starts others.
    """
    for name in _VARIABLES:
        os.environ[name] = str(count)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)
    if "numpy" in sys.modules:
        with contextlib.suppress(ImportError):  # in an environment of the model's own
            from threadpoolctl import ThreadpoolController

            ThreadpoolController().limit(limits=count)
