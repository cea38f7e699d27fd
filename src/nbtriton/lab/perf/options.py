"""The options of one measurement: validated, and converted to plans for its parts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import copy
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from nbtriton.common.checks import CALL, NAME, SERVER, Kind, check, is_list, is_number, optional
from nbtriton.common.errors import InvalidArgumentError, UnsupportedError
from nbtriton.lab.perf.loads import (
    Concurrency,
    LevelPlan,
    PeriodicConcurrency,
    RecordedArrivals,
    RequestIntervals,
    RequestRate,
    check_search,
    parse_levels,
    parse_periodic,
    read_speeds,
)
from nbtriton.lab.perf.measure import WindowPlan
from nbtriton.lab.perf.progress import Observer
from nbtriton.lab.perf.recording import Recording
from nbtriton.lab.perf.settings import CHAIN, PERF, PLACEMENT, SWEEP, PerfSettings
from nbtriton.lab.perf.sweep import Configuration, combinations
from nbtriton.lab.perf.traffic import SequencePlan, read_id_range
from nbtriton.lab.perf.windows import STABLE_WINDOWS, StabilityRule
from nbtriton.options.blocks import CallOptions
from nbtriton.options.table import read_settings

if TYPE_CHECKING:
    from nbtriton.serving.server import Server

Protocol = Literal["inproc", "http", "grpc"]

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


# Options that a report keeps as given.
_SETTINGS = (
    "measurement_mode", "measurement_request_count", "stability_percentage", "percentile",
    "latency_threshold_ms", "binary_search", "request_distribution", "request_count", "seed",
    "streaming", "model_version", "priority", "timeout_us", "shared_memory",
)  # fmt: skip

_KINDS = {
    "server": optional(
        Kind(SERVER.accepts, f"{SERVER.words}, or None with url='HOST:PORT' for one elsewhere")
    ),
    "model": NAME,
    "observer": optional(CALL),
}


class PerfOptions:
    """The arguments of `nbtriton.perf`, by the same names.

    Raises
    ------
    InvalidArgumentError
        An unknown or invalid option, with perf_analyzer's text where it has one.
    """

    __slots__ = ("model", "observer", "server", "values")

    def __init__(
        self,
        server: Server | None = None,
        model: str = "",
        *,
        observer: Observer | None = None,
        **options: Unpack[PerfSettings],
    ) -> None:
        check({"server": server, "model": model, "observer": observer}, _KINDS)
        self.server, self.model, self.observer = server, model, observer
        self.values = read_settings("perf", PERF, options)
        if self.shared_memory == "cuda":
            raise UnsupportedError(
                "requests in CUDA shared memory are not measured", hint="--shared-memory system"
            )
        if self.recording is None and read_speeds(self.speed) != (1.0,):
            raise InvalidArgumentError("speed is that of a recording", hint="give a recording")

    def __getattr__(self, name: str) -> Any:
        if name not in PERF:
            raise AttributeError(name)
        return self.values[name]

    def observed_by(self, observer: Observer | None) -> PerfOptions:
        """Return the same options with another observer."""
        changed = copy(self)
        changed.observer = observer
        return changed

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
                "--intervals, or --recording."
            )
        binary = self.binary_search
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
            load = RequestIntervals(tuple(map(int, gaps)))
            return LevelPlan(load, (load.value,), binary)
        if self.periodic_concurrency is not None:
            periodic = self._periodic(self.periodic_concurrency)
            return LevelPlan(periodic, (periodic.end,))
        if self.recording is not None:
            return self._recorded(self.recording)
        if self.request_rate is not None:
            levels = parse_levels(self.request_rate, option="--request-rate-range", integral=False)
            return LevelPlan(RequestRate(1.0, self.request_distribution), levels, binary)
        levels = parse_levels(self.concurrency, option="--concurrency-range", integral=True)
        return LevelPlan(Concurrency(1), levels, binary)

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
        arrivals = RecordedArrivals(arrivals_ns, recording.duration_ns)
        return LevelPlan(arrivals, read_speeds(self.speed))

    def configurations(self) -> tuple[Configuration, ...]:
        """Return the combinations of the swept options."""
        swept = {option.parameter for option in (*SWEEP, *PLACEMENT, *CHAIN)} - {"sweep_models"}
        return combinations(**{name: self.values[name] for name in swept})

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
        priorities, timeouts_us = _listed(self.priority), _listed(self.timeout_us)
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
        return _listed(self.batch_size)

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

    def settings(self, sequences: SequencePlan | None, windows: WindowPlan) -> dict[str, Any]:
        """Return the settings that a report keeps."""
        settings: dict[str, Any] = {name: getattr(self, name) for name in _SETTINGS}
        settings |= {
            "measurement_interval_ms": windows.interval_ms,
            "max_trials": self.stability_rule().max_trials,
            "input_data": str(self.input_data) if self.inputs is None else "given",
        }
        if self.recording is not None:
            is_recording = isinstance(self.recording, Recording)
            settings["recording"] = "given" if is_recording else str(self.recording)
        if sequences is not None:
            settings["sequences"] = asdict(sequences)
        return settings

    def stability_rule(self) -> StabilityRule:
        """Return the rule of stability."""
        return StabilityRule(
            percentage=self.stability_percentage,
            percentile=self.percentile,
            max_trials=STABLE_WINDOWS if self.quick else self.max_trials,
            latency_threshold_ms=self.latency_threshold_ms,
        )


def _listed(value: Any) -> list[Any]:
    return list(value) if is_list(value) else [value]
