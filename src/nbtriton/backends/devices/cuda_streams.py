"""Streams and events of NVIDIA's GPUs, by torch; CuPy uses them as well. Never run on hardware so far.

torch hands its 32 streams of a device out in turn, so of many two are the same. That costs time, but what another
instance launches into a stream that captures would become a part of the graph: streams that are in use are handed
out again only once there is no other, and one that several have is not captured.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from nbtriton.backends.devices.base import Event, Stream
from nbtriton.backends.devices.errors import CaptureError
from nbtriton.backends.devices.ledger import CopyLedger

__all__ = ["CudaEvent", "CudaStream", "capturing", "event_behind"]

# As many streams of one priority has torch.
_STREAMS = 32


class CudaEvent(Event):
    """A point in the work of a stream."""

    def __init__(self, native: Any) -> None:
        self.native = native

    def is_reached(self) -> bool:
        """Return whether all work before it is done."""
        return bool(self.native.query())

    def synchronize(self) -> None:
        """Block the calling thread until it is reached."""
        self.native.synchronize()


def event_behind(stream: Any) -> CudaEvent:
    """Return the event behind all work that is in a stream of torch's now.

    A thread that waits for it sleeps, as in Triton by default: by torch's default a waiting thread keeps a processor busy.
    """
    event = sys.modules["torch"].cuda.Event(blocking=True)
    event.record(stream)
    return CudaEvent(event)


class _InUse:
    """The streams that are handed out: one table for the process, as torch has one pool for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_stream: Counter[tuple[int, int]] = Counter()
        self._captured: tuple[int, int] | None = None
        # A capture begins by waiting for the whole device, which is an error while another stream captures.
        self._capturing = threading.Lock()

    def acquire(self, index: int) -> Any:
        """Return the stream of a device that the fewest have, and none that captures."""
        import torch

        place = torch.device("cuda", index)
        with self._lock:
            found: list[Any] = []
            for _ in range(2 * _STREAMS):  # others use the pool, too
                native: Any = torch.cuda.Stream(place)  # type: ignore[no-untyped-call]
                if _key(native) == self._captured:
                    continue
                found.append(native)
                if not self._by_stream[_key(native)]:
                    break
            fewest = min(found, key=lambda one: self._by_stream[_key(one)])
            self._by_stream[_key(fewest)] += 1
        return fewest

    def release(self, native: Any) -> None:
        """Note that one holder of a stream does not use it any more."""
        with self._lock:
            self._by_stream[_key(native)] -= 1

    @contextmanager
    def capture(self, native: Any) -> Iterator[None]:
        """Keep a stream from all others while it captures, one at a time.

        Raises
        ------
        CaptureError
            Others have it already.
        """
        with self._capturing:
            with self._lock:
                if self._by_stream[_key(native)] > 1:
                    raise CaptureError(
                        f"more than {_STREAMS} streams are in use, and its own is one that others use, too"
                    )
                self._captured = _key(native)
            try:
                yield
            finally:
                self._captured = None


_IN_USE = _InUse()
capturing = _IN_USE.capture


def _key(native: Any) -> tuple[int, int]:
    return int(native.device.index), int(native.cuda_stream)


class CudaStream(Stream):
    """A stream of torch's, which CuPy uses as well while it is current.

    Parameters
    ----------
    index : int
        The GPU.
    owner : str
    ledger : CopyLedger
    device : str
        The GPU's name there.
    """

    def __init__(self, index: int, owner: str, ledger: CopyLedger, device: str) -> None:
        self.owner = owner
        self._index = index
        self._ledger = ledger
        self._device = device
        self._taken: Any = None
        self._entered: list[ExitStack] = []  # one thread at a time runs an instance

    @property
    def native(self) -> Any:
        """The stream itself, which is acquired at its first use: some instances never need theirs."""
        if self._taken is None:
            self._taken = _IN_USE.acquire(self._index)
        return self._taken

    def __enter__(self) -> None:
        native = self.native
        with ExitStack() as contexts:
            contexts.enter_context(sys.modules["torch"].cuda.stream(native))
            cupy = sys.modules.get("cupy")
            if cupy is not None:
                contexts.enter_context(cupy.cuda.Device(self._index))
                contexts.enter_context(cupy.cuda.ExternalStream(native.cuda_stream, self._index))
            self._entered.append(contexts.pop_all())

    def __exit__(self, *error: object) -> None:
        self._entered.pop().close()

    def record(self) -> CudaEvent:
        """Return the event behind all work that is in the stream now."""
        return event_behind(self.native)

    def wait(self, event: Event) -> None:
        """Let what comes next wait for an event; the calling thread does not wait."""
        assert isinstance(event, CudaEvent)
        self.native.wait_event(event.native)

    def synchronize(self) -> None:
        """Block the calling thread until all work is done."""
        if self._taken is not None:
            self._ledger.waited(self.owner, self._device)
            self.record().synchronize()

    def close(self) -> None:
        """Let others have the stream; torch keeps it in its pool. May be called twice."""
        taken, self._taken = self._taken, None
        if taken is not None:
            _IN_USE.release(taken)
