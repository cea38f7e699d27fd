"""Instances by load: a thread that watches a model, and adds and removes instances while requests run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbtriton.common.packages import on_first_use

if TYPE_CHECKING:
    from nbtriton.extensions.autoscale.scaling import Autoscale as Autoscale
    from nbtriton.extensions.autoscale.scaling import autoscale as autoscale

# The module of each public name.
_PLACES = {"Autoscale": "scaling", "autoscale": "scaling"}

__all__ = list(_PLACES)
if not TYPE_CHECKING:  # with it mypy would accept any attribute
    __getattr__ = on_first_use(__name__, _PLACES)
