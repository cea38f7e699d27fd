"""The traffic of a load: the same requests in turn, or the steps of sequences.

Pure: without servers or clocks. A load has lanes; requests of one lane are sent one after the other.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.lab.perf.loads import Concurrency, Load
from nbtriton.options.blocks import CallOptions

if TYPE_CHECKING:
    from nbtriton.lab.perf.data import Request

# As perf_analyzer has it.
_LENGTH = 20


@dataclass(frozen=True, slots=True)
class Call:
    """One request to send.

    Parameters
    ----------
    inputs : mapping
    options : mapping
        Its priority, its timeout and its sequence, as options of `Server.infer`.
    ends : bool
        Whether it is the last request of a sequence.
    closing : bool
        Whether it ends a sequence early, at the end of the load; it then does not count.
    model : str
        Its model; empty for that of the load.
    """

    inputs: Request
    options: CallOptions = field(default_factory=CallOptions)
    ends: bool = False
    closing: bool = False
    model: str = ""


class Traffic(Protocol):
    """The requests of a load."""

    def next(self, lane: int, number: int) -> Call:
        """Return the next request of a lane; `number` is its number in the load."""
        ...

    def closing(self, lane: int) -> Call | None:
        """Return the request that ends a lane's live sequence at the end of the load, None without one."""
        ...


class Repeated:
    """The same requests in turn, repeated, on any lane.

    Parameters
    ----------
    requests : sequence of mappings
    options : sequence of CallOptions
        Given to the requests in turn.
    """

    def __init__(self, requests: Sequence[Request], options: Sequence[CallOptions] = ()) -> None:
        given = options or (CallOptions(),)
        self._calls = [
            Call(requests[k % len(requests)], given[k % len(given)])
            for k in range(math.lcm(len(requests), len(given)))
        ]

    def next(self, lane: int, number: int) -> Call:  # noqa: ARG002
        return self._calls[number % len(self._calls)]

    def closing(self, lane: int) -> Call | None:  # noqa: ARG002
        return None


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """The lengths and ids of sequences (PA21 to PA23).

    Parameters
    ----------
    length : int or None
        Requests per sequence; None for the number of steps in given data, else 20.
    variation : float
        Variation of the length to either side, in percent.
    first_id : int
        The first correlation id.
    end_id : int or None
        One past the last id; None without bound.
    num_of_sequences : int
        Live sequences that share a request rate.
    serial : bool
        At most one outstanding request per sequence, as in every closed loop.
    as_text : bool
        Send ids as text, if the model declares its correlation id so.
    iterative : bool
        Whether the model is iterative: a sequence of one request then has the start flag alone. With both
        flags tritonserver never answers once the model reschedules it (`iterative-end` in differences.md).
    """

    length: int | None = None
    variation: float = 20.0
    first_id: int = 1
    end_id: int | None = None
    num_of_sequences: int = 4
    serial: bool = False
    as_text: bool = False
    iterative: bool = False

    def check(self, live: int) -> None:
        """Refuse more live sequences than the range has ids.

        Raises
        ------
        InvalidArgumentError
            With perf_analyzer's text.
        """
        if self.end_id is not None and self.end_id - self.first_id < live:
            raise InvalidArgumentError(
                "sequence id range specified is smaller than the maximum possible concurrency, "
                "sequence id collision may occur.",
                hint=f"{live} sequences are live at a time, the range has "
                f"{self.end_id - self.first_id} ids",
            )


def read_id_range(value: int | str | Sequence[int] | None) -> tuple[int, int | None]:
    """Read ``START``, ``"START:END"`` or ``(START, END)``, with END excluded.

    Raises
    ------
    InvalidArgumentError
        With perf_analyzer's text.
    """
    if value is None:
        return 1, None
    words: Sequence[Any] = value.split(":") if isinstance(value, str) else [value]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        words = value
    try:
        numbers = [] if isinstance(value, bytes) else [int(word) for word in words]
    except (TypeError, ValueError, OverflowError):
        numbers = []
    what = ""
    if not 1 <= len(numbers) <= 2:
        what = "The value does not match <start:end>."
    elif min(numbers) < 0:
        what = "The range values must be >= 0."
    elif numbers[0] == 0:
        what = "0 is the id of no sequence; start at 1."
    elif len(numbers) == 2 and numbers[1] <= numbers[0]:
        what = "The 'end' value must be greater than 'start' value."
    if what:
        raise InvalidArgumentError(f"Failed to parse --sequence-id-range. {what}")
    return numbers[0], numbers[1] if len(numbers) == 2 else None


