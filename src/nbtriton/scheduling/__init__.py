"""Schedulers: pure state machines, events in and decisions out.

No threads, clocks, locks, arrays or input/output. ``now`` is an argument (integer nanoseconds on any
monotonic clock), requests are tickets, and every decision carries its reason. The engine and the
tests' simulator drive the same code.
"""

from nbtriton.scheduling.batcher import Batcher
from nbtriton.scheduling.cache_space import MIN_CACHE_BYTES, CacheSpace, header_bytes
from nbtriton.scheduling.custom import BatchStrategy
from nbtriton.scheduling.ensemble import Advance, EnsemblePlan, EnsembleRun, Start, Step
from nbtriton.scheduling.ordering import ResponseOrder
from nbtriton.scheduling.queueing import (
    BatcherSettings,
    QueuePolicy,
    SequenceSettings,
    TimeoutAction,
)
from nbtriton.scheduling.rate_limiter import RateLimiter, ResourceNeed, ResourceShortage
from nbtriton.scheduling.sequence import SequenceBatcher
from nbtriton.scheduling.tickets import (
    REASONS,
    SEQUENCE_END,
    SEQUENCE_START,
    Decision,
    RejectTicket,
    RetireInstance,
    ReturnResources,
    RunBatch,
    StageInstance,
    SuspendInstance,
    Ticket,
    TicketState,
    sequence_flags,
)

__all__ = [
    "MIN_CACHE_BYTES",
    "REASONS",
    "SEQUENCE_END",
    "SEQUENCE_START",
    "Advance",
    "BatchStrategy",
    "Batcher",
    "BatcherSettings",
    "CacheSpace",
    "Decision",
    "EnsemblePlan",
    "EnsembleRun",
    "QueuePolicy",
    "RateLimiter",
    "RejectTicket",
    "ResourceNeed",
    "ResourceShortage",
    "ResponseOrder",
    "RetireInstance",
    "ReturnResources",
    "RunBatch",
    "SequenceBatcher",
    "SequenceSettings",
    "StageInstance",
    "Start",
    "Step",
    "SuspendInstance",
    "Ticket",
    "TicketState",
    "TimeoutAction",
    "header_bytes",
    "sequence_flags",
]
