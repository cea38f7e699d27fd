"""nbtriton: Triton Inference Server's runtime inside the notebook kernel.

``%load_ext nbtriton`` brings the magics; everything that they do is one call away in Python::

    import nbtriton as nt

    server = nt.server()
    server.load("max_batch_size: 8", model=double, name="double")
    server.infer("double", {"IN": x})["OUT"]

Nothing heavy is imported before it is used: neither torch nor pandas, anywidget, grpc or IPython.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbtriton.api import Server as Server
    from nbtriton.api import server as server
    from nbtriton.devices import SimulatedGPUs as SimulatedGPUs
    from nbtriton.drawing.page_figure import PageFigure as PageFigure
    from nbtriton.engine import InferenceFuture as InferenceFuture
    from nbtriton.engine import InferenceResult as InferenceResult
    from nbtriton.engine import ModelHandle as ModelHandle
    from nbtriton.engine.copies import copies as copies
    from nbtriton.engine.events import events as events
    from nbtriton.engine.status import status as status
    from nbtriton.errors import ConfigWarning as ConfigWarning
    from nbtriton.errors import LoadWarning as LoadWarning
    from nbtriton.errors import TritonError as TritonError
    from nbtriton.explain import ChaosReport as ChaosReport
    from nbtriton.explain import Diagnosis as Diagnosis
    from nbtriton.explain import Explanation as Explanation
    from nbtriton.explain import chaos as chaos
    from nbtriton.explain import doctor as doctor
    from nbtriton.explain import why as why
    from nbtriton.explain.trial_curve import TrialCurve as TrialCurve
    from nbtriton.explain.trial_curve import trial_curve as trial_curve
    from nbtriton.explain.trial_run import Trial as Trial
    from nbtriton.explain.trial_run import trial as trial
    from nbtriton.magics import load_ipython_extension as load_ipython_extension
    from nbtriton.magics import unload_ipython_extension as unload_ipython_extension
    from nbtriton.perf import Comparison as Comparison
    from nbtriton.perf import PerfReport as PerfReport
    from nbtriton.perf import PerfRun as PerfRun
    from nbtriton.perf import compare as compare
    from nbtriton.perf import perf as perf
    from nbtriton.recordings import Recording as Recording
    from nbtriton.recordings import TrafficTap as TrafficTap
    from nbtriton.recordings import record as record
    from nbtriton.recordings import replay as replay
    from nbtriton.simulate import Profile as Profile
    from nbtriton.simulate import Tuning as Tuning
    from nbtriton.simulate import profile as profile
    from nbtriton.simulate import tune as tune
    from nbtriton.simulate import whatif as whatif
    from nbtriton.teaching import check as check
    from nbtriton.teaching import exercise as exercise
    from nbtriton.teaching import last_batches as last_batches
    from nbtriton.teaching import predict_batches as predict_batches
    from nbtriton.teaching import scenario as scenario
    from nbtriton.widgets.calls import dag as dag
    from nbtriton.widgets.calls import timeline as timeline
    from nbtriton.widgets.calls import watch as watch
    from nbtriton.widgets.figure import figure as figure
    from nbtriton.widgets.plots import plot as plot
    from nbtriton.workers.virtual_environment import environment as environment

    # Whether the core that runs is compiled.
    compiled: bool

__version__ = "0.1.0"

# Where each public name lives; it is imported when it is first asked for.
_PUBLIC = {
    "ChaosReport": "nbtriton.explain",
    "Comparison": "nbtriton.perf",
    "ConfigWarning": "nbtriton.errors",
    "Diagnosis": "nbtriton.explain",
    "Explanation": "nbtriton.explain",
    "InferenceFuture": "nbtriton.engine",
    "InferenceResult": "nbtriton.engine",
    "LoadWarning": "nbtriton.errors",
    "ModelHandle": "nbtriton.engine",
    "PageFigure": "nbtriton.drawing.page_figure",
    "PerfReport": "nbtriton.perf",
    "PerfRun": "nbtriton.perf",
    "Profile": "nbtriton.simulate",
    "Recording": "nbtriton.recordings",
    "Server": "nbtriton.api",
    "SimulatedGPUs": "nbtriton.devices",
    "TrafficTap": "nbtriton.recordings",
    "Trial": "nbtriton.explain.trial_run",
    "TrialCurve": "nbtriton.explain.trial_curve",
    "TritonError": "nbtriton.errors",
    "Tuning": "nbtriton.simulate",
    "check": "nbtriton.teaching",
    "chaos": "nbtriton.explain",
    "compare": "nbtriton.perf",
    "copies": "nbtriton.engine.copies",
    "dag": "nbtriton.widgets.calls",
    "environment": "nbtriton.workers.virtual_environment",
    "doctor": "nbtriton.explain",
    "events": "nbtriton.engine.events",
    "exercise": "nbtriton.teaching",
    "figure": "nbtriton.widgets.figure",
    "last_batches": "nbtriton.teaching",
    "load_ipython_extension": "nbtriton.magics",
    "perf": "nbtriton.perf",
    "plot": "nbtriton.widgets.plots",
    "predict_batches": "nbtriton.teaching",
    "profile": "nbtriton.simulate",
    "record": "nbtriton.recordings",
    "replay": "nbtriton.recordings",
    "scenario": "nbtriton.teaching",
    "server": "nbtriton.api",
    "status": "nbtriton.engine.status",
    "timeline": "nbtriton.widgets.calls",
    "trial": "nbtriton.explain.trial_run",
    "trial_curve": "nbtriton.explain.trial_curve",
    "tune": "nbtriton.simulate",
    "unload_ipython_extension": "nbtriton.magics",
    "watch": "nbtriton.widgets.calls",
    "whatif": "nbtriton.simulate",
    "why": "nbtriton.explain",
}

# What needs a package of an extra: `from nbtriton import *` and `dir` work without it.
_EXTRA = {"PageFigure": "matplotlib"}

__all__ = [*(name for name in _PUBLIC if name not in _EXTRA), "__version__", "compiled"]  # noqa: PLE0604 - strings


def __getattr__(name: str) -> Any:
    if name == "compiled":
        from nbtriton.packages import core_is_compiled

        return core_is_compiled()
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'nbtriton' has no attribute '{name}'")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    from importlib.util import find_spec

    return sorted([*__all__, *(name for name, package in _EXTRA.items() if find_spec(package))])