@dataclass(frozen=True, slots=True)
class SequenceData:
    """The data of sequences.

    Parameters
    ----------
    plan : SequencePlan
    streams : sequence of sequences of mappings
        Each sequence sends the steps of one stream.
    given : bool
        Whether the streams are the user's; their number of steps is then the length.
    """

    plan: SequencePlan
    streams: Sequence[Sequence[Request]]
    given: bool

    def lanes(self, load: Load) -> int:
        """Return the number of live sequences under a load (PA21)."""
        return load.value if isinstance(load, Concurrency) else self.plan.num_of_sequences


@dataclass(slots=True)
class _Lane:
    """The live sequence of a lane."""

    number: int = 0
    stream: Sequence[Request] = ()
    position: int = 0
    left: int = 0


class Sequences:
    """A live sequence per lane: its first request has the start flag, its last one the end flag.

    Parameters
    ----------
    data : SequenceData
        Each sequence sends one of its streams, chosen at random (PA24).
    lanes : int
    seed : int
    options : sequence of CallOptions
        Given to the requests in turn, in addition to their sequence.
    """

    def __init__(
        self, data: SequenceData, *, lanes: int, seed: int, options: Sequence[CallOptions] = ()
    ) -> None:
        data.plan.check(lanes)
        self._plan = data.plan
        self._streams = data.streams
        self._given = data.given
        self._options = options or (CallOptions(),)
        self._lanes = [_Lane() for _ in range(lanes)]
        self._random = random.Random(seed)  # noqa: S311 - traffic, not secrets
        self._begun = 0
        # One thread uses a lane at a time; the beginning of a sequence uses state that lanes share.
        self._lock = threading.Lock()

    def next(self, lane: int, number: int) -> Call:
        live = self._lanes[lane]
        starts = live.left == 0
        if starts:
            with self._lock:
                self._begin(live)
        return self._step(live, self._options[number % len(self._options)], starts=starts)

    def closing(self, lane: int) -> Call | None:
        live = self._lanes[lane]
        if not live.left:
            return None
        live.left = 1
        return self._step(live, CallOptions(), starts=False, closing=True)

    def _begin(self, live: _Lane) -> None:
        live.stream = self._random.choice(self._streams)
        live.position = 0
        live.left = self._length(live.stream)
        live.number = self._next_id(live)

    def _length(self, stream: Sequence[Request]) -> int:
        """Return the length by PA22: L + trunc(U(-1, 1) * v% * L), at least 1."""
        if self._given and self._plan.length is None:
            return len(stream)
        length = self._plan.length or _LENGTH
        offset = int(self._random.uniform(-1, 1) * self._plan.variation / 100 * length)
        return max(1, length + offset)

    def _next_id(self, live: _Lane) -> int:
        """Return the next id by PA23: ids in turn, skipping those of other lanes."""
        plan = self._plan
        used = {lane.number for lane in self._lanes}
        while True:
            count = self._begun
            self._begun += 1
            if plan.end_id is not None:
                count %= plan.end_id - plan.first_id
            number = plan.first_id + count
            if number not in used:
                return number
            if live.number:
                return live.number

    def _step(
        self, live: _Lane, given: CallOptions, *, starts: bool, closing: bool = False
    ) -> Call:
        inputs = live.stream[live.position % len(live.stream)]
        live.position += 1
        live.left -= 1
        ends = live.left == 0
        options: CallOptions = {
            **given,
            "sequence_id": str(live.number) if self._plan.as_text else live.number,
            "sequence_start": starts,
            "sequence_end": ends and not (starts and self._plan.iterative),
        }
        return Call(inputs, options, ends=ends and not closing, closing=closing)
