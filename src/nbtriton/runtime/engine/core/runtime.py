"""Interface of a loaded model version, a backend's or an ensemble, to the rest of the engine."""

from __future__ import annotations

import logging
import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from nbtriton.backends.base import Response
from nbtriton.backends.core.executing import EXECUTING
from nbtriton.common.errors import InternalError, TritonError
from nbtriton.model.config import ModelConfig
from nbtriton.runtime.engine.core.cache import ResponseCache
from nbtriton.runtime.engine.core.completion import Completion, InlineCompletion
from nbtriton.runtime.engine.core.execution import now_ns
from nbtriton.runtime.engine.core.history import Meter, ModelHistory
from nbtriton.runtime.engine.core.model_signature import ModelSignature
from nbtriton.runtime.engine.core.request import InferenceRequest, RequestOwner
from nbtriton.runtime.engine.core.snapshot import InstanceSnapshot, ModelSnapshot
from nbtriton.runtime.engine.core.statistics import Statistics

__all__ = ["Runtime", "summary_of"]

_log = logging.getLogger("nbtriton.runtime.engine")

# Models that call each other in one thread; the next one has a thread of its own. Each takes some 20
# of Python's 1,000 nested calls.
_DEEPEST: Final = 24


class Runtime(RequestOwner):
    """One version of one model, ready for requests.

    Parameters
    ----------
    config : ModelConfig
        Normalised and completed.
    version : int
    """

    def __init__(self, config: ModelConfig, version: int) -> None:
        self.config = config
        self.name = config.name
        self.process = os.getpid()
        self.version = version
        # The model's own, in a repository; None for a model of a notebook.
        self.directory: Path | None = None
        self.signature = ModelSignature(config, version, self)
        self.statistics = Statistics()
        # Set by the server before the first request if its recorder is on.
        self.history = None
        # Set by the server before the first request if it has a cache and the model wants it (K1).
        self.cache: ResponseCache | None = None
        # Whether each answer that was not in the cache before its request counts as a miss.
        self.counts_twins = False
        self._holding = threading.Lock()
        self._holds = 0
        self._unpublished = False

    def own_checks(self) -> Sequence[Callable[[], bool]]:
        """Return the model's own readiness checks; each may take seconds."""
        return ()

    @property
    def orders_inputs(self) -> bool:
        """True if inputs on a device need not be written: what reads them waits for their writers' events."""
        return self.cache is None  # which reads them on the host

    @property
    def iterative(self) -> bool:
        return bool(self.config.sequence_batching.iterative_sequence)

    def submit(self, request: InferenceRequest, completion: Completion | None = None) -> bool:
        """Accept an admitted request; False if this version is drained already.

        Parameters
        ----------
        completion : Completion, optional
            Of the calling thread: what follows at once runs on it.
        """
        if self.cache is not None and self._answer_from_cache(self.cache, request, completion):
            return True
        return self._enter(request, completion)

    def submit_inline(self, request: InferenceRequest) -> bool:
        """Submit, and execute on this very thread what an idle instance can execute of it."""
        # A chain of models that call each other would end on Python's limit of nested calls.
        if len(EXECUTING.get().callers) >= _DEEPEST:
            return self.submit(request)
        inline = InlineCompletion(request)
        try:
            accepted = self.submit(request, inline)
            inline.execute()
        except BaseException:  # Ctrl-C in a model; what it executed has its answers
            inline.hand_over()
            request.expect().cancel()
            raise
        return accepted

    def submit_many(
        self, requests: Sequence[InferenceRequest], completion: Completion | None = None
    ) -> Sequence[bool | TritonError]:
        """Accept requests of the same moment; return for each what `submit` returned or raised."""
        found: list[bool | TritonError] = []
        for request in requests:
            try:
                found.append(self.submit(request, completion))
            except TritonError as error:
                found.append(error)
        return found

    @abstractmethod
    def _enter(self, request: InferenceRequest, completion: Completion | None) -> bool:
        """Schedule a request that the cache cannot answer; False if this version is drained."""

    def respond(self, request: InferenceRequest, response: Response | None, *, final: bool) -> None:
        """Deliver one response that a model has sent; see `RequestOwner.respond`."""
        request.start_response(final=final)
        self.deliver(request, response, final=final)

    def deliver(
        self,
        request: InferenceRequest,
        response: Response | None,
        *,
        final: bool,
        completion: Completion | None = None,
    ) -> None:
        """Pass on a response whose right to be sent is settled."""
        if self.signature.reshaped_outputs and response is not None and response.outputs:
            try:
                outputs = self.signature.reshape_outputs(response.outputs)
                response = Response(outputs, response.error, response.parameters)
            except Exception as error:  # such as a device's
                _log.exception("reshaping the outputs of '%s'", self.name)
                response = Response(error=InternalError(f"{type(error).__name__}: {error}"))
        if request.cache_key and response is not None:
            self._keep(request, response)
        request.deliver(response, final=final, completion=completion)

    def _answer_from_cache(
        self, cache: ResponseCache, request: InferenceRequest, completion: Completion | None
    ) -> bool:
        """Answer from the cache if it can: before the queue, without an execution (K3)."""
        start = now_ns()
        key = cache.key(self.name, self.version, request.inputs, request.requested_outputs)
        outputs = cache.look_up(key)
        now = now_ns()
        if outputs is None:
            request.cache_key = key
            request.lookup_ns = now - start
            return False
        if self.history is not None:
            self.history.advance(now)
        self.statistics.record_cache_hit(
            now - request.start_ns, start - request.start_ns, now - start
        )
        self._join_order(request)
        request.outcome = "cache_hit"
        if request.try_finish():
            self.deliver(request, Response(outputs), final=True, completion=completion)
        return True

    def refuse_new(self, request: InferenceRequest, error: TritonError) -> None:
        """Answer a request that was not submitted yet, as a full queue does (Q4)."""
        self._join_order(request)
        request.outcome = "queue_full"
        error.accepted = False
        request.fail(error)

    def _join_order(self, request: InferenceRequest) -> None:
        """Enter a request that no instance executes into the order of responses, if preserved."""

    def _keep(self, request: InferenceRequest, response: Response) -> None:
        assert self.cache is not None
        start = now_ns()
        if response.error is None:
            # Inserted by a faster twin: neither a hit nor a miss (K4), except for an ensemble.
            try:
                missed = self.cache.insert(request.cache_key, response.outputs) or self.counts_twins
            except Exception:  # such as no memory left on a device: it is answered nevertheless
                _log.exception("a response of '%s' is not cached", self.name)
                missed = True
        else:  # never inserted; an execution's error counts as a miss nevertheless
            missed = request.execution is not None
        if missed:
            self.statistics.record_cache_miss(request.lookup_ns + now_ns() - start)

    def acquire(self) -> bool:
        """Keep this version for later requests (E17); False if it is being unloaded."""
        with self._holding:
            if self._unpublished:
                return False
            self._holds += 1
            return True

    def release(self) -> None:
        """Undo one `acquire`."""
        with self._holding:
            self._holds -= 1
            last = self._unpublished and not self._holds
        if last:
            self.drain()

    def unpublish(self) -> None:
        """Drain this version, which is published no longer, once it has no more holders."""
        with self._holding:
            self._unpublished = True
            free = not self._holds
        if free:
            self.drain()

    def record_in(self, history: ModelHistory) -> None:
        """Record from now on what happens to this version."""
        history.attach(self.statistics, self.meters, summary_of(self.config))
        self.history = history

    def end_record(self) -> None:
        """Leave the counts to the history: nothing more happens to this version."""
        if self.history is not None:
            self.history.detach(self.statistics)

    def meters(self) -> list[Meter]:
        """Return the busy times of the instances, if it has any."""
        return []

    @abstractmethod
    def drain(self) -> None:
        """Accept no more requests; finish the accepted ones, then release everything."""

    @abstractmethod
    def fail_pending(self, reason: str) -> None:
        """Answer everything that waits with UNAVAILABLE: the server is stopping."""

    def log_unloaded(self) -> None:
        """Log that the version is unloaded."""
        _log.info("successfully unloaded '%s' version %d", self.name, self.version)

    @abstractmethod
    def fail_running(self, reason: str) -> None:
        """Answer everything that runs with UNAVAILABLE; later responses of models are dropped."""

    @abstractmethod
    def wait_drained(self, timeout_s: float | None) -> bool:
        """Wait until nothing of this version is left; False if time ran out."""

    @abstractmethod
    def in_flight(self) -> int:
        """Return the number of accepted requests that have not ended, or of open sequences."""

    @abstractmethod
    def requests_inside(self) -> list[InferenceRequest]:
        """Return the accepted requests that are not answered yet."""

    @abstractmethod
    def snapshot(self, state: str, reason: str) -> ModelSnapshot:
        """Return the state of this version now."""

    def _snapshot(
        self,
        state: str,
        reason: str,
        platform: str,
        queued: int,
        executing: int,
        instances: tuple[InstanceSnapshot, ...] = (),
    ) -> ModelSnapshot:
        """Return a snapshot with what the statistics count."""
        statistics = self.statistics
        counts, ns = statistics.counts, statistics.ns  # each adds up what was noted
        return ModelSnapshot(
            self.name, self.version, state, reason, platform, self.signature.max_batch_size,
            queued, executing, instances,
            statistics.inference_count, statistics.execution_count, counts["success"],
            counts["fail"], ns["success"], ns["queue"],
            ns["compute_input"], ns["compute_infer"], ns["compute_output"],
            statistics.sizes(),
        )  # fmt: skip


def summary_of(config: ModelConfig) -> str:
    """Return what matters for scheduling in a configuration, in a few words."""
    if config.HasField("ensemble_scheduling"):
        return f"an ensemble of {len(config.ensemble_scheduling.step)} steps"
    instances = sum(max(1, group.count) for group in config.instance_group if not group.passive)
    parts = [f"{instances} instance{'s' * (instances != 1)}"]
    parts.append(f"max_batch_size {config.max_batch_size}")
    if config.HasField("dynamic_batching"):
        batching = config.dynamic_batching
        parts.append("dynamic batching")
        if batching.preferred_batch_size:
            parts.append(f"preferred {', '.join(map(str, batching.preferred_batch_size))}")
        parts.append(f"delay {batching.max_queue_delay_microseconds} us")
    elif config.HasField("sequence_batching"):
        parts.append("sequence batching")
    return ", ".join(parts)
