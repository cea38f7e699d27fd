"""`pb_utils.InferenceResponseSender`, and the response to abandoned requests."""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue

from nbtriton.backends.base import BackendRequest, Response
from nbtriton.backends.core.place import wait_for_outputs
from nbtriton.backends.forking import per_process
from nbtriton.backends.python.api.pybind import TritonModelException, incompatible
from nbtriton.backends.python.core.values import InferenceResponse, to_engine_response
from nbtriton.common.errors import InternalError
from nbtriton.common.errors import TritonError as EngineError
from nbtriton.model.tensors import Array

COMPLETE_FINAL = 1
SECOND_RESPONSE = "Unable to send response. Non-decoupled model cannot send more than one response."

_log = logging.getLogger("nbtriton.python")


class InferenceResponseSender:
    """Answers one request: any number of responses for a decoupled model, else one.

    Notes
    -----
    If the last reference to a sender is dropped before the final flag was sent, no code can answer the
    request. Triton's client then waits forever. Here the request gets an error, or the final flag if an
    ordinary model's one response was sent.
    """

    __slots__ = ("_closed", "_count", "_decoupled", "_lock", "_request")

    def __init__(self, request: BackendRequest, *, decoupled: bool) -> None:
        self._request = request
        self._decoupled = decoupled
        self._closed = False
        self._count = 0
        # Reentrant: a callback of this response may run on this very thread.
        self._lock = threading.RLock()
        _abandoned().start()

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send one response, the final flag, or both.

        Raises
        ------
        TritonModelException
            The texts of Triton's response sender.
        """
        if response is not None and not isinstance(response, InferenceResponse):
            raise incompatible("send", "response: InferenceResponse", response)
        if flags not in (0, COMPLETE_FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if flags == 0 and response is None:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        final = flags == COMPLETE_FINAL
        with self._lock:
            self._check_and_count(response, final)
            reply = None
            if response is not None:
                foreign: list[Array] = []
                reply = to_engine_response(response, self._request, foreign)
                if foreign:
                    wait_for_outputs(foreign)
            try:
                self._request.send(reply, final=final)
            except EngineError as error:
                raise TritonModelException(
                    "Unable to send response. Response sender has been closed."
                ) from error

    def close(self) -> None:
        """Record that the request was answered in another way."""
        self._closed = True

    def was_used(self) -> bool:
        """Return True if a response was sent."""
        return self._count > 0

    def is_closed(self) -> bool:
        """Return True if no more responses can be sent."""
        return self._closed

    def is_cancelled(self) -> bool:
        """Return True if the request was cancelled; the final flag is still needed."""
        return self._request.is_cancelled()

    def _check_and_count(self, response: InferenceResponse | None, final: bool) -> None:
        # The order of these checks is Triton's.
        if not self._decoupled:
            if response is not None and self._count > 0:
                raise TritonModelException(SECOND_RESPONSE)
            if response is None and self._count == 0:
                raise TritonModelException(
                    "Unable to send response. Non-decoupled model cannot send complete final "
                    "before sending a response."
                )
        if self._closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        self._closed = final
        self._count += 1

    def __del__(self) -> None:
        # Not `self._request.send`: a finalizer may run anywhere, also under the engine's lock.
        if not getattr(self, "_closed", True):
            implied = self._count > 0 and not self._decoupled
            _abandoned().put(self._request, None if implied else unanswered_error())


class _Abandoned:
    """Answers requests whose sender was dropped, on a separate thread."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[BackendRequest, InternalError | None] | None] = SimpleQueue()
        self._started = False
        self._lock = threading.Lock()

    def start(self) -> None:
        if self._started:
            return
        with self._lock:
            if not self._started:
                threading.Thread(
                    target=self._run, name="nbtriton-abandoned-requests", daemon=True
                ).start()
                self._started = True

    def stop(self) -> None:
        """Stop the thread after it has answered the remaining requests; a new sender starts another one."""
        with self._lock:
            if self._started:
                self._queue.put(None)
                self._started = False

    def put(self, request: BackendRequest, error: InternalError | None) -> None:
        self._queue.put((request, error))

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            request, error = item
            try:
                if not request.is_answered():
                    request.send(None if error is None else Response(error=error), final=True)
            except EngineError as late:  # already answered, or the server is closed
                _log.debug("abandoned request: %s", late)
            except Exception:
                _log.exception("answering an abandoned request")
            del request, item


# A forked child has neither the thread nor its requests.
_abandoned = per_process(_Abandoned)


def stop_answering_abandoned() -> None:
    """Stop the thread that answers abandoned requests: no model is left."""
    _abandoned().stop()


def unanswered_error() -> InternalError:
    """Return the error of a request that its model abandoned."""
    return InternalError(
        "The model finished with the request without sending a final response.",
        hint="return an InferenceResponse for it, or call "
        "sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL); Triton 2.51 would never answer "
        "(docs/differences.md: unanswered-requests)",
    )
