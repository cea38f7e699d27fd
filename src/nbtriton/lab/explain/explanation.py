"""Explanation of a model's batch sizes and of its slowest requests, and the predicted effect of a change."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import chain, compress, pairwise
from statistics import fmean, median_low
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from nbtriton.common.checks import NAME, PROFILE, SERVER, check, optional
from nbtriton.common.errors import NotFoundError, TritonError
from nbtriton.drawing.living import advice_html, advice_text
from nbtriton.drawing.numbers import measure
from nbtriton.drawing.table import Column, Link, notes_html, table_html, table_text
from nbtriton.lab.explain.findings import (
    ModelRecord,
    Proposal,
    Settings,
    batch_findings,
    proposal,
    refusal_findings,
)
from nbtriton.lab.explain.parts import (
    PARTS,
    BusyTimes,
    SlowRequests,
    children_of,
    compare_slowest,
    inside_sentence,
    parts_of,
    path_parts,
)
from nbtriton.lab.explain.traffic import find_bottleneck
from nbtriton.lab.perf.point import PerfPoint
from nbtriton.lab.perf.sweep import model_tree
from nbtriton.options.reading import quoted
from nbtriton.runtime.engine import RequestRecord
from nbtriton.scheduling import REASONS

if TYPE_CHECKING:
    from nbtriton.lab.simulate.model_profile import Profile
    from nbtriton.runtime.engine import Server


_Rows = list[list[object]]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reasons behind a model's batches and delays, displayed as sentences and tables.

    >>> _ = server.infer("double", {"IN": ones})
    >>> set(nt.why(server, "double").reasons)
    {'batching_off'}

    Attributes
    ----------
    name : str
    requests, batches : int
        Numbers recorded since the last change of the configuration.
    span_s : float
        From the first arrival to the last response.
    findings : tuple of str
        Sentences with figures from the record.
    reasons : mapping of str to int
        Batches by the key of their reason (`nbtriton.scheduling.REASONS`).
    mean_rows : mapping of str to float
        Mean batch size, by the same keys.
    slow : SlowRequests or None
        The slowest 1% compared with the median; None for too few requests.
    bottleneck : str
        Of an ensemble: the step with the largest share of the requests' time; else empty.
    proposal : Proposal or None
        One change, if the record suggests one.
    effect : Effect or None
        Its effect, predicted from a profile.
    """

    name: str
    requests: int
    batches: int
    span_s: float
    findings: tuple[str, ...]
    reasons: Mapping[str, int]
    mean_rows: Mapping[str, float]
    slow: SlowRequests | None
    bottleneck: str = ""
    proposal: Proposal | None = None
    effect: Effect | None = None

    @property
    def headline(self) -> str:
        """The basis of the explanation: numbers of requests and batches, and their time span."""
        if not self.requests:
            return f"{self.name}: none of its requests has been answered since its configuration changed last"
        batches = f" in {self.batches} batches" if self.batches else ""
        return f"{self.name}: {self.requests} requests{batches} within {measure(self.span_s)} s"

    @property
    def _first_line(self) -> str:
        """The line to type where nothing was answered or is inside; else empty."""
        return "" if self.requests or self.findings else f"%triton_perf {quoted(self.name)}"

    def __repr__(self) -> str:
        lines = [self.headline, *(f"- {finding}" for finding in self.findings)]
        if self._first_line:
            lines += advice_text(self._first_line, "a measurement sends requests")
        if self.reasons:
            lines += ["", table_text(_REASON_COLUMNS, self._reason_rows())]
        if self.slow is not None:
            lines += ["", table_text(*_parts_table(self.slow))]
            lines += ["", table_text(*_examples_table(self.slow))]
        if self.proposal is not None:
            lines += ["", *advice_text(self.proposal.cell, self.proposal.why)]
        if self.effect is not None:
            lines.append(self.effect.sentence)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{escape(self.headline)}</b></p>", notes_html(self.findings)]
        if self._first_line:
            parts.append(advice_html(self._first_line, "a measurement sends requests"))
        if self.reasons:
            parts.append(table_html(_REASON_COLUMNS, self._reason_rows()))
        if self.slow is not None:
            parts.append(table_html(*_parts_table(self.slow)))
            examples = table_html(*_examples_table(self.slow))
            parts.append(f'<div style="margin-top:8px">{examples}</div>')
        if self.proposal is not None:
            parts.append(advice_html(self.proposal.cell, self.proposal.why))
        if self.effect is not None:
            parts.append(f"<p>{escape(self.effect.sentence)}</p>")
        return f'<div class="nbt-why nbt-static">{"".join(parts)}</div>'

    def _reason_rows(self) -> _Rows:
        shares = (
            (reason, count, 100 * count / self.batches) for reason, count in self.reasons.items()
        )
        return [[*each, self.mean_rows[each[0]], REASONS.get(each[0], "")] for each in shares]


