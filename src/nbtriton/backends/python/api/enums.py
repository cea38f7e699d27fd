"""Enums as pybind11 makes them for Triton's module: they count as their numbers, and say their names."""

from __future__ import annotations

from enum import Enum

__all__ = ["BoundEnum"]


class BoundEnum(Enum):
    """An enum whose members equal their numbers and have no order."""

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, int) and other == self.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)
