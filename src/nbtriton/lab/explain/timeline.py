"""The recorder's data as a timeline: batches, sequence slots and resources, for a picture and for a trace viewer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from nbtriton.common.checks import NAME, SERVER, check, is_number
from nbtriton.common.errors import InvalidArgumentError, UnavailableError
from nbtriton.drawing.numbers import counted, measure
from nbtriton.drawing.timeline import (
    Bar,
    Mark,
    Pattern,
    Span,
    Strip,
    TimelineLanes,
    Wait,
    first_free,
)
from nbtriton.lab.explain.findings import had_idle_instance
from nbtriton.lab.explain.parts import children_of, inside_sentence
from nbtriton.lab.explain.trace import ModelRecords, chrome_trace
from nbtriton.lab.explain.traffic import calls_between, records_of
from nbtriton.model.config import ModelConfig
from nbtriton.runtime.engine import BatchRecord, RequestRecord
from nbtriton.runtime.engine.core.snapshot import Change
from nbtriton.scheduling import REASONS

if TYPE_CHECKING:
    from nbtriton.runtime.engine import Server


class SlotLife(NamedTuple):
    """A sequence in its slot; times as in the records."""

    sequence: int | str
    instance: str
    slot: int
    begin_ns: int
    end_ns: int


def slots_per_instance(config: ModelConfig) -> int:
    """Return the number of concurrent sequences of an instance, 0 for a model without sequences (SQ4)."""
    if not config.HasField("sequence_batching"):
        return 0
    if config.sequence_batching.HasField("oldest"):
        return max(1, config.sequence_batching.oldest.max_candidate_sequences)
    return max(1, config.max_batch_size)


def slot_word(config: ModelConfig) -> str:
    """Return what the places of sequences are called: the strategy ``oldest`` has none in the batch."""
    return "candidate" if config.sequence_batching.HasField("oldest") else "slot"


def slot_lives(requests: Sequence[RequestRecord], slots: int = 0) -> tuple[SlotLife, ...]:
    """Return the slot of each sequence, in the order of their first requests.

    A sequence holds the lowest free slot of its instance from the arrival of its first recorded request to
    its last response. Without a free slot it waits in the backlog, and begins when one becomes free.

    Parameters
    ----------
    requests : sequence of RequestRecord
        Of one model.
    slots : int
        Slots of each instance; 0 if unknown.
    """
    lives: dict[tuple[str, int | str, int], list[int]] = {}
    # A correlation id may be reused: each START begins another sequence.
    begun: Counter[int | str] = Counter()
    for request in sorted(requests, key=lambda one: one.arrival_ns):
        if request.sequence and request.batch is not None:
            begun[request.sequence] += request.begins
            key = (request.batch.instance, request.sequence, begun[request.sequence])
            life = lives.setdefault(key, [request.arrival_ns, request.answered_ns])
            life[0] = min(life[0], request.arrival_ns)
            life[1] = max(life[1], request.answered_ns)
    ends: dict[str, list[int]] = {}
    found = []
    for (instance, sequence, _), (first, last) in sorted(lives.items(), key=lambda item: item[1]):
        rows = ends.setdefault(instance, [])
        free = first_free(rows, first)
        if slots and free >= slots:
            free = rows.index(min(rows))
        if free == len(rows):
            rows.append(first)
        found.append(SlotLife(sequence, instance, free, max(first, rows[free]), last))
        rows[free] = last
    return tuple(found)


def sequence_strips(
    requests: Sequence[RequestRecord], begin: int, slots: int = 0, word: str = "slot"
) -> tuple[Strip, ...]:
    """Return a strip for each used slot, by instance, from `slot_lives`.

    Parameters
    ----------
    requests, slots
        As of `slot_lives`.
    begin : int
        The time that is 0 ms.
    word : str
        What a place is called, as of `slot_word`.
    """
    rows: dict[tuple[str, int], list[Span]] = {}
    for life in slot_lives(requests, slots):
        span = Span((life.begin_ns - begin) / 1e6, (life.end_ns - begin) / 1e6, str(life.sequence))
        rows.setdefault((life.instance, life.slot), []).append(span)
    return tuple(
        Strip(f"{instance} {word} {slot}", tuple(spans))
        for (instance, slot), spans in sorted(rows.items())
    )


def resource_strips(
    server: Server, configs: Mapping[str, ModelConfig], begin: int
) -> tuple[Strip, ...]:
    """Return a strip for each resource of the rate limiter, with the amount that executions held.

    Parameters
    ----------
    server : Server
    configs : mapping of str to ModelConfig
        Of the models that serve.
    begin : int
        The time that is 0 ms.
    """
    pools = server.engine.inspection.resources()
    strips = []
    for (name, device), (_, size) in sorted(pools.items()):
        changes: Counter[int] = Counter()
        for batch, needed in _users(server, configs, name):
            changes[batch.start_ns] += needed
            changes[batch.end_ns] -= needed
        spans, used, since = [], 0, 0
        for time_ns, change in sorted(changes.items()):
            if used:
                ends = (since - begin) / 1e6, (time_ns - begin) / 1e6
                spans.append(Span(*ends, f"{used}/{size}", used / size))
            used, since = used + change, time_ns
        place = "" if device < 0 else f" on device {device}"
        strips.append(Strip(f"resource {_as_written(configs, name)}{place}", tuple(spans)))
    return tuple(strips)


def _as_written(configs: Mapping[str, ModelConfig], resource: str) -> str:
    """Return a resource's name as a configuration has it: the limiter knows no capitals."""
    groups = [group for config in configs.values() for group in config.instance_group]
    names = [needed.name for group in groups for needed in group.rate_limiter.resources]
    return next((name for name in names if name.lower() == resource.lower()), resource)


