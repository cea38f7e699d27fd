"""Explanations of what the recorder kept: why batches left, where the slowest requests spent their time."""

from __future__ import annotations

from nbtriton.explain.explanation import Explanation, why
from nbtriton.explain.findings import Proposal
from nbtriton.explain.timeline import Timeline, read_timeline

__all__ = ["Explanation", "Proposal", "Timeline", "read_timeline", "why"]
