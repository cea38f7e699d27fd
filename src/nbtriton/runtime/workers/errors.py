"""Errors between the processes: class, texts and notes, not the objects."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

from nbtriton.common import errors
from nbtriton.common.errors import TritonError

__all__ = ["WorkerTraceback", "decode_error", "encode_error", "failure"]


class WorkerTraceback(Exception):  # noqa: N818 - what is shown as the cause of an error
    """The text of an exception in a model's code, which stays in its own process."""

    def __init__(self, text: str) -> None:
        super().__init__(text)

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def encode_error(error: TritonError) -> tuple[Any, ...]:
    """Return an error as plain values."""
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


def failure(error: BaseException) -> TritonError:
    """Return any other exception as the engine reports it."""
    if isinstance(error, TritonError):
        return error
    return errors.InternalError(f"{type(error).__name__}: {error}")
