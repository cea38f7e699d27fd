"""Text as Triton's C++ takes it from a model: ``str``, or ``bytes`` of UTF-8."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["as_text", "as_texts"]


def as_text(value: str | bytes | bytearray) -> str:
    """Return text; a BYTES tensor's element, which is ``bytes``, may name a model.

    Parameters
    ----------
    value : str, bytes or bytearray
        What is no UTF-8 in bytes is replaced: such a name is not found, and is told readably.

    Raises
    ------
    TypeError
        Something else.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="replace")
    raise TypeError(
        f"incompatible function arguments. Expected str or bytes, found type {type(value).__name__}"
    )


def as_texts(values: Iterable[str | bytes | bytearray]) -> list[str]:
    """Return each of several texts as `as_text` does."""
    return [value if type(value) is str else as_text(value) for value in values]
