"""Findings about the batches of a model: the meaning of their reasons, and the change that they suggest.

Every figure in a sentence is counted in the record, the recent requests and batches of one model;
`explanation.predict_effect` predicts the effect of a change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, linear_regression, median
from typing import Any

from nbtriton.drawing.numbers import measure
from nbtriton.lab.explain.parts import BusyTimes, time_text
from nbtriton.model.config import ModelConfig, is_ensemble
from nbtriton.options.reading import quoted
from nbtriton.runtime.engine import BatchRecord, RequestRecord
from nbtriton.scheduling import REASONS


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that decide about batches; times in nanoseconds."""

    name: str
    max_batch_size: int = 0
    dynamic: bool = False
    delay_ns: int = 0
    preferred: tuple[int, ...] = ()
    max_queue_size: int = 0
    instances: int = 1
    kind: str = "KIND_CPU"
    ensemble: bool = False
    sequences: bool = False

    @classmethod
    def of(cls, config: ModelConfig) -> Settings:
        """Read the settings from a completed configuration."""
        batching = config.dynamic_batching
        groups = [group for group in config.instance_group if not group.passive]
        return cls(
            config.name,
            config.max_batch_size,
            config.HasField("dynamic_batching"),
            batching.max_queue_delay_microseconds * 1000,
            tuple(batching.preferred_batch_size),
            max(
                batching.default_queue_policy.max_queue_size,
                *(each.max_queue_size for each in batching.priority_queue_policy.values()),
                0,
            ),
            sum(max(1, group.count) * max(1, len(group.gpus)) for group in groups) or 1,
            "KIND_GPU" if any(group.gpus for group in groups) else "KIND_CPU",
            is_ensemble(config),
            config.HasField("sequence_batching"),
        )


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """The records of one model in the recorder's time span.

    Attributes
    ----------
    settings : Settings
    requests, batches : sequence of RequestRecord, of BatchRecord
        Oldest first, since the last change of the configuration.
    children : mapping of int to sequence of RequestRecord
        The requests, to any model, that a request led to, by its number.
    interpreter : str
        A sentence if its instances wait for each other's Python code, else empty.
    inside : str
        A sentence on the requests that are not answered yet; empty without any.
    way : str
        A sentence on the way to instances on other machines; empty for those of this one.
    """

    settings: Settings
    requests: Sequence[RequestRecord]
    batches: Sequence[BatchRecord]
    children: Mapping[int, Sequence[RequestRecord]] = field(default_factory=dict)
    interpreter: str = ""
    inside: str = ""
    way: str = ""

    @property
    def name(self) -> str:
        """The model's name."""
        return self.settings.name

    @property
    def span_s(self) -> float:
        """From the first arrival to the last response."""
        if not self.requests:
            return 0.0
        begin = min(request.arrival_ns for request in self.requests)
        return (max(request.answered_ns for request in self.requests) - begin) / 1e9

    @property
    def answered(self) -> list[RequestRecord]:
        """The requests without an error."""
        return [request for request in self.requests if not request.status]

    @property
    def busy(self) -> float:
        """The share of time in which the instances executed, 0 to 1."""
        if not self.batches:
            return 0.0
        begin, end = self.batches[0].start_ns, max(batch.end_ns for batch in self.batches)
        spent = sum(batch.end_ns - batch.start_ns for batch in self.batches)
        return min(1.0, spent / max(1, end - begin) / self.settings.instances)


# A fragment of a configuration: instances in processes of their own.
IN_PROCESSES = 'parameters { key: "INSTANCE_ISOLATION" value { string_value: "process" } }'
# The share of batches from which a reason gets a sentence; rarer reasons are in the table only.
_NOTABLE = 0.1
_MOST = 3
# Of their time instances that each request alone keeps busy for less need no batches; those that execute for more
# are never free, and requests that wait for this share of theirs wait long. The least number of requests to say so.
_ENOUGH, _OCCUPIED, _WAITED, _FEWEST = 0.7, 0.85, 0.15, 20
# The delays that are tried on the record, in microseconds.
_DELAYS_US = (100, 200, 500, 1000, 2000)


