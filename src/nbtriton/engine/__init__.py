"""The live runtime: models, instances, ensembles and the scheduler thread, in this process."""

from nbtriton.engine.core.completion import Completion
from nbtriton.engine.core.future import InferenceFuture
from nbtriton.engine.core.model_signature import ModelSignature
from nbtriton.engine.core.request import BARE_FINAL, InferenceRequest, JoinBatch
from nbtriton.engine.core.result import InferenceResult, RequestTiming
from nbtriton.engine.core.snapshot import (
    BatchRecord,
    Change,
    InstanceSnapshot,
    ModelHistorySnapshot,
    ModelSnapshot,
    Moment,
    RequestRecord,
    ServerHistory,
    ServerSnapshot,
)
from nbtriton.engine.describing import describe
from nbtriton.engine.diagnostics.tracing import (
    Activity,
    SpanContext,
    TensorActivity,
    Trace,
    TraceSample,
)
from nbtriton.engine.dispatch import ArrivalListener, Submission
from nbtriton.engine.engine import Engine
from nbtriton.engine.lifecycle.loading import CODE_TEXTS
from nbtriton.engine.server import ModelHandle, Server

__all__ = [
    "BARE_FINAL",
    "CODE_TEXTS",
    "Activity",
    "ArrivalListener",
    "BatchRecord",
    "Change",
    "Completion",
    "Engine",
    "InferenceFuture",
    "InferenceRequest",
    "InferenceResult",
    "InstanceSnapshot",
    "JoinBatch",
    "ModelHandle",
    "ModelHistorySnapshot",
    "ModelSignature",
    "ModelSnapshot",
    "Moment",
    "RequestRecord",
    "RequestTiming",
    "Server",
    "ServerHistory",
    "ServerSnapshot",
    "SpanContext",
    "Submission",
    "TensorActivity",
    "Trace",
    "TraceSample",
]

describe(InferenceFuture, InferenceResult)
