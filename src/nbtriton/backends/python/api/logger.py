"""`pb_utils.Logger`: a model's log lines, by Python's logging, at the model's own file and line."""

from __future__ import annotations

import logging
from typing import NoReturn

from nbtriton.backends.python.api.pybind import BoundEnum, as_text, incompatible
from nbtriton.backends.python.isolation.running import current

__all__ = ["LogLevel", "Logger"]


class LogLevel(BoundEnum):
    """Triton's log levels."""

    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


_LEVELS = {
    LogLevel.INFO: logging.INFO,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.ERROR: logging.ERROR,
    LogLevel.VERBOSE: logging.DEBUG,
}


class Logger:
    """Logs to the Python logger ``nbtriton.model.<name>``; VERBOSE is its DEBUG level."""

    INFO = LogLevel.INFO
    WARNING = LogLevel.WARNING
    ERROR = LogLevel.ERROR
    VERBOSE = LogLevel.VERBOSE

    def __init__(self) -> NoReturn:
        raise TypeError("c_python_backend_utils.Logger: No constructor defined!")

    @staticmethod
    def log(message: str, level: LogLevel = LogLevel.INFO) -> None:
        """Log a line at a level."""
        if not isinstance(level, LogLevel):
            raise incompatible("log", "level: LogLevel", level)
        _write(message, level)

    @staticmethod
    def log_info(message: str) -> None:
        """Log a line of information."""
        _write(message, LogLevel.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        """Log a warning."""
        _write(message, LogLevel.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        """Log an error."""
        _write(message, LogLevel.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        """Log a line that is dropped unless the logger's level is DEBUG."""
        _write(message, LogLevel.VERBOSE)


# Set in the class body, the name would hide the type in its annotations.
Logger.LogLevel = LogLevel  # type: ignore[attr-defined]


def _write(message: str, level: LogLevel) -> None:
    running = current()
    name = running.model_name if running is not None else "model"
    # 3: this function and its caller are not the model.
    logging.getLogger(f"nbtriton.model.{name}").log(
        _LEVELS[level], "%s", as_text(message), stacklevel=3
    )
