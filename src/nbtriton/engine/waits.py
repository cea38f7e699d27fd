"""Models that wait for each other for ever, found and told (business logic scripting, §13).

A model that calls another one blocks its instance until the answer is there. If the callee's
instances are all blocked likewise, by calls that end up behind the caller, nothing will ever move.
The reference hangs; here the call that closed the circle is answered with an error.

Being stuck is stable: a blocked instance moves only when its own call is answered. So the search
needs no locks of the models it looks at, only that no wait began or ended meanwhile.
"""

from __future__ import annotations

import threading
from _thread import get_ident
from collections.abc import Callable
from typing import TYPE_CHECKING

from nbtriton.errors import UnavailableError

if TYPE_CHECKING:
    from nbtriton.engine.instance import Instance
    from nbtriton.engine.request import InferenceRequest

__all__ = ["waits"]


class _Waits:
    """Who waits for what now: instances blocked in a call, without a time limit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Instance, InferenceRequest] = {}
        # What the coroutines of an instance have asked for, and whether they can do without.
        self._awaited: dict[Instance, dict[InferenceRequest, Callable[[], bool]]] = {}
        self._changes = 0
        # All of them: looked at after every decision of every model. One set for good, which the
        # compiled core looks at without asking for it by name.
        self.waiting: set[Instance] = set()

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

    def begin(self, instances: tuple[Instance, ...], request: InferenceRequest) -> None:
        """The instances on a thread's stack wait for this request from now on."""
        with self._lock:
            for instance in instances:
                # What a decoupled model does after execute returned blocks no instance.
                if not instance.decoupled or instance.thread == get_ident():
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
        """Answer one call of every circle that has closed."""
        while True:
            with self._lock:
                before = self._changes
                calls = [
                    (instance, request)
                    for instance, asked in self._awaited.items()
                    for request in asked
                ]
                calls += self._waiting.items()
            # The innermost caller of a thread is the last one that began to wait.
            stuck = next(
                (
                    c
                    for c in reversed(calls)
                    if self._blocked(c[0], set()) and self._stuck(c[1], {c[0]})
                ),
                None,
            )
            if stuck is None:
                return
            with self._lock:
                if self._changes != before:
                    continue
            self._refuse(*stuck)
            return

    def _stuck(self, request: InferenceRequest, seen: set[Instance]) -> bool:
        if request.is_answered() or request.runtime is None:
            return False
        blockers = request.runtime.blockers(request)
        if isinstance(blockers, list):  # the steps of an ensemble: one that is stuck is enough
            return any(self._stuck(step, seen) for step in blockers)
        return bool(blockers) and all(self._blocked(instance, seen) for instance in blockers)

    def _blocked(self, instance: Instance, seen: set[Instance]) -> bool:
        if instance in seen:
            return True
        if not instance.running:
            return False
        call = self._waiting.get(instance)
        if call is not None:
            seen.add(instance)
            return self._stuck(call, seen)
        with self._lock:
            asked = dict(self._awaited.get(instance, {}))
        if not asked or not all(idle() for idle in asked.values()):
            return False
        seen.add(instance)
        return all(self._stuck(request, seen) for request in asked)

    @staticmethod
    def _refuse(instance: Instance, request: InferenceRequest) -> None:
        assert request.runtime is not None
        target = request.runtime.name
        request.fail(
            UnavailableError(
                f"deadlock: '{instance.name}' calls model '{target}' and would wait for ever, as "
                f"every instance of '{target}' waits for a request behind it",
                hint=f"give '{target}' one more instance than there can be nested calls "
                "(instance_group count), or call it without waiting",
            )
        )
        request.runtime.cancel(request)


waits = _Waits()
