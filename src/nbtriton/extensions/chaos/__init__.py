"""Planned faults: what a server does while instances fail, hang or end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbtriton.common.packages import on_first_use

if TYPE_CHECKING:
    from nbtriton.extensions.chaos.planned_faults import ChaosReport as ChaosReport
    from nbtriton.extensions.chaos.planned_faults import chaos as chaos

# The module of each public name.
_PLACES = {"ChaosReport": "planned_faults", "chaos": "planned_faults"}

__all__ = list(_PLACES)
if not TYPE_CHECKING:  # with it mypy would accept any attribute
    __getattr__ = on_first_use(__name__, _PLACES)
