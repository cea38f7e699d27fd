"""A model version with instances: the owner of its batcher and the books around it."""

from __future__ import annotations

import itertools
import threading
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from nbtriton.backends.base import Backend, InstanceContext, ModelContext, Response
from nbtriton.config import InstancePlan, ModelConfig
from nbtriton.engine.core import events as facts
from nbtriton.engine.core.custom_batching import CustomBatching
from nbtriton.engine.core.instance import Instance
from nbtriton.engine.core.instance_update import InstanceUpdate, match_instances
from nbtriton.engine.core.limiter import Limiter
from nbtriton.engine.core.now import now_ns
from nbtriton.engine.core.request import InferenceRequest
from nbtriton.engine.core.response_order import InOrder
from nbtriton.engine.core.runtime import Runtime
from nbtriton.engine.core.scheduler_settings import batcher_settings, sequence_settings
from nbtriton.engine.core.scheduler_thread import SchedulerThread
from nbtriton.engine.core.sequence_tensors import SequenceTensors
from nbtriton.engine.core.snapshot import BatchRecord, ModelSnapshot
from nbtriton.engine.diagnostics.deadlocks import waits
from nbtriton.engine.interrupts import interrupts_deferred, wait_in_slices
from nbtriton.errors import EngineStoppedError, TritonError, error_from_status
from nbtriton.scheduling import (
    Batcher,
    Decision,
    RejectTicket,
    RetireInstance,
    ReturnResources,
    RunBatch,
    SequenceBatcher,
    StageInstance,
    TicketState,
)
from nbtriton.tensors import read_only

__all__ = ["ModelRuntime"]

# Final: rule 13 of docs/compiled.md.
_ident: Final = get_ident
_waiting: Final = waits.waiting

