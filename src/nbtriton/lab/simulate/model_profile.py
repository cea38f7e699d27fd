"""A profile: the measurements of a model from which its behaviour is predicted."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean, pvariance
from typing import TYPE_CHECKING, Any

from nbtriton.common.checks import PATH, check
from nbtriton.common.errors import InvalidArgumentError, NotFoundError, nearest
from nbtriton.common.packages import needed
from nbtriton.drawing.numbers import counted, measure, percentile
from nbtriton.drawing.table import Column, compact_html, in_units, notes_html, table_text
from nbtriton.lab.perf.machine import disturbed
from nbtriton.lab.perf.point import ended
from nbtriton.model.config import (
    ModelConfig,
    amend,
    format_pbtxt,
    normalize,
    normalize_instance_groups,
    parse_pbtxt,
    validate,
)

if TYPE_CHECKING:
    import pandas as pd

# Shares of the machine's cores that others used, and of the executions as many requests of others, beyond which
# nothing is predicted.
_MOST_BUSY = 0.5
_MOST_FOREIGN = 0.02

# Format number of a file; other numbers are refused. 2: losses of executions to the work beside them, and the
# cost of waiting; files of format 1 have wrong request times. 3: additions after idle times are
# distributions, and losses are by quantile.
_FORMAT = 3
# Declared times hold up to this number of concurrent executions.
_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class ServicePoint:
    """Execution times of one batch size with one number of concurrent executions.

    Parameters
    ----------
    rows : int
        Rows of the batch.
    at_once : int
        Concurrent executions of the model, this one included.
    times_us : tuple of float
        Equally likely execution times in microseconds, ascending.
    executions : int
        Number of measured executions.
    stalls_us : tuple of float
        Times that are left out, ascending: something else had taken the cores.
    """

    rows: int
    at_once: int
    times_us: tuple[float, ...]
    executions: int
    stalls_us: tuple[float, ...] = ()

    @property
    def mean_us(self) -> float:
        """Mean execution time in microseconds."""
        return sum(self.times_us) / len(self.times_us)

    def scaled(self, factor: float, *, stalls: bool) -> ServicePoint:
        """Return the point with times by a factor, with or without its stalls."""
        return replace(
            self,
            times_us=tuple(us * factor for us in self.times_us),
            stalls_us=tuple(us * factor for us in self.stalls_us) if stalls else (),
        )

    def percentile_us(self, percent: float) -> float:
        """Return a percentile of the execution times in microseconds."""
        return percentile(self.times_us, percent)


@dataclass(frozen=True, slots=True)
class EngineCosts:
    """The times of the engine and of the client around executions, in microseconds.

    Parameters
    ----------
    submit_us : float
        From the client's call to the scheduler's decision.
    inline_us : float
        From the decision to the execution on the caller's thread.
    start_us : float
        From the decision to the execution on the instance's own thread, if that is awake.
    wake_us : float
        Until a sleeping thread runs.
    settle_us : float
        Per batch, after its execution: statistics, and becoming idle.
    answer_us : float
        Per response, up to the client's callback.
    loop_us : float
        The client's own time between a response and its next request.
    step_us : float
        A further step of an ensemble, without its execution.
    timer_us : float
        Delay of a timer.
    wait_us : float
        Processor time of a thread's wait until a given time: the sender of an open loop, the scheduler
        for a queue delay.
    way_us : tuple of float
        Equally likely times between a client elsewhere and the server, one way: they occupy neither.
    late_us : tuple of float
        Equally likely additions to `wake_us` and `timer_us` beside executions that compute: half of them are 0, as a core
        is free or taken over at once.
    """

    submit_us: float = 0.0
    inline_us: float = 0.0
    start_us: float = 0.0
    wake_us: float = 0.0
    settle_us: float = 0.0
    answer_us: float = 0.0
    loop_us: float = 0.0
    step_us: float = 0.0
    timer_us: float = 0.0
    wait_us: float = 0.0
    way_us: tuple[float, ...] = ()
    late_us: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """The measurements of one model.

    Parameters
    ----------
    config : str
        Its configuration, completed, as protobuf text.
    place : {"thread", "process", "remote"}
        Where its instances ran.
    points : tuple of ServicePoint
        By batch size and concurrent executions; the first has one execution at a time.
    gather_us : float
        Additional execution time of each further request of a batch, apart from its rows.
    idle_us : tuple of (float, tuple of float)
        Idle times of an instance, ascending, each with its equally likely additions to the quantiles of the
        next execution time: caches and the processor have cooled down, and threads wake up later.
    cores : float
        Cores that an execution alone keeps busy.
    gives_way : tuple of (int, float)
        By number of concurrent executions, ascending: the share of the work of the engine and the clients
        that delays each of them. In a thread executions wait for the interpreter meanwhile; in a process they
        lose a core where no other is free.
    uneven : tuple of float
        Factors of that delay, by equal parts of the distribution of execution times, 1 on average: most
        executions lose less, and some wait long.
    interpreter_share : float
        Share of its time in which an execution holds Python's interpreter lock.
    input_share, output_share : float
        Shares of an execution that count as compute_input and compute_output.
    output_bytes : int
        Size of a response's tensors per row.
    lookup_us, insert_us : float
        Response cache times of a request and of its response.
    drift : (float, float)
        The execution times of the fastest and of the slowest turn of the profile, as factors of all.
    """

    config: str
    place: str
    points: tuple[ServicePoint, ...]
    gather_us: float = 0.0
    idle_us: tuple[tuple[float, tuple[float, ...]], ...] = ()
    cores: float = 0.0
    gives_way: tuple[tuple[int, float], ...] = ()
    uneven: tuple[float, ...] = (1.0,)
    interpreter_share: float = 0.0
    input_share: float = 0.0
    output_share: float = 0.0
    output_bytes: int = 0
    lookup_us: float = 0.0
    insert_us: float = 0.0
    drift: tuple[float, float] = (1.0, 1.0)

    @property
    def deviation(self) -> float:
        """Standard deviation of the execution times of a batch size, as a share of their mean: over all of them."""
        several = [point for point in self.points if len(point.times_us) > 1]
        return math.sqrt(
            fmean(pvariance(point.times_us) / point.mean_us**2 for point in several)
            if several
            else 0.0
        )

    @property
    def stalls_us(self) -> tuple[float, tuple[float, ...]]:
        """Execution time between two stalls of all points, and what they add to an execution; infinite without any."""
        adds = [us - each.percentile_us(50) for each in self.points for us in each.stalls_us]
        took_us = sum(each.executions * each.mean_us for each in self.points)
        return (took_us / len(adds) if adds else math.inf), tuple(sorted(adds))

    @property
    def rows(self) -> tuple[int, ...]:
        """Measured batch sizes, ascending."""
        return tuple(sorted({point.rows for point in self.points}))

    @property
    def levels(self) -> tuple[int, ...]:
        """Measured numbers of concurrent executions, ascending."""
        return tuple(sorted({point.at_once for point in self.points}))


@dataclass(frozen=True, slots=True, repr=False)
class Profile:
    """The result of `nbtriton.profile`: plain data with a display in notebooks.

    Parameters
    ----------
    model : str
    models : mapping of str to ModelProfile
        The model, or the composing models of an ensemble.
    ensembles : mapping of str to str
        Configurations of the ensemble and of those within it, as protobuf text.
    costs : EngineCosts
    shared_interpreter : bool
        One thread at a time runs Python.
    server : mapping
        Options of the server: ``cache_bytes``, ``rate_limit``, ``rate_limit_resources``.
    environment : mapping
        The machine and the packages.
    notes : tuple of str
    elapsed_s : float
    interrupted : bool
        The user stopped it; it has the measurements until then.
    others : float or None
        Cores that other programs used while it was measured; None if unknown.
    foreign : int
        Requests of others that the models got meanwhile.
    failure : str
        The error that ended it once each model had a point, in a sentence; empty without.

    Examples
    --------
    >>> profile = nt.types.Profile.declared({"bert": {1: 10, 8: 24}})
    >>> profile.models["bert"].rows
    (1, 8)
    """

    model: str
    models: Mapping[str, ModelProfile]
    ensembles: Mapping[str, str] = field(default_factory=dict)
    costs: EngineCosts = EngineCosts()
    shared_interpreter: bool = True
    server: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    interrupted: bool = False
    others: float | None = None
    foreign: int = 0
    failure: str = ""

    @classmethod
    def declared(
        cls,
        takes_ms: Mapping[str, float | Mapping[int, float]],
        configs: Mapping[str, str | Mapping[str, Any]] | None = None,
    ) -> Profile:
        """Make a profile from declared execution times, without a measurement.

        Every execution of a batch size takes the same time, concurrent executions do not slow each other
        down, and the engine takes no time: predictions show the scheduler alone.

        Parameters
        ----------
        takes_ms : mapping
            Milliseconds of an execution by model: a number, or a mapping of rows to numbers, which is
            interpolated and extrapolated linearly.
        configs : mapping of str to str, optional
            Further fields of a model's configuration, as ``config.pbtxt`` text. By default it has one
            instance, and ``max_batch_size`` is the largest number of rows.

        Raises
        ------
        InvalidArgumentError
            No model, a time that is not positive, or a configuration of another model.
        ConfigError
            An invalid configuration.

        Examples
        --------
        >>> profile = nt.types.Profile.declared(
        ...     {"bert": {1: 10, 8: 24}}, {"bert": "dynamic_batching { }"}
        ... )
        >>> profile.config("bert").max_batch_size
        8
        """
        for name in configs or {}:
            if name not in takes_ms:
                raise InvalidArgumentError(
                    f"there is a configuration of '{name}', and no time",
                    hint=nearest(name, takes_ms),
                )
        if not takes_ms:
            raise InvalidArgumentError("a profile needs a model", hint="such as {'bert': 10}")
        models = {
            name: _declared(name, times, (configs or {}).get(name, ""))
            for name, times in takes_ms.items()
        }
        return cls(next(iter(models)), models, notes=("declared, not measured",))

    def config(self, name: str, version: int = -1) -> ModelConfig:  # noqa: ARG002
        """Return the configuration of a profiled model.

        Raises
        ------
        NotFoundError
            The profile has no such model.

        Examples
        --------
        >>> nt.types.Profile.declared({"bert": 10}).config("bert").instance_group[0].count
        1
        """
        text = self.ensembles.get(name)
        if text is None and name in self.models:
            text = self.models[name].config
        if text is None:
            names = [*self.ensembles, *self.models]
            raise NotFoundError(
                f"the profile has no model '{name}'; it has {', '.join(names)}",
                hint=nearest(name, names),
            )
        return normalize_instance_groups(normalize(parse_pbtxt(text), name=name), gpus=None)

    @property
    def frame(self) -> pd.DataFrame:
        """One row a measured point as a pandas DataFrame; units are in the column names."""
        with needed("a profile's frame"):
            import pandas as pd

        return pd.DataFrame(self._rows())

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "bert.json"
        >>> nt.types.Profile.declared({"bert": 10}).save(path)
        """
        Path(path).write_text(json.dumps({"format": _FORMAT, **asdict(self)}) + "\n", "utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Read a profile written by `save`.

        Raises
        ------
        InvalidArgumentError
            The file is not a profile.
        NotFoundError
            The file does not exist, or cannot be opened.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "bert.json"
        >>> nt.types.Profile.declared({"bert": 10}).save(path)
        >>> nt.types.Profile.load(path).model
        'bert'
        """
        check({"profile": path}, {"profile": PATH})
        try:
            text = Path(path).expanduser().read_text("utf-8")
        except OSError as error:
            raise NotFoundError(
                f"there is no profile '{path}': {error.strerror}",
                hint="nt.profile makes one, and its save writes it",
            ) from None
        except ValueError as error:
            raise _unreadable(path, error) from None
        try:
            data = json.loads(text)
            written = data.pop("format")
            if written != _FORMAT:
                raise ValueError(f"format {written} instead of {_FORMAT}: measure it again")
            data["models"] = {name: _model(entry) for name, entry in data["models"].items()}
            lists: dict[str, Any] = {
                name: tuple(data["costs"].pop(name, ())) for name in ("way_us", "late_us")
            }
            data["costs"] = EngineCosts(**data["costs"], **lists)
            data["notes"] = tuple(data["notes"])
            return cls(**data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _unreadable(path, error) from None

    @property
    def disturbance(self) -> str:
        """What else the machine and the models did while it was measured, in a sentence; else empty."""
        parts = []
        if self.foreign:
            parts.append(f"the models got {counted(self.foreign, 'request')} of others")
        if others := self.disturbed_by:
            parts.append(others)
            stalls = sum(len(p.stalls_us) for one in self.models.values() for p in one.points)
            if stalls:
                parts[-1] += f" ({counted(stalls, 'execution')} that waited for one left out)"
        if not parts:
            return ""
        return f"while it was measured, {' and '.join(parts)}: profile again when it is quiet"

    @property
    def disturbed_by(self) -> str:
        """What other programs used while it was measured, if that disturbs; else empty. Stalls are then theirs."""
        return disturbed(self.others, self._cpus)

    @property
    def is_usable(self) -> bool:
        """False where most of what was measured is of others: more than half of the cores, or other requests."""
        own = sum(point.executions for one in self.models.values() for point in one.points)
        few = self.foreign <= _MOST_FOREIGN * own
        return few and self.busy <= _MOST_BUSY

    @property
    def busy(self) -> float:
        """The share of the cores, 0 to 1, that other programs used while it was measured; 0 if unknown."""
        return min(1.0, (self.others or 0.0) / self._cpus)

    @property
    def _cpus(self) -> int:
        return int(self.environment.get("cpus") or os.cpu_count() or 1)

    @property
    def headline(self) -> str:
        """A one-line summary of the measurement."""
        count = sum(len(model.points) for model in self.models.values())
        if self.is_declared:
            return f"{self.model}: {count} points, declared"
        words = f"{self.model}: {count} points measured in {measure(self.elapsed_s)} s"
        return words + ended(self.interrupted, self.failure)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.headline}>"

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "model": name,
                "rows": point.rows,
                "at_once": point.at_once,
                "place": model.place,
                "executions": point.executions,
                "mean_us": point.mean_us,
                "p50_us": point.percentile_us(50),
                "p90_us": point.percentile_us(90),
                "p99_us": point.percentile_us(99),
                "rows_per_s": point.rows * point.at_once / point.mean_us * 1e6,
            }
            for name, model in self.models.items()
            for point in model.points
        ]

    @property
    def is_declared(self) -> bool:
        """Whether no time of it was measured."""
        return not any(point.executions for one in self.models.values() for point in one.points)

    def _remarks(self) -> list[str]:
        if self.is_declared:
            return [*self.notes]
        costs = self.costs
        own_us = costs.submit_us + costs.answer_us + costs.loop_us + 2 * fmean(costs.way_us or [0])
        first = (
            f"the engine and the client take {own_us:.1f} "
            f"µs a request and {costs.settle_us + costs.start_us:.1f} µs a batch; a thread wakes up "
            f"in {costs.wake_us:.0f} µs"
        )
        remarks = [first]
        for name, model in self.models.items():
            if model.place == "remote":
                continue
            remarks.append(
                f"{name}: an execution keeps {model.cores:.2f} cores busy and holds the interpreter "
                f"for {model.interpreter_share:.0%} of its time"
            )
        return [*remarks, *filter(None, (self.failure, self.disturbance)), *self.notes]

    def _table(self) -> tuple[list[Column], list[list[Any]]]:
        rows = self._rows()
        alone = len(self.models) == 1
        columns = {
            "model": Column("model"),
            "rows": Column("batch size"),
            "at_once": Column("at once"),
            "executions": Column("executions"),
            "mean_us": Column("mean", "µs"),
            "p50_us": Column("p50", "µs"),
            "p99_us": Column("p99", "µs"),
            "rows_per_s": Column("throughput", "rows/s"),
        }
        names = [name for name in columns if not (alone and name == "model")]
        cells = [[row[name] for name in names] for row in rows]
        return in_units([columns[name] for name in names], cells)

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        from html import escape

        columns, rows = self._table()
        remarks = self._remarks()
        text = [self.headline, table_text(columns, rows), *(f"note: {each}" for each in remarks)]
        html = (
            f'<div class="nbt-perf"><p>{escape(self.headline)}</p>{compact_html(columns, rows, ())}'
        )
        return {"text/plain": "\n".join(text), "text/html": f"{html}{notes_html(remarks)}</div>"}


def _unreadable(path: str | Path, error: Exception) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"'{path}' is not a profile that this version of nbtriton can read ({error})",
        hint="profiles are written by Profile.save",
    )


def _declared(
    name: str, takes_ms: float | Mapping[int, float], config: str | Mapping[str, Any]
) -> ModelProfile:
    times = takes_ms if isinstance(takes_ms, Mapping) else {1: takes_ms}
    for rows, took_ms in times.items():
        if not (isinstance(rows, int) and rows > 0 and took_ms > 0):
            raise InvalidArgumentError(
                f"model '{name}': {took_ms!r} ms for {rows!r} rows is no execution time",
                hint="such as {1: 10, 8: 24}",
            )
    base = parse_pbtxt(
        f'name: "{name}" backend: "python" max_batch_size: {max(times)} '
        'input { name: "IN" data_type: TYPE_FP32 dims: 1 } '
        'output { name: "OUT" data_type: TYPE_FP32 dims: 1 }'
    )
    points = tuple(
        ServicePoint(rows, at_once, (times[rows] * 1000.0,), 0)
        for at_once in (1, _AT_ONCE)
        for rows in sorted(times)
    )
    whole = amend(base, config)
    validate(normalize(whole, name=name))
    # The text as written: changes are merged into it, and defaults follow from the whole.
    return ModelProfile(format_pbtxt(whole), "process", points)


def _model(entry: dict[str, Any]) -> ModelProfile:
    points = tuple(
        ServicePoint(
            **{
                **point,
                "times_us": tuple(point["times_us"]),
                "stalls_us": tuple(point.get("stalls_us", ())),
            }
        )
        for point in entry["points"]
    )
    known = {each.name for each in fields(ModelProfile)}
    if not points or not set(entry) <= known:
        raise ValueError("a model without points, or with unknown fields")
    idle_us = tuple((float(us), tuple(map(float, adds))) for us, adds in entry.get("idle_us", ()))
    gives_way = tuple((int(level), float(share)) for level, share in entry.get("gives_way", ()))
    uneven = tuple(map(float, entry.get("uneven", (1.0,)))) or (1.0,)
    low, high = entry.get("drift", (1.0, 1.0))
    more = {
        "points": points,
        "idle_us": idle_us,
        "gives_way": gives_way,
        "uneven": uneven,
        "drift": (low, high),
    }
    return ModelProfile(**{**entry, **more})
