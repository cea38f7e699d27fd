"""Figures and exercises: simulated scenarios, questions with checks, progress."""

from __future__ import annotations

from nbtriton.teaching.checking import Mark, check
from nbtriton.teaching.definition import Exercise, exercise
from nbtriton.teaching.predicting import predict_batches
from nbtriton.teaching.progress import Overview, Progress
from nbtriton.teaching.records import MachineBusyError, last_batches
from nbtriton.teaching.scenarios import SCENARIOS, Arrival, Scenario, scenario

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
    "exercise",
    "last_batches",
    "predict_batches",
    "scenario",
]
