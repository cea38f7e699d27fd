"""The engine's end of a worker: its channels, its memory, its executions.

Theory of operation
-------------------
A worker is a process with one object of a model, mostly for one instance. Two or more sockets lead to it:

- A *lane* carries the dialogues of an instance. One thread at a time asks (create the instance, execute this batch,
  finalize) and waits for the reply. In between the worker may ask back: a call of another model, a log line, "wait,
  I am in a coroutine". The waiting thread answers, so the code that a model's call leads to runs on the thread that
  a model in the kernel would have run it on, with its context (`EXECUTING`). At the worker's end the main thread
  reads the lane.
- The *channel* carries everything that cannot wait for a turn of that dialogue. To the worker: cancellations,
  interrupts, questions for its readiness. From it: responses that a model's other threads send, new shared memory
  and its file descriptors. Each end has a thread that reads it, here `_read`.

Messages on different sockets have no order. It matters in one place: what the model's other threads sent before the
end of `execute` must be handled before the batch ends here. So each reply says how many messages went by the
channel before it, and `_settled` waits until as many are handled.

Tensors travel beside messages, as bytes behind them or as a block of shared memory, whose descriptor went by the
channel once. A block belongs to its sender, who fills it again when the reader says that its last view is gone.
These releases ride on the next message of the lane; while a dialogue waits for something else they go by the
channel.

An interrupt goes to the worker as a message, and its second thread raises it in the main one, under the number of
the dialogue: one that comes late must not hit the next execution. The model may catch it and clean up. If it goes
on instead, its process is killed: after `_PATIENCE_S` by a second Ctrl-C, after `_LONGEST_PATIENCE_S` without one.

The end of a worker is seen as the end of a socket, by whichever thread reads or writes next. `_lost` runs once, and
fails nobody itself: a thread in a dialogue raises Triton's error for its batch (PB92), the reading thread fails
the requests that were to be answered later, and the recovery of each instance hears of it by `watch`.

Instances may share a worker, with a lane each (`INSTANCE_SHARING`): while it executes for one, the batch of another
is on its way. At its end a thread for each lane reads a message, waits until the main thread has had the dialogue,
and sends the reply. The main thread takes them in the order of their coming. So a dialogue may wait for its *turn*.
An interrupt or a cancellation reaches one that waits; a reply tells how long it waited; and the timeout of an
execution begins with the reply before it, which is when its turn began, or earlier. The last instance that leaves
finalizes the model.

What does not work
------------------
- *One socket for both.* A cancellation would lie unread behind an execution: the thread that could read it
  computes. A second reader at the worker's end would have to hand each batch over to the main thread, a wake-up of
  30 to 50 us (which lanes that are shared pay, as their way is longer).
- *multiprocessing's connections.* Two system calls and a pickle for each message (`channel.py`).
- *Named shared memory.* A killed process leaves it behind. Here memory has no name, and ends with its last
  descriptor.
- *Sending SIGINT from here.* A signal knows no dialogue: it may come between two of them, and end the wrong one.
- *Failing the requests of a running batch from the reading thread.* The executing thread finds the lane closed
  itself and answers with the reason. Only while that thread runs another model for the worker, which may take long
  (`_calling`), are they failed at once.
- *Closing the descriptors when the process has ended.* The reading thread may be about to read, and the number of a
  closed descriptor may be that of another file by then: it is joined first.
"""

from __future__ import annotations

import itertools
import logging
import select
import threading
from _thread import get_ident
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic, monotonic_ns
from typing import Any

from nbtriton.backends.base import BackendRequest, BatchTimer, Placement, Response, ServerHandle
from nbtriton.backends.core.executing import EXECUTING
from nbtriton.backends.devices.ledger import HOST, CopyLedger
from nbtriton.common.errors import InternalError, TritonError
from nbtriton.runtime.interrupts import (
    interrupts_allowed,
    interrupts_deferred,
    wait_in_slices,
)
from nbtriton.runtime.workers import protocol
from nbtriton.runtime.workers.calls import ServerCalls
from nbtriton.runtime.workers.core.channel import Channel, ChannelClosed
from nbtriton.runtime.workers.core.codec import decode_responses, encode_requests
from nbtriton.runtime.workers.core.memory import ConnectionEnd
from nbtriton.runtime.workers.core.packing import Packer
from nbtriton.runtime.workers.process import Peer
from nbtriton.runtime.workers.protocol import decode_error
from nbtriton.runtime.workers.resources import Limits

