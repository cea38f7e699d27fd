"""Exercises: a question, a check that asks the scheduler what it did, and the reader's progress."""

from __future__ import annotations

from nbtriton.teaching.checking import Mark, check
from nbtriton.teaching.definition import Exercise, exercise
from nbtriton.teaching.progress import Overview, Progress
from nbtriton.teaching.records import last_batches

__all__ = ["Exercise", "Mark", "Overview", "Progress", "check", "exercise", "last_batches"]
