"""Base classes of context managers that call `close` or `stop` at the end of their block."""

from __future__ import annotations

from types import TracebackType
from typing import Self

__all__ = ["Closing", "Stopping"]


class _OverItself:
    """A context manager of itself: `_end_block` is called at the end of the block, even after an error."""

    __slots__ = ()

    def _end_block(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end_block()


class Closing(_OverItself):
    """Context manager that calls `close` at the end of its block."""

    __slots__ = ()

    def close(self) -> None:
        """Close the object."""
        raise NotImplementedError

    def _end_block(self) -> None:
        self.close()


class Stopping(_OverItself):
    """Context manager that calls `stop` at the end of its block."""

    __slots__ = ()

    def stop(self) -> object:
        """Stop the object."""
        raise NotImplementedError

    def _end_block(self) -> None:
        self.stop()
