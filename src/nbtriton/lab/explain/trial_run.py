"""One experiment in virtual time, with a record of every request.

`nbtriton.whatif` measures a load as `nbtriton.perf` does; a trial shows single requests. It needs no server,
no thread and no NumPy, and therefore also runs in a browser.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from statistics import fmean
from typing import Any

from nbtriton.common.errors import InvalidArgumentError, NotFoundError, UnsupportedError, nearest
from nbtriton.drawing import (
    fitting,
    measure,
    table_html,
    table_text,
    timeline_scenes,
    timeline_text,
)
from nbtriton.lab.explain.explanation import Explanation, explain
from nbtriton.lab.explain.parts import children_of
from nbtriton.lab.explain.record import ModelRecord, Settings
from nbtriton.lab.explain.simulated import records_of
from nbtriton.lab.explain.timeline import Timeline, check_span, timeline_of
from nbtriton.lab.explain.trace import ModelRecords
from nbtriton.lab.simulate import Profile
from nbtriton.lab.simulate.core.clients import Arrival, Clients
from nbtriton.lab.simulate.core.world import Trace
from nbtriton.lab.simulate.server import SimulatedServer
from nbtriton.model.config import (
    ModelConfig,
    amend,
    normalize,
    normalize_instance_groups,
    validate,
)
from nbtriton.runtime.engine import BatchRecord, RequestRecord
from nbtriton.scheduling import REASONS

__all__ = ["Trial", "trial"]

# Events between two checks for signals, which compiled code does not make itself.
_EVENTS = 20_000
# Most requests of one experiment: more fit into no picture, and `whatif` keeps no records.
_MOST_REQUESTS = 100_000
_FOREVER_NS = 2**62
_COLUMNS = ("reason", "batches", "mean rows", "meaning")


@dataclass(frozen=True, slots=True, repr=False)
class Trial:
    """The records of an experiment, displayed as a timeline with the reasons of the batches.

    >>> run = nt.trial(nt.Profile.declared({"bert": 10}), arrivals_ms=[0, 2])
    >>> run.latencies_ms, [batch.reason for batch in run.batches()]
    ((10.0, 18.0), ['batching_off', 'batching_off'])

    Attributes
    ----------
    model : str
        The model of interest.
    configs : mapping of str to ModelConfig
        The configurations in force, by model.
    records : tuple of ModelRecords
        The requests and batches of each model, as the recorder of a live server has them; times in
        nanoseconds since the first request was due.
    """

    model: str
    configs: Mapping[str, ModelConfig]
    records: tuple[ModelRecords, ...] = field(repr=False)

    def requests(self, name: str | None = None) -> tuple[RequestRecord, ...]:
        """Return the requests of a model, in the order in which they were sent.

        Examples
        --------
        >>> len(nt.trial(nt.Profile.declared({"bert": 10}), arrivals_ms=[0, 2]).requests())
        2
        """
        return tuple(self._of(name).requests)

    def batches(self, name: str | None = None) -> tuple[BatchRecord, ...]:
        """Return the batches of a model, in the order in which they began."""
        return tuple(self._of(name).batches)

    def config(self, name: str | None = None) -> ModelConfig:
        """Return the configuration that was in force.

        Examples
        --------
        >>> run = nt.trial(nt.Profile.declared({"bert": 10}), arrivals_ms=[0])
        >>> run.config().max_batch_size
        1
        """
        return self.configs[self._of(name).name]

    @property
    def reasons(self) -> dict[str, int]:
        """Number of batches by reason: keys of `nbtriton.scheduling.REASONS`."""
        return dict(Counter(batch.reason for batch in self.batches()).most_common())

    @property
    def latencies_ms(self) -> tuple[float, ...]:
        """Latencies of the answered requests, in the order of their arrival."""
        return tuple(
            (one.answered_ns - one.arrival_ns) / 1e6 for one in self.requests() if not one.status
        )

    @property
    def refused(self) -> tuple[RequestRecord, ...]:
        """The requests that got an error."""
        return tuple(one for one in self.requests() if one.status)

    @property
    def throughput(self) -> float:
        """Rows per second, from the first arrival to the last response."""
        answered = [one for one in self.requests() if not one.status]
        if not answered:
            return 0.0
        first = min(one.arrival_ns for one in answered)
        took_ns = max(one.answered_ns for one in answered) - first
        return sum(one.size for one in answered) / took_ns * 1e9

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the latencies in milliseconds, 0 without any.

        Examples
        --------
        >>> nt.trial(nt.Profile.declared({"bert": 10}), arrivals_ms=[0, 2]).percentile_ms(100)
        18.0
        """
        found = sorted(self.latencies_ms)
        return found[int(percent / 100 * (len(found) - 1) + 0.5)] if found else 0.0

    def timeline(self, span_ms: float | None = None) -> Timeline:
        """Return the timeline of the last milliseconds, by default of the newest 40 batches.

        Examples
        --------
        >>> nt.trial(nt.Profile.declared({"bert": 10}), arrivals_ms=[0, 2]).timeline().name
        'bert'
        """
        check_span(span_ms)
        return timeline_of(self.model, self.records, self.configs, span_ms)

    def why(self) -> Explanation:
        """Explain the batches and the slowest requests, as `nbtriton.why` does for a live model.

        Examples
        --------
        >>> nt.trial(nt.Profile.declared({"bert": 10}), arrivals_ms=[0, 2]).why().batches
        2
        """
        children = children_of(request for each in self.records for request in each.requests)
        found = {
            each.name: ModelRecord(
                Settings.of(self.configs[each.name]), each.requests, each.batches,
                children if each.name == self.model else {},
            )
            for each in self.records
        }  # fmt: skip
        record = found.pop(self.model)
        return explain(record, found if record.settings.ensemble else {})

    @property
    def headline(self) -> str:
        """The figures in a sentence."""
        latencies = self.latencies_ms
        text = f"{self.model}: {len(latencies)} answered"
        if self.refused:
            text += f", {len(self.refused)} refused ({self.refused[0].error})"
        if latencies:
            text += (
                f", {measure(self.throughput)} rows/s; latency {measure(fmean(latencies))} ms in the "
                f"mean, p50 {measure(self.percentile_ms(50))} ms, p99 {measure(self.percentile_ms(99))} ms"
            )
        return text

    def __repr__(self) -> str:
        shown = self.timeline()
        picture = timeline_text(shown.models, span_ms=shown.span_ms, finding=shown.finding)
        return "\n".join([self.headline, "", picture, "", table_text(_COLUMNS, self._rows())])

    def _repr_html_(self) -> str:
        shown = self.timeline()
        picture = fitting(
            timeline_scenes(shown.models, span_ms=shown.span_ms, finding=shown.finding)
        )
        table = table_html(_COLUMNS, self._rows())
        return f'<div class="nbt-trial nbt-static"><p>{escape(self.headline)}</p>{picture}{table}</div>'

    def _rows(self) -> list[list[object]]:
        batches = self.batches()
        return [
            [reason, count, fmean([b.batch_size for b in batches if b.reason == reason]), REASONS[reason]]
            for reason, count in self.reasons.items()
        ]  # fmt: skip

    def _of(self, name: str | None) -> ModelRecords:
        wanted = name or self.model
        for one in self.records:
            if one.name == wanted:
                return one
        names = [one.name for one in self.records]
        raise NotFoundError(
            f"the trial has no model '{wanted}'; it has {', '.join(names)}",
            hint=nearest(wanted, names),
        )


