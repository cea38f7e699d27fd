"""What has to be made anew in a process that was forked."""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["after_fork"]


def after_fork(function: Callable[[], object]) -> None:
    """Call a function in every child; for what lives as long as the process.

    The child has no thread but the one that forked: a lock that another one held stays locked, and
    what another one would do is not done.
    """
    if hasattr(os, "register_at_fork"):  # not on Windows
        os.register_at_fork(after_in_child=function)