_REASON_COLUMNS = ("reason", "batches", "share_percent", "mean rows", "meaning")


def why(server: Server, model: str, *, profile: Profile | None = None) -> Explanation:
    """Explain a model's recent batches and its slowest requests.

    It counts the reasons of the batches, compares the slowest 1% of the requests with the median, names the
    bottleneck of an ensemble, and proposes one change where the record suggests one. It reads the recorder's
    data since the last change of the configuration.

    Parameters
    ----------
    server : Server
    model : str
        A loaded model or ensemble.
    profile : Profile, optional
        A result of `nbtriton.profile`, from which the effect of the change under the recorded arrivals is
        predicted.

    Raises
    ------
    NotFoundError
        No such model is loaded.
    UnavailableError
        The server has no recorder.

    Examples
    --------
    >>> _ = server.infer("double", {"IN": ones})
    >>> print(nt.why(server, "double"))  # doctest: +ELLIPSIS
    double: ... requests in ... batches within ...
    """
    check(
        {"server": server, "model": model, "profile": profile},
        {"server": SERVER, "model": NAME, "profile": optional(PROFILE)},
    )
    settings = Settings.of(server.config(model))
    ensembles, others = model_tree(server, model)
    names = [name for name in (*ensembles, *others) if name != model]
    children = children_of(chain.from_iterable(map(server.requests, names)))
    loaded = {each.name for each in server.models()}
    members = {
        name: _record(server, Settings.of(server.config(name)), {})
        for name in names
        if name in loaded
    }
    record = _record(server, settings, children)
    explanation = explain(record, members)
    if profile is None or explanation.proposal is None:
        return explanation
    return replace(
        explanation, effect=predict_effect(profile, model, explanation.proposal, record.answered)
    )


def _record(
    server: Server, settings: Settings, children: Mapping[int, Sequence[RequestRecord]]
) -> ModelRecord:
    # Live servers only.
    from nbtriton.runtime.engine.diagnostics.interpreter import advice
    from nbtriton.runtime.engine.status import way_sentence

    models = [one for one in server.history().models if one.model.name == settings.name]
    if not models:
        raise NotFoundError(f"model '{settings.name}' was unloaded while its record was read")
    since = max((one.changes[-1].at_ns for one in models if one.changes), default=0)
    latest = max(models, key=lambda one: one.model.version)
    return ModelRecord(
        settings,
        [r for r in server.requests(settings.name) if r.arrival_ns >= since],
        [b for b in server.batches(settings.name) if b.start_ns >= since],
        children,
        advice(settings.name, latest.model.interpreter),
        inside_sentence(settings.name, server.in_flight(), monotonic_ns()),
        way_sentence(latest.model),
    )


def explain(record: ModelRecord, members: Mapping[str, ModelRecord] | None = None) -> Explanation:
    """Explain one model by its record; explain an ensemble also by the records of its steps' models."""
    members = members or {}
    findings = [*batch_findings(record), *refusal_findings(record)]
    bottleneck = ""
    change = proposal(record)
    if record.settings.ensemble:
        busy = {name: _busy(member) for name, member in members.items()}
        slow = compare_slowest(
            record.answered, lambda request: path_parts(request, record.children, busy)
        )
        found = find_bottleneck(record.answered, record.children)
        if found is not None:
            bottleneck = found.model
            findings.insert(0, found.sentence)
            if bottleneck in members:
                findings += [f"{bottleneck}: {one}" for one in batch_findings(members[bottleneck])]
                change = proposal(members[bottleneck])
    else:
        times, delay_ns = _busy(record)
        slow = compare_slowest(
            record.answered, lambda request: parts_of(request, times, delay_ns=delay_ns)
        )
    findings = [
        record.inside,
        *findings,
        slow.sentence if slow else "",
        record.interpreter,
        record.way,
    ]
    reasons = Counter(batch.reason for batch in record.batches)
    return Explanation(
        record.name,
        len(record.requests),
        len(record.batches),
        record.span_s,
        tuple(filter(None, findings)),
        dict(reasons.most_common()),
        {
            reason: fmean(b.batch_size for b in record.batches if b.reason == reason)
            for reason in reasons
        },
        slow,
        bottleneck,
        change,
    )


