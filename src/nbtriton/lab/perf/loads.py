"""Loads: the requests of one level, their due times, the notation of levels, and the search through them.

Pure: without servers, threads or clocks.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from nbtriton.common.checks import is_list, is_number
from nbtriton.common.errors import InvalidArgumentError

Distribution = Literal["constant", "poisson"]
LoadMode = Literal["concurrency", "request_rate", "intervals", "periodic", "replay"]
# Each outstanding request has its own record, and each level its own second.
MOST_OUTSTANDING = 100_000
MOST_LEVELS = 10_000


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Closed loop: exactly ``value`` outstanding requests; the end of one starts the next."""

    mode: ClassVar[LoadMode] = "concurrency"
    value: int

    @property
    def label(self) -> str:
        """The name of this level in messages."""
        return f"concurrency {self.value}"


@dataclass(frozen=True, slots=True)
class RequestRate:
    """Open loop: ``value`` requests per second, sent whether or not responses came."""

    mode: ClassVar[LoadMode] = "request_rate"
    value: float
    distribution: Distribution = "constant"

    @property
    def label(self) -> str:
        """The name of this level in messages."""
        return f"request rate {self.value:g}/s"


@dataclass(frozen=True, slots=True)
class RequestIntervals:
    """Open loop: the gaps between requests in microseconds, cycled."""

    mode: ClassVar[LoadMode] = "intervals"
    intervals_us: tuple[int, ...]

    @property
    def value(self) -> float:
        """Requests per second as perf_analyzer reports them: n * 10^9 // sum of the gaps in ns."""
        return float(len(self.intervals_us) * 1_000_000_000 // (sum(self.intervals_us) * 1000))

    @property
    def label(self) -> str:
        """The name of this level in messages."""
        return f"intervals ({self.value:g}/s)"


@dataclass(frozen=True, slots=True)
class PeriodicConcurrency:
    """``start`` requests, then ``step`` more each time that the last ones have ``period`` responses each.

    Ends when `end` requests are sent in all; each is sent once. For decoupled models.
    """

    mode: ClassVar[LoadMode] = "periodic"
    start: int
    end: int
    step: int
    period: int

    @property
    def value(self) -> int:
        """The total number of requests."""
        return self.end

    @property
    def label(self) -> str:
        """The name of this level in messages."""
        return f"periodic concurrency {self.start}:{self.end}:{self.step}"


@dataclass(frozen=True, slots=True)
class RecordedArrivals:
    """Open loop: the times of a recording's requests, at a multiple of its speed, repeated.

    Parameters
    ----------
    arrivals_ns : tuple of int
        In nanoseconds since the recording began.
    period_ns : int
        Length of the recording.
    value : float
        The speed.
    """

    mode: ClassVar[LoadMode] = "replay"
    arrivals_ns: tuple[int, ...]
    period_ns: int
    value: float = 1.0

    @property
    def label(self) -> str:
        """The name of this level in messages."""
        return f"recording at speed {self.value:g}"


OpenLoad = RequestRate | RequestIntervals | RecordedArrivals
Load = Concurrency | PeriodicConcurrency | OpenLoad


def send_times_ns(load: OpenLoad, *, seed: int = 0) -> Iterator[int]:
    """Yield the due time of each request, in nanoseconds after the start, without end.

    The k-th time is the sum of the first k gaps: 1/rate each (``constant``), exponential with mean 1/rate
    (``poisson``, reproducible by `seed`), or the given intervals in a cycle. Constant times are multiples of
    the exact period, so that rounding errors do not add up. A recording has its own times.
    """
    match load:
        case RequestRate(value=rate, distribution="poisson"):
            draw = random.Random(seed)  # noqa: S311  traffic, not secrets
            mean, t = 1e9 / rate, 0.0
            while True:
                t += draw.expovariate(1.0) * mean
                yield round(t)
        case RequestRate(value=rate):
            for k in itertools.count(1):
                yield round(k * 1e9 / rate)
        case RequestIntervals(intervals_us=gaps):
            t_ns = 0
            for gap in itertools.cycle(gaps):
                t_ns += gap * 1000
                yield t_ns
        case RecordedArrivals(arrivals_ns=arrivals_ns, period_ns=period_ns, value=speed):
            for round_ns in itertools.count(0, period_ns):
                for at_ns in arrivals_ns:
                    yield round((round_ns + at_ns) / speed)


@dataclass(frozen=True, slots=True)
class LevelRange:
    """``start:end:step`` with `end` included; with ``end`` 0 only the search itself ends.

    With `geometric` the next level is the last one times `step` (``1:32:x2``; perf_analyzer has only the
    arithmetic form).
    """

    start: float
    end: float
    step: float
    geometric: bool = False

    def __iter__(self) -> Iterator[float]:
        for k in itertools.count():
            level = self.start * self.step**k if self.geometric else self.start + k * self.step
            # Decimal steps such as 0.1 do not add up exactly in binary.
            if self.end and level > self.end and not math.isclose(level, self.end):
                return
            yield level


Levels = LevelRange | tuple[float, ...]


def level_values(levels: Levels) -> tuple[float, ...] | None:
    """Return all levels, or None for a range without an end."""
    if isinstance(levels, LevelRange) and not levels.end:
        return None
    return tuple(levels)


def parse_periodic(value: str, period: int) -> PeriodicConcurrency:
    """Read ``start:end:step``.

    Raises
    ------
    InvalidArgumentError
        With perf_analyzer's text.
    """

    def fail(what: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"Failed to parse --periodic-concurrency-range. {what}",
            hint='write "10:100:30": 10 requests at first, 30 more at a time, 100 in all',
        )

    try:
        numbers = [int(part) for part in str(value).split(":")]
    except ValueError:
        numbers = []
    if not numbers or len(numbers) > 3:
        raise fail("The value does not match <start:end:step>.")
    if len(numbers) == 1:
        raise fail("Both <start> and <end> values must be provided.")
    start, end, step = (*numbers, 1)[:3]
    if start < 1:
        raise fail("The start of the search range must be > 0.")
    if start > end:
        raise fail("The <start> must be <= <end>.")
    if step < 1:
        raise fail("The <step> value must be > 0.")
    if (end - start) % step:
        raise fail("The <step> value must be a factor of the range size (<end> - <start>).")
    return PeriodicConcurrency(start, end, step, period)


def read_speeds(speed: float | Sequence[float]) -> tuple[float, ...]:
    """Read one or several multiples of the recorded speed.

    Raises
    ------
    InvalidArgumentError
    """
    speeds: tuple[Any, ...] = tuple(speed) if is_list(speed) else (speed,)  # type: ignore[arg-type]
    for each in speeds:
        if not is_number(each) or each <= 0:
            raise InvalidArgumentError(f"speed must be a number above 0, found {each!r}")
    if not speeds:
        raise InvalidArgumentError("speed is an empty list", hint="1 is the speed of the recording")
    return tuple(float(each) for each in speeds)


def parse_levels(
    value: float | str | range | Iterable[float], *, option: str, integral: bool
) -> Levels:
    """Read levels in the user's notation.

    Parameters
    ----------
    value : number, str, range or iterable of numbers
        ``4``, ``"1:32"``, ``"1:32:4"``, ``"1:32:x2"``, ``"1,2,8"``, ``range(1, 33)``, ``[1, 2, 8]``.
        A text range includes its end, as in perf_analyzer; a Python `range` does not.
    option : str
        perf_analyzer's name of the option, for the message (``--concurrency-range``).
    integral : bool
        True if only whole numbers are allowed.

    Raises
    ------
    InvalidArgumentError
        With perf_analyzer's text.
    """

    def fail(what: str = "The value does not match <start:end:step>.") -> InvalidArgumentError:
        return InvalidArgumentError(
            f"Failed to parse {option}. {what}",
            hint='write 8, "1:32", "1:32:4", "1:32:x2", "1,2,8" or a list of numbers',
        )

    def number(item: object) -> float:
        try:
            if isinstance(item, bool | bytes):
                raise TypeError
            read = float(item)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise fail() from None
        if not math.isfinite(read) or (integral and read != int(read)):
            raise fail()
        return int(read) if integral else read

    levels: Levels
    if isinstance(value, str) and ":" in value:
        start, end, step = (*value.split(":"), "1")[:3]
        if value.count(":") > 2:
            raise fail()
        geometric = step.startswith("x")
        levels = LevelRange(number(start), number(end), number(step.removeprefix("x")), geometric)
        if levels.step <= (1 if geometric else 0):
            raise fail("The step of the search range must go up.")
        if levels.end and levels.end < levels.start:
            raise fail("The end of the search range must not be less than its start.")
    elif isinstance(value, range) and len(value) > 1 and value.step > 0:
        levels = LevelRange(value[0], value[-1], value.step)
    else:
        several = isinstance(value, Iterable) and not isinstance(value, str | bytes)
        given = value.split(",") if isinstance(value, str) else value if several else [value]
        levels = tuple(number(item) for item in given)  # type: ignore[union-attr]
        if not levels:
            raise fail()
    if isinstance(levels, LevelRange):
        first, last = levels.start, levels.end
        count = 0 if levels.geometric else (last - first) / levels.step
    else:
        first, last, count = min(levels), max(levels), len(levels)
    if first <= 0:
        raise fail("The start of the search range must be > 0.")
    if integral and max(first, last) > MOST_OUTSTANDING:
        raise fail(f"At most {MOST_OUTSTANDING} requests can be outstanding.")
    if count >= MOST_LEVELS:
        raise fail(f"The search range has {MOST_LEVELS} levels or more.")
    return levels


Search = Generator[float, bool, None]


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """The levels of every configuration and batch size, and the search through them.

    Parameters
    ----------
    base : Load
        The load of a level, but for its value.
    levels : Levels
    binary : bool
    """

    base: Load
    levels: Levels
    binary: bool = False

    @property
    def whole(self) -> int:
        """The number of requests in a load with a fixed number; 0 for other loads."""
        if isinstance(self.base, PeriodicConcurrency):
            return self.base.end
        return len(self.base.arrivals_ns) if isinstance(self.base, RecordedArrivals) else 0

    @property
    def count(self) -> int | None:
        """The largest number of levels; None where the search decides."""
        values = level_values(self.levels)
        return None if self.binary or values is None else len(values)

    def search(self) -> Search:
        """Begin a search through the levels."""
        if self.binary:
            assert isinstance(self.levels, LevelRange)
            return binary_search(self.levels, integral=isinstance(self.base, Concurrency))
        return linear_search(self.levels)

    def load(self, value: float) -> Load:
        """Return the load of one level."""
        if isinstance(self.base, Concurrency):
            return Concurrency(int(value))
        if isinstance(self.base, RequestRate | RecordedArrivals):
            return replace(self.base, value=value)
        return self.base


def linear_search(levels: Iterable[float]) -> Search:
    """Go through `levels` in order; the first that fails ends the search (PA9)."""
    for level in levels:
        if not (yield level):
            return


def binary_search(levels: LevelRange, *, integral: bool) -> Search:
    """Narrow down the highest level that passes (PA10).

    It ends at once unless the start passes and the end fails; then come midpoints, while the bracket is wider
    than the step. 1:8:2 where 4 fails visits 1, 8, 4, 2.
    """
    low, high = levels.start, levels.end
    if not (yield low) or (yield high):
        return
    while high - low > levels.step:
        middle = (low + high) // 2 if integral else (low + high) / 2
        if (yield middle):
            low = middle
        else:
            high = middle


def check_search(levels: Levels, *, binary: bool, latency_threshold_ms: float | None) -> None:
    """Refuse endless searches, with perf_analyzer's texts.

    Raises
    ------
    InvalidArgumentError
        Open end or binary search without a latency limit; binary search without a range.
    """
    is_open = isinstance(levels, LevelRange) and not levels.end
    if is_open and not latency_threshold_ms and not binary:
        raise InvalidArgumentError(
            "The end of the search range and the latency limit can not be both 0 (or 0.0) "
            "simultaneously",
            hint="give the range an end, or --latency-threshold (latency_threshold_ms)",
        )
    if not binary:
        return
    if not latency_threshold_ms:
        raise InvalidArgumentError(
            "The --latency-threshold cannot be 0 for binary search mode.",
            hint="give --latency-threshold (latency_threshold_ms)",
        )
    if not isinstance(levels, LevelRange):
        raise InvalidArgumentError(
            "binary search needs a range of levels with a start and an end",
            hint="write the concurrency as 1:64",
        )
    if not levels.end:
        raise InvalidArgumentError(
            "The end of the range can not be 0 (or 0.0) for binary search mode."
        )
    if levels.geometric:
        raise InvalidArgumentError(
            "binary search narrows down to a step; it has no use for a factor",
            hint='write the range as "start:end" or "start:end:step"',
        )
