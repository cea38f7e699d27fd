"""A model version with instances: the owner of its batcher and the books around it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from nbtriton.backends.base import Backend, InstanceContext, ModelContext, Response
from nbtriton.config import InstancePlan, ModelConfig
from nbtriton.engine.clock import SchedulerThread
from nbtriton.engine.instance import Instance
from nbtriton.engine.request import InferenceRequest
from nbtriton.engine.runtime import Runtime, inline_runs
from nbtriton.engine.settings import batcher_settings
from nbtriton.engine.snapshot import BatchRecord, ModelSnapshot
from nbtriton.errors import EngineStoppedError, TritonError, error_from_status
from nbtriton.scheduling import Batcher, Decision, Drop, ResponseOrder, Run

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ModelRuntime"]

# Some 5 minutes of a busy model at 10 batches a second, or half a second of an idle loop at full
# speed: enough for a view or for asking why; 4096 records are about 1 MB.
_RECENT_BATCHES = 4096


class ModelRuntime(Runtime):
    """One version of a model that a backend runs.

    The batcher has one owner at a time, and no thread ever waits for it: whoever brings a fact
    puts it into the inbox and, if nobody is at work there, works the inbox off. Model code always
    runs outside.

    Parameters
    ----------
    context : ModelContext
        With the completed configuration.
    backend : Backend
        Opened for this version.
    plans : sequence of InstancePlan
    clock : SchedulerThread
    """

    def __init__(
        self,
        context: ModelContext,
        backend: Backend,
        plans: Sequence[InstancePlan],
        clock: SchedulerThread,
    ) -> None:
        super().__init__(context.config, context.version)
        self.source = context.source
        self.example = context.example
        self.context = context
        self._backend = backend
        self._clock = clock
        active = [plan for plan in plans if not plan.passive]
        self._instances = [
            Instance(
                self, backend, InstanceContext(context, plan.name, plan.kind, plan.device_id), index
            )
            for index, plan in enumerate(active)
        ]
        self._batcher = Batcher(batcher_settings(context.config), len(active))
        self._inbox: deque[tuple[Callable[..., list[Any]], Any]] = deque()
        self._owner = threading.Lock()
        self._woken_at: int | None = None
        self._accepted = 0  # submitted and not yet finished; owned like the batcher
        self._ending = False
        self._retiring = False
        self._retired = threading.Event()
        self._order: ResponseOrder[tuple[InferenceRequest, Response | None, bool]] | None = None
        self._order_lock = threading.Lock()
        if context.config.dynamic_batching.preserve_ordering:
            self._order = ResponseOrder()
        self._recent: deque[BatchRecord] = deque(maxlen=_RECENT_BATCHES)

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Create all instances, each on its own thread; undo everything if one fails.

        Raises
        ------
        BaseException
            What the first failing instance raised, or KeyboardInterrupt.
        """
        for instance in self._instances:
            instance.start()
        try:
            errors = [instance.wait_created() for instance in self._instances]
        except BaseException:
            self.retire()
            raise
        first = next((error for error in errors if error is not None), None)
        if first is not None:
            self._end()
            raise first

    def retire(self) -> None:
        """Take no more requests; finish the accepted ones, then finalize on a thread of its own."""
        self._post(self._on_retire, None)

    def wait_retired(self, timeout_s: float | None) -> bool:
        """Wait until the instances are finalized; False if time ran out."""
        return self._retired.wait(timeout_s)

    def abandon(self, reason: str) -> None:
        """Answer everything that waits with UNAVAILABLE."""
        self._post(self._on_abandon, reason)

    def _end(self) -> None:
        for instance in self._instances:
            instance.stop()
        for instance in self._instances:
            instance.join()
        self._backend.close()
        self._retired.set()

    # -- facts -----------------------------------------------------------------------------------

    def submit(self, request: InferenceRequest) -> bool:
        """Accept an admitted request; False if this version is retired."""
        if self._retiring:
            return False
        self._post(self._on_submit, request)
        return True

    def cancel(self, request: InferenceRequest) -> None:
        """The caller gave the request up."""
        self._post(self._on_cancel, request)

    def finished(self, instance: int, requests: Sequence[InferenceRequest]) -> None:
        """An instance is idle again."""
        self._post(self._on_finish, (instance, len(requests)))

    def record(self, record: BatchRecord) -> None:
        """Keep one execution for the views."""
        self._recent.append(record)

    def batches(self) -> tuple[BatchRecord, ...]:
        """Return the recent executions, oldest first."""
        while True:
            try:
                return tuple(self._recent)
            except RuntimeError:  # an instance appended while we walked: walk again
                continue

    # -- the owner -------------------------------------------------------------------------------

    def _post(self, verb: Callable[..., list[Any]], fact: object) -> None:
        """Bring a fact; work the inbox off unless somebody is doing so already."""
        self._inbox.append((verb, fact))
        # Checked again after letting go: a fact that came in between must not be left lying.
        while self._inbox and self._owner.acquire(blocking=False):
            decisions: list[Decision] = []
            try:
                while self._inbox:
                    try:
                        verb, fact = self._inbox.popleft()
                    except IndexError:
                        break
                    decisions += verb(fact)
                wake = self._batcher.wake_at()
                if wake is not None and (self._woken_at is None or wake < self._woken_at):
                    self._woken_at = wake
                    self._clock.call_at(wake, self._wake)
            finally:
                self._owner.release()
            for decision in decisions:
                self._carry_out(decision)

    def _on_submit(self, request: InferenceRequest) -> list[Decision]:
        if self._retiring:
            return [
                Drop(
                    request, "UNAVAILABLE",
                    "Server is stopping, scheduler for model has stopped accepting new "
                    "inference requests", "cancelled",
                )
            ]  # fmt: skip
        self._accepted += 1
        if self._order is not None:
            with self._order_lock:
                self._order.accept(request.number)
        return self._batcher.submit(monotonic_ns(), request)

    def _on_finish(self, fact: tuple[int, int]) -> list[Decision]:
        instance, requests = fact
        if not self.interface.decoupled:
            self._accepted -= requests
        decisions = self._batcher.finish(monotonic_ns(), instance)
        self._maybe_end()
        return decisions

    def _on_cancel(self, request: InferenceRequest) -> list[Decision]:
        return self._batcher.cancel(monotonic_ns(), request)

    def _on_wake(self, _: None) -> list[Decision]:
        self._woken_at = None
        return self._batcher.tick(monotonic_ns())

    def _on_retire(self, _: None) -> list[Decision]:
        self._retiring = True
        self._maybe_end()
        return []

    def _on_abandon(self, reason: str) -> list[Drop]:
        return self._batcher.clear("UNAVAILABLE", reason)

    def _wake(self) -> None:
        self._post(self._on_wake, None)

    def _maybe_end(self) -> None:
        if self._retiring and self._accepted == 0 and not self._ending:
            self._ending = True
            # Not here: the last batch may have run on the very thread that is to be joined.
            threading.Thread(target=self._end, name=f"nbtriton-end-{self.name}", daemon=True).start()

    # -- decisions -------------------------------------------------------------------------------

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, Drop):
            self._drop(decision)
            return
        instance = self._instances[decision.instance]
        inline = inline_runs
        if (
            inline.root is not None
            and inline.batch is None
            and len(decision.tickets) == 1
            and instance.any_thread
            and decision.tickets[0].root is inline.root  # type: ignore[attr-defined]
        ):
            inline.batch = (instance, decision)
        else:
            instance.put(decision)

    def _drop(self, drop: Drop) -> None:
        request: InferenceRequest = drop.ticket  # type: ignore[assignment]
        error: TritonError
        if drop.reason == "cancelled" and drop.status == "UNAVAILABLE":
            error = EngineStoppedError(drop.message)
        else:
            message = drop.message
            if drop.reason == "queue_full":
                message = f"[request id: {request.request_id or '<id_unknown>'}] {message}"
            error = error_from_status(drop.status, message)
            # A full queue refuses the request; the others were accepted and failed (Q4, Q7, X2).
            if drop.reason != "queue_full":
                self.statistics.failure(1, monotonic_ns() - request.start_ns)
        request.fail(error)
        if not self.interface.decoupled:
            self._post(self._on_closed, None)

    def _on_closed(self, _: None) -> list[Decision]:
        self._accepted -= 1
        self._maybe_end()
        return []

    # -- responses -------------------------------------------------------------------------------

    def deliver(
        self, request: InferenceRequest, response: Response | None, *, final: bool
    ) -> None:
        """Pass on a response, in the order of the requests if the model preserves it."""
        if self._order is None:
            request.deliver(response, final=final)
        else:
            with self._order_lock:
                ready = self._order.respond(
                    request.number, (request, response, final), final=final
                )
            for held, held_response, held_final in ready:
                held.deliver(held_response, final=held_final)
        # A decoupled request lives until its final response, however long after execute.
        if final and self.interface.decoupled:
            self._post(self._on_closed, None)

    # -- what can be seen ------------------------------------------------------------------------

    def snapshot(self, state: str, reason: str) -> ModelSnapshot:
        """Return what can be seen of this version now."""
        books = self.statistics
        instances = tuple(instance.snapshot() for instance in self._instances)
        waiting = self._batcher.waiting
        return ModelSnapshot(
            self.name, self.version, state, reason, self._backend.platform or self._backend.name,
            self.interface.max_batch_size, waiting, max(0, self._accepted - waiting), instances,
            books.inference_count, books.execution_count, books.counts["success"],
            books.counts["fail"], books.ns["success"], books.ns["queue"],
            books.ns["compute_input"], books.ns["compute_infer"], books.ns["compute_output"],
            books.sizes(),
        )  # fmt: skip
