"""`nbtriton.chaos`: planned faults in a live model, and what its clients saw of them."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from threading import Event
from typing import TYPE_CHECKING, Any

from nbtriton.backends.base import BackendInstance
from nbtriton.checks import (
    CALL,
    MAPPING,
    NAME,
    NAMES,
    SEED,
    SERVER,
    Kind,
    check,
    is_number,
    number,
    optional,
    whole,
)
from nbtriton.drawing import Column, measure, table_html, table_text
from nbtriton.engine.core.instance import Instance
from nbtriton.engine.core.model_runtime import ModelRuntime
from nbtriton.engine.interrupts import interrupts_deferred, wait_in_slices
from nbtriton.errors import InvalidArgumentError, UnavailableError, UnsupportedError, nearest
from nbtriton.explain.injection import FAULTS, Arrivals, FaultyInstance, Injected
from nbtriton.packages import needed
from nbtriton.perf.data import Inputs
from nbtriton.perf.driver import LoadRun, LoadSpec, make_load
from nbtriton.perf.loads import Concurrency
from nbtriton.perf.measure import Level, WindowPlan, traffic_of
from nbtriton.perf.prepare import Data, sequence_plan, workloads
from nbtriton.perf.progress import Observer, PerfProgress
from nbtriton.perf.sweep import model_tree
from nbtriton.perf.traffic import SequencePlan
from nbtriton.perf.windows import StabilityRule

if TYPE_CHECKING:
    import pandas as pd

    from nbtriton.config import ModelConfig
    from nbtriton.engine import Server

__all__ = ["ChaosReport", "chaos"]

_log = logging.getLogger("nbtriton.explain")

# Of the executions, and of the requests for a full queue, where only the names of faults are given.
_SHARE = 0.05
_KINDS: Mapping[str, Kind] = {
    "server": SERVER,
    "name": NAME,
    "seconds": number(above=0),
    "count": optional(whole(1)),
    "slow_ms": Kind(lambda value: is_number(value) and 0 <= value <= 60_000, "from 0 to 60000 ms"),
    "concurrency": whole(0),
    "shapes": optional(MAPPING),
    "seed": SEED,
    "observer": optional(CALL),
}
# Between two looks at what is answered, and two reports of progress.
_POLL_S = 0.1
# A lost instance is back after its restart, which waits for at most some seconds.
_RESTART_S = 60.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """One request as its client saw it."""

    fault: str
    status: str
    latency_ms: float
    error: str


@dataclass(frozen=True, slots=True, repr=False)
class ChaosReport:
    """The result of `nbtriton.chaos`: shows itself, and is plain data.

    >>> report = nt.chaos(server, "double", faults={"raise": 1.0}, count=5)
    >>> report.injected["raise"], report.unanswered
    (5, 0)

    Parameters
    ----------
    model : str
    seed : int
    injected : mapping of str to int
        How often each fault was injected: executions, or requests refused.
    rows : tuple of mapping
        One for each fault (``"none"`` for requests that met none) and status that clients saw:
        ``fault``, ``status``, ``count``, ``p50_ms``, ``p99_ms``, ``effect_ms`` (its median latency less
        that of the answered requests that met none) and ``error``, the text of the first one.
    unanswered : int
        Requests of other clients that were still under way at the end.
    elapsed_s : float
    interrupted : bool
    """

    model: str
    seed: int
    injected: Mapping[str, int]
    rows: tuple[Mapping[str, Any], ...]
    unanswered: int = 0
    elapsed_s: float = 0.0
    interrupted: bool = False

    @property
    def frame(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame."""
        with needed("a report's frame"):
            import pandas as pd

        return pd.DataFrame(list(self.rows), columns=list(_COLUMNS))

    @property
    def headline(self) -> str:
        """What was done, in one line."""
        total = sum(row["count"] for row in self.rows)
        failed = sum(row["count"] for row in self.rows if row["status"] != "OK")
        faults = ", ".join(f"{name} {count}" for name, count in self.injected.items()) or "none"
        words = f"{self.model}: {total} requests in {measure(self.elapsed_s)} s, {failed} with an error; "
        words += f"faults injected (seed {self.seed}): {faults}"
        if self.unanswered:
            words += f"; {self.unanswered} requests are still under way"
        return words + (", interrupted" if self.interrupted else "")

    def __repr__(self) -> str:
        return f"<ChaosReport {self.headline}>"

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        columns = [Column(title, unit) for title, unit in _COLUMNS.values()]
        rows = [[row[name] for name in _COLUMNS] for row in self.rows]
        text, page = [self.headline], [f"<p>{escape(self.headline)}</p>"]
        if rows:
            text.append(table_text(columns, rows))
            page.append(table_html(columns, rows))
        return {"text/plain": "\n".join(text), "text/html": "".join(page)}


