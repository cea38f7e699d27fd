"""Future of one request, as `Server.submit` returns it."""

from __future__ import annotations

import logging
import os
import threading
from _thread import allocate_lock
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from nbtriton.backends.forking import elsewhere
from nbtriton.common.errors import CancelledError, TritonError
from nbtriton.runtime.engine.core.execution import InferenceResult
from nbtriton.runtime.engine.core.threads import this_thread
from nbtriton.runtime.engine.diagnostics.deadlocks import DEADLOCKS, Call
from nbtriton.runtime.interrupts import (
    INTERRUPTS,
    interrupts_allowed,
    interrupts_deferred,
    wait_in_slices,
)

if TYPE_CHECKING:
    import asyncio


_group_lock = threading.Lock()

_log = logging.getLogger("nbtriton.runtime.engine")


class PendingRequest(Call, Protocol):
    """The part of a request that its future uses."""

    @property
    def runtime(self) -> RunsIn | None: ...
    def cancel(self, reason: str = "cancelled") -> None: ...


class RunsIn(Protocol):
    """The part of the answering version that a future uses."""

    @property
    def process(self) -> int: ...


class InferenceFuture:
    """One request's answer.

    It is resolved exactly once. Unlike `concurrent.futures.Future` it owns no condition: each
    waiter brings its own lock, so that a request without waiters costs nothing.

    Examples
    --------
    >>> future = server.submit("double", {"IN": ones})
    >>> float(future.result(timeout=60)["OUT"].sum())
    8.0
    >>> future.done()
    True
    """

    __slots__ = ("_done", "_error", "_group", "_request", "_result", "_then")

    def __init__(self, request: PendingRequest) -> None:
        # For cancellation. None once it is answered, so that nothing keeps its tensors alive.
        self._request: PendingRequest | None = request
        self._result: InferenceResult | None = None
        self._error: TritonError | None = None
        self._done = False
        # Done callbacks. The first entry represents the answer itself: removing it is atomic with
        # and without a GIL, and the thread that removes it may answer. (One list, not three: the
        # garbage collector walks everything that a waiting request refers to.)
        self._then: list[Callable[[InferenceFuture], object]] = [_answer]
        # Waiters for several futures at once; made for the first of them.
        self._group: _WaiterGroup | None = None

    def done(self) -> bool:
        """Return True once the request is answered, failed or cancelled."""
        return self._done

    def cancelled(self) -> bool:
        """Return True if the request was cancelled."""
        return isinstance(self._error, CancelledError)

    def result(self, timeout: float | None = None) -> InferenceResult:
        """Wait for the answer.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; forever by default. The request continues after a timeout.

        Raises
        ------
        TritonError
            The request failed, with Triton's status and message.
        TimeoutError
            There is no answer yet.
        """
        if not self._done:
            self._wait(timeout)
        if self._error is not None:
            # A copy: the error would get this frame, which holds the error.
            raise self._error.again()
        assert self._result is not None
        return self._result

    def exception(self, timeout: float | None = None) -> TritonError | None:
        """Wait, and return the error instead of raising it; None if the request succeeded.

        Examples
        --------
        >>> server.submit("double", {"IN": ones}).exception() is None
        True
        """
        if not self._done:
            self._wait(timeout)
        return self._error

    def add_done_callback(self, callback: Callable[[InferenceFuture], object]) -> None:
        """Call ``callback(self)`` once done: on the thread that finished it, or here and now.

        The callback blocks the instance that answers. If it calls a model that only this instance
        could serve, the call is refused, because it would wait forever.

        Examples
        --------
        >>> answered = threading.Event()
        >>> future = server.submit("double", {"IN": ones})
        >>> future.add_done_callback(lambda done: answered.set())
        >>> answered.wait(timeout=60)
        True
        """
        self._then.append(callback)
        if self._done:
            self._call_back()

    def cancel(self, reason: str = "cancelled") -> bool:
        """Cancel the request; True if it had no answer yet.

        A waiting request is dropped. One that is already part of a batch keeps running, as in
        Triton (X3, X6); its answer is discarded.

        Parameters
        ----------
        reason : str
            The reason that the recorder keeps for a dropped request: a key of `nbtriton.scheduling.REASONS`.

        Examples
        --------
        >>> future = server.submit("double", {"IN": ones})
        >>> _ = future.result()
        >>> future.cancel(), future.cancelled()
        (False, False)
        """
        with interrupts_deferred():
            request = self._request
            if not self._resolve(None, CancelledError("the request was cancelled by the caller")):
                return False
            if request is not None:
                request.cancel(reason)
            return True

    def _ask_to_end(self) -> None:
        """Ask the model to end, and still deliver its responses.

        A waiting request is dropped. An executing model sees `is_cancelled`, and may end early.
        """
        with interrupts_deferred():
            request = self._request
            if request is not None:
                request.cancel()

    # Methods that `concurrent.futures.wait`, `as_completed` and `asyncio.wrap_future` require of a
    # future, under these names.

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # `wrap_future` accepts only instances of this class; the type stays `InferenceFuture`.
        from concurrent.futures import Future  # 5 ms, only for callers that ask

        return Future

    def _get_snapshot(self) -> tuple[bool, bool, InferenceResult | None, TritonError | None]:
        # From Python 3.14 on.
        cancelled = self.cancelled()
        return self._done, cancelled, self._result, None if cancelled else self._error

    @property
    def _condition(self) -> threading.RLock:
        return self._waiter_group().lock

    @property
    def _waiters(self) -> list[Any]:
        return self._waiter_group().waiters

    @property
    def _state(self) -> str:
        if not self._waiter_group().notified:
            return "PENDING"
        return "CANCELLED_AND_NOTIFIED" if self.cancelled() else "FINISHED"

    def _waiter_group(self) -> _WaiterGroup:
        group = self._group
        if group is None:
            made = _WaiterGroup()
            with _group_lock:
                group = self._group
                if group is None:
                    group = self._group = made
                    self.add_done_callback(made.notify)
        return group

    def __await__(self) -> Generator[Any, None, InferenceResult]:
        return self._as_asyncio().__await__()

    def _as_asyncio(self) -> asyncio.Future[InferenceResult]:
        import asyncio  # 20 ms, only for callers that await

        loop = asyncio.get_running_loop()
        future: asyncio.Future[InferenceResult] = loop.create_future()

        self.add_done_callback(partial(_hand_over, loop, future))
        future.add_done_callback(partial(_cancel_too, self))
        return future

    def _wait(self, timeout: float | None) -> None:
        lock = allocate_lock()
        lock.acquire()

        def waiter(_: InferenceFuture) -> None:
            lock.release()

        # Waiters come before callbacks, which may be slow.
        self._then.insert(1, waiter)
        if self._done:  # answered in the meantime
            return
        limit_s = None if timeout is None else max(0.0, timeout)
        if not self._wait_for(partial(lock.acquire, True), limit_s):
            with suppress(ValueError):  # answered just now
                self._then.remove(waiter)
            raise TimeoutError(f"no answer within {timeout} s")

    def _wait_for(self, wait: Callable[[float], bool], timeout_s: float | None = None) -> bool:
        """Call ``wait(seconds)`` until it returns True, which depends on this request.

        The wait can be interrupted, and fails if it would last forever.
        """
        thread = this_thread()
        if thread is not None and thread.completion is not None:
            thread.completion.flush_before_wait()
        request = self._request
        runtime = None if request is None else request.runtime
        if runtime is not None and runtime.process != os.getpid():
            raise elsewhere()
        if timeout_s is not None or request is None:
            return interrupts_allowed(wait_in_slices, wait, timeout_s)
        DEADLOCKS.wait(wait, (request,))
        return True

    def _resolve(self, result: InferenceResult | None, error: TritonError | None) -> bool:
        """Set the answer; False if it is already set."""
        try:
            self._then.remove(_answer)
        except ValueError:
            return False
        self._result = result
        self._error = error
        self._done = True
        self._request = None
        while self._then:
            try:
                self._call_back()
            except BaseException as raised:  # such as SystemExit: others wait for this thread
                INTERRUPTS.keep(raised)
                _log.exception("a done callback of an inference request raised")
        return True

    def _call_back(self) -> None:
        while self._then:
            try:
                callback = self._then.pop(0)
            except IndexError:
                return
            try:
                callback(self)
            except (
                Exception
            ):  # a caller's mistake must not affect the thread that finished the request
                _log.exception("a done callback of an inference request raised")