# So many ends of requests are noted at most until they are added up.
_NOTED: Final = 100
# Why a request that no instance ran counts as failed (T8).
_FAILURES = {"timeout": "REJECTED", "cancelled": "CANCELED"}


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
    limiter : Limiter, optional
        Where the server limits rates.
    strategy : CustomBatching, optional
        Closed at the end; opened by whoever starts this runtime.
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
        super().__init__(context.config, context.version)
        self.source = context.source
        self.directory = context.model_directory
        self.example = context.example
        self.context = context
        self.backend = backend
        self._clock = clock
        self._limiter = limiter
        self._strategy = strategy
        # What the caller of `Server.load` gave; kept when only the configuration is replaced.
        self.batching: object = None
        # Set by whoever made this version: the configuration before its completion, and how old
        # the source was then.
        self.given = ModelConfig()
        self.auto_complete = True
        self.mtime_ns = 0
        # By number: those that run batches first, as the batcher numbers them from 0.
        self._numbers = itertools.count()
        self._plans = self._numbered(sorted(plans, key=lambda plan: plan.passive))
        self._instances = self._new_instances(self._plans, passive=False)
        # Loaded, never scheduled (P7).
        self._passive = self._new_instances(self._plans, passive=True)
        self._gone: list[Instance] = []  # removed ones whose threads may still run
        active = len(self._instances)
        self.sequences: SequenceTensors | None = None
        self._batcher: Batcher | SequenceBatcher
        if context.config.HasField("sequence_batching"):
            self.sequences = SequenceTensors(context.config, context.model_directory)
            self._batcher = SequenceBatcher(
                sequence_settings(context.config), active, gated=limiter is not None
            )
        else:
            self._batcher = Batcher(
                batcher_settings(context.config), active, strategy,
                gated=limiter is not None, rank=None if limiter is None else self._rank,
            )  # fmt: skip
        self._inbox: deque[tuple[int, Any]] = deque()
        # Whoever pops the item owns the batcher until it is put back: atomic with and without a
        # GIL, and a third of what a lock costs.
        self._owner = [None]
        self._woken_at: int | None = None
        # Requests that were submitted, and those of them that are over: owned like the batcher, but
        # that any thread may note how many more are over (adding to a list is atomic with and
        # without a GIL).
        self._taken = 0
        self._over = 0
        self._ended: list[int] = []
        self._ender: threading.Thread | None = None
        self._ends_here = False  # whoever waits for the end does what the thread could not
        # Requests that the model answers when its execution is over, from a thread of its own.
        self._late: set[InferenceRequest] = set()
        self._retiring = False
        self._shut = False
        self._door = threading.Lock()
        self._retired = threading.Event()
        # Where the order of responses is preserved.
        self._order: InOrder | None = None
        batching = context.config
        if (
            batching.dynamic_batching.preserve_ordering
            or batching.sequence_batching.oldest.preserve_ordering
        ):
            self._order = InOrder(self._send, per_instance=batching.HasField("sequence_batching"))
        # Answers go straight to who asked: nothing is kept, put in order, given a shape or counted.
        self._plain = not (
            self.sequences
            or self._order
            or self.signature.decoupled
            or self.signature.reshaped_outputs
        )

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Create all instances, each on its own thread; undo everything if one fails.

        Raises
        ------
        BaseException
            What the first failing instance raised, or KeyboardInterrupt.
        """
        try:
            first = self._bring_up(self.config, self._plans, self._everyone())
        except BaseException:
            self.drain()
            raise
        if first is not None:
            self._end()
            raise first

    def _numbered(self, plans: Iterable[InstancePlan]) -> dict[int, InstancePlan]:
        return {next(self._numbers): plan for plan in plans}

    def _new_instances(
        self, plans: Mapping[int, InstancePlan], *, passive: bool
    ) -> dict[int, Instance]:
        return {
            number: Instance(
                self,
                self.backend,
                InstanceContext(self.context, plan.name, plan.kind, plan.device_id),
                number,
            )
            for number, plan in plans.items()
            if plan.passive is passive
        }

    def _bring_up(
        self,
        config: ModelConfig,
        plans: Mapping[int, InstancePlan],
        instances: Mapping[int, Instance],
    ) -> BaseException | None:
        """Create instances, side by side; return what was wrong first."""
        with interrupts_deferred():  # a thread that is half started could not be ended
            for instance in instances.values():
                instance.start()
        errors = [instance.wait_created() for instance in instances.values()]
        first = next((error for error in errors if error is not None), None)
        if first is None and self._limiter is not None:
            active = [number for number, plan in plans.items() if not plan.passive]
            try:
                self._limiter.add(
                    config, [plans[n] for n in active], [instances[n] for n in active]
                )
            except TritonError as error:
                return error
        return first

    def own_checks(self) -> Sequence[Callable[[], bool]]:
        """Return what asks the instances."""
        checks = [instance.readiness for instance in [*self._instances.values()]]
        return [check for check in checks if check is not None]

    def _everyone(self) -> dict[int, Instance]:
        return {**self._instances, **self._passive}

    def prepare_update(self, config: ModelConfig, plans: Sequence[InstancePlan]) -> InstanceUpdate:
        """Create the instances that a configuration asks for beside those that can stay (L16).

        Nothing that serves changes before `apply_update`. Whoever prepares applies or discards.

        Raises
        ------
        BaseException
            What the first failing instance raised, or KeyboardInterrupt; nothing is left of any.
        """
        before = self._plans
        wanted, removed = match_instances(before, plans)
        fresh = self._numbered(wanted)
        added = self._new_instances(fresh, passive=False) | self._new_instances(fresh, passive=True)
        update = InstanceUpdate(self, before, config, added, fresh, removed)
        try:
            first = self._bring_up(config, fresh, added)
        except BaseException:
            self.discard_update(update)
            raise
        if first is not None:
            self.discard_update(update)
            for instance in added.values():
                instance.join()
            raise first
        return update

    def is_current(self, update: InstanceUpdate) -> bool:
        """Return True if nothing has come between the update's preparation and now."""
        return update.before is self._plans and not self._shut

    def apply_update(self, update: InstanceUpdate) -> None:
        """Put a current update in force; instances that are removed finish what they have."""
        self.config = update.config
        removed = set(update.removed)
        kept = {number: plan for number, plan in update.before.items() if number not in removed}
        self._plans = {**kept, **update.plans}
        self._post(facts.UPDATE, update)

    def discard_update(self, update: InstanceUpdate) -> None:
        """End the instances that were made for an update."""
        self._let_go(update.added.values())

    def _let_go(self, instances: Collection[Instance]) -> None:
        for instance in instances:
            instance.stop()
        if self._limiter is not None:
            self._limiter.remove([*instances])
        self._gone = [one for one in self._gone if not one.join(0)] + [*instances]

    def drain(self) -> None:
        """Take no more requests; finish the accepted ones, then finalize on a thread of its own."""
        # No request can slip in behind this fact: it would be left without an instance.
        with self._door:
            self._shut = True
            self._inbox.append((facts.RETIRE, None))
        self._work()

    def wait_drained(self, timeout_s: float | None) -> bool:
        """Wait until the instances are finalized; False if time ran out."""
        if self._ends_here:
            self._ends_here = False
            self._end()
        done = wait_in_slices(self._retired.wait, timeout_s)
        if done and self._ender is not None and self._ender.ident is not None:
            self._ender.join()  # it has nothing to do any more: no thread is left behind
        return done

    @property
    def forms_own_batches(self) -> bool:
        """True if custom batching, in Python, decides what a batch is."""
        return self._strategy is not None

    @property
    def has_next(self) -> bool:
        """True if an instance that becomes free gets a batch at once that grows no more.

        Never where it must be known first how the last batch was answered: a sequence's state has
        to be kept before the sequence goes on.
        """
        return isinstance(self._batcher, Batcher) and self._batcher.has_next

    def served(self) -> object:
        """Return what the instances run; see `Backend.served`."""
        return self.backend.served(self.context)

    def fail_pending(self, reason: str) -> None:
        """Answer everything that waits with UNAVAILABLE."""
        self._post(facts.ABANDON, reason)

    def fail_running(self, reason: str) -> None:
        """Answer everything that still runs."""
        running = list(self._late)
        for instance in list(self._everyone().values()):
            running += instance.running
        for request in running:
            request.fail(EngineStoppedError(reason))

    def _end(self) -> None:
        everyone = [*self._everyone().values(), *self._gone]
        for instance in everyone:
            instance.stop()
        for instance in everyone:
            instance.join()
        if self._limiter is not None:
            self._limiter.remove(everyone)
        if self._strategy is not None:
            self._strategy.close()
        self.backend.close()
        self.log_unloaded()
        self._retired.set()

    # -- facts -----------------------------------------------------------------------------------

    def _enter(self, request: InferenceRequest) -> bool:
        if self.sequences is not None:
            self.sequences.check(self.name, request.correlation_id, request.log_prefix)
        if self._strategy is not None:  # it looks at requests, and the model gets copies
            request.inputs = {name: read_only(array) for name, array in request.inputs.items()}
        return self._bring(facts.SUBMIT, request)

    def submit_many(self, requests: Sequence[InferenceRequest]) -> Sequence[bool | TritonError]:
        """Accept requests that are there at the same moment; see `Runtime.submit_many`."""
        if self.sequences is not None or self.cache is not None:
            return super().submit_many(requests)
        return [self._bring(facts.SUBMIT_MANY, requests)] * len(requests)

    def _bring(self, verb: int, requests: object) -> bool:
        """Bring new requests, unless this version takes none any more."""
        if not self._inbox and self._take_over():
            # Nobody is at work there: without the inbox. What comes now, a retirement too, is
            # taken in behind these requests.
            accepted = not self._shut
            if accepted:
                self._own(verb, requests)
            else:
                self._owner.append(None)
        else:
            with self._door:
                accepted = not self._shut
                if accepted:
                    self._inbox.append((verb, requests))
        if self._inbox:
            self._work()
        return accepted

    def blockers(self, request: InferenceRequest) -> tuple[Instance, ...]:
        """Return the instance that runs a request, or all of which one must take it."""
        # A list first: it is made in one go, with and without a GIL, while instances come and go.
        instances = tuple(list(self._instances.values()))  # noqa: C414
        if request.state is TicketState.RUNNING:
            return tuple(i for i in instances if request in i.running)
        limiter = self._limiter
        if limiter is None:
            return instances
        found: list[Instance] = []
        for instance in instances:  # a staged one is idle until others give its resources back
            others = [] if instance.busy else limiter.in_the_way(instance)
            found += others or [instance]
        return tuple(found)

    def cancel(self, request: InferenceRequest) -> None:
        """The caller gave the request up."""
        self._post(facts.CANCEL, request)

    def refuse(self, request: InferenceRequest, error: TritonError) -> None:
        """Answer a request that could never run, and take it out of the queue."""
        if request.claim():
            self._post(facts.REFUSE, request)
            self.deliver(request, Response(error=error), final=True)

    def free(self, instance: int, requests: Sequence[InferenceRequest]) -> int:
        """An instance is idle again; return how many of the requests it is to see once more."""
        again: Sequence[InferenceRequest] = ()
        limiter = self._limiter
        ahead = False
        if limiter is not None:
            idle = self._instances[instance]  # it may leave with this
            # With a batch that is formed by now it competes for the resources again (R6).
            ahead = self._batcher.forms_ahead
            if not ahead:
                limiter.finished(idle)
        if self.sequences is None:
            self._post(facts.IDLE, instance)
        else:
            again = [request for request in requests if request.take_again()]
            self._post(facts.IDLE_IN_SEQUENCE, (instance, requests, again))
        if limiter is not None and ahead:
            limiter.finished(idle)
        return len(again)

    def _rank(self, instance: int) -> int:
        assert self._limiter is not None
        return self._limiter.rank(self._instances[instance])

    def keep(self, request: InferenceRequest) -> None:
        """The execution is over; the model answers this request later, from a thread of its own."""
        self._ended.append(-1)
        self._late.add(request)
        if request.is_answered():  # meanwhile
            self._late_answer(request)

    def _late_answer(self, request: InferenceRequest) -> None:
        try:
            self._late.remove(request)
        except KeyError:  # not kept, or told twice
            return
        self.over(1)

    def over(self, count: int) -> None:
        """Nothing more comes of so many requests."""
        self._ended.append(count)
        if self._retiring:
            self._post(facts.OVER, None)

    def batches(self) -> tuple[BatchRecord, ...]:
        """Return the recent executions, oldest first."""
        recent = self.statistics.recent()
        return tuple([execution.record(self.name, self.version) for execution in recent])

    # -- the owner -------------------------------------------------------------------------------

    def _post(self, verb: int, fact: object) -> None:
        """Bring a fact."""
        if self._inbox or not self._take_over():
            self._inbox.append((verb, fact))
        else:
            self._own(verb, fact)
        if self._inbox:
            self._work()

    def _work(self) -> None:
        """Work the inbox off unless somebody is doing so already."""
        # Checked again after letting go: a fact that came in between must not be left lying.
        while self._inbox and self._take_over():
            try:
                verb, fact = self._inbox.popleft()
            except IndexError:
                self._owner.append(None)
            else:
                self._own(verb, fact)

    def _take_over(self) -> bool:
        """Become the batcher's owner if it has none."""
        try:
            self._owner.pop()
        except IndexError:
            return False
        return True

    def _own(self, verb: int, fact: object) -> None:
        """Take in a fact and all others that are there; the caller owns the batcher until then."""
        try:
            decisions = self._take_in(verb, fact)
            while self._inbox:
                try:
                    verb, fact = self._inbox.popleft()
                except IndexError:
                    break
                decisions += self._take_in(verb, fact)
            if self._order is not None:
                self._order.line_up(decisions)
            if len(self._ended) >= _NOTED:
                self._add_up()
            wake = self._batcher.wake_at()
            if wake is not None and (self._woken_at is None or wake < self._woken_at):
                self._woken_at = wake
                self._clock.call_at(wake, self._wake)
        finally:
            self._owner.append(None)
        for decision in decisions:
            self._carry_out(decision)
        if _waiting and self._batcher.waiting:
            waits.check()

    def _take_in(self, verb: int, fact: Any) -> list[Decision]:
        """Tell the batcher of a fact; return what it decides."""
        batcher = self._batcher
        if verb == facts.SUBMIT:
            self._taken += 1
            return batcher.submit(now_ns(), fact)
        if verb == facts.IDLE:
            assert isinstance(batcher, Batcher)
            return batcher.finish(now_ns(), fact)
        if verb == facts.SUBMIT_MANY:
            assert isinstance(batcher, Batcher)
            self._taken += len(fact)
            return batcher.submit_many(now_ns(), fact)
        if verb == facts.IDLE_IN_SEQUENCE:
            assert isinstance(batcher, SequenceBatcher)
            return batcher.finish(now_ns(), *fact)
        if verb == facts.CANCEL:
            return batcher.cancel(now_ns(), fact)
        if verb == facts.GRANTED:
            return batcher.granted(now_ns(), fact)
        if verb == facts.REFUSE:
            return batcher.cancel(now_ns(), fact, formed=True)
        if verb == facts.WAKE:
            self._woken_at = None
            return batcher.tick(now_ns())
        if verb == facts.UPDATE:
            return self._on_update(fact)
        if verb == facts.ABANDON:
            return [*batcher.clear("UNAVAILABLE", fact)]
        # facts.RETIRE, or facts.OVER after it
        self._retiring = True
        self._maybe_end()
        return []

    def _take_place(self, request: InferenceRequest) -> None:
        if self._order is not None:
            self._order.accept(request)

    def _on_update(self, update: InstanceUpdate) -> list[Decision]:
        now = now_ns()
        decisions: list[Decision] = []
        for number, instance in update.added.items():
            if update.plans[number].passive:
                self._passive[number] = instance
            else:
                self._instances[number] = instance
                decisions += self._batcher.add_instance(now, number)
        for number in update.removed:
            if number in self._passive:
                self._let_go([self._passive.pop(number)])
            else:
                decisions += self._batcher.remove_instance(now, number)
        return decisions

    def _wake(self) -> None:
        self._post(facts.WAKE, None)

    def _add_up(self) -> None:
        """Count what was noted of requests that are over."""
        noted = len(self._ended)
        self._over += sum(self._ended[:noted])
        del self._ended[:noted]

    def _maybe_end(self) -> None:
        self._add_up()
        if self._retiring and self._taken == self._over and self._ender is None:
            # Not here: the last batch may have run on the very thread that is to be joined.
            ender = threading.Thread(
                target=self._end, name=f"nbtriton-end-{self.name}", daemon=True
            )
            try:
                ender.start()
            except RuntimeError:  # no more threads for this process, or Python is shutting down
                self._ends_here = True
            self._ender = ender

    # -- decisions -------------------------------------------------------------------------------

    def _carry_out(self, decision: Decision) -> None:
        if not isinstance(decision, RunBatch):
            if isinstance(decision, (StageInstance, ReturnResources)):
                self._ask_limiter(decision)
            elif isinstance(decision, RetireInstance):
                self._let_go([self._instances.pop(decision.instance)])
            else:
                self._drop(decision)
            return
        instance = self._instances[decision.instance]
        if len(decision.tickets) == 1:
            request: InferenceRequest = decision.tickets[0]  # type: ignore[assignment]
            root = request.parent or request
            # One at a time, so that independent branches of an ensemble still run side by side.
            if root.home and root.here is None and instance.any_thread and root.home == _ident():
                root.here = (instance, decision)
                return
        instance.put(decision)

    def _ask_limiter(self, decision: StageInstance | ReturnResources) -> None:
        assert self._limiter is not None
        number = decision.instance
        if isinstance(decision, StageInstance):
            start = partial(self._post, facts.GRANTED, number)
            self._limiter.stage(self._instances[number], start)
        else:
            self._limiter.finished(self._instances[number])

    def _drop(self, drop: RejectTicket) -> None:
        request: InferenceRequest = drop.ticket  # type: ignore[assignment]
        error: TritonError
        if drop.reason == "stopped":
            error = EngineStoppedError(drop.message)
        else:
            message = drop.message
            if drop.reason in ("queue_full", "custom_batching_refused"):
                message = request.log_prefix + message
            error = error_from_status(drop.status, message)
            # Refused, not accepted: neither counts. The others failed (Q4, Q7, X2).
            if drop.reason in ("queue_full", "sequence_rule"):
                error.accepted = request.flight is not None
            else:
                self.statistics.failure(
                    1, now_ns() - request.start_ns, _FAILURES.get(drop.reason, "OTHER")
                )
        request.fail(error)
        self.over(1)

    # -- responses -------------------------------------------------------------------------------

    def deliver(self, request: InferenceRequest, response: Response | None, *, final: bool) -> None:
        """Pass on a response, in the order of the requests if the model preserves it."""
        if self._plain and not request.cache_key and not self._late:
            request.deliver(response, final=final)
            return
        if self.sequences is not None:
            response = self.sequences.keep(request, response, final=final)
        if self._order is None:
            super().deliver(request, response, final=final)
        else:
            self._order.respond(request, response, final=final)
        if final and self._late:
            self._late_answer(request)

    def _send(self, request: InferenceRequest, response: Response | None, final: bool) -> None:
        super().deliver(request, response, final=final)

    # -- what can be seen ------------------------------------------------------------------------

    def in_flight(self) -> int:
        found = max(0, self._taken - self._over - sum(self._ended))
        batcher = self._batcher
        return max(found, batcher.live) if isinstance(batcher, SequenceBatcher) else found

    def snapshot(self, state: str, reason: str) -> ModelSnapshot:
        """Return what can be seen of this version now."""
        books = self.statistics
        counts, ns = books.counts, books.ns  # each adds the books up
        instances = tuple(instance.snapshot() for instance in self._everyone().values())
        waiting = self._batcher.waiting
        over = self._over + sum(self._ended)
        return ModelSnapshot(
            self.name, self.version, state, reason, self.backend.platform or self.backend.name,
            self.signature.max_batch_size, waiting, max(0, self._taken - over - waiting),
            instances,
            books.inference_count, books.execution_count, counts["success"],
            counts["fail"], ns["success"], ns["queue"],
            ns["compute_input"], ns["compute_infer"], ns["compute_output"],
            books.sizes(),
        )  # fmt: skip
