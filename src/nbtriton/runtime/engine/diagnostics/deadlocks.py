"""Deadlock detection between models (business logic scripting).

A model that calls another one blocks its instance until the call is answered, and so does a callback
that waits on an instance's own thread. If all instances of the callee are blocked as well, by calls
that end up waiting for the caller, none of them can finish. Triton blocks forever; here the request
that
could never run is refused.

Detection is late: a thread searches for a deadlock after it has waited for a second, and again each
second. Only waiting threads take part, so the request path is not slowed.

A deadlock is stable: a blocked instance moves only when its own call is answered. So the search
needs no locks of the models; it only checks that no wait began or ended during the search.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Protocol

from nbtriton.backends.core.executing import EXECUTING
from nbtriton.backends.forking import after_fork
from nbtriton.common.errors import TritonError, UnavailableError
from nbtriton.runtime.engine.core.threads import blocked_here
from nbtriton.runtime.interrupts import interrupts_allowed, wait_in_slices

# Long enough for a slow call to be answered or to move, short enough for a person.
_PATIENCE_S = 1.0


class Caller(Protocol):
    """An instance whose code, or a callback on whose thread, calls a model."""

    @property
    def name(self) -> str: ...
    @property
    def busy(self) -> bool:
        """It executes a batch, or answers one on its own thread."""

    @property
    def executing(self) -> bool:
        """The model's code runs."""

    @property
    def decoupled(self) -> bool: ...


class Call(Protocol):
    """A request for which an instance waits."""

    @property
    def model_name(self) -> str: ...
    @property
    def executes(self) -> bool: ...
    def is_answered(self) -> bool: ...
    def blockers(self) -> Blockers: ...
    def refuse(self, error: TritonError) -> None: ...


@dataclass(frozen=True, slots=True)
class Blockers:
    """The instances and steps that must move before a request can be answered.

    Attributes
    ----------
    instances : tuple of Caller
        One of these must become free, or the one that executes the request must finish.
    steps : tuple of Call
        All of them must be answered: the steps of an ensemble that are in flight.
    """

    instances: tuple[Caller, ...] = ()
    steps: tuple[Call, ...] = ()


# A caller, and the request that it waits for.
_Wait = tuple[Caller, Call]


