"""The kinds of control messages between the engine's process and a worker.

Every message is a tuple of plain values that begins with its kind. Two channels connect the processes:

*execute*
    A strict dialogue. The engine's side asks (CREATE, COMPLETE, EXECUTE, FINALIZE), the worker replies
    (REPLY, FAILED, INTERRUPTED). Before its reply the worker's main thread may send messages of the
    second group below, and each CALL and ASK among them is answered before it continues.
*calls*
    Everything else: messages of the worker's other threads, and the engine's messages to a computing
    worker. Each process has one thread that reads it.

Tensors follow a message, or are in shared memory at a place that the message names.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "ANSWER",
    "ASK",
    "AWAITS",
    "CALL",
    "CANCEL",
    "CANCELLED",
    "COMPLETE",
    "CREATE",
    "DONE",
    "DROP",
    "EXECUTE",
    "FAILED",
    "FINALIZE",
    "INTERRUPT",
    "INTERRUPTED",
    "NOTE",
    "READY",
    "RELEASED",
    "REPLY",
    "RESPONSE",
    "SEGMENT",
    "SEND",
    "SUBMIT",
    "VERSION",
    "WAIT",
]  # fmt: skip

# Version of the messages: the engine's side refuses a worker with another one.
VERSION: Final = 1

# The engine asks, on the channel of executions.
CREATE: Final = 1
COMPLETE: Final = 2
EXECUTE: Final = 3
FINALIZE: Final = 4

# The worker replies.
REPLY: Final = 10
FAILED: Final = 11
INTERRUPTED: Final = 12

# The worker uses the server, on either channel: (kind, …).
ASK: Final = 20  # a question to the server: number, what, arguments
CALL: Final = 21  # a request to another model, by a thread that waits for its response
SUBMIT: Final = 22  # a request to another model, answered by RESPONSE and DONE
CANCEL: Final = 23  # of a SUBMIT
AWAITS: Final = 24  # a coroutine of the model may await a SUBMIT
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