_COLUMNS = {
    "fault": ("fault", ""),
    "status": ("status", ""),
    "count": ("requests", ""),
    "p50_ms": ("p50", "ms"),
    "p99_ms": ("p99", "ms"),
    "effect_ms": ("effect", "ms"),
    "error": ("first error", ""),
}


def chaos(
    server: Server,
    name: str,
    *,
    faults: str | Sequence[str] | Mapping[str, float] | None = None,
    seed: int = 0,
    seconds: float = 5.0,
    count: int | None = None,
    slow_ms: float = 50.0,
    concurrency: int = 4,
    inputs: Inputs | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    observer: Observer | None = None,
) -> ChaosReport:
    """Inject into a loaded model what goes wrong in production, and say what its clients see.

    Clients of its own send requests meanwhile, and all others may. Every request is answered once,
    whatever is injected. At the end, and after an interrupt, the model is what it was.

    Parameters
    ----------
    server : Server
    name : str
        A model; or an ensemble, whose composing models are hit.
    faults : str, sequence of str or mapping of str to float, optional
        Of ``"slow"`` (an execution takes `slow_ms` longer), ``"raise"`` (the model raises), ``"nan"``
        (its floating-point outputs are NaN), ``"lost"`` (an instance is lost with its batch and
        restarted; in a process, that is killed) and ``"queue_full"`` (a request is refused). A mapping
        gives the share of the executions, or of the requests for ``"queue_full"``, from 0 to 1; by
        default each has 5%. All by default, without ``"nan"`` for a decoupled model, which answers by
        itself.
    seed : int
        The faults of each instance's executions, in their order, and the refusals follow from it.
    seconds : float
        How long.
    count : int, optional
        Or until its own clients have sent that many requests.
    slow_ms : float
    concurrency : int
        Requests that its own clients keep outstanding; 0 for none of its own.
    inputs, shapes : optional
        What they send, as for `nbtriton.perf`; random data by default.
    observer : callable, optional
        Called with a `PerfProgress` ten times a second.

    Returns
    -------
    ChaosReport
        Its ``frame`` has what clients saw. After a KeyboardInterrupt that until then, with
        ``interrupted=True``.

    Raises
    ------
    InvalidArgumentError
        Options that make no sense.
    NotFoundError
        No such model.
    UnavailableError
        The server has no recorder, from which latencies are read.

    Examples
    --------
    >>> report = nt.chaos(server, "double", faults={"raise": 1.0}, count=20)
    >>> report.frame[["fault", "status", "count"]].values.tolist()
    [['raise', 'INTERNAL', 20]]
    """
    check(
        {
            "server": server, "name": name, "seconds": seconds, "count": count, "slow_ms": slow_ms,
            "concurrency": concurrency, "shapes": shapes, "seed": seed, "observer": observer,
        },
        _KINDS,
    )  # fmt: skip
    config = server.config(name)
    ensembles, others = model_tree(server, name)
    models = ensembles | others
    shares = _shares(faults, models)
    _check(server, count, concurrency)
    load = None
    if concurrency:
        load = _load(server, config, models, concurrency, count, inputs, shapes, seed)
    injected = Injected()
    arrivals = Arrivals(name, shares.pop("queue_full", 0.0), seed, injected)
    experiment = _Experiment(server, tuple(others), arrivals)
    wrap = partial(_wrap, shares=shares, seed=seed, slow_s=slow_ms / 1000, injected=injected)
    started_s = time.monotonic()
    seen: list[tuple[int, int, str, str]] = []
    interrupted = False
    try:
        with interrupts_deferred():
            experiment.begin(wrap)
        if load is not None:
            load.start()
        _wait(load, None if count is not None else seconds, arrivals, seen, name, count, observer)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        # Nothing new goes wrong while what is under way ends; a second interrupt is raised, after that.
        with interrupts_deferred():
            experiment.end()
        try:
            if load is not None:
                load.stop()
        finally:
            experiment.wait_restored()
    seen += arrivals.pop_answered()
    found = [
        _Seen("+".join(sorted(set(injected.requests.get(number, ())))) or "none", status, ns / 1e6, error)
        for number, ns, status, error in seen
    ]  # fmt: skip
    order = [each for each in FAULTS if each in injected.executions]
    return ChaosReport(
        name, seed, {each: injected.executions[each] for each in order}, _rows(found),
        len(arrivals.requests), time.monotonic() - started_s, interrupted,
    )  # fmt: skip


