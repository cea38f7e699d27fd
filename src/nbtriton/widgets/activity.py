"""The activity of models over the last seconds, from a series of snapshots of a server."""

from __future__ import annotations

import math
import sys
import threading
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nbtriton.drawing import Lane, ModelActivity, batch_bins, bin_counts
from nbtriton.engine.core.snapshot import InstanceSnapshot, ModelSnapshot, ServerSnapshot

__all__ = ["Recorder", "encode", "little_endian"]

_NS = 1e9
_RATE_OVER_NS = 2_000_000_000


# An instance: its name, kind and device. They come and go while a model serves.
_Key = tuple[str, str, int]


@dataclass(slots=True)
class _Sample:
    """One moment of a model: at most one per step of the time axis."""

    at_ns: int
    depth: int
    busy: Mapping[_Key, float]  # of each instance, share of the time since the sample before
    model: ModelSnapshot


class Recorder:
    """Keep the last seconds of a server's life.

    Parameters
    ----------
    names : sequence of str, optional
        The models to keep; empty for all of them.
    span_s : float, optional
        How far back it reaches.
    step_s : float, optional
        Snapshots closer together than this are merged: the queue's highest, the instances' mean.
    """

    def __init__(
        self, names: Sequence[str] = (), *, span_s: float = 30.0, step_s: float = 0.2
    ) -> None:
        self.span_s = span_s
        self._names = frozenset(names)
        self._step_ns = int(step_s * _NS)
        self._span_ns = int(span_s * _NS)
        self._samples: dict[tuple[str, int], deque[_Sample]] = {}
        self._now_ns = 0
        # Fed by the hub's thread, read by the cell that ends the run.
        self._lock = threading.Lock()

    def add(self, snapshot: ServerSnapshot) -> None:
        """Add the next snapshot, no older than the one before."""
        with self._lock:
            self._now_ns = snapshot.now_ns
            models = {
                (model.name, model.version): model
                for model in snapshot.models
                if not self._names or model.name in self._names
            }
            self._samples = {key: self._samples.get(key, deque()) for key in models}
            for key, model in models.items():
                self._append(self._samples[key], model)

    def _append(self, samples: deque[_Sample], model: ModelSnapshot) -> None:
        last = samples[-1] if samples else None
        if last is not None and model.inference_count < last.model.inference_count:
            samples.clear()  # loaded anew: its counters began again
            last = None
        depth = _depth(model)
        if last is not None and len(samples) > 1 and self._fills(samples):
            depth = max(depth, last.depth)
            samples.pop()
            last = samples[-1]
        before = {} if last is None else {_key(one): one for one in last.model.instances}
        busy = {
            key: 0.0 if last is None or key not in before else self._busy(last, before[key], now)
            for now in model.instances
            for key in (_key(now),)
        }
        samples.append(_Sample(self._now_ns, depth, busy, model))
        while samples[0].at_ns < self._now_ns - self._span_ns:
            samples.popleft()

    def _fills(self, samples: deque[_Sample]) -> bool:
        """Return True while the newest sample has not lasted a whole step."""
        return self._now_ns - samples[-2].at_ns < self._step_ns

    def _busy(self, last: _Sample, before: InstanceSnapshot, now: InstanceSnapshot) -> float:
        spent = max(0, now.busy_ns - before.busy_ns)
        if not spent and now.batch_size:
            return 1.0  # in the middle of an execution, which is counted when it ends
        return min(1.0, spent / max(1, self._now_ns - last.at_ns))

    @property
    def covered_s(self) -> float:
        """How far back the samples reach: whole seconds, at most the span."""
        with self._lock:
            oldest = min((s[0].at_ns for s in self._samples.values()), default=self._now_ns)
        return min(self.span_s, max(1.0, float(math.ceil((self._now_ns - oldest) / _NS))))

    def models(self, *, whole: bool = False) -> tuple[ModelActivity, ...]:
        """Return what each model did.

        Parameters
        ----------
        whole : bool, optional
            Rates over the whole stretch in which it worked, rather than the last two seconds.
        """
        with self._lock:
            return tuple(self._activity(list(s), whole) for s in self._samples.values())

    def _activity(self, samples: Sequence[_Sample], whole: bool) -> ModelActivity:
        model = samples[-1].model
        first, last = _stretch(samples) if whole else _recent(samples)
        old, new = first.model, last.model
        seconds = (last.at_ns - first.at_ns) / _NS
        requests = new.success_count - old.success_count
        compute_ns = _compute_ns(new) - _compute_ns(old)
        bins = batch_bins(model.max_batch_size)
        oldest = samples[0].model.batch_sizes
        within = {size: n - oldest.get(size, 0) for size, n in model.batch_sizes.items()}
        recent = any(within.values())
        return ModelActivity(
            name=model.name,
            version=model.version,
            state=model.state,
            reason=model.reason,
            platform=model.platform,
            ages_s=tuple((self._now_ns - sample.at_ns) / _NS for sample in samples),
            depths=(*(sample.depth for sample in samples[:-1]), _depth(model)),
            queued=model.queued,
            executing=model.executing,
            lanes=tuple(
                Lane(
                    instance.name,
                    tuple(sample.busy.get(_key(instance), 0.0) for sample in samples),
                    instance.batch_size,
                    instance.executions,
                )
                for instance in model.instances
            ),
            bins=bin_counts(bins, within if recent else model.batch_sizes),
            bins_since="in this time" if recent else "since load",
            infer_per_s=(new.inference_count - old.inference_count) / seconds if seconds else 0.0,
            queue_ms=(new.queue_ns - old.queue_ns) / requests / 1e6 if requests else 0.0,
            compute_ms=compute_ns / requests / 1e6 if requests else 0.0,
            inference_count=model.inference_count,
            execution_count=model.execution_count,
            fail_count=model.fail_count,
        )


