"""A figure in words: its moments, a summary sentence, and the reason of each batch.

Every figure in a sentence is counted in the records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nbtriton.drawing.numbers import counted, plain
from nbtriton.extensions.lessons.running import ScenarioRun
from nbtriton.lab.explain.timeline import SlotLife, mark_of, slot_lives, slots_per_instance
from nbtriton.model.config import is_ensemble
from nbtriton.runtime.engine import BatchRecord

# Events within this share of the whole time count as simultaneous: a server records them some microseconds
# apart.
_TOGETHER = 1 / 400


@dataclass(frozen=True, slots=True)
class Moments:
    """The times of a figure's events.

    Attributes
    ----------
    at_ms : tuple of float
    words : tuple of str
    arrive, leave, end : mapping of (str, int) to int
        The moment of each request, by model and number.
    """

    at_ms: tuple[float, ...]
    words: tuple[str, ...]
    arrive: dict[tuple[str, int], int]
    leave: dict[tuple[str, int], int]
    end: dict[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class _Event:
    """One event; simultaneous events of the same kind share a clause.

    ``kind`` is "end", "arrive" or "leave". ``form`` is the clause for one and for several of them.
    """

    at_ms: float
    kind: str
    model: str
    numbers: tuple[int, ...]
    form: tuple[str, str]
    who: str = ""
    where: str = ""


def moments_of(scenario_run: ScenarioRun) -> Moments:
    """Return the moments of a figure: arrivals, batches that leave and batches that end."""
    # Order of simultaneous events: ends free instances, requests arrive, batches leave. A response follows
    # the last end.
    order = ("end", "respond", "arrive", "leave")
    events = sorted(_events(scenario_run), key=lambda one: (one.at_ms, order.index(one.kind)))
    groups: list[list[_Event]] = []
    together = 1e-9 if scenario_run.simulated else scenario_run.span_ms * _TOGETHER
    for event in events:
        first = groups[-1][0] if groups else None
        same = first is not None and (first.kind, event.kind) in _ONE_MOMENT
        if first is not None and same and event.at_ms - first.at_ms <= together:
            groups[-1].append(event)
        else:
            groups.append([event])
    places: dict[str, dict[tuple[str, int], int]] = {
        kind: {} for kind in ("arrive", "leave", "end")
    }
    for k, group in enumerate(groups):
        for event in group:
            kind = "end" if event.kind == "respond" else event.kind
            places[kind].update(((event.model, n), k) for n in event.numbers)
    # A step without a wait arrives and leaves in one moment.
    for key, k in places["leave"].items():
        places["arrive"].setdefault(key, k)
    at_ms, words = tuple(group[0].at_ms for group in groups), tuple(map(_sentence, groups))
    return Moments(at_ms, words, places["arrive"], places["leave"], places["end"])


_ONE_MOMENT = (("arrive", "arrive"), ("leave", "leave"), ("end", "end"), ("end", "respond"))


def _events(scenario_run: ScenarioRun) -> Iterable[_Event]:
    several = len(scenario_run.records) > 1
    configs = {model.name: model.config for model in scenario_run.scenario.models}
    labels = labels_of(scenario_run)
    for one in scenario_run.records:
        ensemble = is_ensemble(configs[one.name])
        for request in one.requests:
            name, numbers = one.name, (request.number,)
            at, ended = scenario_run.ms(request.arrival_ns), scenario_run.ms(request.answered_ns)
            who, batch = labels[name, request.number], request.batch
            if not request.caller:
                place = f" at {name}" if several else ""
                form = (f"request {{who}} arrives{place}", f"requests {{who}} arrive{place}")
                rows = f" ({request.size} rows)" if request.size > 1 else ""
                yield _Event(at, "arrive", name, numbers, form, who + rows)
            elif batch is None or batch.start_ns > request.arrival_ns:
                form = ("a request goes to {who} and waits", "requests go to {who} and wait")
                yield _Event(at, "arrive", name, numbers, form, name)
            if ensemble and not request.status:
                clause = f"all outputs are there, and the response leaves, {ms(ended - at)} ms after its request"
                yield _Event(ended, "respond", name, numbers, (clause, clause))
            elif batch is None:
                clause = f"request {who} gets no answer but an error: {request.error}"
                yield _Event(ended, "end", name, numbers, (clause, clause))
        for batch in one.batches:
            who = listed([labels[one.name, number] for number in batch.requests])
            begin, end = scenario_run.ms(batch.start_ns), scenario_run.ms(batch.end_ns)
            yield _leaves(scenario_run, batch, begin, who)
            yield _ends(scenario_run, batch, end, who)


def _leaves(scenario_run: ScenarioRun, batch: BatchRecord, index: float, who: str) -> _Event:
    mark = mark_of(batch)
    reason = f"({mark.letter}: {mark.words})"
    where = batch.instance
    step = _step_of(scenario_run, batch)
    if step is not None:
        ensemble, tensor, _ = step
        one = f"{ensemble} has {tensor}, all that {{who}} reads: a request goes to {{where}}"
        form = (one, one.replace("reads: a request goes", "read: requests go"))
        who = batch.model
    elif len(batch.requests) == 1:
        end = f"for {{where}} {reason}"
        form = (f"request {{who}} leaves {end}", f"requests {{who}} leave {end}")
    else:
        clause = f"requests {who} leave as one batch for {where} {reason}"
        form = (clause, clause)
    return _Event(index, "leave", batch.model, batch.requests, form, who, where)


def _ends(scenario_run: ScenarioRun, batch: BatchRecord, index: float, who: str) -> _Event:
    step = _step_of(scenario_run, batch)
    where = batch.instance
    if step is not None:
        ensemble, _, where = step
        form = (
            f"{{who}} is done, and {ensemble} has {{where}}",
            f"{{who}} are done, and {ensemble} has {{where}}",
        )
        who = batch.model
    elif len(batch.requests) == 1:
        form = (
            "request {who} is answered, and {where} is free",
            "requests {who} are answered, and {where} are free",
        )
    else:
        clause = f"requests {who} are answered, and {where} is free"
        form = (clause, clause)
    return _Event(index, "end", batch.model, batch.requests, form, who, where)


def _step_of(scenario_run: ScenarioRun, batch: BatchRecord) -> tuple[str, str, str] | None:
    """Return the ensemble whose step a batch ran, and the tensors that the step reads and writes."""
    for model in scenario_run.scenario.models:
        for step in model.config.ensemble_scheduling.step:
            if step.model_name == batch.model:
                reads, writes = sorted(step.input_map.values()), sorted(step.output_map.values())
                return model.name, listed(reads), listed(writes)
    return None


def _sentence(group: Sequence[_Event]) -> str:
    clauses: dict[tuple[str, str], list[_Event]] = {}
    for event in group:
        clauses.setdefault(event.form, []).append(event)
    words = [
        form[len(events) > 1]
        .replace("{who}", listed([event.who for event in events]))
        .replace("{where}", listed([event.where for event in events]))
        for form, events in clauses.items()
    ]
    line = "; ".join(words)
    # Names keep their case.
    starts = ("request ", "requests ", "a request ", "all outputs ")
    return line[0].upper() + line[1:] if line.startswith(starts) else line


def labels_of(scenario_run: ScenarioRun) -> dict[tuple[str, int], str]:
    """Return the label of each request's token: its number, or its sequence and its place in it."""
    labels: dict[tuple[str, int], str] = {}
    seen: dict[tuple[str, int | str], int] = defaultdict(int)
    for one in scenario_run.records:
        for request in one.requests:
            label = str(request.caller or request.number)
            if request.sequence:
                key = (one.name, request.sequence)
                seen[key] += 1
                dot = "." if str(request.sequence)[-1].isdecimal() else ""
                label = f"{request.sequence}{dot}{seen[key]}"
            labels[one.name, request.number] = label
    return labels


