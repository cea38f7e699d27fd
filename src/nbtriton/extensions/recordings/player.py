"""Live replay: each request is sent at its due time, and its times are recorded by model."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Sequence
from time import monotonic_ns

from nbtriton.extensions.recordings.traffic import Planned
from nbtriton.lab.perf.driver import MAX_OUTSTANDING, LoadSpec, Submitting
from nbtriton.lab.perf.loads import RequestRate
from nbtriton.lab.perf.records import Slot, collect
from nbtriton.lab.perf.remote import Target
from nbtriton.lab.perf.traffic import Call, Repeated
from nbtriton.lab.perf.windows import Window
from nbtriton.options.blocks import CallOptions


class _ModelTimes:
    """Times of the requests to one model."""

    __slots__ = ("errors", "idle", "slots")

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.idle: deque[Slot] = deque()
        self.errors: deque[tuple[int, str]] = deque()


class Player(Submitting):
    """Sender of each request at its due time, whether or not earlier requests have ended.

    Parameters
    ----------
    target : Server or RemoteServer
    planned : sequence of Planned
    due_ns : sequence of int
        Nanoseconds after the start, in ascending order.
    streaming : bool
        Record each response.
    serial : bool
        Send at most one request of a sequence at a time, where requests may overtake each other.

    Attributes
    ----------
    sent : list of (int, Planned)
        Sent requests with their times, in nanoseconds after the start.
    """

    def __init__(
        self,
        target: Target,
        planned: Sequence[Planned],
        due_ns: Sequence[int],
        *,
        streaming: bool,
        serial: bool,
    ) -> None:
        super().__init__(
            LoadSpec(target, "", RequestRate(1.0), Repeated([{}]), streaming=streaming)
        )
        self.sent: list[tuple[int, Planned]] = []
        self._planned = planned
        self._due_ns = due_ns
        self._serial = serial
        self._began_ns = 0
        self._times: dict[str, _ModelTimes] = {each.call.model: _ModelTimes() for each in planned}
        # Slots whose request has ended; None at the end of the load. Only the sender's thread sends.
        self._inbox: queue.SimpleQueue[Slot | None] = queue.SimpleQueue()
        self._in_flight: dict[int, Planned] = {}
        self._late: dict[tuple[str, int | str], deque[tuple[Planned, int]]] = {}
        # The last request of each sequence that has begun and not ended.
        self._open: dict[tuple[str, int | str], Planned] = {}

    def collect_of(self, model: str, start_ns: int, end_ns: int) -> Window:
        """Return the window of one model between two times."""
        times = self._times[model]
        return collect(times.slots, times.errors, start_ns, end_ns)

    def completed(self) -> int:
        return sum(
            len(times.errors) + sum(len(slot.end_ns) for slot in times.slots)
            for times in self._times.values()
        )

    def _run(self) -> None:
        self._began_ns = start_ns = monotonic_ns()
        for planned, due_ns in zip(self._planned, self._due_ns, strict=True):
            self._wait_until(start_ns + due_ns)
            while len(self._in_flight) >= MAX_OUTSTANDING and not self._stopping:
                self._handle_end(self._inbox.get())
            if self._stopping:
                break
            late_ns = max(0, monotonic_ns() - start_ns - due_ns)
            key = planned.sequence
            if self._serial and key is not None:
                if key in self._late:  # its last request is in flight
                    self._late[key].append((planned, start_ns + due_ns))
                    continue
                self._late[key] = deque()
            self._play(planned, late_ns)
        while self._in_flight:
            self._handle_end(self._inbox.get())
        if self._stopping and not self._cancelled:
            self._close_sequences()
        self.finished.set()

    def _wait_until(self, due_ns: int) -> None:
        """Handle ends of requests until a time."""
        while not self._stopping:
            left_ns = due_ns - monotonic_ns()
            try:
                if left_ns <= 0:
                    self._handle_end(self._inbox.get_nowait())
                else:
                    self._handle_end(self._inbox.get(timeout=left_ns / 1e9))
            except queue.Empty:
                if left_ns <= 0:
                    return

    def _play(self, planned: Planned, late_ns: int) -> None:
        times = self._times[planned.call.model]
        if times.idle:
            slot = times.idle.popleft()
        else:
            slot = self._new_slot()
            times.slots.append(slot)
            self._slots.append(slot)
        slot.late_ns = late_ns
        self._in_flight[id(slot)] = planned
        if planned.sequence is not None:
            if planned.call.ends:
                self._open.pop(planned.sequence, None)
            else:
                self._open[planned.sequence] = planned
        self.sent.append((monotonic_ns() - self._began_ns, planned))
        self._send(slot, planned.call)

    def _handle_end(self, slot: Slot | None) -> None:
        """Handle the end of a request, on the sender's thread."""
        if slot is None:
            return
        planned = self._in_flight.pop(id(slot))
        self._times[planned.call.model].idle.append(slot)
        key = planned.sequence
        if not self._serial or key is None:
            return
        waiting = self._late[key]
        if not waiting or self._stopping:
            del self._late[key]
            return
        following, due_ns = waiting.popleft()
        now_ns = monotonic_ns()
        self._play(following, max(0, now_ns - due_ns))

    def _close_sequences(self) -> None:
        """End the sequences that an interrupt left incomplete, to free their slots."""
        for planned in list(self._open.values()):
            options: CallOptions = {
                **planned.call.options, "sequence_start": False, "sequence_end": True,
            }  # fmt: skip
            call = Call(planned.call.inputs, options, closing=True, model=planned.call.model)
            self._play(Planned(planned.recorded, call, None), 0)
        while self._in_flight:
            self._handle_end(self._inbox.get())

    def _record_error(self, slot: Slot, end_ns: int, error: BaseException) -> None:
        if slot.call is not None and not slot.call.closing:
            self._times[slot.call.model].errors.append((end_ns, str(error)))

    def _wake(self) -> None:
        self._inbox.put(None)

    def _free(self, slot: Slot, *, inline: bool) -> None:  # noqa: ARG002  same either way
        self._inbox.put(slot)