def _shares(
    faults: str | Sequence[str] | Mapping[str, float] | None, models: Mapping[str, ModelConfig]
) -> dict[str, float]:
    """Return the share of each fault, checked."""
    decoupled = [n for n, c in models.items() if c.model_transaction_policy.decoupled]
    if faults is None:
        shares = dict.fromkeys([f for f in FAULTS if f != "nan" or not decoupled], _SHARE)
    elif isinstance(faults, Mapping):
        shares = dict(faults)
    else:
        listed = [faults] if isinstance(faults, str) else faults
        check({"faults": listed}, {"faults": NAMES})
        shares = dict.fromkeys(listed, _SHARE)
    if not shares:
        raise InvalidArgumentError("faults names none", hint=", ".join(FAULTS))
    for fault, share in shares.items():
        if fault not in FAULTS:
            raise InvalidArgumentError(f"unknown fault '{fault}'", hint=nearest(str(fault), FAULTS))
        if not is_number(share) or not 0 <= share <= 1:
            raise InvalidArgumentError(
                f"the share of '{fault}' must be a number from 0 to 1, found {share!r}"
            )
    together = sum(share for fault, share in shares.items() if fault != "queue_full")
    if together > 1 + 1e-9:
        raise InvalidArgumentError(
            f"an execution has one fault at most: the shares add up to {together:g}, more than 1"
        )
    if shares.get("nan") and decoupled:
        raise UnsupportedError(
            f"model '{decoupled[0]}' is decoupled: it sends its responses itself, and their outputs are "
            "not changed",
            hint="leave 'nan' out",
        )
    return shares


def _check(server: Server, count: int | None, concurrency: int) -> None:
    if count is not None and not concurrency:
        raise InvalidArgumentError("count is of its own clients, of which concurrency=0 has none")
    if not server.options.recorder:
        raise UnavailableError(
            "the server has no recorder, which the latencies come from",
            hint="%triton_server --recorder on, or nt.Server(recorder=True)",
        )


def _load(
    server: Server,
    config: ModelConfig,
    models: Mapping[str, ModelConfig],
    concurrency: int,
    count: int | None,
    inputs: Inputs | None,
    shapes: Mapping[str, Sequence[int]] | None,
    seed: int,
) -> LoadRun:
    plan = sequence_plan(models, SequencePlan(), serial=False)
    data = Data(inputs, shapes, seed=seed)
    (workload,), _ = workloads(config, [None], data, plan, config.max_batch_size)
    level = Level(Concurrency(concurrency), workload, StabilityRule(), WindowPlan(), seed=seed)
    traffic, lanes, serial = traffic_of(level)
    streaming = any(each.model_transaction_policy.decoupled for each in models.values())
    return make_load(
        LoadSpec(
            server, config.name, level.load, traffic, limit=count or 0, seed=seed, streaming=streaming,
            lanes=lanes, serial=serial,
        )
    )  # fmt: skip


def _wrap(
    inner: BackendInstance,
    *,
    instance: Instance,
    in_process: bool,
    shares: Mapping[str, float],
    seed: int,
    slow_s: float,
    injected: Injected,
) -> BackendInstance:
    return FaultyInstance(
        inner, instance, shares,
        seed=seed, slow_s=slow_s, injected=injected, in_process=in_process,
    )  # fmt: skip


