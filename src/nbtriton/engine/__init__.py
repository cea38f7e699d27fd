"""The live runtime: models, instances, ensembles and the scheduler thread, in this process."""

from nbtriton.engine.admission import Interface
from nbtriton.engine.describing import describe
from nbtriton.engine.future import InferenceFuture
from nbtriton.engine.handle import ModelHandle
from nbtriton.engine.request import InferenceRequest, Submission
from nbtriton.engine.result import InferenceResult, RequestTiming
from nbtriton.engine.server import Server
from nbtriton.engine.snapshot import BatchRecord, InstanceSnapshot, ModelSnapshot, ServerSnapshot

__all__ = [
    "BatchRecord",
    "InferenceFuture",
    "InferenceRequest",
    "InferenceResult",
    "InstanceSnapshot",
    "Interface",
    "ModelHandle",
    "ModelSnapshot",
    "RequestTiming",
    "Server",
    "ServerSnapshot",
    "Submission",
]

describe(InferenceFuture, InferenceResult)
