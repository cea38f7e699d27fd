"""Trace settings that clients may read and change (protocol.md §8); every protocol's store."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nbtriton.errors import InvalidArgumentError

__all__ = ["TraceSettings", "parse_number"]

_NUMBER = re.compile(r"\s*([+-]?\d+)")
_INT32 = range(-(1 << 31), 1 << 31)
_RANGES = {
    "trace_rate": "[ 0, 4294967295 ]",
    "trace_count": "[ -1, 2147483647 ]",
    "log_frequency": "[ 0, 4294967295 ]",
}


def parse_number(name: str, text: str) -> int:
    """Read a number of the trace settings as C++'s ``stoi`` does.

    Parameters
    ----------
    name : str
        ``"trace_rate"``, ``"trace_count"`` or ``"log_frequency"``.
    text : str
        What follows the digits is ignored.

    Raises
    ------
    InvalidArgumentError
        It begins with no number, or with one beyond 32 bits.
    """
    found = _NUMBER.match(text)
    if found is None:
        raise InvalidArgumentError(f"Unable to parse '{name}', got: {text}")
    digits = found[1]
    # Python refuses to read thousands of digits; eleven are too many already.
    value = int(digits) if len(digits.lstrip("+-0")) <= 10 else 1 << 40
    if value not in _INT32:
        raise InvalidArgumentError(
            f"Unable to parse '{name}', value is out of range {_RANGES[name]}, got: {text}"
        )
    return value if name == "trace_count" else value % (1 << 32)


@dataclass(frozen=True, slots=True)
class _Trace:
    level: frozenset[str] = frozenset()
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0


_FIELDS = ("level", "rate", "count", "log_frequency")


class TraceSettings:
    """What is traced: for all models, and where one differs.

    Parameters
    ----------
    trace_file : str
        Where traces go; clients cannot change it, and without one tracing cannot be switched on.
    """

    def __init__(self, trace_file: str = "") -> None:
        self._lock = threading.Lock()
        self._file = trace_file
        self._general = _Trace()
        self._models: dict[str, dict[str, Any]] = {}

    def get(self, model: str = "") -> dict[str, Any]:
        """Return the settings as Triton reports them: all values are strings."""
        with self._lock:
            found = self._of(model)
        return {
            "trace_level": [
                level for level in ("TIMESTAMPS", "TENSORS") if level in found.level
            ] or ["OFF"],
            "trace_rate": str(found.rate),
            "trace_count": str(found.count),
            "log_frequency": str(found.log_frequency),
            "trace_file": self._file,
            "trace_mode": "triton",
        }  # fmt: skip

    def update(self, model: str, changes: Mapping[str, Any]) -> None:
        """Change settings.

        Parameters
        ----------
        model : str
            Empty for the general settings.
        changes : mapping
            Any of ``level`` (frozenset of str), ``rate``, ``count``, ``log_frequency`` (int);
            None goes back to the general setting, or for that to the one at the start.

        Raises
        ------
        InvalidArgumentError
            What would result makes no sense; nothing has changed.
        """
        with self._lock:
            own = dict(self._models.get(model, {})) if model else {}
            start = _Trace()
            general = self._general
            for name, value in changes.items():
                if not model:
                    chosen = getattr(start, name) if value is None else value
                    general = replace(general, **{name: chosen})
                elif value is None:
                    own.pop(name, None)
                else:
                    own[name] = value
            self._check(replace(general, **own))
            if model:
                self._models[model] = own
            else:
                self._general = general

    def _of(self, model: str) -> _Trace:
        return replace(self._general, **self._models.get(model, {}))

    def _check(self, setting: _Trace) -> None:
        reason = ""
        if setting.level and setting.rate == 0:
            reason = "sample rate must be non-zero"
        elif setting.level and not self._file:
            reason = "trace file name is not given"
        if reason:
            raise InvalidArgumentError(f"Attempting to set invalid trace setting :{reason}")
