"""The work of a worker: one object of a model, and its channels to the engine's process."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import socket
import sys
import threading
from _thread import get_ident
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from time import monotonic_ns
from types import FrameType
from typing import Any

from nbtriton.backends.base import BackendInstance, BatchTimer, Response
from nbtriton.backends.core.executing import EXECUTING, Executing
from nbtriton.backends.forking import after_fork
from nbtriton.common.errors import TritonError
from nbtriton.runtime.workers import protocol
from nbtriton.runtime.workers.core.channel import Channel, ChannelClosed
from nbtriton.runtime.workers.core.codec import (
    RemoteRequest,
    decode_requests,
    decode_response,
    encode_response,
    encode_responses,
)
from nbtriton.runtime.workers.core.memory import ConnectionEnd
from nbtriton.runtime.workers.core.packing import Packer
from nbtriton.runtime.workers.protocol import decode_error, encode_error, plain
from nbtriton.runtime.workers.worker.making import (
    InstanceFactory,
    follow_levels,
    redirect,
    set_threads,
)

_log = logging.getLogger("nbtriton.runtime.workers")


class _Marks(BatchTimer):
    """The times of an execution."""

    __slots__ = ("infer_done_ns", "inputs_ready_ns")

    def __init__(self) -> None:
        self.inputs_ready_ns = 0
        self.infer_done_ns = 0

    def inputs_ready(self) -> None:
        self.inputs_ready_ns = monotonic_ns()

    def infer_done(self) -> None:
        self.infer_done_ns = monotonic_ns()

    def marked(self, inputs_ready_ns: int, infer_done_ns: int) -> None:
        self.inputs_ready_ns = inputs_ready_ns
        self.infer_done_ns = infer_done_ns


class _Turn:
    """A dialogue of a lane that others share the worker with, from its first message to its reply.

    Attributes
    ----------
    cancelled : list of int
        The requests that were cancelled while it waited.
    reply : SimpleQueue
        Of the message, and the bytes behind it.
    """

    def __init__(self, lane: Channel, message: tuple[Any, ...], behind: memoryview) -> None:
        self.came_ns = monotonic_ns()
        self.lane = lane
        self.message = message
        self.behind = behind
        self.cancelled: list[int] = []
        self.reply: SimpleQueue[tuple[tuple[Any, ...], bytes]] = SimpleQueue()


class Worker(ConnectionEnd):
    """The main thread executes; another one reads the engine's other messages.

    Parameters
    ----------
    lanes : sequence of socket.socket
        One for each instance that shares the model's object.
    calls : socket.socket
    server : callable
        ``server(worker)`` returns the server for the model.
    trace : callable
        ``trace(batch, index, context)`` returns the trace of a request.

    Attributes
    ----------
    dialogue : int
        The number of the current one, 0 for none.
    iterative : bool
        The model may reschedule its requests.
    """

    def __init__(
        self,
        lanes: Sequence[socket.socket],
        calls: socket.socket,
        server: Callable[[Worker], Any],
        trace: Callable[[int, int, str | None], Any],
    ) -> None:
        super().__init__(calls)
        self._lanes = [Channel(lane) for lane in lanes]
        self._lane = self._lanes[0]  # of the current dialogue
        # Where there are several: those that wait for the main thread, by number, and in the order of their coming.
        self._waiting: dict[int, _Turn] = {}
        self._turns: SimpleQueue[_Turn | None] = SimpleQueue()
        self._cancelled: list[int] = []
        self._main = get_ident()
        self.numbers = itertools.count(1)
        self._answers: dict[int, SimpleQueue[tuple[bool, Any]]] = {}
        self.futures: dict[int, Any] = {}
        self._open_requests: dict[int, list[RemoteRequest]] = {}
        self._factory = InstanceFactory()
        self._instance: BackendInstance | None = None
        self._executing_context = Executing()
        self._all_outputs: frozenset[str] = frozenset()
        self.iterative = False
        self.server = server(self)
        self._trace = trace
        self.dialogue = 0
        self._interrupted = 0  # the dialogue that an interrupt is meant for
        self._guards = 0
        self._interruptible = False
        self._seen = False
        self._ending = False
        self.dropped_metrics: tuple[list[int], list[int]] = ([], [])

    def run(self) -> None:
        """Serve until the engine's process ends the worker, or ends itself."""
        signal.signal(signal.SIGINT, self._on_interrupt)
        redirect(self.note)
        after_fork(self._leave)
        threading.Thread(target=self._read, name="nbtriton-calls", daemon=True).start()
        with suppress(ChannelClosed):
            if len(self._lanes) > 1:
                for lane in self._lanes:
                    threading.Thread(
                        target=self._carry, args=(lane,), name="nbtriton-lane", daemon=True
                    ).start()
                while not self._ending:
                    self._take(self._turns.get())
            while not self._ending:
                self._lane.spin()
                self._lane.send(*self._converse(*self._lane.receive()))

    def _carry(self, lane: Channel) -> None:
        """Read the dialogues of a lane, and send their replies, while the main thread executes for others."""
        try:
            with suppress(ChannelClosed):
                while True:
                    turn = _Turn(lane, *lane.receive())
                    self._waiting[turn.message[1]] = turn
                    self._turns.put(turn)
                    self._withdraw()
                    lane.send(*turn.reply.get())
                    del turn
        finally:
            self._turns.put(None)

    def _take(self, turn: _Turn | None) -> None:
        """Have a dialogue on the main thread; without one a lane has ended, and all with it."""
        if turn is None:
            raise ChannelClosed
        message = turn.message
        if self._waiting.pop(message[1], None) is None:  # it was interrupted, and has its reply
            if message[0] == protocol.EXECUTE:
                if message[3] is not None:  # gives the memory of its inputs back
                    self._incoming.view(message[3])
                self._follow(*message[4:])
            return
        self._lane, self._cancelled = turn.lane, turn.cancelled
        done = self._converse(message, turn.behind, monotonic_ns() - turn.came_ns)
        if self._ending:  # the process does not wait for that thread
            self._lane.send(*done)
        else:
            turn.reply.put(done)

    def _withdraw(self) -> bool:
        """Reply to the interrupted dialogue, if that waits for its turn."""
        number = self._interrupted
        turn = self._waiting.pop(number, None)
        if turn is not None:
            turn.reply.put(((protocol.INTERRUPTED, number, [], 0, None, True), b""))
        return turn is not None

    def _follow(self, released: list[Any], levels: tuple[int, int] | None, threads: int) -> None:
        """Take what an execution brings beside its requests."""
        if released:
            self.heap.release(released)
        if levels is not None:
            follow_levels(*levels)
        if threads:
            set_threads(threads)

    def _leave(self) -> None:
        """Leave the engine to the parent, in a child that the model's code has forked.

        A child that returns from ``execute`` like its parent would answer a second time, and the
        next request would take that as its own answer.
        """
        self._ending = True
        for channel in (*self._lanes, self._channel):
            channel.leave()

    # -- dialogues -------------------------------------------------------------------------------

    def _converse(
        self, message: tuple[Any, ...], behind: memoryview, waited_ns: int = 0
    ) -> tuple[tuple[Any, ...], bytes]:
        """Have a dialogue up to its reply; return that, and the bytes behind it."""
        kind, number = message[0], message[1]
        self._seen = False
        self.dialogue = number
        packer = Packer()
        behind_it = b""
        try:
            try:
                self._interruptible = True
                if kind == protocol.EXECUTE:
                    reply = self._execute(message, behind, packer)
                    self._interruptible = False
                    place, behind_it = packer.finish(self.heap)
                    reply += (place, waited_ns)
                else:
                    if message[3] is not None:
                        follow_levels(*message[3])
                    result = self._do(kind, message[2])
                    reply = (protocol.REPLY, number, result)
            finally:  # an interrupt behind it would end the process
                self._interruptible = False
        except KeyboardInterrupt:
            reply = (protocol.INTERRUPTED, number)
        except BaseException as error:
            if not isinstance(error, TritonError):
                _log.exception("the backend raised")
            reply = (protocol.FAILED, number, encode_error(error))
        with suppress(Exception):  # the model may have replaced them
            sys.stdout.flush()
            sys.stderr.flush()
        self.dialogue = 0
        del packer  # with the last views of the inputs
        families, samples = self.dropped_metrics
        dropped = None
        if families or samples:
            self.dropped_metrics = ([], [])
            dropped = (families, samples)
        reply += (self._incoming.pop_released(), self._channel.sent, dropped, self._seen)
        return reply, behind_it

    def _do(self, kind: int, description: Any) -> Any:
        if kind == protocol.FINALIZE:
            self._ending = True
            if self._instance is not None:
                self._instance.finalize()
            self._factory.close()
            return None
        if kind == protocol.COMPLETE:
            return self._factory.complete(description)
        instance = self._instance
        if instance is None:  # otherwise it is shared
            self._instance = instance = self._factory.create(description, self.server)
            self._all_outputs = frozenset(description["outputs"])
            self.iterative = description["iterative"]
            self._executing_context = Executing((), instance.running)
        return {"ready": instance.readiness is not None}

    def _execute(
        self, message: tuple[Any, ...], behind: memoryview, packer: Packer
    ) -> tuple[Any, ...]:
        _, number, body, place, released, levels, threads = message
        assert self._instance is not None
        self._follow(released, levels, threads)
        requests = decode_requests(
            body, self._open(place, behind), self, number, self._all_outputs, self._trace
        )
        timer = _Marks()
        self._open_requests[number] = requests
        for index in self._cancelled:
            requests[index].cancelled = True
        kept = False
        token = EXECUTING.set(self._executing_context)
        try:
            try:
                self._flush_interrupt()  # it may have been faster
                responses = self._instance.execute(requests, timer)
            finally:
                EXECUTING.reset(token)
            encoded = encode_responses(responses, packer)
            again = []
            # (Responses of scattered outputs are not made here, and none of them is missing.)
            listed = responses if isinstance(responses, list) else None
            for index, request in enumerate(requests):
                if request.rescheduled and not request.is_answered():
                    again.append(index)
                elif responses is None or (listed is not None and listed[index] is None):
                    kept = kept or not request.is_answered()
                else:
                    request.try_finish()
            return (
                protocol.REPLY, number, encoded, timer.inputs_ready_ns, timer.infer_done_ns, again,
            )  # fmt: skip
        except BaseException:
            for request in requests:  # the engine answers the remaining requests
                request.try_finish()
            raise
        finally:
            if not kept:
                self._open_requests.pop(number, None)  # answered by another thread in the meantime

    # -- the model's code uses the server --------------------------------------------------------

    @property
    def inside(self) -> bool:
        """Whether this is the main thread while the engine's process waits for its reply."""
        return self.dialogue > 0 and get_ident() == self._main

    def post(self, message: tuple[Any, ...], behind: bytes = b"") -> None:
        """Send a message without an answer."""
        if self.inside:
            self._guarded_send(message, behind)
        else:
            self._channel.send(message, behind)

    def note(self, what: str, arguments: tuple[Any, ...]) -> None:
        """Send a note; see `protocol.NOTE`."""
        self.post((protocol.NOTE, what, plain(arguments)))

    def send(self, request: RemoteRequest, response: Response | None, final: bool) -> None:
        """Send one response of a request."""
        packer = Packer()
        body = None if response is None else encode_response(response, packer)
        place, behind = packer.finish(self.heap)
        self.post((protocol.SEND, request.batch, request.index, body, final, place), behind)
        if final:
            kept = self._open_requests.get(request.batch)
            if kept is not None and all(one.is_answered() for one in kept):
                self._open_requests.pop(request.batch, None)

    def ask(self, what: str, arguments: tuple[Any, ...]) -> Any:
        """Send a question to the server and wait for the answer."""
        number = next(self.numbers)
        return self.request(number, (protocol.ASK, number, what, plain(arguments)))

    def request(self, number: int, message: tuple[Any, ...], behind: bytes = b"") -> Any:
        """Send a message and wait for its answer: a value, or an error, which is raised."""
        if self.inside:
            return self._ask_inside(message, behind)
        answer: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
        self._answers[number] = answer
        try:
            self._channel.send(message, behind)
            return _settled(*answer.get())
        finally:
            self._answers.pop(number, None)

    def _ask_inside(self, message: tuple[Any, ...], behind: bytes) -> Any:
        self._guards += 1
        try:
            self._lane.send(message, behind)
            self._lane.spin()
            answer, behind_it = self._lane.receive()
            _, _, good, value, place = answer
            if good and message[0] == protocol.CALL:
                value = decode_response(value, self._open(place, behind_it))
            self._send_released()
        finally:
            self._guards -= 1
        self._flush_interrupt()
        return _settled(good, value)

    # -- interrupts ------------------------------------------------------------------------------

    def _on_interrupt(self, _: int, __: FrameType | None) -> None:
        """Raise an interrupt for the current execution, between two messages."""
        if self._interruptible and self._interrupted == self.dialogue and not self._guards:
            self._interrupted = 0
            self._seen = True
            raise KeyboardInterrupt

    def _flush_interrupt(self) -> None:
        if self._interrupted:
            self._on_interrupt(0, None)

    def _guarded_send(self, message: tuple[Any, ...], behind: bytes) -> None:
        self._guards += 1
        try:
            self._lane.send(message, behind)
        finally:
            self._guards -= 1
        self._flush_interrupt()

    # -- the engine's other messages -----------------------------------------------------------------

    def _read(self) -> None:
        channel = self._channel
        try:
            while True:
                message, behind = channel.receive()
                try:
                    self._handle(message, behind)
                except Exception:
                    _log.exception("a message of the engine's process")
                del message, behind
        except ChannelClosed:
            if not self._ending:
                os._exit(1)

    def _handle(self, message: tuple[Any, ...], behind: memoryview) -> None:
        kind = message[0]
        if self._handle_memory(message):
            return
        if kind == protocol.ANSWER:
            answer = self._answers.get(message[1])
            if answer is not None:
                answer.put((message[2], message[3]))
        elif kind == protocol.RESPONSE:
            _, number, final, body, place = message
            response = decode_response(body, self._open(place, behind))
            future = self.futures.get(number)
            if future is not None:
                future.receive(response, final)
        elif kind == protocol.DONE:
            _, number, error, body, place = message
            last = None if body is None else decode_response(body, self._open(place, behind))
            future = self.futures.pop(number, None)
            if future is not None:
                future.resolve(last, None if error is None else decode_error(error))
        elif kind == protocol.CANCELLED:
            turn = self._waiting.get(message[1])
            if turn is not None:
                turn.cancelled.append(message[2])
            requests = self._open_requests.get(message[1])
            if requests is not None:
                requests[message[2]].cancelled = True
        elif kind == protocol.INTERRUPT:
            self._interrupted = message[1]
            if not self._withdraw():
                signal.pthread_kill(self._main, signal.SIGINT)
        elif kind == protocol.READY:
            threading.Thread(
                target=self._say_ready, args=(message[1],), name="nbtriton-ready", daemon=True
            ).start()

    def _say_ready(self, number: int) -> None:
        instance = self._instance
        readiness = None if instance is None else instance.readiness
        ready = False
        try:
            ready = readiness is None or bool(readiness())
        finally:
            self._channel.send((protocol.ANSWER, number, ready))


def _settled(good: bool, value: Any) -> Any:
    """Return the value of an answer, or raise the error in it."""
    if good:
        return value
    if value is None:
        raise KeyboardInterrupt
    raise decode_error(value)
