"""The options of one measurement: validated, and converted to plans for its parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from nbtriton.common.checks import (
    CALL,
    MAPPING,
    NAME,
    NAMES,
    PATH,
    SEED,
    SERVER,
    SWITCH,
    Kind,
    check,
    is_number,
    is_whole,
    optional,
)
from nbtriton.common.errors import InvalidArgumentError, UnsupportedError, nearest
from nbtriton.lab.perf.data import Inputs
from nbtriton.lab.perf.loads import (
    Distribution,
    PeriodicConcurrency,
    RecordedArrivals,
    RequestIntervals,
    parse_levels,
    parse_periodic,
    read_speeds,
)
from nbtriton.lab.perf.measure import MeasurementMode, WindowPlan
from nbtriton.lab.perf.placement import Placement
from nbtriton.lab.perf.progress import Observer
from nbtriton.lab.perf.recording import Recording
from nbtriton.lab.perf.search import LevelPlan, check_search
from nbtriton.lab.perf.sweep import Configuration, combinations
from nbtriton.lab.perf.traffic import CallOptions, SequencePlan, read_id_range
from nbtriton.lab.perf.windows import STABLE_WINDOWS, StabilityRule

if TYPE_CHECKING:
    from nbtriton.serving.server import Server

__all__ = ["PROTOCOLS", "PerfOptions", "Protocol", "check_choice"]

Protocol = Literal["inproc", "http", "grpc"]
SharedMemoryKind = Literal["none", "system", "cuda"]
PROTOCOLS: tuple[str, ...] = get_args(Protocol)

# perf_analyzer's 5000 ms suit milliseconds across a network. In the kernel a request takes 10 us to some ms:
# 250 ms (300 ms with PA1's factor) contain 100 requests even at 3 ms each, enough for a p99, and a stable
# level takes 1 s. Slower models get longer windows (`WindowPlan.fitted`).
_INTERVAL_MS = 250.0
_WARM_UP_S = 0.05
# The longest window of a slow model, and its longest warm-up.
_LONGEST_S = 2.0
# Quick: three windows per level, the whole sweep in 3 * 1.2 * 450 ms = 1.6 s, which leaves time for loading
# configurations within the promised 3 s. Windows below 20 ms would measure only the thread switches of a busy
# kernel (5 ms each); above 100 ms it is not quick.
_QUICK_TOTAL_MS = 450.0
_QUICK_INTERVAL_MS = (20.0, 100.0)
_QUICK_WARM_UP_S = 0.02
_QUICK_LONGEST_S = 0.3
# Assumed number of levels of a search without a known number.
_QUICK_LEVELS = 8


# Numeric options, with perf_analyzer's names and bounds.
_BOUNDS = (
    ("measurement_interval_ms", "--measurement-interval (-p)", "> 0 msec"),
    ("measurement_request_count", "--measurement-request-count", "> 0"),
    ("max_trials", "--max-trials (-r)", "> 0"),
    ("request_count", "--request-count", ">= 0"),
    ("request_period", "--request-period", "> 0"),
    ("stability_percentage", "--stability-percentage (-s)", ">= 0.0"),
    ("latency_threshold_ms", "--latency-threshold (-l)", ">= 0 msecs"),
    ("string_length", "--string-length", "> 0"),
    ("sequence_length", "--sequence-length", "> 0"),
    ("sequence_length_variation", "--sequence-length-variation", ">= 0.0"),
    ("num_of_sequences", "--num-of-sequences", "> 0"),
    ("output_shared_memory_size", "--output-shared-memory-size", "> 0"),
)
_OPTIONAL = ("measurement_interval_ms", "latency_threshold_ms", "sequence_length")
_REAL = (
    "measurement_interval_ms", "stability_percentage", "latency_threshold_ms",
    "sequence_length_variation",
)  # fmt: skip
_KINDS: Mapping[str, Kind] = {
    "server": optional(
        Kind(SERVER.accepts, f"{SERVER.words}, or None with url='HOST:PORT' for one elsewhere")
    ),
    "model": NAME,
    "recording": optional(Kind(lambda value: isinstance(value, Recording) or PATH.accepts(value), PATH.words)),
    "shapes": optional(MAPPING),
    "input_data": Kind(PATH.accepts, "random, zero or the name of a file"),
    "string_data": optional(Kind(lambda value: isinstance(value, str), "a string")),
    "streaming": SWITCH,
    "model_version": optional(Kind(lambda value: is_whole(value) and value > 0, "a version, from 1 on")),
    "serial_sequences": SWITCH,
    "binary_search": SWITCH,
    "quick": SWITCH,
    "sweep_models": NAMES,
    "seed": SEED,
    "observer": optional(CALL),
    "url": optional(NAME),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PerfOptions:
    """The arguments of `nbtriton.lab.perf.perf`, by the same names.

    Raises
    ------
    InvalidArgumentError
        Invalid options, with perf_analyzer's text where it has one.
    """

    server: Server | None
    model: str
    concurrency: int | str | range | Iterable[int]
    request_rate: float | str | Iterable[float] | None
    request_distribution: Distribution
    intervals: Sequence[int] | None
    periodic_concurrency: str | None
    request_period: int
    recording: str | Path | Recording | None
    speed: float | Sequence[float]
    request_count: int
    batch_size: int | Sequence[int] | None
    inputs: Inputs | None
    shapes: Mapping[str, Sequence[int]] | None
    input_data: str | Path
    string_length: int
    string_data: str | None
    streaming: bool
    model_version: int | None
    priority: int | Sequence[int]
    timeout_us: int | Sequence[int]
    sequence_length: int | None
    sequence_length_variation: float
    sequence_id_range: int | str | Sequence[int] | None
    num_of_sequences: int
    serial_sequences: bool
    measurement_mode: MeasurementMode
    measurement_interval_ms: float | None
    measurement_request_count: int
    stability_percentage: float
    max_trials: int
    percentile: float | None
    latency_threshold_ms: float | None
    binary_search: bool
    instances: int | Sequence[int] | None
    max_batch_size: int | Sequence[int] | None
    max_queue_delay_us: int | Sequence[int] | None
    dynamic_batching: bool | Sequence[bool] | None
    preferred: int | Sequence[int] | Sequence[Sequence[int]] | None
    isolation: str | Sequence[str] | None
    placement: Placement | Sequence[Placement] | None
    kind: str | Sequence[str] | None
    cache: bool | Sequence[bool] | None
    rate_limit: str | Sequence[str] | None
    sweep_models: Sequence[str]
    seed: int
    quick: bool
    observer: Observer | None
    url: str | None
    protocol: Protocol | None
    shared_memory: SharedMemoryKind
    output_shared_memory_size: int

    def __post_init__(self) -> None:
        for name, allowed in (
            ("request_distribution", get_args(Distribution)),
            ("measurement_mode", get_args(MeasurementMode)),
            ("protocol", (None, *PROTOCOLS)),
            ("shared_memory", ("system", "cuda", "none")),
        ):
            check_choice(name, getattr(self, name), allowed)
        if self.shared_memory == "cuda":
            raise UnsupportedError(
                "requests in CUDA shared memory are not measured", hint="--shared-memory system"
            )
        _check_numbers(self)
        if self.recording is None and read_speeds(self.speed) != (1.0,):
            raise InvalidArgumentError("speed is that of a recording", hint="give a recording")

    def level_plan(self) -> LevelPlan:
        """Read the load options; only one kind of load may be given."""
        plan = self._level_plan()
        check_search(
            plan.levels, binary=plan.binary, latency_threshold_ms=self.latency_threshold_ms
        )
        return plan

    def _level_plan(self) -> LevelPlan:
        default = is_number(self.concurrency) and self.concurrency == 1  # not of an array
        chosen = [
            not default, self.request_rate is not None, self.intervals is not None,
            self.periodic_concurrency is not None, self.recording is not None,
        ]  # fmt: skip
        if sum(chosen) > 1:
            raise InvalidArgumentError(
                "Cannot specify more then one inference load mode. Please choose only one of the "
                "following modes: --concurrency, --periodic-concurrency-range, --request-rate, "
                "--intervals, or --recording.",
            )
        binary, distribution = self.binary_search, self.request_distribution
        if self.intervals is not None:
            given: Any = self.intervals  # including an array of numpy's
            listed = isinstance(given, Iterable) and not isinstance(given, str | bytes)
            gaps = tuple(given) if listed else ()
            if (
                not all(map(is_number, gaps))
                or min(gaps, default=-1) < 0
                or not sum(map(int, gaps))
            ):
                raise InvalidArgumentError(
                    "intervals must be a list of microseconds, none of them negative and not all 0; "
                    f"found {self.intervals!r}"
                )
            gaps = tuple(map(int, gaps))
            value = RequestIntervals(gaps).value
            return LevelPlan("intervals", (value,), distribution, gaps, binary)
        if self.periodic_concurrency is not None:
            periodic = self._periodic(self.periodic_concurrency)
            return LevelPlan("periodic", (periodic.end,), distribution, periodic=periodic)
        if self.recording is not None:
            return self._recorded(self.recording)
        if self.request_rate is not None:
            levels = parse_levels(self.request_rate, option="--request-rate-range", integral=False)
            return LevelPlan("request_rate", levels, distribution, (), binary)
        levels = parse_levels(self.concurrency, option="--concurrency-range", integral=True)
        return LevelPlan("concurrency", levels, distribution, (), binary)

    def _periodic(self, given: str) -> PeriodicConcurrency:
        if not self.streaming:
            raise InvalidArgumentError(
                "The --periodic-concurrency-range option requires bi-directional gRPC streaming.",
                hint="streaming=True, or --streaming; in the process or over gRPC",
            )
        if self.request_count or self.binary_search:
            raise InvalidArgumentError(
                "--periodic-concurrency-range says itself how many requests are sent",
                hint="leave --request-count and --binary-search out",
            )
        return parse_periodic(given, self.request_period)

    def _recorded(self, given: str | Path | Recording) -> LevelPlan:
        if self.binary_search:
            raise InvalidArgumentError(
                "binary search needs a range of levels with a start and an end",
                hint="a recording has a list of speeds",
            )
        recording = given if isinstance(given, Recording) else Recording.load(given)
        arrivals_ns = recording.arrivals_ns(self.model)
        if not recording.duration_ns:
            raise InvalidArgumentError(
                "all requests of the recording came at once: it has no times",
                hint="nbtriton.replay sends it",
            )
        recorded = RecordedArrivals(arrivals_ns, recording.duration_ns)
        return LevelPlan("recording", read_speeds(self.speed), recorded=recorded)

    def configurations(self) -> tuple[Configuration, ...]:
        """Return the combinations of the swept options."""
        return combinations(
            instances=self.instances,
            max_batch_size=self.max_batch_size,
            max_queue_delay_us=self.max_queue_delay_us,
            dynamic_batching=self.dynamic_batching,
            preferred=self.preferred,
            isolation=self.isolation,
            placement=self.placement,
            kind=self.kind,
            cache=self.cache,
            rate_limit=self.rate_limit,
        )

    def sequence_plan(self) -> SequencePlan:
        """Return the plan of sequences, for a model with sequences."""
        first_id, end_id = read_id_range(self.sequence_id_range)
        return SequencePlan(
            length=self.sequence_length,
            variation=self.sequence_length_variation,
            first_id=first_id,
            end_id=end_id,
            num_of_sequences=self.num_of_sequences,
            serial=self.serial_sequences,
        )

    def call_options(self) -> tuple[CallOptions, ...]:
        """Return the options of requests in turn: priorities and timeouts, and the version of all."""
        priorities, timeouts_us = _numbers(self.priority), _numbers(self.timeout_us)
        version = (
            CallOptions() if self.model_version is None else CallOptions(version=self.model_version)
        )
        if not any(priorities) and not any(timeouts_us):
            return (version,) if version else ()
        return tuple(
            CallOptions(
                priority=priorities[k % len(priorities)],
                timeout_us=timeouts_us[k % len(timeouts_us)],
                **version,
            )
            for k in range(math.lcm(len(priorities), len(timeouts_us)))
        )

    def batch_sizes(self) -> list[int | None]:
        """Return the rows per request of each workload; None for those of the data."""
        size = self.batch_size
        return list(size) if isinstance(size, Sequence) and not isinstance(size, str) else [size]

    def window_plan(self, levels: int | None) -> WindowPlan:
        """Return the plan of windows for a run of `levels` levels in all; None if unknown."""
        interval_ms = self.measurement_interval_ms
        longest_s = _QUICK_LONGEST_S if self.quick else _LONGEST_S
        if self.quick:
            shortest_ms, longest_ms = _QUICK_INTERVAL_MS
            share_ms = _QUICK_TOTAL_MS / (levels or _QUICK_LEVELS)
            default_ms = min(max(share_ms, shortest_ms), longest_ms)
        else:
            default_ms = _INTERVAL_MS
        return WindowPlan(
            mode=self.measurement_mode,
            interval_ms=interval_ms or default_ms,
            request_count=self.measurement_request_count,
            longest_ms=0.0 if interval_ms else longest_s * 1000,
            warm_up_s=_QUICK_WARM_UP_S if self.quick else _WARM_UP_S,
            longest_warm_up_s=longest_s,
        )

    def stability_rule(self) -> StabilityRule:
        """Return the rule of stability."""
        return StabilityRule(
            percentage=self.stability_percentage,
            percentile=self.percentile,
            max_trials=STABLE_WINDOWS if self.quick else self.max_trials,
            latency_threshold_ms=self.latency_threshold_ms,
        )


def _numbers(value: Any) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]


def check_choice(name: str, value: str | None, allowed: Sequence[Any]) -> None:
    """Refuse a value that is not allowed, with perf_analyzer's text."""
    if value not in allowed:
        choices = [each for each in allowed if each is not None]
        raise InvalidArgumentError(
            f"Failed to parse --{name.replace('_', '-')}. Unsupported type provided: '{value}'. "
            f"The available options are {', '.join(map(repr, choices))}.",
            hint=nearest(str(value), choices),
        )


