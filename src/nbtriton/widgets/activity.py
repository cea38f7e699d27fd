"""The activity of models over the last seconds, read from the server's recorder."""

from __future__ import annotations

import math
import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter

from nbtriton.drawing.activity import Lane, ModelActivity, batch_bins, bin_counts
from nbtriton.drawing.numbers import mean_size
from nbtriton.drawing.watch import MOVING_S, has_cards
from nbtriton.runtime.engine import ModelHistorySnapshot, ModelSnapshot, Moment, ServerHistory
from nbtriton.runtime.engine.core.snapshot import InstanceSnapshot
from nbtriton.runtime.engine.status import Pipeline

_NS = 1e9
_RATE_OVER_NS = 2_000_000_000
# The time between two samples of more models than have cards: a line is lower, and its frames come as seldom.
_SAMPLE_NS = 1_000_000_000
# The shortest time axis, in seconds.
_LEAST_S = 3.0

# An instance: its name, kind and device. Instances come and go while a model serves.
_Key = tuple[str, str, int]


def activities(
    history: ServerHistory,
    names: Sequence[str] = (),
    *,
    pipeline: Pipeline = (),
    span_s: float = 30.0,
    whole: bool = False,
) -> tuple[ModelActivity, ...]:
    """Return the activity of each model.

    Parameters
    ----------
    history : ServerHistory
    names : sequence of str, optional
        The models to show; empty for all of them.
    pipeline : tuple of (str, tuple of str), optional
        The order in which they are shown, as `pipelines` returns it.
    span_s : float, optional
        How far back the activity reaches.
    whole : bool, optional
        Rates over the whole time in which a model worked, rather than the last two seconds.
    """
    shown = [one for one in history.models if not names or one.model.name in names]
    every_ns = 0 if has_cards(shown) else _SAMPLE_NS
    found = [_activity(one, history.now_ns, int(span_s * _NS), every_ns, whole) for one in shown]
    order = list(dict.fromkeys(name for name, _ in pipeline))
    place = {name: at for at, name in enumerate(order)}
    found.sort(key=lambda one: place.get(one.name, len(place)))
    # Shares are those of recorded requests, which are not read here.
    shares = {
        name: tuple(dict.fromkeys(models, math.nan).items()) for name, models in pipeline if models
    }
    return tuple(
        replace(one, shares=shares[one.name]) if one.name in shares else one for one in found
    )


def covered_s(history: ServerHistory, names: Sequence[str] = (), *, span_s: float = 30.0) -> float:
    """Return how far back the activity reaches: whole seconds, at most the span."""
    since = history.now_ns - int(span_s * _NS)
    begins = [
        _within(one.moments, since)[0].at_ns
        for one in history.models
        if one.moments and (not names or one.model.name in names)
    ]
    oldest = min(begins, default=history.now_ns)
    return min(span_s, max(_LEAST_S, float(math.ceil((history.now_ns - oldest) / _NS))))