_log = logging.getLogger("nbtriton.runtime.workers")

# Longer than a model's timeout for its readiness (`nbtriton.backends.python.readiness`).
_READY_S = 6.0
# Seconds for code after an interrupt before its process is ended: by a second interrupt, and without one.
_PATIENCE_S = 1.0
_LONGEST_PATIENCE_S = 5.0
_WENT_ON = "it was interrupted, and went on"
# Seconds for messages of the worker's other threads from before the end of an execution.
_ORDER_S = 5.0


def unhealthy(name: str, cause: str) -> InternalError:
    """Return the error of a request whose worker has ended, with Triton's text (PB92)."""
    return InternalError(
        f"Stub process '{name}' is not healthy.", hint=f"its process has ended: {cause}"
    )


class Lane:
    """The dialogues of one instance, from `Connection.join` to `Connection.close`; one thread at a time has one.

    Attributes
    ----------
    connection : Connection
    name : str
        Of the instance.
    channel : Channel
    on_lost : callable or None
        See `Connection.watch`.
    calling : bool
        The executing thread runs a call of the worker.
    deadline, interrupt_deadline : float or None
        When the worker is killed, by the monotonic clock; and if it is for an interrupt.
    clock_ns : int
        Added to the worker's times: another machine has another clock.
    printed : select.poll
        Of the worker's outputs; only one thread at a time may ask it.
    """

    def __init__(self, connection: Connection, name: str, channel: Channel) -> None:
        self.connection = connection
        self.name = name
        self.channel = channel
        channel.sent_bytes = channel.received_bytes = 0  # of another instance
        self.on_lost: Callable[[str], object] | None = None
        self.calling = False
        self.deadline: float | None = None
        self.interrupt_deadline: float | None = None
        self.clock_ns = 0
        self.printed = select.poll()
        for output in connection.process.outputs:
            self.printed.register(output.reader, select.POLLIN)

    def placement(self) -> Placement | None:
        """Return the worker's node, and the bytes of executions; None for a worker of this machine."""
        node, channel = self.connection.process.node, self.channel
        return Placement(node, channel.sent_bytes, channel.received_bytes) if node else None

    def here(self, sent_ns: int, start: int, end: int) -> tuple[int, int]:
        """Return the worker's times by this clock: it started after it was asked, and ended before now.

        On one machine, where both have one clock, they stay as they are.
        """
        if start and end:
            self.clock_ns = min(max(self.clock_ns, sent_ns - start), monotonic_ns() - end)
        return start and start + self.clock_ns, end and end + self.clock_ns


