"""Explanations of recorded traffic, and diagnosis of configurations and models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbtriton.common.packages import on_first_use

if TYPE_CHECKING:
    from nbtriton.lab.explain.diagnosis import Diagnosis as Diagnosis
    from nbtriton.lab.explain.diagnosis import doctor as doctor
    from nbtriton.lab.explain.explanation import Explanation as Explanation
    from nbtriton.lab.explain.explanation import why as why
    from nbtriton.lab.explain.findings import Proposal as Proposal
    from nbtriton.lab.explain.settings_rules import Finding as Finding
    from nbtriton.lab.explain.timeline import Timeline as Timeline
    from nbtriton.lab.explain.timeline import read_newest_batches as read_newest_batches
    from nbtriton.lab.explain.timeline import read_request as read_request
    from nbtriton.lab.explain.timeline import read_timeline as read_timeline
    from nbtriton.lab.explain.traffic import PipelineTraffic as PipelineTraffic
    from nbtriton.lab.explain.traffic import read_traffic as read_traffic

# The module of each public name.
_PLACES = {
    "Diagnosis": "diagnosis",
    "Explanation": "explanation",
    "Finding": "settings_rules",
    "PipelineTraffic": "traffic",
    "Proposal": "findings",
    "Timeline": "timeline",
    "doctor": "diagnosis",
    "read_newest_batches": "timeline",
    "read_request": "timeline",
    "read_timeline": "timeline",
    "read_traffic": "traffic",
    "why": "explanation",
}

__all__ = list(_PLACES)
if not TYPE_CHECKING:  # with it mypy would accept any attribute
    __getattr__ = on_first_use(__name__, _PLACES)