# -- one sentence ----------------------------------------------------------------------------------


def finding_of(scenario_run: ScenarioRun) -> str:
    """Return one sentence about a figure."""
    return SUBJECTS[scenario_run.scenario.subject](scenario_run)


def _waiting(scenario_run: ScenarioRun) -> str:
    name = scenario_run.scenario.models[0].name
    records = scenario_run.records[0]
    requests = [one for one in records.requests if one.batch is not None]
    waits = [(one.batch.start_ns - one.arrival_ns) / 1e6 for one in requests if one.batch]
    late = [ms for ms in waits if ms > scenario_run.span_ms * _TOGETHER]
    instances = counted(len(records.instances), "instance")
    most = _most_at_once(records.batches)
    at_once = "one batch ran at a time" if most == 1 else f"up to {most} batches ran at once"
    text = f"{name} has {instances}, and {at_once}: "
    if not late:
        return text + f"none of {counted(len(waits), 'request')} waited."
    longest = ms(max(late))
    if len(late) == 1:
        return text + f"1 of {len(waits)} requests waited, for {longest} ms."
    return text + f"{len(late)} of {len(waits)} requests waited, the longest for {longest} ms."


def _models(scenario_run: ScenarioRun) -> str:
    names = [one.name for one in scenario_run.records if one.batches]
    if len(names) < 2:
        return _waiting(scenario_run)
    both = _overlap_ms(scenario_run.records[0].batches, scenario_run.records[1].batches)
    if not both:
        return f"{listed(names)} have an instance each, and here they never ran at the same time."
    return (
        f"{listed(names)} have instances of their own: for {ms(both)} of "
        f"{ms(scenario_run.span_ms)} ms they ran at the same time, and neither waited for the other."
    )


