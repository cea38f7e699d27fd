"""A model version with instances, and the owner of its batcher.

Theory of operation
-------------------
The batcher (`nbtriton.scheduling`) is a pure state machine: it may be touched by one thread at a time, and it never
waits. Everybody who knows something posts an event (`EventKind`): a request came, an instance is idle, a caller
cancelled, a timer is due, the instances change, the version is drained. `_post` hands the event to the batcher at
once where no other thread owns it; otherwise the event stays in the `Mailbox`, and the owner finds it before it is
done. So no thread waits for another one to decide, and events are decided one at a time, in order.

`_process` is the heart, in two halves:

- *As the owner.* Handle the event and all that came meanwhile; note the depth of the queue; enter the batches into
  the order of responses (D12); ask for a wake-up. Nothing here runs a model, a callback or a wait (a custom
  batching strategy is the exception: it is a user's, and keeps the batcher for as long as it takes).
- *After the release*, once nothing is left in the mailbox. Apply the decisions, each of which has an instance or a
  ticket: give a batch to its instance, answer a refused request, retire an instance. Two threads may apply theirs at
  the same time. What depends on the order of decisions is therefore done in the first half.

A batch that runs ends with `free`: the event IDLE, whose decision may be the next batch for that instance. Where
the thread that submits is one that waits for the answer, it has an `InlineCompletion`, and `_apply` lets it take
the batch itself instead of waking the instance's thread: an idle model answers without a change of threads.

Counting what is inside is on the way of every request, so it takes no lock. Who accepts or ends requests appends a
number to a list (`InFlight.changes`), which is atomic with and without a GIL; the owner adds the numbers up. A
request that its model answers after `execute` has returned is kept in `InFlight.late` until then.

The end is an event too. DRAIN closes the mailbox behind itself: no request can slip in that would be left without
an instance. From then on each end posts ENDED, and the first that finds nothing inside starts the `Finalizer`, on a
thread of its own, because the last batch may have run on the very thread that has to be joined.

What does not work
------------------
- *A lock around the batcher.* Who holds it applies decisions, a refusal calls a caller's callback, and that may
  submit to this very model. With the lock held this waits for ever; a reentrant one lets the batcher be entered in
  the midst of a decision.
- *Applying decisions as the owner.* The callback's own request would then lie in the mailbox until the callback
  returns; one that waits for its answer never does.
- *A thread that decides for all.* It is simplest, and costs two changes of threads for each request.
- *Looking at the queue from outside.* The tickets move while they are listed. `requests_inside` asks the owner by
  an event (LOOK) instead, and gives up after `_LOOK_S`.
- *Withdrawing a timer.* It may be firing already. A wake-up that is no longer needed is an event like others, on
  which the batcher decides nothing.
- *Leaving cancelled steps to the queue.* A step of a cancelled request that finds an instance idle would run at
  once, and no queue would look at it: it comes as SUBMIT_CANCELLED (X6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final

from nbtriton.backends.base import Backend, ModelContext, Response
from nbtriton.common.errors import (
    EngineStoppedError,
    RequestTimeoutError,
    TritonError,
    error_from_status,
)
from nbtriton.model.config import InstancePlan, ModelConfig
from nbtriton.model.tensors import read_only
from nbtriton.runtime.engine.core.custom_batching import CustomBatching
from nbtriton.runtime.engine.core.execution import Completion, InlineCompletion, now_ns
from nbtriton.runtime.engine.core.history import Meter
from nbtriton.runtime.engine.core.instance import Instance, lost_text
from nbtriton.runtime.engine.core.instance_set import (
    InstanceSet,
    InstanceUpdate,
    Limiter,
    UpdatableRuntime,
)
from nbtriton.runtime.engine.core.request import InferenceRequest
from nbtriton.runtime.engine.core.responding import InOrder
from nbtriton.runtime.engine.core.runtime import EventKind, Mailbox, summary_of
from nbtriton.runtime.engine.core.scheduler_settings import (
    batcher_settings,
    preserves_order,
    sequence_settings,
)
from nbtriton.runtime.engine.core.sequence_tensors import SequenceTensors
from nbtriton.runtime.engine.core.snapshot import ModelSnapshot
from nbtriton.runtime.engine.core.threads import Finalizer, SchedulerThread
from nbtriton.runtime.engine.diagnostics.deadlocks import Blockers
from nbtriton.runtime.engine.diagnostics.interpreter import InterpreterProbe
from nbtriton.runtime.interrupts import interrupts_allowed, interrupts_deferred
from nbtriton.scheduling import (
    Batcher,
    Decision,
    RejectTicket,
    RetireInstance,
    ReturnResources,
    RunBatch,
    SequenceBatcher,
    StageInstance,
    SuspendInstance,
)

# Changes are summed up beyond this number.
MANY_CHANGES: Final = 200


class InFlight:
    """Counts requests, and keeps those that their model answers after its execution has ended.

    `sum_up` and `is_empty` are for the thread that owns the batcher; any thread may do the rest.

    Attributes
    ----------
    changes : list of int
        How many requests were accepted (more than 0) or have ended (less). Adding to a list is atomic with
        and without a GIL.
    late : set of InferenceRequest
        Requests that the model answers later, from a thread of its own.
    """

    __slots__ = ("changes", "late")

    def __init__(self) -> None:
        self.changes: list[int] = []
        self.late: set[InferenceRequest] = set()

    def keep(self, request: InferenceRequest) -> None:
        """Keep a request without an answer, whose execution counts it as ended."""
        self.changes.append(1)
        self.late.add(request)

    def answered(self, request: InferenceRequest) -> bool:
        """Forget an answered request; True for the first call if it was kept."""
        try:
            self.late.remove(request)
        except KeyError:
            return False
        return True

    def sum_up(self) -> None:
        """Sum up the changes: into the first, in one go, as others count meanwhile."""
        noted = len(self.changes)
        self.changes[:noted] = [sum(self.changes[:noted])]

    def is_empty(self) -> bool:
        """Return whether all that were accepted have ended."""
        self.sum_up()
        return not self.changes[0]

    def count(self) -> int:
        """Return the number of requests."""
        return max(0, sum(self.changes))


# A custom batching strategy may keep the batcher for longer; waiting requests are then not seen.
_LOOK_S: Final = 0.2

# Why a request that no instance executed counts as failed (T8).
_FAILURES = {"timeout": "REJECTED", "cancelled": "CANCELED"}


class ModelRuntime(UpdatableRuntime):
    """One version of a model that a backend runs.

    The batcher has one owner at a time, and no thread waits for it: events go through a `Mailbox`.
    Model code always runs outside it.

    Parameters
    ----------
    context : ModelContext
        With the completed configuration.
    backend : Backend
        Opened for this version.
    plans : sequence of InstancePlan
    clock : SchedulerThread
    limiter : Limiter, optional
        Where the server limits rates.
    strategy : CustomBatching, optional
        Opened by `start`; closed when the version ends.
    """

    def __init__(
        self,
        context: ModelContext,
        backend: Backend,
        plans: Sequence[InstancePlan],
        clock: SchedulerThread,
        limiter: Limiter | None = None,
        strategy: CustomBatching | None = None,
    ) -> None:
        config = context.config
        super().__init__(config, context.version)
        self.source = context.source
        self.directory = context.model_directory
        self.example = context.example
        self.context = context
        self.backend = backend
        self._clock = clock
        self._limiter = limiter
        self._strategy = strategy
        # The argument of `Server.load`; kept when only the configuration is replaced.
        self.batching: object = None
        # Set by the load: the configuration before its completion, and the modification time of the source.
        self.given = ModelConfig()
        self.auto_complete = True
        self.mtime_ns = 0
        # The isolation that was asked for ("thread", "process" or "auto"), and whether the
        # instances wait for each other.
        self.isolation_asked = "thread"
        self.interpreter = InterpreterProbe()
        self._instances = InstanceSet(self, backend, context, plans, limiter)
        self.sequences = None
        self._batcher: Batcher | SequenceBatcher
        active, gated = len(self._instances.active), limiter is not None
        if config.HasField("sequence_batching"):
            self.sequences = SequenceTensors(config, context.model_directory)
            self._batcher = SequenceBatcher(sequence_settings(config), active, gated=gated)
        else:
            self._batcher = Batcher(
                batcher_settings(config), active, strategy,
                gated=gated, rank=self._rank if gated else None,
            )  # fmt: skip
        self._mailbox: Mailbox[tuple[int, Any]] = Mailbox()
        # Owned like the batcher.
        self._timers: list[int] = []  # that have not fired; the next one is the last
        self._in_flight = InFlight()
        self._draining = False
        self._finalizer = Finalizer(f"nbtriton-end-{self.name}", self._finalize)
        # Only if the order of responses is preserved.
        self._order: InOrder | None = None
        if preserves_order(config):
            self._order = InOrder(self._send, per_instance=config.HasField("sequence_batching"))
        # Responses go straight to the caller: they are not stored, reordered, reshaped or counted.
        self._plain = not (
            self.sequences
            or self._order
            or self.signature.decoupled
            or self.signature.reshaped_outputs
        )

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the custom batching, and create all instances, each on its own thread; undo everything if one fails.

        Raises
        ------
        BaseException
            The error of the custom batching or of the first failing instance, or KeyboardInterrupt.
        """
        try:
            if self._strategy is not None:
                interrupts_allowed(self._strategy.open, self.context)
            first = interrupts_allowed(self._instances.create)
        except BaseException:
            self.drain()
            raise
        if first is not None:
            self._finalizer.run()
            raise first

    def own_checks(self) -> Sequence[Callable[[], bool]]:
        """Return the readiness checks of the instances."""
        return self._instances.readiness_checks()

    def prepare_update(self, config: ModelConfig, plans: Sequence[InstancePlan]) -> InstanceUpdate:
        """Create the instances that a configuration needs in addition to those that can stay (L16).

        Nothing changes before `apply_update`. The caller applies or discards the update; after an error none is left.
        """
        return self._instances.prepare_update(config, plans)

    def is_current(self, update: InstanceUpdate) -> bool:
        return update.before is self._instances.plans and not self._mailbox.closed

    def apply_update(self, update: InstanceUpdate) -> None:
        self.config = update.config
        self._instances.plan_update(update)
        self._post(EventKind.UPDATE, update)
        if self.history is not None:
            self.history.changed(summary_of(update.config))

    def wait_updated(self) -> None:
        """Wait until the instances that updates have removed are finalized."""
        for instance in [*self._instances.leaving]:
            instance.join()

    def discard_update(self, update: InstanceUpdate) -> None:
        self._instances.discard(update.added.values())

    def drain(self) -> None:
        """Accept no more requests; finish the accepted ones, then finalize on a separate thread."""
        # No request can come after this event: it would be left without an instance.
        self._mailbox.close((EventKind.DRAIN, None))
        self._process_posted(None)

    def wait_drained(self, timeout_s: float | None) -> bool:
        """Wait until the instances are finalized; False if time ran out."""
        return self._finalizer.wait(timeout_s)

    @property
    def forms_own_batches(self) -> bool:
        """True if custom batching in Python decides which requests form a batch."""
        return self._strategy is not None

    @property
    def orders_inputs(self) -> bool:
        """True if only its instances read inputs, and wait for the events of the inputs' writers."""
        devices = self.context.devices
        return (
            self.cache is None
            and self.sequences is None
            and self._strategy is None
            and self.backend.isolation == "thread"
            and all(
                plan.kind == "KIND_GPU" and plan.device_id in devices
                for plan in self._instances.plans.values()
            )
        )

    @property
    def has_next(self) -> bool:
        """True if an instance that becomes free immediately gets a batch that no longer grows.

        Never with sequences: the state of a sequence has to be stored before its next request.
        """
        return isinstance(self._batcher, Batcher) and self._batcher.has_next

    def fail_pending(self, reason: str) -> None:
        """Answer all waiting requests with UNAVAILABLE."""
        self._post(EventKind.FAIL_PENDING, reason)

    def fail_running(self, reason: str) -> None:
        """Answer all that are left: they run, wait for resources, or are to run again."""
        for request in self.requests_inside():
            request.fail(EngineStoppedError(reason))
        self._instances.abandon()

    def _finalize(self) -> None:
        self._instances.end()
        self.end_record()
        if self._strategy is not None:
            self._strategy.close()
        self.backend.close()
        self.log_unloaded()

    # -- requests --------------------------------------------------------------------------------

    def _enter(self, request: InferenceRequest, completion: Completion | None) -> bool:
        if self.sequences is not None:
            self.sequences.check(self.name, request.correlation_id, request.log_prefix)
        if self._strategy is not None:  # the strategy reads requests; the model gets copies
            request.inputs = {name: read_only(array) for name, array in request.inputs.items()}
        kind = EventKind.SUBMIT
        if (
            request.parent is not None and request.is_cancelled()
        ):  # an idle instance would not look (X6)
            kind = EventKind.SUBMIT_CANCELLED
        return self._submit(kind, request, completion)

    def submit_many(
        self, requests: Sequence[InferenceRequest], completion: Completion | None = None
    ) -> Sequence[bool | TritonError]:
        """Accept requests of the same moment; see `Runtime.submit_many`."""
        if self.sequences is not None or self.cache is not None:
            return super().submit_many(requests, completion)
        for request in requests if self._strategy is not None else ():  # as in `_enter`
            request.inputs = {name: read_only(array) for name, array in request.inputs.items()}
        return [self._submit(EventKind.SUBMIT_MANY, requests, completion)] * len(requests)

    def _submit(self, kind: int, requests: object, completion: Completion | None) -> bool:
        """Accept new requests, unless this version is drained."""
        mailbox = self._mailbox
        if not mailbox.messages and mailbox.try_acquire():
            # Without the mailbox. Events posted now, DRAIN too, are handled behind these requests.
            if not mailbox.closed:
                self._process(kind, requests, completion)
                return True
            mailbox.release()
            accepted = False
        else:
            accepted = mailbox.post_if_open((kind, requests))
        if mailbox.messages:
            self._process_posted(completion)
        return accepted

    def blockers(self, request: InferenceRequest) -> Blockers:
        """Return the instance that executes a request, or all instances that could."""
        # A list first: it is made in one go, with and without a GIL, while instances come and go.
        instances = tuple(list(self._instances.active.values()))  # noqa: C414
        if request.executes:
            return Blockers(tuple([i for i in instances if request in i.running]))
        limiter = self._limiter
        if limiter is None:
            return Blockers(instances)
        found: list[Instance] = []
        for instance in instances:  # a staged one is idle until others release its resources
            others = [] if instance.busy else limiter.blocked_by(instance)
            found += others or [instance]
        return Blockers(tuple(found))

    def cancel(self, request: InferenceRequest) -> None:
        self._post(EventKind.CANCEL, request)
        self.backend.cancelled(request)

    def refuse(self, request: InferenceRequest, error: TritonError) -> None:
        if request.try_finish():
            self._post(EventKind.REFUSE, request)
            self.deliver(request, Response(error=error), final=True)

    def free(
        self,
        instance: Instance,
        requests: Sequence[InferenceRequest],
        completion: Completion | None,
    ) -> int:
        """Make an instance idle; return how many of the requests it has to execute again."""
        instance.running = ()
        instance.busy = False
        again: Sequence[InferenceRequest] = ()
        limiter = self._limiter
        ahead = False
        if limiter is not None:
            # If a batch has been formed, it competes for the resources again (R6).
            ahead = self._batcher.forms_ahead
            if not ahead:
                limiter.finished(instance)
        if self.sequences is None:
            self._post(EventKind.IDLE, instance.index, completion)
        else:
            again = [request for request in requests if request.pop_rescheduled()]
            if again:
                self.sequences.rescheduled(self.name, again)
            self._post(EventKind.IDLE_IN_SEQUENCE, (instance.index, requests, again), completion)
        if limiter is not None and ahead:
            limiter.finished(instance)
        return len(again)

    def tell(self, kind: int, instance: int) -> None:
        with interrupts_deferred():  # the main thread may come here from a model's code
            self._post(kind, instance)

    def suspend_later(self, instance: int) -> None:
        self._clock.call_at(now_ns(), partial(self._post, EventKind.SUSPEND, instance))

    def _rank(self, instance: int) -> int:
        assert self._limiter is not None
        return self._limiter.rank(self._instances.active[instance])

    def keep(self, request: InferenceRequest) -> None:
        self._in_flight.keep(request)
        if request.is_answered():  # answered in the meantime
            self._answered_late(request)

    def _answered_late(self, request: InferenceRequest) -> None:
        if self._in_flight.answered(request):
            self.record_ended(1)

    def record_ended(self, count: int) -> None:
        self._in_flight.changes.append(-count)
        if self._draining:
            self._post(EventKind.ENDED, None)

    def probe_interpreter(self, instance: Instance) -> int:
        """Sample the interpreter on the thread of an instance; see `InterpreterProbe.probe`."""
        others = [one for one in list(self._instances.active.values()) if one is not instance]
        return self.interpreter.probe(len([one for one in others if one.executing]))

    # -- events ----------------------------------------------------------------------------------

    def _post(self, kind: int, payload: object, completion: Completion | None = None) -> None:
        """Process an event, or leave it to the thread that owns the batcher."""
        mailbox = self._mailbox
        if mailbox.messages or not mailbox.try_acquire():
            mailbox.post((kind, payload))
            self._process_posted(completion)
        else:
            self._process(kind, payload, completion)

    def _process_posted(self, completion: Completion | None) -> None:
        """Process what was posted, unless another thread does so."""
        event = self._mailbox.acquire_next()
        if event is not None:
            self._process(event[0], event[1], completion)

    def _process(self, kind: int, payload: object, completion: Completion | None) -> None:
        """Process an event and all that are posted in the meantime; this thread owns the batcher."""
        mailbox = self._mailbox
        decisions: list[Decision] | None = None
        while True:
            try:
                now = now_ns()
                made = self._handle(now, kind, payload)
                while mailbox.messages and (event := mailbox.pop()) is not None:
                    now = now_ns()
                    made += self._handle(now, event[0], event[1])
                waiting = self._batcher.waiting
                if self.history is not None and waiting != self.history.depth:
                    self.history.note_depth(now, waiting)
                if self._order is not None:
                    self._order.line_up(made)
                if len(self._in_flight.changes) > MANY_CHANGES:
                    self._in_flight.sum_up()
                # Otherwise there is nothing to wake up for.
                if waiting or self.sequences is not None:
                    self._call_back_in_time()
            finally:
                mailbox.release()
            decisions = made if decisions is None else decisions + made
            # What came just before the release is decided too, and refusals come last: a callback may wait for others.
            if not mailbox.messages or (event := mailbox.acquire_next()) is None:
                break
            kind, payload = event
        refusals = False
        for decision in decisions:
            refusals = not self._apply(decision, completion) or refusals
        if refusals:
            for decision in decisions:
                if isinstance(decision, RejectTicket):
                    self._reject(decision, completion)

    def _call_back_in_time(self) -> None:
        """Set a timer for the batcher, unless another one comes before it."""
        wake = self._batcher.wake_at()
        if wake is None or (self._timers and self._timers[-1] <= wake):
            return
        if self._clock.call_at(wake, self._wake):
            self._timers.append(wake)

    def _handle(self, now: int, kind: int, payload: Any) -> list[Decision]:
        """Pass an event to the batcher; return its decisions."""
        batcher = self._batcher
        if kind == EventKind.SUBMIT:
            self._in_flight.changes.append(1)
            return batcher.submit(now, payload)
        if kind == EventKind.IDLE:
            assert isinstance(batcher, Batcher)
            return batcher.finish(now, payload)
        if kind == EventKind.SUBMIT_MANY:
            assert isinstance(batcher, Batcher)
            self._in_flight.changes.append(len(payload))
            return batcher.submit_many(now, payload)
        if kind == EventKind.IDLE_IN_SEQUENCE:
            assert isinstance(batcher, SequenceBatcher)
            return batcher.finish(now, *payload)
        if kind == EventKind.CANCEL:
            return batcher.cancel(now, payload)
        if kind == EventKind.GRANTED:
            return batcher.granted(now, payload)
        if kind == EventKind.REFUSE:
            return batcher.cancel(now, payload, formed=True)
        if kind == EventKind.WAKE:
            while self._timers and self._timers[-1] <= now:
                self._timers.pop()
            return batcher.tick(now)
        if kind == EventKind.UPDATE:
            return self._update(now, payload)
        if kind == EventKind.SUSPEND:
            return self._suspend(payload)
        if kind == EventKind.RESUME:
            return batcher.resume(now, payload)
        if kind == EventKind.GIVE_UP:
            return self._give_up()
        if kind == EventKind.LOOK:
            payload.put(batcher.tickets())
            return []
        if kind == EventKind.SUBMIT_CANCELLED:
            self._in_flight.changes.append(1)
            return batcher.submit_cancelled(now, payload)
        if kind == EventKind.FAIL_PENDING:
            return [*batcher.clear("UNAVAILABLE", payload)]
        # EventKind.DRAIN, or EventKind.ENDED after it
        self._draining = True
        if self._in_flight.is_empty():
            self._finalizer.start()
        return []

    def _join_order(self, request: InferenceRequest) -> None:
        if self._order is not None:
            self._order.accept(request)

    def _update(self, now: int, update: InstanceUpdate) -> list[Decision]:
        added, removed = self._instances.apply_update(update)
        decisions: list[Decision] = []
        for number in added:
            decisions += self._batcher.add_instance(now, number)
        for number in removed:
            decisions += self._batcher.remove_instance(now, number)
        for number, instance in self._instances.active.copy().items():  # one may retire meanwhile
            # An instance lost before it was added; and those that are down, now that others are not.
            if instance.recovery.wanted or (added and instance.recovery.down):
                decisions += self._suspend_now(number, instance)
        return decisions

    def _suspend(self, number: int) -> list[Decision]:
        """Suspend an instance unless it was removed, or has recovered, since this was posted."""
        instance = self._instances.active.get(number)
        if instance is None or not instance.recovery.wanted:
            return []
        return self._suspend_now(number, instance)

    def _suspend_now(self, number: int, instance: Instance) -> list[Decision]:
        batcher = self._batcher
        if isinstance(batcher, SequenceBatcher):
            return batcher.suspend(now_ns(), number, "INTERNAL", lost_text(instance.name))
        return batcher.suspend(now_ns(), number)

    def _give_up(self) -> list[Decision]:
        """Fail requests if no instance will recover; until then they go to the others."""
        active = self._instances.active.copy()
        if not all(instance.recovery.down for instance in active.values()):
            return []
        now = now_ns()
        return [decision for number in active for decision in self._batcher.resume(now, number)]

    def _wake(self) -> None:
        self._post(EventKind.WAKE, None)

    # -- decisions -------------------------------------------------------------------------------

    def _apply(self, decision: Decision, completion: Completion | None) -> bool:
        """Apply a decision; False for a refusal."""
        if isinstance(decision, RunBatch):
            instance = self._instances.active[decision.instance]
            if isinstance(completion, InlineCompletion) and len(decision.tickets) == 1:
                request: InferenceRequest = decision.tickets[0]  # type: ignore[assignment]
                if completion.accept(instance, decision, request.parent or request):
                    return True
            instance.put(decision)
        elif isinstance(decision, StageInstance):
            assert self._limiter is not None
            start = partial(self._post, EventKind.GRANTED, decision.instance)
            self._limiter.stage(self._instances.active[decision.instance], start)
        elif isinstance(decision, ReturnResources):
            assert self._limiter is not None
            holder = self._instances.active.get(decision.instance)
            if holder is not None:  # else another thread has removed it, with them
                self._limiter.finished(holder)
        elif isinstance(decision, RetireInstance):
            if self.history is not None:
                self.history.retire(self._instances.active[decision.instance].meter)
            self._instances.retire(decision.instance)
        elif isinstance(decision, SuspendInstance):
            lost = self._instances.active.get(decision.instance)
            if lost is not None:  # else another thread has removed it since the decision
                lost.recover()
        else:
            return False
        return True

    def _reject(self, decision: RejectTicket, completion: Completion | None) -> None:
        request: InferenceRequest = decision.ticket  # type: ignore[assignment]
        request.outcome = decision.reason
        if decision.reason == "cancelled":
            request.outcome = request.root.cancelled or request.cancelled or decision.reason
        error: TritonError
        if decision.reason == "stopped":
            error = EngineStoppedError(decision.message)
        else:
            message = decision.message
            if decision.reason in ("queue_full", "custom_batching_refused"):
                message = request.log_prefix + message
            if decision.reason == "timeout":
                error = RequestTimeoutError(message)
            else:
                error = error_from_status(decision.status, message)
            # Refused, not accepted: neither counts. The others failed (Q4, Q7, X2).
            if decision.reason in ("queue_full", "sequence_rule"):
                error.accepted = request.parent is not None
            else:
                self.statistics.record_failure(
                    1, now_ns() - request.start_ns, _FAILURES.get(decision.reason, "OTHER")
                )
        request.fail(error, completion)
        self.record_ended(1)

    # -- responses -------------------------------------------------------------------------------

    def deliver(
        self,
        request: InferenceRequest,
        response: Response | None,
        *,
        final: bool,
        completion: Completion | None = None,
    ) -> None:
        """Pass on a response, in the order of the requests if the model preserves it."""
        if self._plain and not request.cache_key and not self._in_flight.late:
            request.deliver(response, final=final, completion=completion)
            return
        if self.sequences is not None:
            response = self.sequences.keep(request, response, final=final)
        if self._order is None:
            super().deliver(request, response, final=final, completion=completion)
        else:
            self._order.respond(request, response, final=final, completion=completion)
        if final and self._in_flight.late:
            self._answered_late(request)

    def _send(
        self,
        request: InferenceRequest,
        response: Response | None,
        final: bool,
        completion: Completion | None,
    ) -> None:
        super().deliver(request, response, final=final, completion=completion)

    # -- inspection ------------------------------------------------------------------------------

    def in_flight(self) -> int:
        found = self._in_flight.count()
        batcher = self._batcher
        return max(found, batcher.live) if isinstance(batcher, SequenceBatcher) else found

    def requests_inside(self) -> list[InferenceRequest]:
        """Return the accepted requests that are not answered yet; each is seen once, though they keep moving."""
        # The answer of the thread that owns the batcher: which requests are waiting.
        look: SimpleQueue[list[InferenceRequest]] = SimpleQueue()
        found = dict.fromkeys(self._instances.running())  # also before: it may have to run again
        with interrupts_deferred():
            self._post(EventKind.LOOK, look)
        waiting: list[InferenceRequest] = []
        with suppress(Empty):
            waiting = look.get(timeout=_LOOK_S)
        # In this order: an execution that ends meanwhile keeps its requests for later before it lets go of them.
        found |= dict.fromkeys([*waiting, *self._instances.running(), *self._in_flight.late])
        return [request for request in found if not request.is_answered()]

    def instances(self) -> list[Instance]:
        """Return the instances that execute batches now."""
        return list(self._instances.active.values())

    def meters(self) -> list[Meter]:
        """Return the busy times of the instances."""
        return [instance.meter for instance in self._instances.all().values()]

    def snapshot(self, state: str, reason: str) -> ModelSnapshot:
        """Return the state of this version now."""
        instances = tuple(instance.snapshot() for instance in self._instances.all().values())
        waiting = self._batcher.waiting
        executing = max(0, self._in_flight.count() - waiting)
        platform = self.backend.platform or self.backend.name
        found = self._snapshot(state, reason, platform, waiting, executing, instances)
        return replace(
            found, isolation=self.backend.isolation, interpreter=self.interpreter.result()
        )
