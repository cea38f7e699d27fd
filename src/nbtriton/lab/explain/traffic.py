"""The recorded traffic through a model's steps, and to the models that they call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from time import monotonic_ns
from typing import TYPE_CHECKING

from nbtriton.common.errors import NotFoundError, UnavailableError
from nbtriton.drawing.numbers import count
from nbtriton.lab.explain.parts import (
    children_of,
    critical_path,
    inside_sentence,
    is_long,
    parts_of,
    time_text,
)
from nbtriton.runtime.engine import RequestRecord

if TYPE_CHECKING:
    from nbtriton.runtime.engine import Server

# The newest requests that shares are computed from: a view asks once a second.
_REQUESTS = 500
_ERRORS = 3


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The model with the largest share of the time of an ensemble's requests: the same in all views.

    Attributes
    ----------
    model : str
    share : float
        Of the requests' time, 0 to 1, in the steps that they waited for.
    part : str
        The largest part of that, a key of `PARTS`.
    part_share : float
        Its share of the requests' time.
    """

    model: str
    share: float
    part: str
    part_share: float

    @property
    def sentence(self) -> str:
        """What to read."""
        return (
            f"{self.model} is the bottleneck: {self.share:.0%} of the requests' time, most of it "
            f"{self.part} ({self.part_share:.0%})"
        )


def find_bottleneck(
    requests: Sequence[RequestRecord], children: Mapping[int, Sequence[RequestRecord]]
) -> Bottleneck | None:
    """Find the bottleneck of the newest 500 requests to an ensemble; None if no step is recorded.

    Parameters
    ----------
    requests : sequence of RequestRecord
        Without failed ones, oldest first.
    children : mapping of int to sequence of RequestRecord
        The requests that each one led to, by its number.
    """
    newest = requests[-_REQUESTS:]
    total = sum(request.answered_ns - request.arrival_ns for request in newest)
    parts: Counter[tuple[str, str]] = Counter()
    for request in newest:
        for step in critical_path(request, children):
            for part, ns in parts_of(step, None).items():
                parts[step.model, part] += ns * (part != "elsewhere")
    shares: Counter[str] = Counter()
    for (model, _), ns in parts.items():
        shares[model] += ns
    if not shares or not total:
        return None
    model, ns = shares.most_common(1)[0]
    part, part_ns = Counter({p: n for (m, p), n in parts.items() if m == model}).most_common(1)[0]
    return Bottleneck(model, ns / total, part, part_ns / total)


@dataclass(frozen=True, slots=True)
class PipelineTraffic:
    """The recorded requests of a model, or of an ensemble and its steps.

    Attributes
    ----------
    finding : str
        A sentence about them.
    shares : mapping of str to float
        Share of the requests' time, 0 to 1, by step: ``"0"`` is the first one, ``"1.0"`` the first one of the
        ensemble that is the second. Of an ensemble only the steps that requests waited for count. The step of
        a model that is no ensemble is ``"0"``.
    steps : mapping of str to float
        The same of an ensemble, by the names of its own steps' models.
    called : mapping of str to float
        The same share of the models that others called, by name.
    calls : mapping of (str, str) to int
        Number of calls of a model by another one (BLS), by caller and callee.
    errors : mapping of str to tuple of str
        The latest texts by model, newest first.
    bottleneck : Bottleneck or None
        Of an ensemble.
    waits_for : str
        The model for which its requests wait longer than it works on them; empty without one.
    """

    finding: str
    shares: Mapping[str, float] = field(default_factory=dict)
    steps: Mapping[str, float] = field(default_factory=dict)
    called: Mapping[str, float] = field(default_factory=dict)
    calls: Mapping[tuple[str, str], int] = field(default_factory=dict)
    errors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bottleneck: Bottleneck | None = None
    waits_for: str = ""