def _users(
    server: Server, configs: Mapping[str, ModelConfig], resource: str
) -> Iterable[tuple[BatchRecord, int]]:
    """Return the executions of all models that held a resource, with the amount."""
    for model, config in configs.items():
        needs = {
            group.name: sum(
                r.count for r in group.rate_limiter.resources if r.name.lower() == resource.lower()
            )
            for group in config.instance_group
        }
        if not any(needs.values()):
            continue
        for batch in server.batches(model):
            needed = needs.get(batch.instance.rpartition("_")[0], 0)
            if needed:
                yield batch, needed


# Newest batches in a picture without a given span: each has room for its letter.
_BATCHES = 40

# A pattern for each letter: no two need colours to be told apart. The most frequent reasons have the simplest ones.
_LINE = (0.5, 0.12, 0.0, 0.0)
_TWO_LINES = ((0.3, 0.1, 0.0, 0.0), (0.7, 0.1, 0.0, 0.0))
_DASHES, _DOTS = (0.5, 0.14, 9.0, 5.0), (0.5, 0.14, 2.0, 4.0)
_PATTERNS: dict[str, Pattern] = {
    "W": (),
    "I": (_LINE,),
    "F": ((0.5, 1.0, 2.0, 2.0),),
    "J": ((0.5, 1.0, 1.5, 6.5),),
    "D": _TWO_LINES,
    "P": (_DASHES,),
    "O": (_DOTS,),
    "S": ((0.2, 0.4, 0.0, 0.0),),
    "M": ((0.3, 0.12, 9.0, 5.0), (0.7, 0.12, 9.0, 5.0)),
    "Q": ((0.3, 0.12, 2.0, 4.0), (0.7, 0.12, 2.0, 4.0)),
    "U": ((0.25, 0.5, 4.0, 4.0),),
    "C": ((0.8, 0.4, 0.0, 0.0),),
}


def _mark(letter: str, role: str, words: str) -> Mark:
    return Mark(letter, role, words, _PATTERNS[letter])


_IDLE = _mark("I", "s2", "an instance was idle, and no delay is set")
_MARKS = {
    "batching_off": _mark("O", "muted", "no dynamic_batching: every request runs alone"),
    "no_batch_dimension": _mark("O", "muted", "max_batch_size is 0: every request runs alone"),
    "no_delay": _mark("W", "s0", "all that waited when an instance became free"),
    "max_batch_size": _mark("F", "s1", "full, or the next request no longer fits"),
    "preferred_batch_size": _mark("P", "s4", "a preferred size was reached"),
    "preferred_exceeded": _mark("P", "s4", "one more would exceed the largest preferred size"),
    "max_queue_delay": _mark("D", "s3", "the oldest had waited for the queue delay"),
    "joined": _mark("J", "s5", "requests joined while it waited for an instance"),
    "merged": _mark("M", "s4", "batches whose delay had passed were merged"),
    "shape": _mark("S", "muted", "the next request has other shapes"),
    "sequence_ready": _mark("Q", "s2", "requests of sequences were ready"),
    "minimum_slot_utilization": _mark("U", "s1", "enough slots had a request"),
}


