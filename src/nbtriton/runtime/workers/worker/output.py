"""Log records and warnings of a model's code, sent to the engine's process; prints go through a pipe."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any, TextIO

__all__ = ["redirect"]

# Its arguments are a note's: its kind, and the values.
Note = Callable[[str, tuple[Any, ...]], None]

_FIELDS = (
    "name", "levelno", "levelname", "pathname", "filename", "module", "lineno", "funcName", "created",
    "msecs", "relativeCreated", "thread", "threadName", "process", "processName",
)  # fmt: skip


def redirect(note: Note) -> None:
    """Send log records and warnings to the engine's process."""
    root = logging.getLogger()
    root.handlers[:] = [_Records(note)]

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,  # noqa: ARG001 - the signature of `warnings.showwarning`
        line: str | None = None,  # noqa: ARG001
    ) -> None:
        note("warn", (str(message), category.__name__, filename, lineno))

    warnings.showwarning = show


class _Records(logging.Handler):
    def __init__(self, note: Note) -> None:
        super().__init__()
        self._note = note
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields = {name: getattr(record, name) for name in _FIELDS}
            fields["msg"] = record.getMessage()
            if record.exc_info:
                fields["exc_text"] = self._formatter.formatException(record.exc_info)
            self._note("log", (fields,))
        except Exception:
            self.handleError(record)
