"""Figures and exercises: simulated scenarios, questions with checks, progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbtriton.common.packages import on_first_use
from nbtriton.extensions.lessons.checking import Mark, Overview, Progress, check
from nbtriton.extensions.lessons.definition import (
    Exercise,
    MachineBusyError,
    claim,
    exercise,
    last_batches,
    sent_within,
    took_about,
)
from nbtriton.extensions.lessons.predicting import predict_batches
from nbtriton.extensions.lessons.scenarios import SCENARIOS, Arrival, Scenario, scenario

if TYPE_CHECKING:
    from nbtriton.extensions.lessons.widget import figure as figure
else:  # with it mypy would accept any attribute; a figure needs the widgets
    __getattr__ = on_first_use(__name__, {"figure": "widget"})

__all__ = [
    "SCENARIOS",
    "Arrival",
    "Exercise",
    "MachineBusyError",
    "Mark",
    "Overview",
    "Progress",
    "Scenario",
    "check",
    "claim",
    "exercise",
    "figure",
    "last_batches",
    "predict_batches",
    "scenario",
    "sent_within",
    "took_about",
]