@dataclass(frozen=True, slots=True)
class Timeline:
    """A time span of one model, or of an ensemble and its steps.

    Attributes
    ----------
    name : str
    models : tuple of TimelineLanes
        Lanes to draw; times in milliseconds since the begin of the span.
    span_ms : float
    finding : str
        A sentence about the span.
    records : tuple of ModelRecords
        All of the recorder's data, for the trace.
    begin_ns : int
        The begin of the span, on the clock of `time.monotonic_ns`.
    """

    name: str
    models: tuple[TimelineLanes, ...]
    span_ms: float
    finding: str
    records: tuple[ModelRecords, ...]
    begin_ns: int = 0

    def trace(self) -> dict[str, Any]:
        """Return all records as a Chrome trace, which Perfetto opens."""
        return chrome_trace(self.records)


def read_timeline(
    server: Server, name: str, span_ms: float | None = None, *, most: int | None = None
) -> Timeline:
    """Read the last milliseconds of a model and of those that it calls, or of an ensemble with its steps, from the recorder.

    Parameters
    ----------
    server : Server
    name : str
        May be unloaded, as long as the recorder has its data.
    span_ms : float, optional
        Length of the span; by default it contains the newest 40 batches.
    most : int, optional
        Of each model only so many records are read, the newest; by default all.

    Raises
    ------
    NotFoundError
        Nothing was ever recorded under this name.
    InvalidArgumentError
        A span that is not positive.
    UnavailableError
        The server has no recorder.
    """
    # Live servers only: the lessons in a browser have no NumPy.
    from nbtriton.runtime.engine.status import configs_of

    check({"server": server, "model": name}, {"server": SERVER, "model": NAME})
    if span_ms is not None and not (is_number(span_ms) and span_ms > 0):
        raise InvalidArgumentError(f"span_ms={span_ms!r} is no length of time", hint="such as 50")
    in_flight = server.in_flight()
    recorded = records_of(server, most=most)
    placed = [one for model in server.models() for one in model.instances]
    nodes = {one.name: one.placement.node for one in placed if one.placement is not None}
    records = tuple(
        ModelRecords(
            model, recorded[model] if model in recorded else server.requests(model, most=most),
            server.batches(model, most=most), instances,
            [request for request in in_flight if request.model == model], nodes,
        )
        for model, instances in _pipeline(server, name, calls_between(recorded)).items()
    )  # fmt: skip
    configs = configs_of(server)
    changes = {one.model.name: one.changes for one in server.history().models}
    begin, end = _stretch(records, span_ms, monotonic_ns())
    models = [
        _lanes(one, begin, end, configs.get(one.name), changes.get(one.name, ())) for one in records
    ]
    resources = resource_strips(server, configs, begin)
    if resources:
        models.append(TimelineLanes("rate limiter", (), (), (), resources))
    finding = _finding(name, records, begin, end)
    return Timeline(name, tuple(models), (end - begin) / 1e6, finding, records, begin)


