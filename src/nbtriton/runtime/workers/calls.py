"""A worker's use of the server, handled in the engine's process."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from nbtriton.backends.base import BackendRequest, RequestOptions, Response, ServerHandle
from nbtriton.backends.core.executing import EXECUTING, Executing
from nbtriton.backends.python.api.metrics import MetricKind, family_of
from nbtriton.common.errors import EngineStoppedError, InternalError, TritonError
from nbtriton.runtime.workers import protocol
from nbtriton.runtime.workers.core.channel import Channel, ChannelClosed
from nbtriton.runtime.workers.core.codec import decode_response, decode_tensors, encode_response
from nbtriton.runtime.workers.core.memory import Outgoing, Place
from nbtriton.runtime.workers.core.packing import Packer
from nbtriton.runtime.workers.protocol import encode_error

if TYPE_CHECKING:
    from nbtriton.backends.python.api.metrics import Family, Sample


_log = logging.getLogger("nbtriton.runtime.workers")
# Questions that the server answers; all but the last may take long.
_OF_SERVER = ("is_model_ready", "load_model", "unload_model", "is_decoupled")
_SLOW = _OF_SERVER[:3]


class ServerCalls:
    """Handles the messages by which a worker uses the server.

    Parameters
    ----------
    server : ServerHandle or None
        None while a configuration is completed.
    channel : Channel
        Of calls.
    heap : Outgoing
        For the tensors of responses.
    open_memory : callable
        ``open_memory(place, behind)`` returns the memory of a message's tensors.
    request : callable
        ``request(batch, index)`` returns a request that the worker executes, or None.

    Attributes
    ----------
    server : ServerHandle or None
    contexts : dict of int to Executing
        Of the current executions, by their dialogue.
    alone : str
        A model whose instances share a worker: a call of itself could wait for its own end. Empty for others.
    """

    def __init__(
        self,
        server: ServerHandle | None,
        channel: Channel,
        heap: Outgoing,
        open_memory: Callable[[Place | None, memoryview], Any],
        request: Callable[[int, int], BackendRequest | None],
    ) -> None:
        self.server = server
        self._channel = channel
        self._heap = heap
        self._open = open_memory
        self._request = request
        self.contexts: dict[int, Executing] = {}
        self.alone = ""
        self._futures: dict[int, Any] = {}
        # The objects of the model's metrics, by the worker's numbers for them.
        self._families: dict[int, Family] = {}
        self._samples: dict[int, Sample] = {}
        self._lock = threading.Lock()
        self._numbers = 0

    def handle(self, message: tuple[Any, ...], behind: memoryview, lane: Channel) -> None:
        """Handle one message; an answer uses the channel of the message."""
        kind = message[0]
        if kind == protocol.SEND:
            self._send(behind, *message[1:])
        elif kind == protocol.NOTE:
            self._note(message[1], message[2])
        elif kind == protocol.ASK:
            self._ask(lane, *message[1:])
        elif kind == protocol.SUBMIT:
            self._submit(behind, lane, *message[1:])
        elif kind == protocol.CALL:
            self._call(behind, lane, *message[1:])
        elif kind == protocol.CANCEL:
            future = self._futures.get(message[1])
            if future is not None:
                future._ask_to_end()  # noqa: SLF001 - the engine's side of it
        elif kind == protocol.AWAITS:
            self._awaits(message[1], message[2])
        else:
            raise InternalError(f"a worker sent a message of the unknown kind {kind}")

    def forget_metrics(self, families: Sequence[int], samples: Sequence[int]) -> None:
        """Drop the metrics whose objects were deleted in the worker."""
        for number in families:
            self._families.pop(number, None)
        for number in samples:
            self._samples.pop(number, None)

    def close(self) -> None:
        """Cancel the requests that the model has sent: no caller waits for them any more."""
        for future in list(self._futures.values()):
            with suppress(TritonError):
                future.cancel()
        self._futures.clear()
        self._families.clear()
        self._samples.clear()

    # -- responses -------------------------------------------------------------------------------

    def _send(
        self,
        behind: memoryview,
        batch: int,
        index: int,
        body: Any,
        final: bool,
        place: Place | None,
    ) -> None:
        request = self._request(batch, index)
        response = None if body is None else decode_response(body, self._open(place, behind))
        if request is None:
            return
        try:
            request.send(response, final=final)
        except TritonError as error:  # the server was closed in the meantime, and has answered
            _log.debug("a response came too late: %s", error)

    # -- requests to other models ----------------------------------------------------------------

    def _call(
        self,
        behind: memoryview,
        lane: Channel,
        number: int,
        model: str,
        version: int,
        tensors: Any,
        options: Sequence[Any],
        place: Place | None,
    ) -> None:
        try:
            inputs = decode_tensors(tensors, self._open(place, behind))
            response = self._any_server(model).call(
                model, version, inputs, RequestOptions(*options)
            )
        except (Exception, KeyboardInterrupt) as error:
            _refuse(lane, number, error)
            return
        self._respond(lane, protocol.ANSWER, number, response)

    def _submit(
        self,
        behind: memoryview,
        lane: Channel,
        number: int,
        model: str,
        version: int,
        tensors: Any,
        options: Sequence[Any],
        streams: bool,
        traced: Sequence[int] | None,
        place: Place | None,
    ) -> None:
        try:
            trace = None
            if traced is not None:
                request = self._request(traced[0], traced[1])
                parent = None if request is None else request.trace
                trace = None if parent is None else parent.child()
            inputs = decode_tensors(tensors, self._open(place, behind))
            future = self._any_server(model).submit(
                model,
                version,
                inputs,
                RequestOptions(*options),
                partial(self._on_response, number) if streams else None,
                trace,
            )
        except Exception as error:
            _refuse(lane, number, error)
            return
        self._futures[number] = future
        lane.send((protocol.ANSWER, number, True, None, None))
        future.add_done_callback(partial(self._on_done, number, streams))

    def _on_response(self, number: int, response: Response, final: bool) -> None:
        with suppress(ChannelClosed):
            self._respond(self._channel, protocol.RESPONSE, number, response, final)

    def _on_done(self, number: int, streams: bool, future: Any) -> None:
        self._futures.pop(number, None)
        error = future.exception()
        with suppress(ChannelClosed):
            if error is not None or streams:  # the call has already received its responses
                encoded = None if error is None else encode_error(error)
                self._channel.send((protocol.DONE, number, encoded, None, None))
            else:
                result = future.result()
                response = Response(dict(result), None, result.parameters)
                self._respond(self._channel, protocol.DONE, number, response, None)

    def _respond(
        self, lane: Channel, kind: int, number: int, response: Response, final: bool | None = True
    ) -> None:
        packer = Packer()
        body = encode_response(response, packer)
        place, behind = packer.finish(self._heap)
        lane.send((kind, number, final, body, place), behind)

    def _awaits(self, number: int, dialogue: int) -> None:
        future, context = self._futures.get(number), self.contexts.get(dialogue)
        if future is None or context is None:  # answered already
            return
        token = EXECUTING.set(context)
        try:
            self._any_server().awaits(future)
        finally:
            EXECUTING.reset(token)

    # -- questions -------------------------------------------------------------------------------

    def _ask(self, lane: Channel, number: int, what: str, arguments: Sequence[Any]) -> None:
        if lane is self._channel and what in _SLOW:
            # The thread that reads this channel must not wait.
            threading.Thread(
                target=self._answer,
                args=(number, what, arguments, lane),
                name=f"nbtriton-{what}",
                daemon=True,
            ).start()
        else:
            self._answer(number, what, arguments, lane)

    def _answer(self, number: int, what: str, arguments: Sequence[Any], lane: Channel) -> None:
        with suppress(ChannelClosed):
            try:
                of = self._any_server() if what in _OF_SERVER else self
                value = getattr(of, what)(*arguments)
            except (Exception, KeyboardInterrupt) as error:
                _refuse(lane, number, error)
            else:
                lane.send((protocol.ANSWER, number, True, value, None))

    def family(self, name: str, description: str, kind: int) -> tuple[int, int]:
        """Return the number and the kind of a family of metrics."""
        family = family_of(self.server, name, description, MetricKind(kind))
        return self._number(self._families, family), int(family.kind)

    def sample(self, family: int, labels: Sequence[Sequence[str]], bounds: Sequence[float]) -> int:
        """Return the number of a family's value with these labels."""
        key = tuple((str(name), str(value)) for name, value in labels)
        sample = self._families[family].sample(key, tuple(bounds))
        return self._number(self._samples, sample)

    def value(self, sample: int) -> float:
        """Return the value of a counter or a gauge."""
        return self._samples[sample].read()

    def _number(self, table: dict[int, Any], value: Any) -> int:
        with self._lock:
            self._numbers += 1
            table[self._numbers] = value
            return self._numbers

    # -- notes -----------------------------------------------------------------------------------

    def _note(self, what: str, arguments: Sequence[Any]) -> None:
        try:
            getattr(self, f"_note_{what}")(*arguments)
        except Exception:
            _log.exception("a note of a worker: %s", what)

    def _note_call(self, caller: str, callee: str) -> None:
        if self.server is not None:
            self.server.note_call(caller, callee)

    def _note_metric(self, sample: int, change: str, value: float) -> None:
        metric = self._samples.get(sample)
        if metric is not None:
            getattr(metric, change)(value)

    def _note_log(self, fields: dict[str, Any]) -> None:
        logger = logging.getLogger(fields["name"])
        if logger.isEnabledFor(fields["levelno"]):
            logger.handle(logging.makeLogRecord(fields))

    def _note_warn(self, message: str, category: str, filename: str, line: int) -> None:
        kind = getattr(__import__("builtins"), category, UserWarning)
        warnings.warn_explicit(message, kind, filename, line)

    def _any_server(self, model: str = "") -> ServerHandle:
        if model and model == self.alone:
            raise InternalError(
                f"deadlock: '{model}' calls itself, and its instances share an actor: each would wait for the other",
                hint="INSTANCE_SHARING: 1",
            )
        if self.server is None:
            raise EngineStoppedError("Model control needs a model that a server runs.")
        return self.server


def _refuse(lane: Channel, number: int, error: BaseException) -> None:
    """Answer with an error, None for an interrupt."""
    encoded = None if isinstance(error, KeyboardInterrupt) else encode_error(error)
    lane.send((protocol.ANSWER, number, False, encoded, None))
