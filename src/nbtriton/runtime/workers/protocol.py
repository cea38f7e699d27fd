"""The kinds of control messages between the engine's process and a worker.

Every message is a tuple of plain values that begins with its kind. Two or more channels connect the processes:

*lanes*
    One for each instance; on each a strict dialogue. The engine's side asks (CREATE, COMPLETE, EXECUTE, FINALIZE), the worker replies
    (REPLY, FAILED, INTERRUPTED). Before its reply the worker's main thread may send messages of the
    second group below, and each CALL and ASK among them is answered before it continues.
*calls*
    Everything else: messages of the worker's other threads, and the engine's messages to a computing
    worker. Each process has one thread that reads it.

Tensors follow a message, or are in shared memory at a place that the message names.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any, Final

from nbtriton.common import errors
from nbtriton.common.errors import TritonError
from nbtriton.model.tensors import Array

# Version of the messages: the engine's side refuses a worker with another one.
VERSION: Final = 2

# The engine asks, on a lane.
CREATE: Final = 1
COMPLETE: Final = 2
EXECUTE: Final = 3
FINALIZE: Final = 4

# The worker replies.
REPLY: Final = 10
FAILED: Final = 11
INTERRUPTED: Final = 12

# The worker uses the server, on a lane or the channel of calls: (kind, …).
ASK: Final = 20  # a question to the server: number, what, arguments
CALL: Final = 21  # a request to another model, by a thread that waits for its response
SUBMIT: Final = 22  # a request to another model, answered by RESPONSE and DONE
CANCEL: Final = 23  # of a SUBMIT
AWAITS: Final = 24  # a coroutine of the model may await a SUBMIT: its number, the dialogue
WAIT: Final = 25  # the main thread waits for a coroutine
SEND: Final = 26  # a response, by a response sender
NOTE: Final = 27  # a log line, printed text, a warning, a called model

# The engine to a worker, on the channel of calls; ANSWER on either.
ANSWER: Final = 30
RESPONSE: Final = 31
DONE: Final = 32
READY: Final = 33  # is the model ready? Answered by ANSWER
INTERRUPT: Final = 34
CANCELLED: Final = 35

# Shared memory, both ways.
SEGMENT: Final = 40  # a new segment; its descriptor is passed with the message
DROP: Final = 41  # an unused segment
RELEASED: Final = 42  # blocks that the receiver has released


def plain(value: Any) -> Any:
    """Return a value of marshal's types.

    marshal would take numbers and texts of NumPy for buffers and write their memory. All values of a user's
    code pass here first.

    Raises
    ------
    TypeError
        Any other object.
    """
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(plain(item) for item in value)
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return frozenset(plain(item) for item in value)
    kind: Any
    for kind in (int, float, str, bytes):
        if isinstance(value, kind):
            return kind(value)
    if hasattr(value, "item"):
        return plain(value.item())
    if hasattr(value, "items"):
        return {plain(key): plain(item) for key, item in value.items()}
    if hasattr(value, "__index__"):
        return int(value)
    raise TypeError(f"a control message cannot hold a {type(value).__name__}")


class WorkerTraceback(Exception):  # noqa: N818 - what is shown as the cause of an error
    """The text of an exception in a model's code, which stays in its own process."""

    def __init__(self, text: str) -> None:
        super().__init__(text)

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def encode_error(raised: BaseException) -> tuple[Any, ...]:
    """Return an error as plain values; any other exception as the engine reports it."""
    error = raised
    if not isinstance(error, TritonError):
        error = errors.InternalError(f"{type(raised).__name__}: {raised}")
    cause = error.__cause__
    shown = ""
    if isinstance(cause, WorkerTraceback):
        shown = cause.args[0]
    elif cause is not None:
        shown = getattr(error, "user_traceback", "") or "".join(
            traceback.format_exception(type(cause), cause, cause.__traceback__)
        )
    details = {
        name: getattr(error, name)
        for name in ("user_traceback", "field", "line", "column", "accepted")
        if name in vars(error)
    }
    return type(error).__name__, error.message, error.hint, details, shown


def decode_error(body: Sequence[Any]) -> TritonError:
    """Return an error of the same class and texts."""
    name, message, hint, details, shown = body
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, TritonError)):
        kind = errors.InternalError
    error: TritonError = kind(message, hint=hint)
    for key, value in details.items():
        setattr(error, key, value)
    if shown:
        error.__cause__ = WorkerTraceback(shown)
    return error


class RequestBatch(list[Any]):
    """The requests, with their inputs as received: a backend of whole batches need not join them again.

    Attributes
    ----------
    joined : dict of str to Array
        Inputs whose rows are one array, of which the requests have views.
    """

    def __init__(self) -> None:
        super().__init__()
        self.joined: dict[str, Array] = {}
