"""Values that a control message may contain."""

from __future__ import annotations

from typing import Any

__all__ = ["plain"]


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
