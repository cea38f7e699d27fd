"""Figures and exercises: simulated scenarios, questions with checks, progress."""

from __future__ import annotations

from nbtriton.extensions.lessons.checking import Mark, Overview, Progress, check
from nbtriton.extensions.lessons.definition import Exercise, exercise
from nbtriton.extensions.lessons.predicting import predict_batches
from nbtriton.extensions.lessons.records import (
    MachineBusyError,
    claim,
    last_batches,
    sent_within,
    took_about,
)
from nbtriton.extensions.lessons.scenarios import SCENARIOS, Arrival, Scenario, scenario

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
    "last_batches",
    "predict_batches",
    "scenario",
    "sent_within",
    "took_about",
]
