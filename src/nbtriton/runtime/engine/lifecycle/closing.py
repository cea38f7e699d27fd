"""The end of a server: closed, dropped, or open until the interpreter exits."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import sys
import threading
import warnings
from _thread import start_new_thread
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Protocol
from weakref import WeakSet

from nbtriton.runtime.engine.core.dispatch import Registry
from nbtriton.runtime.engine.core.ensemble_runtime import EnsembleRuntime
from nbtriton.runtime.engine.core.runtime import Runtime
from nbtriton.runtime.engine.core.threads import SchedulerThread, blocked_here, this_thread
from nbtriton.runtime.interrupts import interrupts_allowed

_log = logging.getLogger("nbtriton.runtime.engine")

# The error of requests that a closing server does not finish.
STOPPING = "Server is stopping"
# For instances whose last requests were just failed, to finalize.
_GRACE_S = 0.25
# An exit must not hang on a model that does.
_AT_EXIT_S = 1.0


class _Closable(Protocol):
    def close(self, *, timeout_s: float = ...) -> None: ...


_open: WeakSet[_Closable] = WeakSet()


def close_at_exit(server: _Closable) -> None:
    """Close a server when the interpreter exits, if it still exists then."""
    _open.add(server)


def end(runtimes: Sequence[Runtime], clock: SchedulerThread, timeout_s: float) -> None:
    """Finish what runs, answer what waits, and what still runs when the time is up; with interrupts deferred.

    Called by a model or a callback it does not wait: what calls is what would be waited for.
    """
    for runtime in runtimes:
        runtime.drain()
        runtime.fail_pending(STOPPING)
    if blocked_here() or this_thread() is not None:
        with contextlib.suppress(RuntimeError):  # no more threads: the rest ends by itself
            threading.Thread(
                target=_finish,
                args=(runtimes, clock, timeout_s),
                name="nbtriton-close",
                daemon=True,
            ).start()
        return
    _finish(runtimes, clock, timeout_s)


def _finish(runtimes: Sequence[Runtime], clock: SchedulerThread, timeout_s: float) -> None:
    left = runtimes
    try:
        left = interrupts_allowed(_undrained, runtimes, timeout_s)
    finally:  # after Ctrl-C too: then the time is up
        for runtime in left:
            runtime.fail_running(STOPPING)
        _undrained(left, _GRACE_S)
        clock.stop(_GRACE_S)
        _end_fork_servers()


def _undrained(runtimes: Iterable[Runtime], timeout_s: float) -> list[Runtime]:
    """Wait until the versions are drained, and return those that are not."""
    deadline = monotonic() + timeout_s
    return [
        runtime
        for runtime in runtimes
        if not runtime.wait_drained(max(0.0, deadline - monotonic()))
    ]


def drop(registry: Registry, leaving: Sequence[Runtime], clock: SchedulerThread) -> None:
    """End what is left of a dropped server, behind its last requests.

    A finalizer: it may run anywhere, also where a lock of the models' or of `threading`'s is held.
    So it waits for nothing and leaves the work to another thread.
    """
    names = sorted(registry.entries)
    runtimes = [*registry.runtimes(), *leaving]
    with contextlib.suppress(RuntimeError):  # no more threads
        start_new_thread(_start_cleanup, (runtimes, clock))
    if names:
        warnings.warn(
            f"an nbtriton.Server was dropped without close(); its models leave: {', '.join(names)}",
            ResourceWarning,
            stacklevel=2,
        )


def _start_cleanup(runtimes: list[Runtime], clock: SchedulerThread) -> None:
    # A thread that `threading` did not start would be listed by it for good.
    threading.Thread(
        target=_clean_up, args=(runtimes, clock), name="nbtriton-close", daemon=True
    ).start()


def _clean_up(runtimes: list[Runtime], clock: SchedulerThread) -> None:
    # Ensembles first: a step that has not begun may have to bind models that nothing else holds.
    for kind in (EnsembleRuntime, Runtime):
        leaving = [one for one in runtimes if isinstance(one, kind)]
        for runtime in leaving:
            runtime.unpublish()
        while leaving:
            leaving.pop().wait_drained(None)
    runtimes.clear()
    clock.stop(_GRACE_S)
    _end_fork_servers()
    # An error that a model raised has its weights in a circle of frames, and the garbage collector
    # does not see how large they are: a cell that is run again and again would fill the memory.
    gc.collect()


def _end_fork_servers() -> None:
    """End the processes that start workers, if no model of this process has any."""
    launching = sys.modules.get("nbtriton.runtime.workers.launching")  # else there never was one
    if launching is not None:
        launching.end_idle_servers(_AT_EXIT_S)


@atexit.register
def _close_all() -> None:
    # No thread can be started any more: none is needed to close.
    for server in list(_open):
        try:
            server.close(timeout_s=_AT_EXIT_S)
        except Exception:  # the others are closed all the same
            _log.exception("closing a server at the interpreter's exit")