class _WaiterGroup:
    """Waiters for several futures, in the protocol of `concurrent.futures`.

    Who holds the lock of a future counts those that are not done, and adds a waiter that counts
    their ends: in between the future's state must not change.
    """

    __slots__ = ("lock", "notified", "waiters")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.notified = False
        self.waiters: list[Any] = []

    def notify(self, future: InferenceFuture) -> None:
        """Notify all waiters that a future is done."""
        with self.lock:
            self.notified = True
            for waiter in self.waiters:
                if future.cancelled():
                    waiter.add_cancelled(future)
                elif future.exception() is not None:
                    waiter.add_exception(future)
                else:
                    waiter.add_result(future)


def _hand_over(
    loop: asyncio.AbstractEventLoop,
    awaited: asyncio.Future[InferenceResult],
    future: InferenceFuture,
) -> None:
    """Answer an awaiting task, on its loop."""
    # The loop may have been closed while the request ran.
    if not loop.is_closed():
        loop.call_soon_threadsafe(_settle, awaited, future)


def _settle(awaited: asyncio.Future[InferenceResult], future: InferenceFuture) -> None:
    if awaited.cancelled():
        return
    error = future.exception()
    if error is None:
        awaited.set_result(future.result())
    else:
        awaited.set_exception(error.again())  # a copy, as in `InferenceFuture.result`


def _cancel_too(future: InferenceFuture, awaited: asyncio.Future[InferenceResult]) -> None:
    """Cancel the request whose awaiting task was cancelled."""
    if awaited.cancelled():
        future.cancel()


def _answer(_: InferenceFuture) -> None:
    """Stand for the pending answer in a future's list of callbacks."""