def _busy(record: ModelRecord) -> tuple[BusyTimes, int]:
    settings = record.settings
    return BusyTimes(record.batches, settings.instances), settings.delay_ns


def _parts_table(slow: SlowRequests) -> tuple[Sequence[str | Column], _Rows]:
    unit, per_us = _unit(slow)
    slowest = Column("slowest 1%" if slow.count > 1 else "slowest", unit)
    columns = "part", Column("median", unit), slowest, Column("more", unit), "meaning"
    return columns, [
        [
            part,
            # To the third decimal: what is far shorter than its neighbours needs no third digit.
            *(
                round(us * per_us, 3)
                for us in (slow.median_us.get(part, 0.0), slow.slow_us.get(part, 0.0), more)
            ),
            PARTS[part.rpartition(": ")[2]],
        ]
        for part, more in slow.more_us.items()
        if slow.slow_us.get(part) or slow.median_us.get(part)
    ]


def _examples_table(slow: SlowRequests) -> tuple[Sequence[str | Column], _Rows]:
    unit, per_us = _unit(slow)
    columns = (
        "slow request", "request id", Column("total", unit), "batch", "rows", "reason", "instance",
    )  # fmt: skip
    rows = [
        [
            Link.to_request(request.number, os.getpid()),
            request.request_id,
            (request.answered_ns - request.arrival_ns) / 1e3 * per_us,
            request.batch.requests[0] if request.batch else None,
            request.batch.batch_size if request.batch else request.size,
            request.batch.reason if request.batch else "",
            request.batch.instance if request.batch else "",
        ]
        for request in slow.examples
    ]
    # An ensemble's requests are in no batch, and few clients give request ids.
    filled = [any(row[at] not in (None, "") for row in rows) for at in range(len(columns))]
    return list(compress(columns, filled)), [list(compress(row, filled)) for row in rows]


def _unit(slow: SlowRequests) -> tuple[str, float]:
    """Return the unit of all times of the slow requests, and the factor from microseconds."""
    return ("ms", 1e-3) if sum(slow.slow_us.values()) >= 1000 else ("µs", 1.0)


# The least number of arrivals that make a load.
_FEWEST = 20


@dataclass(frozen=True, slots=True)
class Effect:
    """The recorded arrivals, simulated without and with a proposal.

    Attributes
    ----------
    before, after : PerfPoint
        Each with notes on where the simulation went beyond the profile.
    """

    before: PerfPoint
    after: PerfPoint

    @property
    def sentence(self) -> str:
        """The expected change."""
        before, after = self.before, self.after
        notes = dict.fromkeys((*before.notes, *after.notes))
        return (
            "predicted under the recorded arrivals (simulated): "
            f"p50 {_ms(before.latency_p50_us)} -> {_ms(after.latency_p50_us)}, "
            f"p99 {_ms(before.latency_p99_us)} -> {_ms(after.latency_p99_us)}, "
            f"{measure(before.infer_per_s)} -> {measure(after.infer_per_s)} infer/s"
            + "".join(f"; {note}" for note in notes)
        )


def predict_effect(
    profile: Profile, name: str, proposal: Proposal, requests: Sequence[RequestRecord]
) -> Effect | None:
    """Simulate the recorded arrivals without and with a proposal.

    Parameters
    ----------
    profile : Profile
    name : str
        The model that received the requests; the proposal may be for one of its steps.
    proposal : Proposal
    requests : sequence of RequestRecord

    Returns
    -------
    Effect or None
        None where `nbtriton.whatif` has no such parameter, or for too few arrivals.
    """
    arrivals = sorted(request.arrival_ns for request in requests)
    if not proposal.configuration or len(arrivals) < _FEWEST:
        return None
    gaps_us = [(after - before) // 1000 for before, after in pairwise(arrivals)]
    if not any(gaps_us):
        return None
    load: dict[str, Any] = {
        "intervals": gaps_us,
        "batch_size": median_low(request.size for request in requests),
        "request_count": len(arrivals),
    }
    changes: dict[str, Any] = dict(proposal.configuration)
    if proposal.model != name:
        changes["sweep_models"] = [proposal.model]
    from nbtriton.lab.simulate.prediction import predicted_point  # the simulator, only for this

    try:
        before = predicted_point(profile, name, **load)
        after = predicted_point(profile, name, **load, **changes)
    except TritonError:  # the model cannot be simulated
        return None
    return Effect(before, after)


def _ms(us: float) -> str:
    return f"{measure(us / 1000)} ms"
