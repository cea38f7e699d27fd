"""Make ``import triton_python_backend_utils`` find nbtriton's."""

from __future__ import annotations

import sys

__all__ = ["install_pb_utils"]


def install_pb_utils() -> None:
    """Put `pb_utils` where an unmodified ``model.py`` or notebook cell looks for it.

    It stays under both of Triton's names: the module itself, and the compiled one inside it that
    some models import.
    """
    from nbtriton.backends.python.api import pb_utils

    sys.modules["triton_python_backend_utils"] = pb_utils
    sys.modules["c_python_backend_utils"] = pb_utils
