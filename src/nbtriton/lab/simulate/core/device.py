"""Simulated devices: copies to one, copies from it and computing go on side by side, each in order."""

from __future__ import annotations

from nbtriton.scheduling.bookings import Bookings


class Transfer:
    """The copy of one tensor of a batch.

    Parameters
    ----------
    unit : Bookings
        Of the copy engine.
    rows : list of int
        Measured batch sizes, ascending; at least one.
    times_ns : list of float
        What a copy takes, by size.
    from_host : bool
        Else it begins once a device has written the tensor.
    to_host : bool
        The thread that needs it waits for it.
    """

    __slots__ = ("_rows", "_times_ns", "from_host", "to_host", "unit")

    def __init__(
        self,
        unit: Bookings,
        rows: list[int],
        times_ns: list[float],
        *,
        from_host: bool,
        to_host: bool,
    ) -> None:
        self.unit = unit
        self._rows = rows
        self._times_ns = times_ns
        self.from_host = from_host
        self.to_host = to_host

    def occupy(self, earliest: int, rows: int) -> int:
        """Copy a batch of this number of rows; return the time of its arrival."""
        sizes, times = self._rows, self._times_ns
        took = times[0]
        if len(sizes) > 1:  # on a line between and beyond measured sizes
            at = 0
            while at + 2 < len(sizes) and sizes[at + 1] <= rows:
                at += 1
            share = (rows - sizes[at]) / (sizes[at + 1] - sizes[at])
            took = times[at] + (times[at + 1] - times[at]) * share
        return self.unit.book(earliest, max(0, int(took)))


class Stream:
    """The work of an instance on its device.

    Attributes
    ----------
    began_ns, ready_ns : int
        When the thread has begun to compute a batch, and when the device may.
    written_ns, written_before_ns : int
        When the device has written the outputs of the last batch, and of the one before.
    """

    __slots__ = ("began_ns", "ready_ns", "written_before_ns", "written_ns")

    def __init__(self) -> None:
        self.began_ns = self.ready_ns = self.written_ns = self.written_before_ns = 0


class OnDevice:
    """The use of devices by a model's executions, as `nbtriton.backends.core.place` has it.

    Parameters
    ----------
    compute : Bookings or None
        Of the device where it runs; None on the host.
    before : list of Transfer
        Of its inputs.
    on_host : bool
        The model is on the host: the sender of tensors of a device waits until they are written. A model
        on a device orders its own work behind that.
    """

    __slots__ = ("before", "compute", "on_host")

    def __init__(self, compute: Bookings | None, before: list[Transfer], *, on_host: bool) -> None:
        self.compute = compute
        self.before = before
        self.on_host = on_host

    def begin(self, stream: Stream, rows: int, ready: int, now: int, took: int) -> int:
        """Give a batch to the device; return when the instance's thread is done with it.

        ``ready`` is when the devices of earlier steps have written its inputs.

        The processor is taken to be as long at it as the device: a simulated GPU computes by it, and on a
        real one the device, not the thread, is then what limits the rate.
        """
        compute = self.compute
        start = now
        if compute is not None:  # two batches of an instance are on the device at most
            start = max(start, stream.written_before_ns)
        arrived = max(start, ready)
        for transfer in self.before:
            earliest = start if transfer.from_host else max(start, ready)
            there = transfer.occupy(earliest, rows)
            arrived = max(arrived, there)
            if transfer.to_host:
                start = there
        if compute is None:
            return arrived + took
        stream.began_ns = start
        stream.ready_ns = max(arrived, stream.written_ns)
        return start + took

    def computed(self, stream: Stream, now: int) -> None:
        """Let the device compute what the thread has just computed.

        A simulated GPU knows only then how long that takes: shorter work that began later is before it.
        """
        if self.compute is not None:
            stream.written_before_ns = stream.written_ns
            stream.written_ns = self.compute.book(stream.ready_ns, now - stream.began_ns)