def trial(
    profile: Profile,
    model: str | None = None,
    *,
    config: str | Mapping[str, Any] = "",
    arrivals_ms: Sequence[float] | Mapping[str, Sequence[float]] | None = None,
    request_rate: float | None = None,
    concurrency: int | None = None,
    requests: int = 100,
    rows: int = 1,
    priority: int | Sequence[int] = 0,
    timeout_us: int = 0,
    seed: int = 0,
) -> Trial:
    """Send requests to the models of a profile in virtual time, and record each of them.

    The engine's own schedulers decide; executions only let virtual time pass. A hundred requests take
    milliseconds of real time.

    Parameters
    ----------
    profile : Profile
        A result of `nbtriton.profile` or `nbtriton.Profile.declared`.
    model : str, optional
        By default the profiled one.
    config : str or mapping, optional
        A fragment of ``config.pbtxt`` changes the model's configuration, a whole one replaces it.
    arrivals_ms : sequence of float, or mapping of str to such
        The time of each request; by model to send to several models.
    request_rate : float, optional
        Alternatively, this many requests per second at random (a Poisson process).
    concurrency : int, optional
        Alternatively, this many clients, each of which sends again after its response.
    requests : int
        Total number, with a rate or clients.
    rows : int
        Rows of each request. priority : int or sequence of int Priority of all requests, or of each.
    timeout_us : int
        Queue timeout of each request, 0 for that of the configuration.
    seed : int
        Seed of the random arrivals and service times.

    Returns
    -------
    Trial

    Raises
    ------
    InvalidArgumentError
        No load, several loads, or an invalid one.
    ConfigError
        An invalid configuration.
    NotFoundError
        The profile has no such model.
    UnsupportedError
        A model that cannot be simulated, or one with sequences.

    Examples
    --------
    >>> profile = nt.Profile.declared({"bert": {1: 10, 8: 10}}, {"bert": "dynamic_batching { }"})
    >>> run = nt.trial(profile, arrivals_ms=[0, 1, 2, 3])
    >>> [(batch.batch_size, batch.reason) for batch in run.batches()]
    [(1, 'no_delay'), (3, 'joined')]
    >>> run.latencies_ms
    (10.0, 19.0, 18.0, 17.0)
    """
    if not isinstance(profile, Profile):
        raise InvalidArgumentError(
            f"a trial needs a profile, found {type(profile).__name__}",
            hint="nt.Profile.declared({'bert': 10}) makes one",
        )
    name = model or profile.model
    configs = {one: profile.config(one) for one in [*profile.ensembles, *profile.models]}
    changed = normalize(amend(profile.written(name), config), name=name)
    validate(changed)
    configs[name] = normalize_instance_groups(changed, gpus=None)
    due, again = _load(name, arrivals_ms, request_rate, concurrency, requests, seed)
    for one in due:
        _check(profile.config(one) if one != name else configs[one], rows)
    count = sum(map(len, due.values()))
    priorities = [priority] * count if isinstance(priority, int) else list(priority)
    if len(priorities) != count:
        raise InvalidArgumentError(
            f"there are {count} requests and {len(priorities)} priorities",
            hint="one number serves for all",
        )
    server = SimulatedServer(profile, configs, seed=seed)
    server.world.trace = trace = Trace()
    clients = Clients(server.world, again)
    order = iter(priorities)
    for one, times_ms in due.items():
        target = server.runtime(one)
        for at_ms in times_ms:
            arrival = Arrival(clients, target, rows, next(order), timeout_us * 1000)
            server.world.calendar.at(round(at_ms * 1e6), arrival)
    while server.world.calendar.run(_FOREVER_NS, _EVENTS) == _EVENTS:
        pass
    used = {one: configs[one] for one in [*due, *configs] if one in server.runtimes}
    return Trial(name if name in due else next(iter(due)), used, records_of(used, trace))