def _gathering(scenario_run: ScenarioRun) -> str:
    batches = scenario_run.records[0].batches
    largest = max(batches, key=lambda one: len(one.requests), default=None)
    if largest is None or len(largest.requests) < 2:
        return f"No two requests left together: {counted(len(batches), 'batch', 'batches')} of one request each."
    labels = labels_of(scenario_run)
    requests = listed([labels[largest.model, number] for number in largest.requests])
    left = ms(scenario_run.ms(largest.start_ns))
    came = [
        one.arrival_ns for one in scenario_run.records[0].requests if one.number in largest.requests
    ]
    for one in batches:
        if one is not largest and one.start_ns <= min(came) and max(came) <= one.end_ns:
            busy = listed([labels[one.model, number] for number in one.requests])
            noun = "request" if len(one.requests) == 1 else "requests"
            return (
                f"While {noun} {busy} ran, requests {requests} gathered: they left together at {left} ms, "
                "as one batch."
            )
    return f"Requests {requests} left together at {left} ms: {mark_of(largest).words}."


def _slots(scenario_run: ScenarioRun) -> str:
    records = scenario_run.records[0]
    held = slots_of(scenario_run)
    number = len(records.instances) * slots_per_instance(scenario_run.scenario.models[0].config)
    sequences = list(dict.fromkeys(one.sequence for one in records.requests))
    text = f"{counted(number, 'slot')} for {counted(len(sequences), 'sequence')}: "
    late = []
    for sequence in sequences:
        came = min(one.arrival_ns for one in records.requests if one.sequence == sequence)
        since = held[sequence].begin_ns if sequence in held else came
        if since > came:
            late.append((sequence, (since - came) / 1e6, since))
    if not late:
        return text + "each found one free when it began."
    sequence, waited, since = max(late, key=lambda one: one[1])
    return text + (
        f"sequence {sequence} waited {ms(waited)} ms, until another one had ended and its slot "
        f"was free at {ms(scenario_run.ms(since))} ms."
    )