@dataclass(frozen=True, slots=True)
class Proposal:
    """One change.

    Attributes
    ----------
    model : str
        The model whose configuration changes.
    why : str
        The reason in the record.
    fragment : str
        The change as ``config.pbtxt`` text.
    configuration : mapping of str to object
        The change as options of `nbtriton.perf`; empty where it has no such option.
    """

    model: str
    why: str
    fragment: str
    configuration: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cell(self) -> str:
        """The cell to type."""
        return f"%%triton_config {quoted(self.model)}\n{self.fragment}"


def had_idle_instance(batch: BatchRecord) -> bool:
    """Return True if an instance was idle when the batch's first request arrived: the batch left at once."""
    return batch.formed_ns <= batch.start_ns - batch.queue_ns


def batch_findings(record: ModelRecord) -> list[str]:
    """Return a sentence for each frequent kind of batch, the most frequent first."""
    kinds: dict[tuple[str, bool], list[BatchRecord]] = {}
    for batch in record.batches:
        alone = batch.reason == "no_delay" and had_idle_instance(batch)
        kinds.setdefault((batch.reason, alone), []).append(batch)
    total = len(record.batches)
    ordered = sorted(kinds.items(), key=lambda item: -len(item[1]))[:_MOST]
    return [
        f"{len(batches) / total:.0%} of batches {_meaning(record, reason, idle, batches)}"
        for (reason, idle), batches in ordered
        if len(batches) >= _NOTABLE * total
    ]


def refusal_findings(record: ModelRecord) -> list[str]:
    """Return a sentence for each reason of refused or failed requests."""
    total = len(record.requests)
    sentences = []
    outcomes = Counter(r.outcome for r in record.requests if r.status and r.outcome)
    for outcome, count in outcomes.most_common(_MOST):
        meaning = REASONS.get(outcome, outcome)
        if outcome == "queue_full" and not record.settings.max_queue_size:
            meaning = (
                "they were refused as by a full queue, which has no limit here (chaos refuses so)"
            )
        sentences.append(f"{_part(count, total)} of requests never ran: {meaning}")
    failed = [r for r in record.requests if r.status and not r.outcome]
    if failed:
        error, count = Counter(r.error for r in failed).most_common(1)[0]
        sentences.append(
            f"{_part(len(failed), total)} of requests failed, {count} of them with: "
            f"{error.splitlines()[0][:160] if error else failed[0].status}"
        )
    hits = sum(r.outcome == "cache_hit" for r in record.requests)
    if hits:
        sentences.append(f"{_part(hits, total)} of requests were answered from the response cache")
    return sentences


def proposal(record: ModelRecord) -> Proposal | None:
    """Return the change that the record suggests most, None if it suggests none."""
    if record.settings.ensemble or not record.batches:
        return None
    for rule in (_refused, _unbatched, _shapes, _lone, _delayed, _saturated, _occupied):
        found = rule(record)
        if found is not None:
            return found
    return None


# -- sentences ---------------------------------------------------------------------------------------


def _meaning(record: ModelRecord, reason: str, idle: bool, batches: Sequence[BatchRecord]) -> str:
    settings = record.settings
    rows = fmean(batch.batch_size for batch in batches)
    waiting = fmean(batch.waiting for batch in batches)
    had = "had one row" if rows == 1 else f"had {measure(rows)} rows in the mean"
    left = f", and left {measure(waiting)} requests waiting in the mean" if waiting >= 0.5 else ""
    if reason == "batching_off":
        return f"were one request each: the model has no dynamic_batching{left}"
    if reason == "no_batch_dimension":
        return f"were one request each: max_batch_size is 0, so requests cannot share a batch{left}"
    if reason == "no_delay" and idle:
        return f"{had}: an instance was idle when each request came and no delay is set"
    if reason == "no_delay":
        return (
            f"{had}: what had come while all instances were busy left together, "
            "and nothing else waited"
        )
    if reason == "max_batch_size":
        return f"were full or could take no further request (max_batch_size: {settings.max_batch_size}){left}"
    if reason == "max_queue_delay":
        return (
            f"{had}: the oldest request had waited for the delay of "
            f"{settings.delay_ns // 1000} µs, and no more had come for a larger batch"
        )
    return f"{had}: {REASONS.get(reason, reason)}{left}"


def _part(count: int, total: int) -> str:
    share = count / max(1, total)
    return f"{share:.0%}" if share >= 0.01 else f"{measure(100 * share, 1)}%"


