"""Models that wait for each other for ever, found and told (business logic scripting, B7).

A model that calls another one blocks its instance until the answer is there, and so does a callback
that waits on an instance's own thread. If the callee's instances are all blocked likewise, by calls
that end up behind the caller, nothing will ever move. The reference hangs; here the request that
could never run is refused.

Being stuck is stable: a blocked instance moves only when its own call is answered. So the search
needs no locks of the models it looks at, only that no wait began or ended meanwhile.
"""

from __future__ import annotations

import threading
from _thread import get_ident
from collections.abc import Callable
from typing import TYPE_CHECKING

from nbtriton.backends.core.executing import EXECUTING
from nbtriton.backends.forking import after_fork
from nbtriton.errors import UnavailableError
from nbtriton.scheduling import TicketState

if TYPE_CHECKING:
    from nbtriton.engine.core.instance import Instance
    from nbtriton.engine.core.request import InferenceRequest

    # An instance, and the request on which it depends whether that ever moves again.
    Wait = tuple[Instance, InferenceRequest]

__all__ = ["waits"]


class _Waits:
    """Who waits for what now: instances blocked in a call, without a time limit.

    Attributes
    ----------
    waiting : set of Instance
        All of them: looked at after every decision of every model. One set for good, which the
        compiled core looks at without asking for it by name.
    helpers : set of int
        The ids of the engine's other threads that a callback may run on.
    threads : dict of int to Instance
        The threads of instances by their ids. What waits on one holds its instance up, be it the
        model's code or a callback that is told an answer.
    """

    def __init__(self) -> None:
        self.waiting: set[Instance] = set()
        self.helpers: set[int] = set()
        self.threads: dict[int, Instance] = {}
        self.clear()

    def clear(self) -> None:
        """Nobody waits."""
        self._lock = threading.Lock()
        self._waiting: dict[Instance, InferenceRequest] = {}
        # What the coroutines of an instance have asked for, and whether they can do without.
        self._awaited: dict[Instance, dict[InferenceRequest, Callable[[], bool]]] = {}
        self._changes = 0
        self.waiting.clear()
        self.helpers.clear()
        self.threads.clear()

    def begin_await(
        self, instance: Instance, request: InferenceRequest, idle: Callable[[], bool]
    ) -> None:
        """A coroutine of an instance has sent a request, whose answer it may await.

        ``idle()`` tells whether nothing but answers can make the instance's coroutines go on.
        """
        if instance.decoupled:  # its execute has returned
            return
        with self._lock:
            self._awaited.setdefault(instance, {})[request] = idle
            self._change()

    def end_await(self, instance: Instance, request: InferenceRequest) -> None:
        """The answer is there."""
        with self._lock:
            calls = self._awaited.get(instance, {})
            calls.pop(request, None)
            if not calls:
                self._awaited.pop(instance, None)
            self._change()

    def blocked_here(self) -> tuple[Instance, ...]:
        """Return the instances that a wait in this thread holds up, the outermost first."""
        home = self.threads.get(get_ident())
        callers = EXECUTING.get().callers
        if callers:  # What a decoupled model does after execute returned blocks no instance.
            callers = tuple(
                caller for caller in callers if not caller.decoupled or caller.thread == get_ident()
            )
        return callers if home is None or home in callers else (home, *callers)

    def begin(self, instances: tuple[Instance, ...], request: InferenceRequest) -> None:
        """Instances wait for this request from now on."""
        with self._lock:
            for instance in instances:
                self._waiting[instance] = request
            self._change()
        self.check()

    def end(self, instances: tuple[Instance, ...]) -> None:
        """They wait no more."""
        with self._lock:
            for instance in instances:
                self._waiting.pop(instance, None)
            self._change()

    def _change(self) -> None:
        self._changes += 1
        self.waiting.intersection_update({*self._waiting, *self._awaited})
        self.waiting.update(self._waiting, self._awaited)

    def check(self) -> None:
        """Refuse one request of every circle that has closed."""
        while True:
            with self._lock:
                before = self._changes
                calls = [
                    (instance, request)
                    for instance, asked in self._awaited.items()
                    for request in asked
                ]
                calls += self._waiting.items()
            stuck = None
            # The innermost caller of a thread is the last one that began to wait.
            for instance, request in reversed(calls):
                if self._blocked(instance, set()):
                    stuck = self._stuck(instance, request, {instance})
                    if stuck is not None:
                        break
            if stuck is None:
                return
            with self._lock:
                if self._changes != before:
                    continue
            self._refuse(*stuck)
            return

    def _stuck(
        self, caller: Instance, request: InferenceRequest, seen: set[Instance]
    ) -> Wait | None:
        """Return the request in a queue that keeps this one from ever being answered, if one does.

        With it who waits for it.
        """
        if request.is_answered() or request.runtime is None:
            return None
        blockers = request.runtime.blockers(request)
        if isinstance(blockers, list):  # the steps of an ensemble: one that is stuck is enough
            for step in blockers:
                found = self._stuck(caller, step, seen)
                if found is not None:
                    return found
            return None
        deeper: Wait | None = None
        for instance in blockers:
            if instance in seen:
                continue
            deeper = self._blocked(instance, seen)
            if deeper is None:
                return None
        if not blockers:
            return None
        if request.state is TicketState.RUNNING and deeper is not None:
            return deeper
        return caller, request

    def _blocked(self, instance: Instance, seen: set[Instance]) -> Wait | None:
        """Return what keeps an instance from ever moving again, if it is blocked so."""
        if not instance.busy:
            return None
        call = self._waiting.get(instance)
        if call is not None:
            seen.add(instance)
            return self._stuck(instance, call, seen)
        with self._lock:
            asked = dict(self._awaited.get(instance, {}))
        if not asked or not all(idle() for idle in asked.values()):
            return None
        seen.add(instance)
        found = [self._stuck(instance, request, seen) for request in asked]
        return None if None in found else found[-1]

    def _refuse(self, instance: Instance, request: InferenceRequest) -> None:
        runtime = request.runtime
        assert runtime is not None
        target = runtime.name
        in_code = instance.executing  # else it answers
        who = f"'{instance.name}'" if in_code else f"a callback on the thread of '{instance.name}'"
        way_out = (
            f"give '{target}' one more instance than there can be nested calls (instance_group "
            "count), or call it without waiting"
            if in_code
            else "a callback must not wait for what its own instance has to do: submit the request "
            "and give it a callback, or wait in a thread of your own"
        )
        runtime.refuse(
            request,
            UnavailableError(
                f"deadlock: {who} calls model '{target}' and would wait for ever, as every instance "
                f"of '{target}' waits for a request behind it",
                hint=way_out,
            ),
        )


waits = _Waits()
after_fork(waits.clear)  # instances are threads: none of them is in the child