def read_request(server: Server, model: str, since_ns: int) -> Timeline | None:
    """Read the last request that a client sent to an ensemble: a lane for each step that it went through.

    Parameters
    ----------
    server : Server
    model : str
    since_ns : int
        It arrived then or later, on the clock of `time.monotonic_ns`.

    Returns
    -------
    Timeline or None
        None if there is no recorder, or it has no such request.
    """
    try:
        recorded = {
            name: server.requests(name, since_ns=since_ns) for name in _pipeline(server, model)
        }
    except UnavailableError:
        return None
    own = [one for one in recorded[model] if not one.caller and one.arrival_ns >= since_ns]
    if not own:
        return None
    request, children = own[-1], children_of(one for each in recorded.values() for one in each)
    steps: list[RequestRecord] = []
    front = [request]
    while front:
        inner = children.get(front.pop().number, ())
        steps += [step for step in inner if step.batch is not None]
        front += inner
    if not steps:
        return None
    steps.sort(key=lambda step: step.arrival_ns)
    begin, end = request.arrival_ns, request.answered_ns
    seen: Counter[str] = Counter()
    lanes, bars, waits = [], [], []
    for at, step in enumerate(steps):
        seen[step.model] += 1
        again = f" ({seen[step.model]})" if seen[step.model] > 1 else ""
        lanes.append(step.model + again)
        assert step.batch is not None
        bars.append(_bar(step.batch, at, begin, end))
        waits.append(replace(_wait(step, (), begin, end), lane=at))
    slowest = max(steps, key=lambda step: step.answered_ns - step.arrival_ns)
    finding = (
        f"{model}: {measure((end - begin) / 1e6)} ms through {counted(len(steps), 'step')}, the longest "
        f"{slowest.model}, {measure((slowest.answered_ns - slowest.arrival_ns) / 1e6)} ms"
    )
    shown = TimelineLanes(model, tuple(lanes), tuple(bars), tuple(waits))
    return Timeline(model, (shown,), (end - begin) / 1e6, finding, (), begin)


def read_newest_batches(server: Server, model: str) -> Timeline | None:
    """Read the newest 40 batches as `read_timeline` does, all instances of a model in one lane, without requests.

    Returns
    -------
    Timeline or None
        None if there is no recorder.
    """
    try:
        whole = read_timeline(server, model)
    except UnavailableError:
        return None
    busy = [one for one in whole.models if one.bars]
    bars = tuple(replace(bar, lane=at) for at, one in enumerate(busy) for bar in one.bars)
    lanes = TimelineLanes(model, tuple(one.name for one in busy), bars, ())
    return replace(whole, models=(lanes,))


def _pipeline(
    server: Server, name: str, calls: Iterable[tuple[str, str]] = ()
) -> dict[str, tuple[str, ...]]:
    """Return a model, the models of its steps in their order, and those that it calls, with the names of their instances."""
    # Live servers only: the lessons in a browser have no NumPy.
    from nbtriton.runtime.engine.status import steps_of

    loaded = {
        model.name: tuple(instance.name for instance in model.instances)
        for model in server.models()
    }
    pipeline: dict[str, tuple[str, ...]] = {}
    front = [name]
    while front:
        model = front.pop(0)
        if model in pipeline:
            continue
        pipeline[model] = loaded.get(model, ())
        if model in loaded:
            front += steps_of(server, model)
        front += [callee for caller, callee in calls if caller == model]
    return pipeline


def _stretch(
    records: Sequence[ModelRecords], span_ms: float | None, now_ns: int
) -> tuple[int, int]:
    batches = sorted(
        (batch for one in records for batch in one.batches), key=lambda batch: batch.end_ns
    )
    inside = [request.arrival_ns for one in records for request in one.in_flight]
    ends = [batch.end_ns for batch in batches]
    ends += [request.answered_ns for one in records for request in one.requests]
    end = now_ns if inside else max(ends, default=0)
    if span_ms is not None:
        return end - int(span_ms * 1e6), end
    newest = batches[-_BATCHES:]
    begins = [batch.start_ns - batch.queue_ns for batch in newest]
    # What came long before the newest batches reaches in from the left.
    if inside and not (newest and min(inside) < min(begins)):
        begins.append(min(inside))
    if not newest:
        begins += [request.arrival_ns for one in records for request in one.requests[-_BATCHES:]]
    return min(begins, default=0), end


