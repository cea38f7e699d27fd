"""The log in Triton's form: lines, and settings that clients may read and change."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

LOG_FORMATS = ("default", "ISO8601")
_MOST_VERBOSE = (1 << 31) - 1
_ROOT = "nbtriton"
_SWITCHES = {
    logging.INFO: "log_info",
    logging.WARNING: "log_warning",
    logging.ERROR: "log_error",
    logging.CRITICAL: "log_error",
}


def verbose_level(given: int) -> int:
    """Return the level of a client's number: its low 32 bits, or 0 if these are negative."""
    level = given & 0xFFFF_FFFF
    return level if level <= _MOST_VERBOSE else 0


class LogSettings:
    """Log settings of the loggers under ``nbtriton``.

    In a notebook Python's ``logging`` applies until a client changes a setting; from then on records
    excluded by the settings are dropped, and the others are handled as before.

    Parameters
    ----------
    target : logging.Handler, optional
        Handler of lines in Triton's form; the settings then apply from the start, as in
        ``nbtriton serve``.
    **values
        Any of ``log_file`` (str, read-only), ``log_info``, ``log_warning``, ``log_error``
        (bool), ``log_verbose_level`` (int), ``log_format`` (str).

    Examples
    --------
    >>> LogSettings(log_verbose_level=1).get()["log_verbose_level"]
    1
    """

    def __init__(self, target: logging.Handler | None = None, **values: bool | int | str) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, Any] = {
            "log_file": "",
            "log_info": True,
            "log_warning": True,
            "log_error": True,
            "log_verbose_level": 0,
            "log_format": "default",
            **values,
        }
        self._gate: _Gate | None = None
        self._target = target
        if target is not None:
            target.setFormatter(TritonFormatter(lambda: str(self._values["log_format"])))
            self._attach()

    def get(self) -> dict[str, bool | int | str]:
        """Return the settings in Triton's order."""
        with self._lock:
            return dict(self._values)

    def update(self, changes: Mapping[str, bool | int | str]) -> None:
        """Change settings; the protocol has checked the types."""
        with self._lock:
            self._values.update(changes)
            if changes:
                self._attach()

    def lets_pass(self, record: logging.LogRecord) -> bool:
        """Return True if a record is logged."""
        switch = _SWITCHES.get(record.levelno)
        if switch is not None:
            return bool(self._values[switch])
        return record.levelno > logging.INFO or self._values["log_verbose_level"] > 0

    def close(self) -> None:
        """Restore the loggers."""
        with self._lock:
            if self._gate is not None:
                self._gate.remove()
                self._gate = None

    def _attach(self) -> None:
        if self._gate is None:
            pass_on = (
                logging.getLogger().callHandlers if self._target is None else self._target.handle
            )
            self._gate = _Gate(self.lets_pass, pass_on)
        verbose = self._values["log_verbose_level"] > 0
        logging.getLogger(_ROOT).setLevel(logging.DEBUG if verbose else logging.INFO)


class _Gate(logging.Handler):
    """Handler of all records under ``nbtriton``; one per process."""

    def __init__(
        self,
        lets_pass: Callable[[logging.LogRecord], bool],
        pass_on: Callable[[logging.LogRecord], object],
    ) -> None:
        super().__init__()
        self._lets_pass = lets_pass
        self._pass_on = pass_on
        logger = logging.getLogger(_ROOT)
        for other in [each for each in logger.handlers if isinstance(each, _Gate)]:
            other.remove()
        self._before = (logger.level, logger.propagate)
        logger.addHandler(self)
        logger.propagate = False

    def handle(self, record: logging.LogRecord) -> bool:
        # Without the handler's lock: the next handler has its own.
        if self._lets_pass(record):
            self._pass_on(record)
            return True
        return False

    def remove(self) -> None:
        """Restore the logger; harmless when repeated."""
        logger = logging.getLogger(_ROOT)
        if self in logger.handlers:
            logger.removeHandler(self)
            logger.setLevel(self._before[0])
            logger.propagate = self._before[1]


class TritonFormatter(logging.Formatter):
    """Formatter of Triton's lines: level, time (UTC), process, location, text in quotes.

    Parameters
    ----------
    kind : callable
        Returns ``"default"`` or ``"ISO8601"``; called for each line.
    """

    def __init__(self, kind: Callable[[], str]) -> None:
        super().__init__()
        self._kind = kind

    def format(self, record: logging.LogRecord) -> str:
        utc = time.gmtime(record.created)
        # Triton has no letter above errors, and none below information.
        level = {"D": "I", "C": "E"}.get(record.levelname[0], record.levelname[0])
        if self._kind() == "ISO8601":
            head = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', utc)} {level}"
        else:
            micros = int(record.created % 1 * 1e6)
            head = f"{level}{time.strftime('%m%d %H:%M:%S', utc)}.{micros:06d}"
        message = record.getMessage()
        # A table begins on its own line; all other text is one line.
        text = message if message[:1] == "\n" else json.dumps(message, ensure_ascii=False)
        line = f"{head} {record.process} {record.filename}:{record.lineno}] {text}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line
