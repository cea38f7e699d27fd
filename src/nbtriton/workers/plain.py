"""Values that a control message may hold."""

from __future__ import annotations

from typing import Any

__all__ = ["plain"]


def plain(value: Any) -> Any:
    """Return a value of the types that marshal takes.

    Numbers and texts of NumPy must not come to it as they are: it takes them for buffers and writes their
    memory. So all that a user's code may have made passes here first.

    Raises
    ------
    TypeError
        An object that is no value.
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