# -- proposals ---------------------------------------------------------------------------------------


def _refused(record: ModelRecord) -> Proposal | None:
    full, total = sum(one.outcome == "queue_full" for one in record.requests), len(record.requests)
    if full < 0.01 * total or not record.settings.max_queue_size:
        return None
    return _more_instances(record, f"{_part(full, total)} of requests found the queue full")


def _unbatched(record: ModelRecord) -> Proposal | None:
    """Propose batching: requests run one by one while others wait."""
    settings = record.settings
    leaving = [batch for batch in record.batches if batch.waiting]
    if settings.sequences or settings.dynamic or len(leaving) < _NOTABLE * len(record.batches):
        return None
    why = f"{len(leaving) / len(record.batches):.0%} of executions left requests waiting that could have been with them"
    if settings.max_batch_size > 1:
        return Proposal(record.name, why, "dynamic_batching { }", {"dynamic_batching": True})
    return _more_instances(record, "requests waited for the instance and cannot share its batches")


def _shapes(record: ModelRecord) -> Proposal | None:
    split = [batch for batch in record.batches if batch.reason == "shape"]
    if len(split) < 2 * _NOTABLE * len(record.batches):
        return None
    return Proposal(
        record.name,
        f"{len(split) / len(record.batches):.0%} of batches ended at a request of another shape: pad the "
        "inputs to one shape, or let a model that can handle them have ragged batches",
        'input { name: "…" allow_ragged_batch: true }',
    )


def _lone(record: ModelRecord) -> Proposal | None:
    """Propose a delay: requests that find an idle instance run alone, though others follow soon."""
    settings = record.settings
    lone = [b for b in record.batches if b.reason == "no_delay" and had_idle_instance(b)]
    if len(lone) < 0.5 * len(record.batches) or settings.max_batch_size < 2:
        return None
    arrivals = sorted(request.enqueued_ns for request in record.requests if request.enqueued_ns)
    for delay_us in _DELAYS_US:
        joining = [
            bisect_right(arrivals, batch.formed_ns + delay_us * 1000)
            - bisect_right(arrivals, batch.formed_ns)
            for batch in lone
        ]
        more = fmean(joining)
        if more >= 1:
            return Proposal(
                record.name,
                f"within {delay_us} µs of each of these batches {measure(more)} more requests came in "
                f"the mean; a delay lets them join, and costs each request up to {delay_us} µs",
                f"dynamic_batching {{ max_queue_delay_microseconds: {delay_us} }}",
                {"max_queue_delay_us": delay_us},
            )
    return None


def _delayed(record: ModelRecord) -> Proposal | None:
    """Propose no delay: what comes within it comes at once, or the instances need no larger batches."""
    waited = [batch for batch in record.batches if batch.reason == "max_queue_delay"]
    if len(waited) < 0.5 * len(record.batches):
        return None
    requests = fmean(len(batch.requests) for batch in waited)
    execution_us = median(batch.end_ns - batch.start_ns for batch in waited) / 1e3
    idle_us = _idle_wait_us(record, waited)
    # Those that found no idle instance waited for that, and would without the delay.
    if idle_us < execution_us / (2 if requests >= 2 else 8):
        return None
    why = (
        f"batches waited {time_text(idle_us)} in the mean for more requests while an instance was idle, and left with "
        f"{measure(requests)} of them; an execution takes {time_text(execution_us)}"
    )
    if requests >= 2:
        share = _share_alone(record)
        late = _late_joiners(record, waited)
        if share <= _ENOUGH:
            why += f", and each request by itself would keep the instances busy for {share:.0%} of the time"
        elif late < 0.5:
            why += (
                f", and in the second half of the delay {measure(late)} requests joined in the mean"
            )
        else:
            return None
    return Proposal(
        record.name,
        why,
        "dynamic_batching { max_queue_delay_microseconds: 0 }",
        {"max_queue_delay_us": 0},
    )


def _idle_wait_us(record: ModelRecord, waited: Sequence[BatchRecord]) -> float:
    """Return for how long the first request of these batches waited in the mean while an instance was idle."""
    busy = BusyTimes(record.batches, record.settings.instances)
    waits = ((one.start_ns - one.queue_ns, one.formed_ns) for one in waited)
    return fmean(end - begin - busy.within(begin, end) for begin, end in waits) / 1e3


