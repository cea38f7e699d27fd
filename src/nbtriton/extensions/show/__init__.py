"""Frames of a stream live in the notebook, with boxes, labels and track ids over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbtriton.common.packages import on_first_use

if TYPE_CHECKING:
    from nbtriton.extensions.show.view import show as show

# The module of each public name.
_PLACES = {"show": "view"}

__all__ = list(_PLACES)
if not TYPE_CHECKING:  # with it mypy would accept any attribute
    __getattr__ = on_first_use(__name__, _PLACES)
