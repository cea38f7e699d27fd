"""How responses leave: in the order of their requests (preserve_ordering, D12), and on a separate thread."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Final

from nbtriton.backends.base import Response
from nbtriton.runtime.engine.core.execution import Completion
from nbtriton.runtime.engine.core.request import InferenceRequest
from nbtriton.runtime.engine.core.runtime import Mailbox
from nbtriton.runtime.engine.core.threads import EngineThread, engine_thread
from nbtriton.scheduling import Decision, ResponseOrder, RetireInstance, RunBatch


class InOrder:
    """Hold early responses of a model back.

    Parameters
    ----------
    deliver : callable
        ``deliver(request, response, final, completion)`` gets them, one at a time.
    per_instance : bool
        True under the oldest strategy of sequences: each instance has its own batcher, and so its
        own order.
    """

    __slots__ = ("_deliver", "_lock", "_order", "_outgoing", "_per_instance")

    def __init__(
        self,
        deliver: Callable[[InferenceRequest, Response | None, bool, Completion | None], None],
        *,
        per_instance: bool,
    ) -> None:
        self._deliver = deliver
        self._per_instance = per_instance
        self._order: ResponseOrder[tuple[InferenceRequest, Response | None, bool]] = ResponseOrder()
        self._lock = threading.Lock()
        # One thread at a time sends, so that ordered responses cannot overtake each other.
        self._outgoing: Mailbox[tuple[InferenceRequest, Response | None, bool]] = Mailbox()

    def line_up(self, decisions: Sequence[Decision]) -> None:
        """Record the order in which requests leave the queue; refused ones have no place."""
        for decision in decisions:
            if isinstance(decision, RunBatch):
                for ticket in decision.tickets:
                    self.accept(ticket, decision.instance)  # type: ignore[arg-type]
            elif isinstance(decision, RetireInstance) and self._per_instance:
                with self._lock:
                    self._order.remove_line(decision.instance)

    def accept(self, request: InferenceRequest, instance: int = 0) -> None:
        """Record a request's place, after all others or after those of its instance."""
        with self._lock:
            self._order.accept(request.number, instance if self._per_instance else 0)

    def respond(
        self,
        request: InferenceRequest,
        response: Response | None,
        *,
        final: bool,
        completion: Completion | None,
    ) -> None:
        """Deliver a response, and those that waited for it, as soon as it may be seen."""
        with self._lock:
            ready = self._order.respond(request.number, (request, response, final), final=final)
            for message in ready:
                self._outgoing.post(message)
        self._outgoing.drain(lambda message: self._deliver(*message, completion))


_log = logging.getLogger("nbtriton.runtime.engine")

# A hand-over costs 0.1 ms a batch (two switches between threads, cold caches). If the model
# releases the GIL, it saves the time of the answers, some 10 us each. If it does not, a hand-over
# would cost more than a fifth of a shorter execution.
_LONG_NS: Final = 500_000
# After a hand-over that did not help, at most this many executions are not offloaded: its cost is
# then less than a hundredth.
_MAX_SKIPS: Final = 128


class ResponseThread:
    """Answers the batches of an instance that already has its next batch.

    It has one batch at a time, so answers leave in the order of the batches, and slow
    callers hold their instance back. All methods are for the instance's thread.

    Parameters
    ----------
    name : str
        Name of the thread, which starts with its first batch.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        # Waiting here does not block the instance.
        self.thread = EngineThread()
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Held while it answers: acquired by the hand-over, released by its thread.
        self._busy = threading.Lock()
        # A callback waits on its thread, which has released `_busy`.
        self._is_detached = False
        self._worker: threading.Thread | None = None
        # About the last hand-over: it happened since the last execution; its answers have begun.
        self._handed = False
        self._begun = False
        # Executions still not offloaded, and the number after the next hand-over that does not help.
        self._skips = 0
        self._next_skips = 1

    def wait_idle(self) -> None:
        """Wait until everything handed over is answered; called once the next batch has been computed."""
        if self._worker is None:
            return
        if self._handed:
            self._handed = False
            if self._begun:
                self._next_skips = 1
            else:  # the model kept the GIL all the time, or the machine is busy
                self._skips = self._next_skips
                self._next_skips = min(2 * self._next_skips, _MAX_SKIPS)
        with self._busy:
            pass

    def should_offload(self, took_ns: int) -> bool:
        """Return whether to hand over, by the time of the last execution."""
        if took_ns < _LONG_NS:
            return False
        if self._is_detached:
            return False
        if self._skips:
            self._skips -= 1
            return False
        if self._worker is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads for this process, or Python is shutting down
                self._skips = _MAX_SKIPS
                return False
            self._worker = thread
        return True

    def put(self, answer: Callable[[], None]) -> None:
        """Hand over the function that answers a batch."""
        self._busy.acquire()
        self._handed = True
        self._begun = False
        self._inbox.put(answer)

    def unblock_instance(self) -> None:
        """Let the instance execute its next batch: a callback is waiting, perhaps for that.

        Called on the thread itself, once the whole batch is answered.
        """
        if not self._is_detached:
            self._is_detached = True
            self._busy.release()

    def stop(self) -> None:
        """End the thread after its batch; join it unless a callback on it is waiting."""
        if self._worker is not None:
            self._inbox.put(None)
            if not self._is_detached:
                self._worker.join()

    def _run(self) -> None:
        with engine_thread(self.thread):
            while (answer := self._inbox.get()) is not None:
                self._begun = True
                try:
                    answer()
                except BaseException:
                    _log.exception("answering a batch ended abnormally")
                finally:
                    # Its requests hold tensors and connections: not until the next batch.
                    del answer
                    if self._is_detached:
                        self._is_detached = False
                    else:
                        self._busy.release()
