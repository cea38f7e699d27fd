"""Context managers over themselves: their ``with`` block ends with `close` or with `stop`."""

from __future__ import annotations

from types import TracebackType
from typing import Self

__all__ = ["Closing", "Stopping"]


class Closing:
    """A context manager over itself: `close` is called at the end of the block, also after an error."""

    __slots__ = ()

    def close(self) -> None:
        """Close it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Stopping:
    """A context manager over itself: `stop` is called at the end of the block, also after an error."""

    __slots__ = ()

    def stop(self) -> object:
        """Stop it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