def _unwrap(model: BackendInstance) -> BackendInstance:
    if not isinstance(model, FaultyInstance):
        return model
    model.stop()
    return model.inner


class _Experiment:
    """Models whose instances are exchanged for faulty ones, and put back."""

    def __init__(self, server: Server, models: Sequence[str], arrivals: Arrivals) -> None:
        self._server = server
        self._arrivals = arrivals
        self._runtimes: list[ModelRuntime] = []
        for name in models:
            runtime = server.engine.registry.resolve(name)
            assert isinstance(runtime, ModelRuntime)
            self._runtimes.append(runtime)
        self._instances = [
            (instance, runtime.backend.isolation == "process")
            for runtime in self._runtimes
            for instance in runtime.instances()
        ]

    def begin(self, wrap: Any) -> None:
        """Exchange them."""
        self._server.engine.dispatcher.listen(self._arrivals)
        for instance, in_process in self._instances:
            instance.exchange(partial(wrap, instance=instance, in_process=in_process))

    def end(self) -> None:
        """Put the models' own instances back; what waits goes on."""
        for instance, _ in self._instances:
            instance.exchange(_unwrap)
        self._server.engine.dispatcher.stop_listening(self._arrivals)

    def wait_restored(self) -> None:
        """Wait until the instances that were lost are back; load a model anew that has one for good."""
        deadline_s = time.monotonic() + _RESTART_S
        pause = Event()
        while any(instance.recovery.wanted for instance, _ in self._instances):
            if time.monotonic() > deadline_s:
                break
            wait_in_slices(pause.wait, _POLL_S / 2)
        for runtime in self._runtimes:
            if any(instance.recovery.down for instance in runtime.instances()):
                self._server.load(
                    self._server.engine.inspection.user_config(runtime.name), name=runtime.name
                )


def _wait(
    load: LoadRun | None,
    seconds: float | None,
    arrivals: Arrivals,
    seen: list[tuple[int, int, str, str]],
    model: str,
    count: int | None,
    observer: Observer | None,
) -> None:
    """Wait for the end, and take note of what is answered meanwhile."""
    started_s = time.monotonic()
    ended = Event() if load is None else load.finished
    before = 0
    while True:
        elapsed_s = time.monotonic() - started_s
        left_s = math.inf if seconds is None else seconds - elapsed_s
        if left_s <= 0 or wait_in_slices(ended.wait, min(_POLL_S, left_s)):
            return
        seen += arrivals.pop_answered()
        if observer is not None:
            progress = PerfProgress(
                level=1, levels=1, what=f"chaos of {model}", window=0, max_windows=0,
                requests=len(seen), max_requests=count or 0, elapsed_s=elapsed_s,
                eta_s=None if seconds is None else max(0.0, left_s),
                infer_per_s=(len(seen) - before) / _POLL_S, points=(),
            )  # fmt: skip
            before = len(seen)
            try:
                observer(progress)
            except Exception:
                # An observer must not hurt the experiment: it is not called again.
                _log.exception("the observer of an experiment raised and was removed")
                observer = None


def _rows(found: Sequence[_Seen]) -> tuple[Mapping[str, Any], ...]:
    groups: dict[tuple[str, str], list[_Seen]] = {}
    for each in found:
        groups.setdefault((each.fault, each.status), []).append(each)
    plain = [each.latency_ms for each in groups.get(("none", "OK"), ())]
    usual_ms = statistics.median(plain) if plain else math.nan
    names = ["none", *FAULTS]

    def place(key: tuple[str, str]) -> tuple[int, str, bool, str]:
        fault, status = key
        return (names.index(fault) if fault in names else len(names), fault, status != "OK", status)

    rows = []
    for fault, status in sorted(groups, key=place):
        group = groups[fault, status]
        times = sorted(each.latency_ms for each in group)
        rows.append(
            {
                "fault": fault,
                "status": status,
                "count": len(group),
                "p50_ms": statistics.median(times),
                "p99_ms": times[math.floor(0.99 * (len(times) - 1) + 0.5)],
                "effect_ms": statistics.median(times) - usual_ms,
                "error": group[0].error,
            }
        )
    return tuple(rows)