def _activity(
    one: ModelHistorySnapshot, now_ns: int, span_ns: int, every_ns: int, whole: bool
) -> ModelActivity:
    model = one.model
    moments = _within(one.moments, now_ns - span_ns)
    drawn, deepest = _samples(moments, every_ns)
    depths: tuple[float, ...] = ()
    rate, queue_ms, compute_ms, over = 0.0, math.nan, math.nan, "inferences per second"
    within: dict[int, int] = {}
    if moments:
        # Counts begin at the first one; the deepest queue before it is outside the span.
        depths = (*map(float, deepest[:-1]), float(_depth(model)))
        old, new = _stretch(moments) if whole else _recent(moments)
        seconds = (new.at_ns - old.at_ns) / _NS
        requests = new.requests - old.requests
        rate = (new.inferences - old.inferences) / seconds if seconds else 0.0
        if whole and rate and new.at_ns < moments[-1].at_ns - _RATE_OVER_NS:
            over = "infer/s while it worked"
        if requests:
            queue_ms = (new.queue_ns - old.queue_ns) / requests / 1e6
            compute_ms = (new.compute_ns - old.compute_ns) / requests / 1e6
        before = moments[0].sizes
        within = {size: n - before.get(size, 0) for size, n in moments[-1].sizes.items()}
    recent = any(within.values())
    last = moments[-1] if moments else None
    quiet_s = (now_ns - _last_end(moments, "inferences")) / _NS
    return ModelActivity(
        name=model.name,
        version=model.version,
        state=model.state,
        reason=model.reason,
        platform=model.platform,
        ages_s=tuple([max(0.0, (now_ns - moment.at_ns) / _NS) for moment in drawn]),
        depths=depths,
        queued=model.queued,
        executing=model.executing,
        lanes=tuple(_lane(drawn, instance) for instance in model.instances),
        bins=bin_counts(batch_bins(model.max_batch_size), within if recent else model.batch_sizes),
        bins_since="in this time" if recent else "since load",
        infer_per_s=rate,
        queue_ms=queue_ms,
        compute_ms=compute_ms,
        rate_over=over,
        drawn_inferences=moments[-1].inferences - moments[0].inferences if moments else 0,
        peak_per_s=_peak(moments) if quiet_s >= MOVING_S else 0.0,
        quiet_s=quiet_s,
        stalled_s=_stalled_s(one, now_ns),
        inference_count=last.inferences if last else model.inference_count,
        execution_count=last.executions if last else model.execution_count,
        fail_count=last.failed if last else model.fail_count,
        mean_batch=mean_size(last.sizes if last else model.batch_sizes),
        changes=tuple(
            ((now_ns - change.at_ns) / _NS, change.summary)
            for change in one.changes
            if now_ns - change.at_ns <= span_ns
        ),
    )


def _lane(moments: Sequence[Moment], instance: InstanceSnapshot) -> Lane:
    key = (instance.name, instance.kind, instance.device_id)
    return Lane(
        instance.name,
        _busy(moments, key),
        instance.batch_size,
        instance.executions,
        # Moments are further apart where nothing happened: the mean of theirs is no share of the time.
        _busy([moments[0], moments[-1]], key)[1] if moments else 0.0,
    )


def _within(moments: Sequence[Moment], since_ns: int) -> Sequence[Moment]:
    """Return the moments since a time; the last one before it is moved to that time."""
    first = bisect_right(moments, since_ns, key=attrgetter("at_ns"))
    kept = [*moments[max(0, first - 1) :]]
    if kept and kept[0].at_ns < since_ns:
        kept[0] = _moved(kept[0], kept[1] if len(kept) > 1 else kept[0], since_ns)
    return kept