def _load(
    model: str,
    arrivals_ms: Sequence[float] | Mapping[str, Sequence[float]] | None,
    request_rate: float | None,
    concurrency: int | None,
    requests: int,
    seed: int,
) -> tuple[dict[str, list[float]], int]:
    """Return the send times by model, and the number of requests that follow a response."""
    loads = [one for one in (arrivals_ms, request_rate, concurrency) if one is not None]
    if len(loads) != 1:
        raise InvalidArgumentError(
            "a trial needs one of arrivals_ms, request_rate and concurrency, "
            f"found {len(loads) or 'none'}"
        )
    if arrivals_ms is not None:
        by_model = arrivals_ms if isinstance(arrivals_ms, Mapping) else {model: arrivals_ms}
        due = {one: sorted(map(float, times)) for one, times in by_model.items()}
        if not any(due.values()) or any(at < 0 for times in due.values() for at in times):
            raise InvalidArgumentError(
                "arrivals_ms needs times from 0 on", hint="such as [0, 0, 5.5]"
            )
        return due, 0
    if not 0 < requests <= _MOST_REQUESTS:
        raise InvalidArgumentError(f"requests={requests}: a trial has 1 to {_MOST_REQUESTS}")
    if request_rate is not None:
        if not request_rate > 0:
            raise InvalidArgumentError(f"request_rate={request_rate} is no rate")
        draw = random.Random(seed)  # noqa: S311 - traffic, not secrets
        at_ms, times = 0.0, []
        for _ in range(requests):
            at_ms += draw.expovariate(request_rate) * 1000
            times.append(at_ms)
        return {model: times}, 0
    assert concurrency is not None
    if not 0 < concurrency <= requests:
        raise InvalidArgumentError(
            f"concurrency={concurrency}: there are 1 to {requests} clients", hint="requests=…"
        )
    return {model: [0.0] * concurrency}, requests - concurrency


def _check(config: ModelConfig, rows: int) -> None:
    if config.HasField("sequence_batching"):
        raise UnsupportedError(
            f"'{config.name}' is a model of sequences, which a trial does not send",
            hint="nt.whatif predicts it",
        )
    if not 0 < rows <= max(1, config.max_batch_size):
        raise InvalidArgumentError(
            f"rows={rows} is not possible: max_batch_size of '{config.name}' is {config.max_batch_size}"
        )
