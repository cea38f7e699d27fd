"""What newer versions of Triton have and 2.51 has not: it works here, with a warning at the model's line."""

from __future__ import annotations

import sys
import warnings

__all__ = ["tell_newer"]


def tell_newer(what: str) -> None:
    """Warn that a model uses something that Triton 2.51 refuses; once a line, as warnings are.

    Parameters
    ----------
    what : str
        As the model writes it.
    """
    frame = sys._getframe(1)  # noqa: SLF001 - there is no other way to the caller's line
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("nbtriton."):
        frame = frame.f_back
    warnings.warn_explicit(
        f"{what} needs a newer version of Triton: 2.51 refuses it",
        UserWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
