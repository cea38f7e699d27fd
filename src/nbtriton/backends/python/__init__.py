"""The python backend and its `triton_python_backend_utils`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbtriton.backends.python.model import install_pb_utils

if TYPE_CHECKING:
    from nbtriton.backends.python.backend import PythonBackend

__all__ = ["PythonBackend", "install_pb_utils"]


def __getattr__(name: str) -> Any:
    # On first use: it needs protobuf, which the environment of a worker may lack.
    if name != "PythonBackend":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from nbtriton.backends.python.backend import PythonBackend

    return PythonBackend