class DeadlockDetector:
    """The instances that wait without a timeout for calls, and the search for a deadlock among them.

    Attributes
    ----------
    patience_s : float
        How long a thread waits before it searches for a deadlock.
    """

    def __init__(self) -> None:
        self.patience_s = _PATIENCE_S
        self.clear()

    def clear(self) -> None:
        """Forget all waits: a forked child has none of the waiting threads."""
        self._lock = threading.Lock()
        # The waits of an instance: each ends when one of its calls is answered, and all have to end
        # before the instance moves again. (A callback may wait while its instance does, and a
        # coroutine may block its loop.)
        self._waiting: dict[Caller, list[Collection[Call]]] = {}
        # The calls of an instance's coroutines that are not answered yet.
        self._awaited: dict[Caller, dict[Call, None]] = {}
        self._refusing: set[Call] = set()
        self._changes = 0

    def wait(self, wait: Callable[[float], bool], calls: Collection[Call]) -> None:
        """Wait until ``wait(seconds)`` returns True, which depends on these calls."""
        held: tuple[Caller, ...] = blocked_here()
        if not held:
            interrupts_allowed(wait_in_slices, wait, None)
            return
        with self._lock:
            for instance in held:
                self._waiting.setdefault(instance, []).append(calls)
            self._changes += 1
        try:
            while not interrupts_allowed(wait_in_slices, wait, self.patience_s):
                self.search()
        finally:
            with self._lock:
                for instance in held:
                    waits = self._waiting[instance]
                    at = next(at for at, one in enumerate(waits) if one is calls)
                    del waits[at]
                    if not waits:
                        del self._waiting[instance]
                self._changes += 1

    def wait_for_coroutine(self, wait: Callable[[float], bool]) -> None:
        """Wait for a coroutine of the model that executes here.

        While it has unanswered calls to other models, it counts as awaiting them. What else a
        coroutine awaits cannot be known, and one that has not moved for a second is as stuck as a
        thread.
        """
        callers = EXECUTING.get().callers
        if not callers:
            self.wait(wait, ())
            return
        with self._lock:
            calls = self._awaited.setdefault(callers[-1], {})
        try:
            self.wait(wait, calls)
        finally:
            with self._lock:
                if not calls:
                    self._awaited.pop(callers[-1], None)

    def begin_call(self, call: Call) -> Callable[[], None]:
        """Record a coroutine's call of a model; return the function to call at its answer."""
        callers = EXECUTING.get().callers
        if not callers or callers[-1].decoupled:  # its execute has returned
            return lambda: None
        caller: Caller = callers[-1]
        with self._lock:
            self._awaited.setdefault(caller, {})[call] = None
            self._changes += 1

        def end() -> None:
            with self._lock:
                calls = self._awaited.get(caller, {})
                calls.pop(call, None)
                if not calls and caller not in self._waiting:
                    self._awaited.pop(caller, None)
                self._changes += 1

        return end

    def search(self) -> None:
        """Refuse one request of a deadlock, if one exists."""
        with self._lock:
            before = self._changes
            waits = [
                (caller, call)
                for caller, waits_of in self._waiting.items()
                for calls in waits_of
                for call in tuple(calls)
            ]
        # The innermost caller of a thread is the last one that began to wait.
        for caller, call in reversed(waits):
            stuck = self._stuck(caller, call, {caller}) if self._blocked(caller, set()) else None
            if stuck is None:
                continue
            with self._lock:
                if self._changes != before:
                    return  # something moved, or another thread was faster: search again later
                self._changes += 1
                self._refusing.add(stuck[1])
            try:
                _refuse(*stuck)
            finally:
                with self._lock:
                    self._refusing.discard(stuck[1])
            return

    def _stuck(self, caller: Caller, call: Call, seen: set[Caller]) -> _Wait | None:
        """Return the queued request that blocks this one forever, if any, and its caller."""
        if call.is_answered() or call in self._refusing:
            return None
        blockers = call.blockers()
        for step in blockers.steps:  # one blocked step is enough
            found = self._stuck(caller, step, seen)
            if found is not None:
                return found
        if not blockers.instances:
            return None
        deeper: _Wait | None = None
        for instance in blockers.instances:
            if instance in seen:
                continue
            deeper = self._blocked(instance, seen)
            if deeper is None:
                return None
        if call.executes and deeper is not None:
            return deeper
        return caller, call

    def _blocked(self, instance: Caller, seen: set[Caller]) -> _Wait | None:
        """Return what blocks an instance forever, if anything does."""
        if not instance.busy:
            return None
        with self._lock:
            waits = [tuple(calls) for calls in self._waiting.get(instance, ())]
        if not waits:
            return None
        seen.add(instance)
        for calls in waits:
            found = [self._stuck(instance, call, seen) for call in calls]
            if found and None not in found:
                return found[-1]
        return None


def _refuse(caller: Caller, call: Call) -> None:
    target = call.model_name
    in_code = caller.executing  # otherwise it answers
    who = f"'{caller.name}'" if in_code else f"a callback on the thread of '{caller.name}'"
    way_out = (
        f"give '{target}' one more instance than there can be nested calls (instance_group "
        "count), or call it without waiting"
        if in_code
        else "a callback must not wait for what its own instance has to do: submit the request "
        "and give it a callback, or wait in a thread of your own"
    )
    call.refuse(
        UnavailableError(
            f"deadlock: {who} calls model '{target}' and would wait forever, as every instance "
            f"of '{target}' waits for a request behind it",
            hint=f"{way_out}; Triton 2.51 would wait (docs/differences.md: bls-deadlock)",
        )
    )


DEADLOCKS: Final = DeadlockDetector()
after_fork(DEADLOCKS.clear)
