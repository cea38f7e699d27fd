"""Explanations: of what the recorder kept, and of what is wrong in a configuration or a model."""

from __future__ import annotations

from nbtriton.explain.diagnosis import Diagnosis, doctor
from nbtriton.explain.explanation import Explanation, why
from nbtriton.explain.findings import Proposal
from nbtriton.explain.planned_faults import ChaosReport, chaos
from nbtriton.explain.settings_rules import Finding
from nbtriton.explain.timeline import Timeline, read_timeline
from nbtriton.explain.traffic import PipelineTraffic, read_traffic

__all__ = [
    "ChaosReport",
    "Diagnosis",
    "Explanation",
    "Finding",
    "PipelineTraffic",
    "Proposal",
    "Timeline",
    "chaos",
    "doctor",
    "read_timeline",
    "read_traffic",
    "why",
]