def _samples(moments: Sequence[Moment], every_ns: int) -> tuple[Sequence[Moment], list[int]]:
    """Return the last moment of each period, beside the first and the newest one, and the deepest queue since the one before."""
    deepest = [moment.deepest for moment in moments]
    if not every_ns or len(moments) < 3:
        return moments, deepest
    periods = [(moment.at_ns - 1) // every_ns for moment in moments]
    last = len(moments) - 1
    kept = [0, *(at for at in range(1, last - 1) if periods[at] != periods[at + 1]), last - 1, last]
    most = [max(deepest[old + 1 : new + 1]) for old, new in pairwise(kept)]
    return [moments[at] for at in kept], [deepest[0], *most]


def _moved(moment: Moment, following: Moment, at_ns: int) -> Moment:
    """Return a moment as it was later: nothing was counted, and busy instances stayed busy."""
    part = (at_ns - moment.at_ns) / max(1, following.at_ns - moment.at_ns)
    busy = {
        key: before + int((following.busy.get(key, before) - before) * part)
        for key, before in moment.busy.items()
    }
    return moment._replace(at_ns=at_ns, busy=busy)


def _busy(moments: Sequence[Moment], key: _Key) -> tuple[float, ...]:
    """Return the share of busy time before each moment, 0 before the first."""
    times = [moment.at_ns for moment in moments]
    busy = [moment.busy.get(key, 0) for moment in moments]
    shares = [
        min(1.0, max(0.0, (new - old) / ((now - before) or 1)))
        for old, new, before, now in zip(busy, busy[1:], times, times[1:], strict=False)
    ]
    return (0.0, *shares)[: len(moments)]


def _recent(moments: Sequence[Moment]) -> tuple[Moment, Moment]:
    """Return moments at least two seconds apart, or all of them if they cover less."""
    last = moments[-1]
    at = bisect_right(moments, last.at_ns - _RATE_OVER_NS, key=attrgetter("at_ns"))
    return moments[max(0, at - 1)], last


def _stretch(moments: Sequence[Moment]) -> tuple[Moment, Moment]:
    """Return the last moment before the model worked, and the first one after its last inference."""
    last = moments[-1].inferences
    worked = (at for at in range(1, len(moments)) if not _is_idle(moments[at - 1], moments[at]))
    start = next(worked, 1) - 1
    end = next(at for at, moment in enumerate(moments) if moment.inferences == last)
    return moments[start], moments[max(start, end)]


def _is_idle(old: Moment, new: Moment) -> bool:
    """Return whether the model was empty between two moments: nothing waited, ran or ended."""
    return not new.deepest and (old.inferences, old.busy) == (new.inferences, new.busy)


def _peak(moments: Sequence[Moment]) -> float:
    """Return the most inferences per second, over at least one second or the whole span."""
    most, first = 0.0, 0
    for at in range(1, len(moments)):
        new = moments[at]
        while moments[first + 1].at_ns <= new.at_ns - _NS and first + 1 < at:
            first += 1
        seconds = (new.at_ns - moments[first].at_ns) / _NS
        if seconds and (seconds >= 1 or not first):
            most = max(most, (new.inferences - moments[first].inferences) / max(1.0, seconds))
    return most


def _last_end(moments: Sequence[Moment], what: str) -> float:
    """Return when a count grew last; minus infinity if it did not."""
    for old, new in zip(reversed(moments[:-1]), reversed(moments), strict=False):
        if getattr(new, what) > getattr(old, what):
            return new.at_ns
    return -math.inf


def _stalled_s(one: ModelHistorySnapshot, now_ns: int) -> float:
    """Return for how long requests have been in flight without one ending."""
    if not one.inside_since_ns:
        return 0.0
    ended = max(_last_end(one.moments, "requests"), _last_end(one.moments, "failed"))
    return max(0.0, (now_ns - max(one.inside_since_ns, ended)) / _NS)


def _depth(model: ModelSnapshot) -> int:
    """Return the values of its strip: queue depth, or for an ensemble, which has no queue, requests in flight."""
    return model.executing if model.platform == "ensemble" else model.queued


def encode(
    sequence: int, models: Sequence[ModelActivity], span_s: float = 30.0, now_ns: int = 0
) -> bytes:
    """Write the changing values as one buffer of little-endian float64.

    ::

        sequence, seconds that are shown, the time on the server's clock in ns, number of models; then for each model
            queued now, executing, infer/s, queue ms, compute ms, inferences, executions, failed,
            1 if the batch sizes are recent, 1 if rates are means over the time in which it worked,
            S samples, L lanes, B bins, C changes, H shares,
            ages[S], depths[S], L x (share, batch size, busy[S]), executions per bin[B],
            ages of changes[C], shares[H]
    """
    numbers = array("d", (sequence, span_s, now_ns, len(models)))
    for model in models:
        parts = (model.ages_s, model.lanes, model.bins, model.changes, model.shares)
        numbers.extend(
            (
                model.queued,
                model.executing,
                model.infer_per_s,
                model.queue_ms,
                model.compute_ms,
                model.inference_count,
                model.execution_count,
                model.fail_count,
                float(model.bins_since != "since load"),
                float(model.rate_over != "inferences per second"),
                *map(len, parts),
            )
        )
        numbers.extend(model.ages_s)
        numbers.extend(model.depths)
        for lane in model.lanes:
            numbers.extend((lane.share, lane.batch_size))
            numbers.extend(lane.busy)
        numbers.extend(n for _, n in model.bins)
        numbers.extend(age for age, _ in model.changes)
        numbers.extend(share for _, share in model.shares)
    return little_endian(numbers)


def little_endian(numbers: array[float]) -> bytes:
    """Return float64s as the pages read them."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()