class Connection(ConnectionEnd):
    """One worker process, from its start to its end.

    On each lane one thread at a time sends a question and waits for the reply. The connection's own thread reads
    the worker's other messages.

    Parameters
    ----------
    process : Peer
    server : ServerHandle or None
        For the model's code.
    model : str
        The worker follows the levels of this model's logger and of the root.
    timeout_s : float, optional
        For each execution: a worker that takes longer is killed.

    Attributes
    ----------
    ledger : CopyLedger or None
        For a worker on another machine: counts the way of its executions as copies.
    all_outputs : frozenset of str
        The outputs of the model.
    """

    def __init__(
        self,
        process: Peer,
        server: ServerHandle | None,
        model: str = "",
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(process.calls)
        self.process = process
        self._timeout_s = timeout_s
        self._losing = threading.Lock()
        self._cause = ""  # the reason of its end, or of its kill
        self._free = [Channel(lane) for lane in process.lanes]
        self._lanes: list[Lane] = []
        self._replied = 0.0  # the time of the last reply
        self._calls = ServerCalls(server, self._channel, self.heap, self._open, self._request)
        self._calls.alone = model if len(process.lanes) > 1 else ""
        self._main = threading.main_thread().ident
        self._dialogues = itertools.count(1)
        # The requests of the worker's executions, and those it may answer later; None for answered ones.
        self._batches: dict[int, Sequence[BackendRequest]] = {}
        self._late: dict[int, list[BackendRequest | None]] = {}
        self._model = model
        self._logger = logging.getLogger(f"nbtriton.model.{model}")
        self._levels = (-1, -1)
        # Of an instance, after its creation; released with the process.
        self.limits: Limits | None = None
        self.ledger: CopyLedger | None = None
        self.all_outputs: frozenset[str] = frozenset()
        self._threads = 0
        self._handled = 0  # messages on the channel of calls
        self._progress = threading.Condition()
        self._ready: dict[int, SimpleQueue[bool]] = {}
        self._closing = False
        self._reported = False
        self.alive = True
        self._reader = threading.Thread(
            target=self._read, name=f"nbtriton-{process.name}-calls", daemon=True
        )
        self._reader.start()

    # -- instances -------------------------------------------------------------------------------

    def join(self, name: str) -> Lane | None:
        """Return a lane for an instance, or for who completes a configuration; None without a free one, and once all have left."""
        with self._losing:
            if self._closing or not self._free:
                return None
            lane = Lane(self, name, self._free.pop())
            self._lanes.append(lane)
            return lane

    def adopt(self, lane: Lane, name: str, server: ServerHandle | None) -> None:
        """Become the connection of an instance, after the completion of its configuration."""
        lane.name = name
        self._calls.server = server

    def watch(self, lane: Lane, on_lost: Callable[[str], object]) -> None:
        """Set a function to call with the cause when the worker ends unasked."""
        with self._losing:
            lane.on_lost = on_lost
            lost = self._reported
        if lost:
            on_lost(self._cause)

    def finalize(self, lane: Lane) -> None:
        """Leave; behind the last instance let the model finalize, and end the process."""
        if self._leave(lane):
            try:
                with suppress(TritonError):
                    self.ask(lane, protocol.FINALIZE, None)
            finally:
                self._end()

    def close(self, lane: Lane) -> None:
        """Leave; behind the last instance end the process, which may be dead already."""
        if self._leave(lane):
            self._end()

    def _leave(self, lane: Lane) -> bool:
        """Free a lane, if it is not yet; return whether no instance is left."""
        with self._losing:
            if lane in self._lanes:
                self._lanes.remove(lane)
                self._free.append(lane.channel)
            self._closing = not self._lanes
            return self._closing

    def _end(self) -> None:
        self.process.end()
        if get_ident() != self._reader.ident:
            self._reader.join()
        # Not before: it reads from a descriptor whose number could belong to another file.
        self.process.close()
        if self.limits is not None:
            self.limits.release()

    def kill(self, cause: str) -> None:
        """End the worker at once, even during a computation."""
        self._cause = self._cause or cause
        self.process.kill()

    # -- dialogues -------------------------------------------------------------------------------

    def ask(self, lane: Lane, kind: int, description: object) -> Any:
        """Send a single question, such as to create the instance; return the answer.

        Raises
        ------
        TritonError
            An error of the model's code, or the death of the worker.
        KeyboardInterrupt
            The interrupt has reached the model's code.
        """
        with interrupts_deferred():
            number = next(self._dialogues)
            message = kind, number, description, self._levels_now()
            return self._converse(lane, message, b"")[0][2]

    def execute(
        self, lane: Lane, requests: Sequence[BackendRequest], timer: BatchTimer
    ) -> Sequence[Response | None] | None:
        """Execute one batch; see `BackendInstance.execute`."""
        with interrupts_deferred():
            number = next(self._dialogues)
            self._batches[number] = requests
            self._calls.contexts[number] = EXECUTING.get()
            try:
                packer = Packer()
                body = encode_requests(requests, self.all_outputs, packer)
                place, behind = packer.finish(self.heap)
                levels = self._levels_now() if number & 63 == 1 else None
                message = (
                    protocol.EXECUTE, number, body, place, self._incoming.pop_released(), levels,
                    self._threads_now(),
                )  # fmt: skip
                before, sent_ns = lane.placement(), monotonic_ns()
                reply, behind_it = self._converse(lane, message, behind, self._timeout_s)
                _, _, spec, start, end, again, place, waited_ns = reply[:8]
                sent_ns += waited_ns  # for its turn
                start, end = lane.here(sent_ns, start, end)
                timer.marked(start, end)
                if before is not None:
                    there_ns, back_ns = start - sent_ns, monotonic_ns() - end
                    self._count_way(lane.channel, before, there_ns, back_ns, len(requests))
                responses = decode_responses(spec, self._open(place, behind_it))
                for index in again:
                    requests[index].reschedule()
                # (Responses of scattered outputs are not made here, and none of them is missing.)
                if responses is None or (type(responses) is list and None in responses):
                    self._keep(number, requests, again)
                return responses
            except ChannelClosed:  # possible as soon as the inputs are announced
                self._lost()
                raise unhealthy(lane.name, self._cause) from None
            finally:
                del self._batches[number], self._calls.contexts[number]

    def _count_way(
        self, lane: Channel, before: Placement, there_ns: int, back_ns: int, requests: int
    ) -> None:
        """Count the bytes since then and the times of the way there and back."""
        if self.ledger is None:
            return
        node, model = before.node, self._model
        for edge, memories, nbytes, time_ns in (
            ((HOST, model), ("CPU", node), lane.sent_bytes - before.sent_bytes, there_ns),
            ((model, HOST), (node, "CPU"), lane.received_bytes - before.received_bytes, back_ns),
        ):
            self.ledger.copied(edge, memories, nbytes, time_ns, requests=requests, simulated=False)

    def cancel(self, request: BackendRequest) -> None:
        """Pass the cancellation of a request on to the worker, if it has it."""
        for number, requests in (*list(self._batches.items()), *list(self._late.items())):
            for index, one in enumerate(requests):
                if one is request:
                    with suppress(ChannelClosed):
                        self._channel.send((protocol.CANCELLED, number, index))
                    return

    def ask_ready(self) -> bool:
        """Ask the model whether it is ready; False without an answer."""
        number = next(self._dialogues)
        answer: SimpleQueue[bool] = SimpleQueue()
        self._ready[number] = answer
        try:
            self._channel.send((protocol.READY, number))
            return answer.get(timeout=_READY_S)
        except (ChannelClosed, Empty):
            return False
        finally:
            self._ready.pop(number, None)

    def _converse(
        self, lane: Lane, message: tuple[Any, ...], behind: bytes, timeout_s: float | None = None
    ) -> tuple[tuple[Any, ...], memoryview]:
        """Send a message, answer the worker's questions until it replies, and return the reply."""
        channel, number = lane.channel, message[1]
        interrupted = False
        patience = 0.0
        lane.deadline = None if timeout_s is None else monotonic() + timeout_s
        try:
            channel.send(message, behind)
            while True:
                if not channel.spin():
                    try:
                        if get_ident() == self._main:
                            interrupts_allowed(wait_in_slices, partial(self._readable, lane), None)
                        elif lane.deadline is not None:
                            while not self._readable(lane, threading.TIMEOUT_MAX):
                                pass
                    except KeyboardInterrupt:
                        if interrupted and monotonic() > patience:
                            self.kill(_WENT_ON)
                        elif not interrupted:
                            patience = monotonic() + _PATIENCE_S
                        interrupted = True
                        self._interrupt(lane, number)
                        continue
                reply, behind_it = channel.receive()
                kind = reply[0]
                if kind <= protocol.INTERRUPTED:
                    # Nothing to read may also be what another thread has read and is about to write.
                    if lane.printed.poll(0) or self.process.is_forwarding:
                        self.process.forward_output()
                    self._replied = monotonic()
                    break
                if kind == protocol.WAIT:
                    interrupted = self._wait_for_coroutine(lane, number) or interrupted
                else:
                    lane.calling = True
                    try:
                        if not self.alive:
                            raise ChannelClosed
                        self._calls.handle(reply, behind_it, channel)
                    finally:
                        lane.calling = False
                    del reply, behind_it
                    self._send_released()
        except ChannelClosed:
            self._lost()
            if interrupted:
                raise KeyboardInterrupt from None
            raise unhealthy(lane.name, self._cause) from None
        return self._settled(reply, interrupted), behind_it

    def _settled(self, reply: tuple[Any, ...], interrupted: bool) -> tuple[Any, ...]:
        """Handle the common part of every reply."""
        released, sent, metrics, seen = reply[-4:]
        if released:
            self.heap.release(released)
        if sent > self._handled:  # by other threads of the worker, before this reply
            with self._progress:
                self._progress.wait_for(lambda: self._handled >= sent, _ORDER_S)
        if metrics:  # which those may have changed
            self._calls.forget_metrics(*metrics)
        kind = reply[0]
        if kind == protocol.FAILED:
            raise decode_error(reply[2])
        if kind == protocol.INTERRUPTED or (interrupted and not seen):
            raise KeyboardInterrupt
        return reply

    def _wait_for_coroutine(self, lane: Lane, number: int) -> bool:
        """Wait until the worker has sent something; return True after an interrupt."""
        server = self._calls.server
        if lane.channel.has_more or server is None:
            return False
        try:
            server.wait_for_coroutine(partial(self._readable, lane))
        except KeyboardInterrupt:
            self._interrupt(lane, number)
            return True
        return False

    def _interrupt(self, lane: Lane, number: int) -> None:
        """Pass an interrupt on; a worker that goes on nevertheless will be ended."""
        self._channel.send((protocol.INTERRUPT, number))
        due = monotonic() + _LONGEST_PATIENCE_S
        if lane.deadline is None or lane.deadline > due:
            lane.deadline = lane.interrupt_deadline = due

    def _readable(self, lane: Lane, timeout_s: float) -> bool:
        """Wait for a message; return True also if the worker was killed after its timeout."""
        deadline = lane.deadline
        if deadline is not None:
            timeout_s = min(timeout_s, max(0.0, deadline - monotonic()))
        if lane.channel.wait(timeout_s):
            return True
        if deadline is None or monotonic() < deadline:
            return False
        cause = _WENT_ON
        if deadline != lane.interrupt_deadline:
            assert self._timeout_s is not None
            if deadline < self._replied + self._timeout_s:  # it waited for its turn
                lane.deadline = self._replied + self._timeout_s
                return False
            cause = f"an execution took longer than {self._timeout_s:g} s"
        lane.deadline = None
        self.kill(cause)
        return True

    def _levels_now(self) -> tuple[int, int] | None:
        """Return the levels of the model's logger and of the root, if they changed for the worker."""
        levels = self._logger.getEffectiveLevel(), logging.root.level
        if levels == self._levels:
            return None
        self._levels = levels
        return levels

    def _threads_now(self) -> int:
        """Return the threads of the worker's libraries if they changed for the worker; else 0."""
        limits = self.limits
        if limits is None or limits.threads == self._threads:
            return 0
        self._threads = limits.threads
        return self._threads

    # -- the worker's other messages -----------------------------------------------------------------

    def _read(self) -> None:
        channel = self._channel
        try:
            while True:
                message, behind = channel.receive()
                kind = message[0]
                try:
                    if kind == protocol.ANSWER:
                        answer = self._ready.get(message[1])
                        if answer is not None:
                            answer.put(message[2])
                    elif not self._handle_memory(message):
                        self._calls.handle(message, behind, channel)
                        if kind == protocol.SEND and message[4]:
                            self._forget_answered(message[1])
                except ChannelClosed:
                    raise
                except BaseException:  # also SystemExit of a caller's callback
                    _log.exception("a message of the worker of '%s'", self.process.name)
                # Before the next message, which reuses its memory.
                del message, behind
                self._send_released()
                with self._progress:
                    self._handled += 1
                    self._progress.notify_all()
        except ChannelClosed:
            self._ended()

    def _ended(self) -> None:
        self.alive = False
        with self._progress:
            self._handled = 1 << 62
            self._progress.notify_all()
        for answer in list(self._ready.values()):
            answer.put(False)
        self._lost()
        # A thread that executes another model, which may take its time.
        if any(lane.calling for lane in self._lanes):
            for requests in list(self._batches.values()):
                self._fail(requests)
        self._fail_late()
        self._calls.close()

    def _lost(self) -> None:
        """Handle the end of the worker; its requests have failed when this returns."""
        with self._losing:
            self.alive = False
            if self._closing or self._reported:
                return
            self._reported = True
            # It may continue without its connections: code that it runs at its exit.
            self.process.end()
            self._cause = self._cause or str(self.process.exit or self.process.reason)
            for lane in self._lanes:
                if lane.on_lost is not None:
                    lane.on_lost(self._cause)

    # -- requests --------------------------------------------------------------------------------

    def _keep(self, number: int, requests: Sequence[BackendRequest], again: Sequence[int]) -> None:
        """Keep the requests of a batch that the model may answer later."""
        late: list[BackendRequest | None] = [
            None if index in again else request for index, request in enumerate(requests)
        ]
        self._late[number] = late
        self._forget_answered(number)
        if not self.alive:
            self._fail_late()

    def _forget_answered(self, number: int) -> None:
        late = self._late.get(number)
        if late is None:
            return
        for index, request in enumerate(late):
            if request is not None and request.is_answered():
                late[index] = None
        if not any(late):
            self._late.pop(number, None)

    def _fail_late(self) -> None:
        """Fail the requests that the model would have answered later."""
        for number, requests in list(self._late.items()):
            self._fail(requests)
            self._late.pop(number, None)

    def _fail(self, requests: Sequence[BackendRequest | None]) -> None:
        for request in requests:
            with suppress(TritonError):
                if request is not None and not request.is_answered():
                    error = unhealthy(self.process.name, self._cause)
                    request.send(Response(error=error), final=True)

    def _request(self, batch: int, index: int) -> BackendRequest | None:
        requests = self._batches.get(batch) or self._late.get(batch)
        return None if requests is None else requests[index]