def read_traffic(
    server: Server, name: str, *, calls: bool = True, most: int | None = None
) -> PipelineTraffic:
    """Read the records of a model and of all models that its requests led to.

    Parameters
    ----------
    server : Server
    name : str
    calls : bool, optional
        Without them only the model and its steps are read: calls, and the texts of other models, are not known.
        With forty models that is a fortieth of the records.
    most : int, optional
        Of each model only so many records are read, the newest; by default all.
    """
    try:
        records = records_of(server, None if calls else _with_steps(server, name), most)
    except UnavailableError as error:
        return PipelineTraffic(error.message)
    top = [request for request in records.get(name, ()) if not request.status][-_REQUESTS:]
    errors = {model: _errors(requests) for model, requests in records.items()}
    called_by = calls_between(records) if calls else {}
    in_flight, now_ns = server.in_flight(), monotonic_ns()
    inside = inside_sentence(name, in_flight, now_ns)
    if not top:
        failed = (
            f"{count(len(records[name]))} requests, and all failed" if records.get(name) else ""
        )
        finding = ". ".join(filter(None, (inside, failed))) or f"no request to {name} yet"
        return PipelineTraffic(finding, calls=_counts(called_by), errors=errors)
    total = sum(request.answered_ns - request.arrival_ns for request in top) or 1
    parts: Counter[tuple[str, str]] = Counter()
    models: dict[str, str] = {}
    bottleneck = None
    if any(request.batch is not None for request in top):
        for request in top:
            for part, ns in parts_of(request, None).items():
                parts["0", part] += ns
        (_, largest), ns = max(parts.items(), key=lambda item: item[1])
        finding = f"{ns / total:.0%} of a request's time is {largest}; {_mean(top, total)}"
        waits_for = name if largest == "queue" else ""
    else:
        children = children_of(chain.from_iterable(records.values()))
        parts = _of_steps(top, records, children)
        own = chain.from_iterable(children.get(request.number, ()) for request in top)
        models = {str(one.step): one.model for one in own}
        bottleneck = find_bottleneck(top, children)
        found = (
            bottleneck.sentence if bottleneck else "no step of these requests is recorded any more"
        )
        finding = f"{found}; {_mean(top, total)}"
        waits_for = bottleneck.model if bottleneck and bottleneck.part == "queue" else ""
    if is_long(name, in_flight, top, now_ns):
        finding = f"{inside}. Before: {finding}"
    shares: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    for (step, part), ns in parts.items():
        shares[step] += ns * (part != "elsewhere")
        if model := models.get(step.partition(".")[0]):
            steps[model] += ns * (part != "elsewhere")
    since = min(request.arrival_ns for request in top)
    called: Counter[str] = Counter()
    for (_, callee), times in called_by.items():
        called[callee] += sum(ns for at_ns, ns in times if at_ns >= since)
    return PipelineTraffic(
        finding,
        {step: ns / total for step, ns in shares.items()},
        {model: ns / total for model, ns in steps.items()},
        {model: min(1.0, ns / total) for model, ns in called.items()},
        _counts(called_by),
        errors,
        bottleneck,
        waits_for,
    )


def records_of(
    server: Server, names: Iterable[str] | None = None, most: int | None = None
) -> dict[str, Sequence[RequestRecord]]:
    """Return the newest records of models, by default all of each loaded one, in the order of their requests."""
    records: dict[str, Sequence[RequestRecord]] = {}
    if names is None:
        names = (model.name for model in server.models())
    for model in dict.fromkeys(names):
        with suppress(NotFoundError):  # not yet recorded
            records[model] = server.requests(model, most=most)
    return records


def _with_steps(server: Server, name: str) -> list[str]:
    """Return a model, and the models of its steps and of theirs."""
    # Live servers only: the lessons in a browser have no NumPy.
    from nbtriton.runtime.engine.status import steps_of

    found = [name]
    for one in found:
        found += [step for step in steps_of(server, one) if step not in found]
    return found


def _errors(requests: Iterable[RequestRecord]) -> tuple[str, ...]:
    texts = [request.error for request in requests if request.error]
    return tuple(dict.fromkeys(reversed(texts)))[:_ERRORS]


# The time of a call, and the total wait of the requests in its caller's batch.
_CallTimes = list[tuple[int, int]]


def calls_between(
    records: Mapping[str, Sequence[RequestRecord]],
) -> dict[tuple[str, str], _CallTimes]:
    """Return the calls of models by models (BLS) by caller and callee, without the steps of ensembles."""
    callers = {
        request.batch.requests[0]: (model, len(request.batch.requests))
        for model, requests in records.items()
        for request in requests
        if request.batch is not None
    }
    calls: dict[tuple[str, str], _CallTimes] = {}
    for model, requests in records.items():
        for request in requests:
            caller = callers.get(request.caller)
            if caller is not None:
                waited = (request.answered_ns - request.arrival_ns) * caller[1]
                calls.setdefault((caller[0], model), []).append((request.arrival_ns, waited))
    return calls


def _counts(calls: Mapping[tuple[str, str], _CallTimes]) -> dict[tuple[str, str], int]:
    return {names: len(seen) for names, seen in calls.items()}


def _of_steps(
    top: Iterable[RequestRecord],
    records: Mapping[str, Sequence[RequestRecord]],
    children: Mapping[int, Sequence[RequestRecord]],
) -> Counter[tuple[str, str]]:
    """Return the time by step and part."""
    ensembles = {
        request.number: request
        for requests in records.values()
        for request in requests
        if request.batch is None
    }
    parts: Counter[tuple[str, str]] = Counter()
    for request in top:
        for step in critical_path(request, children):
            key, around = str(step.step), ensembles.get(step.caller)
            while around is not None and around.number != request.number:
                key, around = f"{around.step}.{key}", ensembles.get(around.caller)
            for part, ns in parts_of(step, None).items():
                parts[key, part] += ns
    return parts


def _mean(top: Sequence[RequestRecord], total: int) -> str:
    time = time_text(total / len(top) / 1000)
    which = "the last request" if len(top) == 1 else f"the last {count(len(top))} requests"
    return f"{which} took {time}" + (" on average" if len(top) > 1 else "")
