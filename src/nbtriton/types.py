# ruff: noqa: PLC0414 - `as` exports a name
"""What calls return and take: for annotations, and to make one by hand, such as ``nt.types.Profile.declared``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbtriton.common.packages import on_first_use

if TYPE_CHECKING:
    from nbtriton.backends.devices.settings import SimulatedGPUs as SimulatedGPUs
    from nbtriton.drawing.page_figure import PageFigure as PageFigure
    from nbtriton.extensions.comparison import Comparison as Comparison
    from nbtriton.extensions.doctor import Diagnosis as Diagnosis
    from nbtriton.extensions.tuning.tuned import Tuning as Tuning
    from nbtriton.lab.explain.explanation import Explanation as Explanation
    from nbtriton.lab.perf.api import PerfRun as PerfRun
    from nbtriton.lab.perf.recording import Recording as Recording
    from nbtriton.lab.perf.report import PerfReport as PerfReport
    from nbtriton.lab.simulate.model_profile import Profile as Profile
    from nbtriton.runtime.engine import InferenceFuture as InferenceFuture
    from nbtriton.runtime.engine import InferenceResult as InferenceResult
    from nbtriton.runtime.engine import ModelHandle as ModelHandle

# The module of each public name; that of PageFigure needs matplotlib.
_PLACES = {
    "Comparison": "extensions.comparison",
    "Diagnosis": "extensions.doctor",
    "Explanation": "lab.explain.explanation",
    "InferenceFuture": "runtime.engine",
    "InferenceResult": "runtime.engine",
    "ModelHandle": "runtime.engine",
    "PageFigure": "drawing.page_figure",
    "PerfReport": "lab.perf.report",
    "PerfRun": "lab.perf.api",
    "Profile": "lab.simulate.model_profile",
    "Recording": "lab.perf.recording",
    "SimulatedGPUs": "backends.devices.settings",
    "Tuning": "extensions.tuning.tuned",
}

__all__ = list(_PLACES)
if not TYPE_CHECKING:  # with it mypy would accept any attribute
    __getattr__ = on_first_use("nbtriton", _PLACES)