def _share_alone(record: ModelRecord) -> float:
    """Return the share of time for which the instances would be busy if each request ran by itself."""
    fixed, row = _cost_ns(record.batches)
    rows = fmean(request.size for request in record.requests)
    took_ns = (fixed + row * rows) * len(record.requests)
    return took_ns / (record.span_s * 1e9) / record.settings.instances if record.span_s else 1.0


def _late_joiners(record: ModelRecord, waited: Sequence[BatchRecord]) -> float:
    """Return the mean number of requests that joined these batches in the second half of the delay."""
    enqueued = {request.number: request.enqueued_ns for request in record.requests}
    half_ns = record.settings.delay_ns // 2
    return fmean(
        sum(enqueued.get(number, 0) > batch.formed_ns - half_ns for number in batch.requests)
        for batch in waited
    )


def _saturated(record: ModelRecord) -> Proposal | None:
    """Propose more capacity: batches are full, and requests wait."""
    settings = record.settings
    full = [b for b in record.batches if b.reason == "max_batch_size" and b.waiting]
    if len(full) < 0.3 * len(record.batches):
        return None
    waiting = fmean(batch.waiting for batch in full)
    why = f"{len(full) / len(record.batches):.0%} of batches were full and left {measure(waiting)} requests waiting in the mean"
    fixed, row = _cost_ns(record.batches)
    if fixed >= row * settings.max_batch_size / 2:
        size = 2 * settings.max_batch_size
        return Proposal(
            record.name,
            f"{why}; of the {measure((fixed + row * settings.max_batch_size) / 1e3)} µs of a full batch "
            f"{measure(fixed / 1e3)} µs do not depend on its rows",
            f"max_batch_size: {size}",
            {"max_batch_size": size},
        )
    return _more_instances(record, why)


def _occupied(record: ModelRecord) -> Proposal | None:
    """Propose more capacity: the instances always execute, requests wait for them or for the rows beside theirs."""
    answered = [(one, one.batch) for one in record.answered if one.batch is not None]
    if record.busy < _OCCUPIED or len(answered) < _FEWEST:
        return None
    total_ns = sum(request.answered_ns - request.arrival_ns for request, _ in answered)
    waited_ns = sum(batch.start_ns - request.arrival_ns for request, batch in answered)
    fixed, row = _cost_ns(record.batches)
    rows = fmean(batch.batch_size for batch in record.batches)
    if fixed > row * rows:
        return None  # larger batches save more
    each = f"an execution takes {time_text(row / 1e3)} more for each row"
    if waited_ns >= _WAITED * total_ns:
        return _more_instances(
            record, f"requests waited for {waited_ns / total_ns:.0%} of their time, and {each}"
        )
    # A delay would gather the rows again, and of one size alone it is not known what a row costs.
    if (
        rows >= 2
        and not record.settings.delay_ns
        and len({b.batch_size for b in record.batches}) > 1
    ):
        return _more_instances(record, f"{each}, of which it has {measure(rows)} in the mean")
    return None


def _more_instances(record: ModelRecord, why: str) -> Proposal:
    settings = record.settings
    if record.interpreter and settings.instances > 1:
        return Proposal(record.name, f"{why}, and {record.interpreter}", IN_PROCESSES)
    count = settings.instances + 1
    return Proposal(
        record.name,
        f"{why}; {settings.instances} instance{'s' * (settings.instances > 1)} executed {record.busy:.0%} of the time",
        f"instance_group {{ count: {count} kind: {settings.kind} }}",
        {"instances": count},
    )


def _cost_ns(batches: Sequence[BatchRecord]) -> tuple[float, float]:
    """Return the time of an execution that does not depend on its rows, and the time of a row, in ns.

    Both come from a line through the medians of the batch sizes; with one size only, all time is the rows'.
    """
    sizes: dict[int, list[int]] = {}
    for batch in batches:
        sizes.setdefault(batch.batch_size, []).append(batch.end_ns - batch.start_ns)
    times = [median(each) for each in sizes.values()]
    if len(sizes) == 1:
        return 0.0, times[0] / next(iter(sizes))
    row = max(0.0, linear_regression(list(sizes), times).slope)
    return max(0.0, fmean(times) - row * fmean(sizes)), row