def _key(instance: InstanceSnapshot) -> _Key:
    return instance.name, instance.kind, instance.device_id


def _recent(samples: Sequence[_Sample]) -> tuple[_Sample, _Sample]:
    last = samples[-1]
    first = next(s for s in samples if s.at_ns >= last.at_ns - _RATE_OVER_NS)
    return first, last


def _stretch(samples: Sequence[_Sample]) -> tuple[_Sample, _Sample]:
    """Return the last moment before the first inference and the first after the last one."""
    counts = [sample.model.inference_count for sample in samples]
    start = next((i for i, n in enumerate(counts) if n > counts[0]), 1) - 1
    end = next(i for i, n in enumerate(counts) if n == counts[-1])
    return samples[start], samples[max(start, end)]


def _depth(model: ModelSnapshot) -> int:
    """Return what its strip shows: an ensemble has no queue, but requests in flight."""
    return model.executing if model.platform == "ensemble" else model.queued


def _compute_ns(model: ModelSnapshot) -> int:
    return model.compute_input_ns + model.compute_infer_ns + model.compute_output_ns


def encode(sequence: int, models: Sequence[ModelActivity]) -> bytes:
    """Write what changes from moment to moment as one buffer of little-endian float64.

    ::

        sequence, number of models; then for each model
            queued now, executing, infer/s, queue ms, compute ms, inferences, executions, failed,
            1 if the batch sizes are recent, S samples, L lanes, B bins,
            ages[S], depths[S], L x (share, batch size, busy[S]), executions per bin[B]
    """
    numbers = array("d", (sequence, len(models)))
    for model in models:
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
                len(model.ages_s),
                len(model.lanes),
                len(model.bins),
            )
        )
        numbers.extend(model.ages_s)
        numbers.extend(model.depths)
        for lane in model.lanes:
            numbers.extend((lane.share, lane.batch_size))
            numbers.extend(lane.busy)
        numbers.extend(n for _, n in model.bins)
    return little_endian(numbers)


def little_endian(numbers: array[float]) -> bytes:
    """Return float64s as the pages read them."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()