def _check_numbers(options: PerfOptions) -> None:
    """Refuse invalid numbers, with perf_analyzer's texts."""
    check({name: getattr(options, name) for name in _KINDS}, _KINDS)
    percentile = options.percentile
    if percentile is not None and not (is_number(percentile) and 0 < percentile < 100):
        raise InvalidArgumentError(
            "Failed to parse --percentile. The value must be -1 for not reporting or in range (0, 100)."
        )
    for name in ("priority", "timeout_us"):
        given = _numbers(getattr(options, name))
        if not given or not all(is_whole(each) and 0 <= each < 2**64 for each in given):
            raise InvalidArgumentError(
                f"Failed to parse --{name.replace('_', '-')}. The value must be a number >= 0, or "
                f"several; found {getattr(options, name)!r}."
            )
    if not options.batch_sizes() or not all(
        size is None or (is_whole(size) and 0 < size < 2**31) for size in options.batch_sizes()
    ):
        raise InvalidArgumentError(
            f"Failed to parse -b (batch size). The value must be > 0; found {options.batch_size!r}."
        )
    for name, option, bound in _BOUNDS:
        value = getattr(options, name)
        if value is None and name in _OPTIONAL:
            continue
        is_kind = is_number if name in _REAL else is_whole
        if not is_kind(value) or not (value > 0 if bound.startswith("> ") else value >= 0):
            raise InvalidArgumentError(
                f"Failed to parse {option}. The value must be {bound}; found {value!r}."
            )