def _ensemble(scenario_run: ScenarioRun) -> str:
    records = scenario_run.records[0]
    steps = [one for one in scenario_run.records[1:] if one.batches]
    internal = sum(len(one.requests) for one in steps)
    latencies_ms = [
        (one.answered_ns - one.arrival_ns) / 1e6 for one in records.requests if not one.status
    ]
    if not latencies_ms:
        return f"No request to {records.name} was answered."
    pairs = [
        (both, one.name, other.name)
        for index, one in enumerate(steps)
        for other in steps[index + 1 :]
        if (both := _overlap_ms(one.batches, other.batches))
    ]
    requests = "One request" if len(latencies_ms) == 1 else f"{len(latencies_ms)} requests"
    text = f"{requests} to {records.name} became {internal} internal ones"
    if pairs:
        both, one_name, other_name = max(pairs)
        text += f"; {one_name} and {other_name} ran side by side for {ms(both)} ms"
    what = "the response left" if len(latencies_ms) == 1 else "the slowest response left"
    return f"{text}, and {what} after {ms(max(latencies_ms))} ms."


SUBJECTS: dict[str, Callable[[ScenarioRun], str]] = {
    "waiting": _waiting,
    "models": _models,
    "gathering": _gathering,
    "slots": _slots,
    "ensemble": _ensemble,
}


def slots_of(scenario_run: ScenarioRun) -> dict[int | str, SlotLife]:
    """Return the slot of each sequence of the first model."""
    records = scenario_run.records[0]
    slots = slots_per_instance(scenario_run.scenario.models[0].config)
    return {life.sequence: life for life in slot_lives(records.requests, slots)}


def why(scenario_run: ScenarioRun, batch: BatchRecord) -> str:
    """Return the reason of a batch's time and requests, with the figures of the configuration."""
    config = next(one.config for one in scenario_run.scenario.models if one.name == batch.model)
    batching = config.dynamic_batching
    at = f"at {ms(scenario_run.ms(batch.start_ns))} ms"
    if batch.reason == "max_queue_delay":
        oldest_ns = batch.start_ns - batch.queue_ns
        delay_us = batching.max_queue_delay_microseconds
        over_ns = oldest_ns + delay_us * 1000
        text = (
            f"because its oldest request had come at {ms(scenario_run.ms(oldest_ns))} ms, and "
            f"max_queue_delay_microseconds ({delay_us} µs) ran out at {ms(scenario_run.ms(over_ns))} ms"
        )
        late = batch.start_ns - over_ns > scenario_run.span_ms * 1e6 * _TOGETHER
        return f"{text}; an instance was free {at}" if late else text
    if batch.reason == "max_batch_size":
        return f"because it was full, or the next request no longer fits into {config.max_batch_size} rows, {at}"
    if batch.reason in ("preferred_batch_size", "preferred_exceeded"):
        sizes = listed([str(size) for size in batching.preferred_batch_size])
        return f"because {mark_of(batch).words} ({sizes}), {at}"
    return f"{at}, {mark_of(batch).words}"


# -- parts -----------------------------------------------------------------------------------------


def ms(value: float) -> str:
    """Format milliseconds with three digits, without trailing zeros."""
    return plain(float(f"{value:.3g}"))


def listed(words: Sequence[str]) -> str:
    """Return ``a, b and c``."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _most_at_once(batches: Sequence[BatchRecord]) -> int:
    return max(
        (sum(one.start_ns <= other.start_ns < one.end_ns for one in batches) for other in batches),
        default=0,
    )


def _overlap_ms(one: Sequence[BatchRecord], other: Sequence[BatchRecord]) -> float:
    """Return for how long batches of two models ran simultaneously."""
    both = sum(
        max(0, min(end, until) - max(begin, since))
        for begin, end in _stretches(one)
        for since, until in _stretches(other)
    )
    return both / 1e6


def _stretches(batches: Sequence[BatchRecord]) -> list[tuple[int, int]]:
    """Return the times in which a model ran: batches of several instances overlap."""
    found: list[tuple[int, int]] = []
    for one in sorted(batches, key=lambda one: one.start_ns):
        goes_on = found and one.start_ns <= found[-1][1]
        begin, end = found.pop() if goes_on else (one.start_ns, 0)
        found.append((begin, max(end, one.end_ns)))
    return found
