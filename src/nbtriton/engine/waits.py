"""Models that wait for each other for ever, found and told (business logic scripting, §13).

A model that calls another one blocks its instance until the answer is there. If the callee's
instances are all blocked likewise, by calls that end up behind the caller, nothing will ever move.
The reference hangs; here the call that closed the circle is answered with an error.

Being stuck is stable: a blocked instance moves only when its own call is answered. So the search
needs no locks of the models it looks at, only that no wait began or ended meanwhile.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from nbtriton.errors import UnavailableError

if TYPE_CHECKING:
    from nbtriton.engine.instance import Instance
    from nbtriton.engine.request import InferenceRequest

__all__ = ["executing", "waits"]


class _Executing(threading.local):
    """The instances whose model code is on this thread's stack, the outermost first.

    A call that takes the direct path runs the callee's instance inside the caller's.
    """

    instances: tuple[Instance, ...] = ()


executing = _Executing()


class _Waits:
    """Who waits for what now: instances blocked in a call, without a time limit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Instance, InferenceRequest] = {}
        self._changes = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def begin(self, instances: tuple[Instance, ...], request: InferenceRequest) -> None:
        """The instances on a thread's stack wait for this request from now on."""
        with self._lock:
            for instance in instances:
                self._waiting[instance] = request
            self._changes += 1
        self.check()

    def end(self, instances: tuple[Instance, ...]) -> None:
        """They wait no more."""
        with self._lock:
            for instance in instances:
                self._waiting.pop(instance, None)
            self._changes += 1

    def check(self) -> None:
        """Answer one call of every circle that has closed."""
        while True:
            with self._lock:
                before = self._changes
                calls = list(self._waiting.items())
            # The innermost caller of a thread is the last one that began to wait.
            stuck = next(
                (call for call in reversed(calls) if self._stuck(call[1], {call[0]})), None
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
        call = self._waiting.get(instance)
        if call is None:
            return False
        seen.add(instance)
        return self._stuck(call, seen)

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
