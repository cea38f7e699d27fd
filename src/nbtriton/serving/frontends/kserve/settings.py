"""Changes of trace and log settings by clients over HTTP and gRPC.

Each protocol reads the values from its message. Error texts that differ between the protocols are
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nbtriton.common.errors import InvalidArgumentError, TritonError, UnsupportedError
from nbtriton.serving.frontends.serve.logs import LOG_FORMATS, verbose_level
from nbtriton.serving.frontends.tracing import TRACE_LEVELS, parse_number

__all__ = ["log_changes", "trace_changes"]

_TRACE_NUMBERS = ("trace_rate", "trace_count", "log_frequency")
_LOG_KINDS = {
    "log_info": bool,
    "log_warning": bool,
    "log_error": bool,
    "log_verbose_level": int,
    "log_format": str,
}


def trace_changes(
    settings: Mapping[str, Any],
    levels: Callable[[Any], Sequence[str] | None],
    number: Callable[[str, Any], str | None],
    *,
    got: str,
) -> dict[str, Any]:
    """Return the changes of `Tracing.update`; None for a setting that is cleared.

    Parameters
    ----------
    settings : mapping
        As sent by the client, by Triton's names.
    levels, number : callable
        ``levels(value)`` and ``number(name, value)`` read a value of the protocol; None clears it.
    got : str
        Text before a wrong count in the error.

    Raises
    ------
    TritonError
        With Triton's text.
    """
    changes: dict[str, Any] = {}
    if "trace_file" in settings:
        raise UnsupportedError("trace file location can not be updated through network protocol")
    if "trace_level" in settings:
        found = levels(settings["trace_level"])
        if found is not None and "OFF" in found and len(found) > 1:
            raise InvalidArgumentError("Expect only one trace level 'OFF' is specified")
        changes["level"] = None if found is None else frozenset(found).intersection(TRACE_LEVELS)
    for name in _TRACE_NUMBERS:
        if name not in settings:
            continue
        text = number(name, settings[name])
        value = None if text is None else parse_number(name, text)
        if name == "trace_count" and value is not None and value < -1:
            raise InvalidArgumentError(
                f"Unable to parse 'trace_count'. Expecting value >= -1, {got}{text}"
            )
        changes[name.removeprefix("trace_")] = value
    return changes


def log_changes(
    settings: Mapping[str, Any],
    read: Callable[[str, type, Any], bool | int | str],
    wrong_format: Callable[[str], TritonError],
) -> dict[str, bool | int | str]:
    """Return the changes of `LogSettings.update`.

    Parameters
    ----------
    settings : mapping
        As sent by the client, by Triton's names.
    read : callable
        ``read(name, kind, value)`` reads a bool, an int or a str of the protocol.
    wrong_format : callable
        Returns the error for an unknown format.

    Raises
    ------
    TritonError
        With Triton's text.
    """
    if "log_file" in settings:
        raise UnsupportedError("log file location can not be updated through network protocol")
    changes = {
        name: read(name, kind, settings[name])
        for name, kind in _LOG_KINDS.items()
        if name in settings
    }
    if "log_verbose_level" in changes:
        changes["log_verbose_level"] = verbose_level(int(changes["log_verbose_level"]))
    if changes.get("log_format", LOG_FORMATS[0]) not in LOG_FORMATS:
        raise wrong_format(str(changes["log_format"]))
    return changes