def _lanes(
    model: ModelRecords, begin: int, end: int, config: ModelConfig | None, changes: Sequence[Change]
) -> TimelineLanes:
    batches = [batch for batch in model.batches if batch.end_ns > begin and batch.start_ns < end]
    batches += model.running
    lanes = tuple(dict.fromkeys([*model.instances, *(batch.instance for batch in batches)]))
    bars = tuple(_bar(batch, lanes.index(batch.instance), begin, end) for batch in batches)
    waits = tuple(
        _wait(request, lanes, begin, end)
        for request in (*model.requests, *model.in_flight)
        if (request.answered_ns or end) > begin
        and request.arrival_ns < end
        and _left(request, end) > begin
    )
    slots, word = (slots_per_instance(config), slot_word(config)) if config else (0, "slot")
    strips = sequence_strips(model.requests, begin, slots, word)
    strips = (*strips, *_changes(changes, begin, end))
    return TimelineLanes(model.name, tuple(map(model.lane, lanes)), bars, waits, strips, lanes)


def _changes(changes: Sequence[Change], begin: int, end: int) -> Iterator[Strip]:
    """Yield a strip of the configurations in a stretch, each with its reason, where it changed."""
    spans = tuple(
        Span((one.at_ns - begin) / 1e6, (until - begin) / 1e6, one.summary, 0.2)
        for one, until in zip(changes, [*(each.at_ns for each in changes[1:]), end], strict=False)
        if until > begin and one.at_ns < end
    )
    if len(spans) > 1:
        yield Strip("changes", spans)


def _bar(batch: BatchRecord, lane: int, begin: int, end: int) -> Bar:
    return Bar(
        lane,
        (batch.start_ns - begin) / 1e6,
        ((batch.end_ns or end) - begin) / 1e6,
        batch.batch_size,
        len(batch.requests),
        mark_of(batch),
        batch.queue_ns / 1e6,
        batch.failed,
        not batch.end_ns,
    )


def marks() -> tuple[Mark, ...]:
    """Return all marks of batches; the last one stands for unknown reasons."""
    rest = [_mark("C", "muted", words) for reason, words in REASONS.items() if reason not in _MARKS]
    return (_IDLE, *_MARKS.values(), *rest, _mark("C", "muted", "another reason"))


def mark_of(batch: BatchRecord) -> Mark:
    """Return the letter, the colour and the text for the reason of a batch."""
    if batch.reason == "no_delay" and had_idle_instance(batch):
        return _IDLE
    return _MARKS.get(batch.reason) or _mark("C", "muted", REASONS.get(batch.reason, batch.reason))


def _left(request: RequestRecord, now: int) -> int:
    """Return when a request stopped waiting; its end if it was in no batch, or now."""
    if request.batch is not None:
        return request.batch.start_ns
    return request.answered_ns or now


def _wait(request: RequestRecord, lanes: Sequence[str], begin: int, end: int) -> Wait:
    batch = request.batch
    left = _left(request, end)
    waited = measure((left - request.arrival_ns) / 1e6)
    title = f"request {request.number} {request.request_id}".rstrip()
    title += f": waited {waited} ms" if batch is not None else f": {waited} ms in flight"
    if not request.answered_ns:
        title += ", not answered yet"
    if request.status:
        title += f", {request.outcome or request.status}"
    return Wait(
        (request.arrival_ns - begin) / 1e6,
        (left - begin) / 1e6,
        lanes.index(batch.instance) if batch is not None and batch.instance in lanes else -1,
        title,
        bool(request.status),
        batch is None and not request.answered_ns,
    )


def _finding(name: str, records: Sequence[ModelRecords], begin: int, end: int) -> str:
    in_flight = [request for one in records for request in one.in_flight]
    inside = inside_sentence(name, in_flight, end)
    seen = [
        batch
        for one in records
        for batch in one.batches
        if batch.end_ns > begin and batch.start_ns < end
    ]
    if not seen:
        return f"{name}: {inside or 'no batch is recorded'}"
    reasons = Counter(mark_of(batch).words for batch in seen).most_common(2)
    (words, count), *next_one = reasons
    rows = sum(batch.batch_size for batch in seen)
    whose = (
        "its reason"
        if len(seen) == 1
        else f"the reason of {'all' if count == len(seen) else count}"
    )
    said = f"; {whose}: {words}"
    if next_one and next_one[0][1] == count:
        said = ", for different reasons"  # none of them leads
    return (
        f"{name}: {counted(len(seen), 'batch', 'batches')} with {counted(rows, 'row')} within "
        f"{measure((end - begin) / 1e6)} ms{said}" + (f". {inside}" if inside else "")
    )
