"""The requests that are inside a model now: what runs, what waits, and for how long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nbtriton.drawing import counted, lasting
from nbtriton.lab.explain.parts import children_of
from nbtriton.runtime.engine import RequestRecord

# A request that is inside for less is no news.
_LONG_NS = 1_000_000_000


def inside_sentence(name: str, in_flight: Iterable[RequestRecord], now_ns: int) -> str:
    """Say what the requests to a model do that are inside it, those to an ensemble by its steps.

    Parameters
    ----------
    name : str
    in_flight : iterable of RequestRecord
        Of all models, as `nbtriton.Server.in_flight` returns them.
    now_ns : int

    Returns
    -------
    str
        Such as ``"2 requests are inside: 1 has run for 28 s on slow_0, 1 has waited for 28 s"``; empty
        without any.
    """
    inside = list(in_flight)
    own = [request for request in inside if request.model == name]
    if not own:
        return ""
    steps = children_of(inside)
    groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for request in own:
        step = request if request.batch is not None else _last_step(request, steps)
        place = step.model if step is not request else ""
        doing, since_ns = _doing(step)
        instance = step.batch.instance if step.batch is not None else ""
        groups.setdefault((doing, place), []).append((now_ns - since_ns, instance))
    parts = [_part(doing, place, groups[doing, place]) for doing, place in sorted(groups)]
    verb = "is" if len(own) == 1 else "are"
    return f"{counted(len(own), 'request')} {verb} inside: {', '.join(parts)}"


def is_long(
    name: str, in_flight: Iterable[RequestRecord], answered: Sequence[RequestRecord], now_ns: int
) -> bool:
    """Return whether a request is inside a model for longer than any took that was answered, and 1 s."""
    oldest_ns = min((one.arrival_ns for one in in_flight if one.model == name), default=now_ns)
    longest_ns = max((one.answered_ns - one.arrival_ns for one in answered), default=0)
    return now_ns - oldest_ns > max(_LONG_NS, longest_ns)


def _last_step(
    request: RequestRecord, steps: Mapping[int, Sequence[RequestRecord]]
) -> RequestRecord:
    """Return the step that a request to an ensemble has been in for longest, itself between its steps."""
    while request.batch is None and steps.get(request.number):
        request = min(steps[request.number], key=lambda one: one.arrival_ns)
    return request


def _doing(request: RequestRecord) -> tuple[str, int]:
    """Return what a request does, and since when."""
    batch = request.batch
    if batch is None:
        return "wait", request.arrival_ns
    return ("answer", batch.end_ns) if batch.end_ns else ("run", batch.start_ns)


def _part(doing: str, place: str, those: Sequence[tuple[int, str]]) -> str:
    ns, instance = max(those)
    where = f" in {place}" if place else ""
    on = f" on {instance}" if instance and doing == "run" else ""
    if len(those) == 1:
        done = {"run": "run", "wait": "waited", "answer": "been computed and not answered"}[doing]
        return f"1 has {done}{where} for {lasting(ns / 1e6)}{on}"
    verb = {"run": "run", "wait": "wait", "answer": "are computed and not answered"}[doing]
    return f"{len(those)} {verb}{where}, the longest for {lasting(ns / 1e6)}{on}"
