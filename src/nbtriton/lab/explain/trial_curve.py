"""Throughput and latency against load, from trials: each level is one experiment in virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from nbtriton.common.errors import InvalidArgumentError
from nbtriton.drawing import (
    Point,
    Series,
    curve_finding,
    curve_scenes,
    curve_text,
    fitting,
    table_html,
)
from nbtriton.lab.explain.trial_run import Trial, trial
from nbtriton.lab.simulate import Profile

__all__ = ["TrialCurve", "trial_curve"]

_PERCENTILES = (50, 99)
# A backlog grows if the last quarter waits this many times as long as the second one, which a sustainable
# random load does not cause.
_GROWS = 2.0


@dataclass(frozen=True, slots=True, repr=False)
class TrialCurve:
    """Levels of load by configuration, displayed as a curve with its figures.

    >>> profile = nt.Profile.declared({"bert": 10})
    >>> curve = nt.trial_curve(profile, {"one": ""}, concurrency=[1, 2], requests=20)
    >>> [round(trial.throughput) for trial in curve.trials["one"].values()]
    [100, 100]

    Attributes
    ----------
    trials : mapping of str to mapping of float to Trial
        By configuration and load.
    load_name : str
        ``"request rate"`` or ``"concurrency"``.
    target_ms : float or None
        The required p99.
    """

    trials: Mapping[str, Mapping[float, Trial]] = field(repr=False)
    load_name: str
    target_ms: float | None = None

    @property
    def series(self) -> tuple[Series, ...]:
        """The points to draw."""
        return tuple(
            Series(
                name,
                tuple(_point(load, one) for load, one in levels.items()),
                self.load_name,
                predicted=True,
            )
            for name, levels in self.trials.items()
        )

    @property
    def finding(self) -> str:
        """A sentence about the figures."""
        return curve_finding(self.series, self.target_ms)

    def best(self) -> tuple[str, float] | None:
        """Return configuration and load of the highest throughput within the target, or None.

        Examples
        --------
        >>> profile = nt.Profile.declared({"bert": {1: 10, 8: 20}})
        >>> settings = {"alone": "", "batches": "dynamic_batching { }"}
        >>> nt.trial_curve(profile, settings, concurrency=[1, 8], requests=80).best()
        ('batches', 8)
        """
        found = [
            (one.throughput, name, load)
            for name, levels in self.trials.items()
            for load, one in levels.items()
            if one.latencies_ms
            and (self.target_ms is None or one.percentile_ms(99) <= self.target_ms)
        ]
        return max(found)[1:] if found else None

    @property
    def _title(self) -> str:
        return next((one.model for levels in self.trials.values() for one in levels.values()), "")

    def __repr__(self) -> str:
        return curve_text(self.series, title=f"{self._title}: {self.finding}")

    def _repr_html_(self) -> str:
        scenes = curve_scenes(self.series, title=self._title, target_ms=self.target_ms)
        columns = (
            "configuration",
            self.load_name,
            "rows/s",
            "p50 [ms]",
            "p99 [ms]",
            "rows a batch",
        )
        rows = [
            [name, load, one.throughput, one.percentile_ms(50), one.percentile_ms(99), _mean_rows(one)]
            for name, levels in self.trials.items()
            for load, one in levels.items()
        ]  # fmt: skip
        return (
            f'<div class="nbt-trial nbt-static">{fitting(scenes)}{table_html(columns, rows)}</div>'
        )


def trial_curve(
    profile: Profile,
    configs: Mapping[str, str | Mapping[str, Any]],
    model: str | None = None,
    *,
    request_rate: Sequence[float] = (),
    concurrency: Sequence[int] = (),
    requests: int = 1000,
    rows: int = 1,
    target_ms: float | None = None,
    seed: int = 0,
) -> TrialCurve:
    """Try configurations under several loads in virtual time.

    Parameters
    ----------
    profile : Profile
    configs : mapping of str to str
        Configurations by a chosen name: fragments of ``config.pbtxt``, as for `nbtriton.trial`.
    model : str, optional
    request_rate, concurrency : sequence of float, of int
        The loads: one of the two.
    requests : int
        Number for each trial. (`nbtriton.whatif` measures until a level is stable instead.)
    rows : int
    target_ms : float, optional
        The required p99; marked in the picture.
    seed : int

    Raises
    ------
    InvalidArgumentError, NotFoundError, UnsupportedError
        As `nbtriton.trial`.

    Examples
    --------
    >>> profile = nt.Profile.declared({"bert": {1: 10, 8: 20}})
    >>> curve = nt.trial_curve(
    ...     profile,
    ...     {"alone": "", "batches": "dynamic_batching { }"},
    ...     concurrency=[1, 8],
    ...     requests=80,
    ... )
    >>> curve.best()
    ('batches', 8)
    """
    if bool(request_rate) == bool(concurrency) or not configs:
        raise InvalidArgumentError(
            "a curve needs configurations, and levels of one of request_rate and concurrency"
        )
    loads: Sequence[float] = request_rate or concurrency
    by = "request_rate" if request_rate else "concurrency"
    trials = {
        name: {
            load: trial(
                profile, model, config=config, requests=requests, rows=rows, seed=seed,
                **{by: load},  # type: ignore[arg-type]
            )
            for load in loads
        }
        for name, config in configs.items()
    }  # fmt: skip
    return TrialCurve(trials, by.replace("_", " "), target_ms)


def _point(load: float, one: Trial) -> Point:
    latency_ms = {percent: one.percentile_ms(percent) for percent in _PERCENTILES}
    if not one.latencies_ms:
        return Point(load, 0.0)
    outcome = "unstable" if _backlog_grows(one) else "predicted"
    return Point(load, one.throughput, latency_ms, outcome)


def _backlog_grows(one: Trial) -> bool:
    latencies = one.latencies_ms
    quarter = len(latencies) // 4
    if quarter < 2:
        return False
    return fmean(latencies[-quarter:]) > _GROWS * fmean(latencies[quarter : 2 * quarter])


def _mean_rows(one: Trial) -> float:
    return fmean([batch.batch_size for batch in one.batches()] or [0])
