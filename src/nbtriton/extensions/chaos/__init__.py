"""Planned faults: what a server does while instances fail, hang or end."""

# Annotations are evaluated: the table of options is read from them.
import math
import statistics
import time
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

from nbtriton.backends.base import BackendInstance
from nbtriton.common.checks import (
    CALL,
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
from nbtriton.common.errors import InvalidArgumentError, UnavailableError, UnsupportedError, nearest
from nbtriton.common.packages import data_frame
from nbtriton.drawing.numbers import counted, measure
from nbtriton.drawing.table import Column, table_html, table_text
from nbtriton.extensions.chaos.injection import FAULTS, Arrivals, FaultyInstance, Injected
from nbtriton.lab.perf.driver import LoadRun
from nbtriton.lab.perf.loads import Concurrency
from nbtriton.lab.perf.measure import Level, WindowPlan, load_of
from nbtriton.lab.perf.prepare import Data, sequence_plan, workloads
from nbtriton.lab.perf.progress import GuardedObserver, Observer, PerfProgress
from nbtriton.lab.perf.settings import GivenInputs, Shapes
from nbtriton.lab.perf.sweep import model_tree
from nbtriton.lab.perf.traffic import SequencePlan
from nbtriton.lab.perf.windows import StabilityRule
from nbtriton.options.reading import name_list
from nbtriton.options.table import Option, read_settings, signed, table_of
from nbtriton.runtime.engine.core.model_runtime import ModelRuntime
from nbtriton.runtime.interrupts import interrupts_deferred, wait_in_slices

if TYPE_CHECKING:
    import pandas as pd

    from nbtriton.model.config import ModelConfig
    from nbtriton.runtime.engine import Server

__all__ = ["ChaosReport", "chaos"]

# The default share: of the executions, or of the requests for a full queue.
_SHARE = 0.05
# Seconds between two checks for responses, and between two reports of progress.
_POLL_S = 0.1
# A lost instance returns after its restart, which waits for some seconds at most.
_RESTART_S = 60.0


def _faults(text: str) -> list[str] | dict[str, float]:
    """Read ``slow,raise``, or with shares ``slow=0.2,raise=0.01``."""
    parts = name_list(text)
    if not any("=" in part for part in parts):
        return parts
    try:
        return {part.partition("=")[0]: float(part.partition("=")[2]) for part in parts}
    except ValueError:
        raise ArgumentTypeError(
            f"'{text}' is neither a list of faults nor has it a share for each: slow=0.2,raise=0.01"
        ) from None


class ChaosSettings(TypedDict, total=False):
    """What is to go wrong, and for how long."""

    faults: Annotated["str | Sequence[str] | Mapping[str, float] | None", Option(
        "--faults", "of slow, raise, nan, lost, queue_full (by default all; of a decoupled model, which sends its responses "
        "itself, without nan), each 5%% of the executions or requests; or with shares: slow=0.2,raise=0.01", "LIST", _faults)]  # fmt: skip
    duration_s: Annotated[float, Option("--duration-s", "how long (5)", "S", float, 5.0, kind=number(above=0))]  # fmt: skip
    request_count: Annotated["int | None", Option(
        "--request-count", "or until its clients have sent N requests", "N", int, kind=optional(whole(1)))]  # fmt: skip
    slow_ms: Annotated[float, Option(
        "--slow-ms", "how much longer slow takes (50)", "MS", float, 50.0,
        kind=Kind(lambda value: is_number(value) and 0 <= value <= 60_000, "from 0 to 60000 ms"))]  # fmt: skip
    concurrency: Annotated[int, Option(
        "-c --concurrency", "requests that its clients keep outstanding (4); 0: only the traffic that there is", "N", int, 4,
        kind=whole(0))]  # fmt: skip
    inputs: GivenInputs
    shapes: Shapes
    seed: Annotated[int, Option("--seed", "of the faults in each instance's executions, the refusals and random data (0)", "N", int, 0, kind=SEED)]  # fmt: skip


CHAOS = table_of(ChaosSettings)


@dataclass(frozen=True, slots=True, repr=False)
class ChaosReport:
    """The result of `nbtriton.chaos`: plain data with a display in notebooks.

    >>> report = nt.chaos(server, "double", faults={"raise": 1.0}, request_count=5)
    >>> report.injected["raise"], report.unanswered
    (5, 0)

    Parameters
    ----------
    model : str
    seed : int
    injected : mapping of str to int
        Number of injections of each fault: executions, or refused requests.
    rows : tuple of mapping
        One for each fault (``"none"`` for requests without a fault) and status that clients saw: ``fault``,
        ``status``, ``count``, ``p50_ms``, ``p99_ms``, ``effect_ms`` (its median latency less that of answered
        requests without a fault) and ``error``, the text of the first error.
    unanswered : int
        Requests of other clients still in flight at the end.
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
    def frame(self) -> "pd.DataFrame":
        """The rows as a pandas DataFrame."""
        return data_frame("a report's frame", self.rows, list(_COLUMNS))

    @property
    def headline(self) -> str:
        """A one-line summary of the experiment."""
        total = sum(row["count"] for row in self.rows)
        failed = sum(row["count"] for row in self.rows if row["status"] != "OK")
        faults = ", ".join(f"{name} {count}" for name, count in self.injected.items()) or "none"
        words = f"{self.model}: {counted(total, 'request')} in {measure(self.elapsed_s)} s, {failed} with an error; "
        words += f"faults injected (seed {self.seed}): {faults}"
        if self.unanswered:
            words += f"; {counted(self.unanswered, 'request')} still in flight"
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


@signed(CHAOS)
def chaos(
    server: "Server",
    model: str,
    *,
    observer: Observer | None = None,
    **options: Unpack[ChaosSettings],
) -> ChaosReport:
    """Inject typical production faults into a loaded model, and report their effect on its clients.

    Its own clients send requests meanwhile; other clients may, too. Every request is answered once under all
    faults. At the end, and after an interrupt, the model is as before.

    The faults are ``"slow"`` (an execution takes `slow_ms` longer), ``"raise"`` (the model raises), ``"nan"``
    (its floating-point outputs are NaN), ``"lost"`` (an instance is lost with its batch and restarted; if
    it is a process, that is killed) and ``"queue_full"`` (a request is refused).

    Parameters
    ----------
    server : Server
    model : str
        A model, or an ensemble, whose composing models get the faults.
    observer : callable, optional
        Called with a `PerfProgress` ten times a second.
    **options
        See the table.

    Returns
    -------
    ChaosReport
        Its ``frame`` has the clients' results. After a KeyboardInterrupt: the results until then, with
        ``interrupted=True``.

    Raises
    ------
    InvalidArgumentError
        Invalid options.
    NotFoundError
        No such model.
    UnavailableError
        The server has no recorder, the source of latencies.

    Examples
    --------
    >>> report = nt.chaos(server, "double", faults={"raise": 1.0}, request_count=20)
    >>> report.frame[["fault", "status", "count"]].values.tolist()
    [['raise', 'INTERNAL', 20]]
    """
    check(
        {"server": server, "model": model, "observer": observer},
        {"server": SERVER, "model": NAME, "observer": optional(CALL)},
    )
    given = read_settings("chaos", CHAOS, options)
    seed, request_count, concurrency = given["seed"], given["request_count"], given["concurrency"]
    config = server.config(model)
    ensembles, others = model_tree(server, model)
    models = ensembles | others
    shares = _shares(given["faults"], models)
    _check(server, request_count, concurrency)
    load = None
    if concurrency:
        data = Data(given["inputs"], given["shapes"], seed=seed)
        load = _load(server, config, models, concurrency, request_count, data)
    injected = Injected()
    arrivals = Arrivals(model, shares.pop("queue_full", 0.0), seed, injected)
    experiment = _Experiment(server, tuple(others), arrivals)
    wrap = partial(
        FaultyInstance, shares=shares, seed=seed, slow_s=given["slow_ms"] / 1000, injected=injected
    )
    started_s = time.monotonic()
    interrupted = False
    try:
        with interrupts_deferred():
            experiment.begin(wrap)
        if load is not None:
            load.start()
        seconds = given["duration_s"] if request_count is None else None
        experiment.wait(load, seconds, request_count, observer)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        # No new faults while running requests end; a second interrupt is raised after that.
        try:
            with interrupts_deferred():
                experiment.end()
        finally:
            try:
                if load is not None:
                    load.stop()
            finally:
                experiment.wait_restored()
    groups: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for index, ns, status, error in [*experiment.seen, *arrivals.pop_answered()]:
        fault = "+".join(sorted(set(injected.requests.get(index, ())))) or "none"
        groups.setdefault((fault, status), []).append((ns / 1e6, error))
    counts = {each: injected.executions[each] for each in FAULTS if each in injected.executions}
    return ChaosReport(
        model, seed, counts, _rows(groups), len(arrivals.requests), time.monotonic() - started_s,
        interrupted,
    )  # fmt: skip


def _shares(
    faults: str | Sequence[str] | Mapping[str, float] | None, models: "Mapping[str, ModelConfig]"
) -> dict[str, float]:
    """Return the validated share of each fault."""
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


def _check(server: "Server", count: int | None, concurrency: int) -> None:
    if count is not None and not concurrency:
        raise InvalidArgumentError("count is of its own clients, of which concurrency=0 has none")
    if not server.options.recorder:
        raise UnavailableError(
            "the server has no recorder, which the latencies come from",
            hint="%triton_server --recorder on, or nt.Server(recorder=True)",
        )


def _load(
    server: "Server",
    config: "ModelConfig",
    models: "Mapping[str, ModelConfig]",
    concurrency: int,
    count: int | None,
    data: Data,
) -> LoadRun:
    plan = sequence_plan(models, SequencePlan(), serial=False)
    (workload,), _ = workloads(config, [None], data, plan, config.max_batch_size)
    level = Level(
        Concurrency(concurrency), workload, StabilityRule(), WindowPlan(), count or 0, data.seed,
        streaming=any(each.model_transaction_policy.decoupled for each in models.values()),
    )  # fmt: skip
    return load_of(server, config.name, level)


def _unwrap(model: BackendInstance) -> BackendInstance:
    if not isinstance(model, FaultyInstance):
        return model
    model.stop()
    return model.inner


class _Experiment:
    """Models whose instances are replaced by faulty ones for some time."""

    def __init__(self, server: "Server", models: Sequence[str], arrivals: Arrivals) -> None:
        self._server = server
        self._arrivals = arrivals
        # Number, nanoseconds, status and error of the requests that were answered.
        self.seen: list[tuple[int, int, str, str]] = []
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
        """Install the faulty instances."""
        self._server.engine.dispatcher.listen(self._arrivals)
        for instance, in_process in self._instances:
            instance.exchange(partial(wrap, instance=instance, in_process=in_process))

    def wait(
        self,
        load: LoadRun | None,
        seconds: float | None,
        count: int | None,
        observer: Observer | None,
    ) -> None:
        """Wait for the end, and collect responses meanwhile."""
        started_s = time.monotonic()
        ended = Event() if load is None else load.finished
        tell, before, told_s = GuardedObserver(observer), 0, started_s
        while True:
            elapsed_s = time.monotonic() - started_s
            left_s = math.inf if seconds is None else seconds - elapsed_s
            if left_s <= 0 or wait_in_slices(ended.wait, min(_POLL_S, left_s)):
                return
            self.seen += self._arrivals.pop_answered()
            done, now_s = len(self.seen), time.monotonic()
            tell(PerfProgress(
                level=1, levels=1, what=f"chaos of {self._arrivals.model}", window=0, max_windows=0,
                requests=done, max_requests=count or 0, elapsed_s=now_s - started_s,
                eta_s=None if seconds is None else max(0.0, left_s),
                infer_per_s=(done - before) / (now_s - told_s), points=(),
            ))  # fmt: skip
            before, told_s = done, now_s

    def end(self) -> None:
        """Restore the models' own instances; end the waits of running faults."""
        for instance, _ in self._instances:
            instance.exchange(_unwrap)
        self._server.engine.dispatcher.stop_listening(self._arrivals)

    def wait_restored(self) -> None:
        """Wait until lost instances are back; reload a model with an instance that is lost for good."""
        deadline_s = time.monotonic() + _RESTART_S
        pause = Event()
        recoveries = [instance.recovery for instance, _ in self._instances]
        while any(one.wanted or one.restarting for one in recoveries):
            if time.monotonic() > deadline_s:
                break
            wait_in_slices(pause.wait, _POLL_S / 2)
        # Others may have unloaded a model, or loaded it anew.
        serving = self._server.engine.registry.runtimes()
        for runtime in self._runtimes:
            if runtime in serving and any(one.recovery.down for one in runtime.instances()):
                self._server.load(
                    self._server.engine.inspection.user_config(runtime.name), name=runtime.name
                )


def _rows(
    groups: Mapping[tuple[str, str], Sequence[tuple[float, str]]],
) -> tuple[Mapping[str, Any], ...]:
    """Return the report's rows, of the times and errors of each fault and status."""
    plain = [ms for ms, _ in groups.get(("none", "OK"), ())]
    usual_ms = statistics.median(plain) if plain else math.nan
    names = ["none", *FAULTS]

    def place(key: tuple[str, str]) -> tuple[int, str, bool, str]:
        fault, status = key
        return (names.index(fault) if fault in names else len(names), fault, status != "OK", status)

    rows = []
    for fault, status in sorted(groups, key=place):
        group = groups[fault, status]
        times = sorted(ms for ms, _ in group)
        p50_ms, p99_ms = statistics.median(times), times[math.floor(0.99 * (len(times) - 1) + 0.5)]
        cells = (fault, status, len(group), p50_ms, p99_ms, p50_ms - usual_ms, group[0][1])
        rows.append(dict(zip(_COLUMNS, cells, strict=True)))
    return tuple(rows)
