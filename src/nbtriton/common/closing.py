"""What ends with its block or its process: base classes of context managers, and temporary folders."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Self


class Closing:
    """Context manager of itself that calls `close` at the end of its block, even after an error."""

    __slots__ = ()

    def close(self) -> None:
        """Close the object."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class Stopping:
    """Context manager of itself that calls `stop` at the end of its block, even after an error."""

    __slots__ = ()

    def stop(self) -> object:
        """Stop the object."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


try:
    import fcntl
except ImportError:  # not on Windows, where what a killed process has left stays
    fcntl = None  # type: ignore[assignment]


_LOCK = ".lock"


class ScratchFolder:
    """A folder for temporary files, removed by `close`, with this object, or at the end of the process.

    It holds a lock while the process lives. What killed processes have left is removed before it is made: folders
    of the same prefix whose lock nobody holds.

    Parameters
    ----------
    prefix : str
        Of its name.

    Attributes
    ----------
    path : Path
    """

    def __init__(self, prefix: str) -> None:
        left = Path(tempfile.gettempdir()).glob(f"{prefix}*")
        remove_left(left, _LOCK, partial(shutil.rmtree, ignore_errors=True))
        lock = None
        while lock is None:
            self.path = Path(tempfile.mkdtemp(prefix=prefix))
            lock = _locked(self.path)
        self._remove = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def close(self) -> None:
        """Remove the folder; idempotent."""
        self._remove()


def _locked(folder: Path) -> int | None:
    """Return the descriptor of a folder's lock; None if another process has removed the folder before."""
    try:
        lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    except FileNotFoundError:
        return None
    if fcntl is not None:
        fcntl.flock(lock, fcntl.LOCK_EX)
    if (folder / _LOCK).exists():
        return lock
    os.close(lock)
    return None


def remove_left(paths: Iterable[Path], lock: str, remove: Callable[[Path], object]) -> None:
    """Remove what killed processes have left: those whose lock, a file in them or themselves, nobody holds."""
    if fcntl is None:
        return
    for path in paths:
        try:
            held = os.open(path / lock, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # another user's, being made, removed meanwhile, or no such thing
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(path)
        except OSError:  # in use
            continue
        finally:
            os.close(held)


def _remove(folder: Path, lock: int, process: int) -> None:
    """Remove a folder of this process; a forked child does not remove its parent's."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
