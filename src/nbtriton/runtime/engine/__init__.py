"""The live runtime: models, instances, ensembles and the scheduler thread, in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbtriton.common.packages import on_first_use

if TYPE_CHECKING:
    from nbtriton.runtime.engine.core.dispatch import ArrivalListener as ArrivalListener
    from nbtriton.runtime.engine.core.dispatch import Submission as Submission
    from nbtriton.runtime.engine.core.execution import Completion as Completion
    from nbtriton.runtime.engine.core.execution import InferenceResult as InferenceResult
    from nbtriton.runtime.engine.core.execution import RequestTiming as RequestTiming
    from nbtriton.runtime.engine.core.future import InferenceFuture as InferenceFuture
    from nbtriton.runtime.engine.core.request import BARE_FINAL as BARE_FINAL
    from nbtriton.runtime.engine.core.request import InferenceRequest as InferenceRequest
    from nbtriton.runtime.engine.core.request import JoinBatch as JoinBatch
    from nbtriton.runtime.engine.core.runtime import ModelSignature as ModelSignature
    from nbtriton.runtime.engine.core.snapshot import BatchRecord as BatchRecord
    from nbtriton.runtime.engine.core.snapshot import Change as Change
    from nbtriton.runtime.engine.core.snapshot import InstanceSnapshot as InstanceSnapshot
    from nbtriton.runtime.engine.core.snapshot import ModelHistorySnapshot as ModelHistorySnapshot
    from nbtriton.runtime.engine.core.snapshot import ModelSnapshot as ModelSnapshot
    from nbtriton.runtime.engine.core.snapshot import Moment as Moment
    from nbtriton.runtime.engine.core.snapshot import RequestRecord as RequestRecord
    from nbtriton.runtime.engine.core.snapshot import ServerHistory as ServerHistory
    from nbtriton.runtime.engine.core.snapshot import ServerSnapshot as ServerSnapshot
    from nbtriton.runtime.engine.diagnostics.tracing import Activity as Activity
    from nbtriton.runtime.engine.diagnostics.tracing import SpanContext as SpanContext
    from nbtriton.runtime.engine.diagnostics.tracing import TensorActivity as TensorActivity
    from nbtriton.runtime.engine.diagnostics.tracing import Trace as Trace
    from nbtriton.runtime.engine.diagnostics.tracing import TraceSample as TraceSample
    from nbtriton.runtime.engine.engine import Engine as Engine
    from nbtriton.runtime.engine.lifecycle.loading import CODE_TEXTS as CODE_TEXTS
    from nbtriton.runtime.engine.server import ModelHandle as ModelHandle
    from nbtriton.runtime.engine.server import Server as Server

# Where each public name lives.
_PLACES = {
    name: module
    for module, names in {
        "core.dispatch": ("ArrivalListener", "Submission"),
        "core.execution": ("Completion", "RequestTiming"),
        "core.request": ("BARE_FINAL", "InferenceRequest", "JoinBatch"),
        "core.runtime": ("ModelSignature",),
        "core.snapshot": (
            "BatchRecord", "Change", "InstanceSnapshot", "ModelHistorySnapshot", "ModelSnapshot", "Moment",
            "RequestRecord", "ServerHistory", "ServerSnapshot",
        ),
        "diagnostics.tracing": ("Activity", "SpanContext", "TensorActivity", "Trace", "TraceSample"),
        "engine": ("Engine",),
        "inference": ("InferenceFuture", "InferenceResult"),
        "lifecycle.loading": ("CODE_TEXTS",),
        "server": ("ModelHandle", "Server"),
    }.items()
    for name in names
}  # fmt: skip

__all__ = list(_PLACES)
if not TYPE_CHECKING:  # which would take any name for one of ours
    __getattr__ = on_first_use(__name__, _PLACES)
