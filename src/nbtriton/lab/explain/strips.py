"""Sequence slots and rate limiter resources over time, from the recorder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nbtriton.drawing import Span, Strip
from nbtriton.model.config import ModelConfig
from nbtriton.runtime.engine import BatchRecord, RequestRecord

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
        free = next((index for index, end in enumerate(rows) if end <= first), len(rows))
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


def resource_strips(server: Server, begin: int) -> tuple[Strip, ...]:
    """Return a strip for each resource of the rate limiter, with the amount that executions held.

    Parameters
    ----------
    server : Server
    begin : int
        The time that is 0 ms.
    """
    pools = server.engine.inspection.resources()
    strips = []
    for (name, device), (_, size) in sorted(pools.items()):
        changes: dict[int, int] = {}
        for batch, needed in _users(server, name):
            changes[batch.start_ns] = changes.get(batch.start_ns, 0) + needed
            changes[batch.end_ns] = changes.get(batch.end_ns, 0) - needed
        spans, used, since = [], 0, 0
        for time_ns, change in sorted(changes.items()):
            if used:
                spans.append(
                    Span(
                        (since - begin) / 1e6,
                        (time_ns - begin) / 1e6,
                        f"{used}/{size}",
                        used / size,
                    )
                )
            used, since = used + change, time_ns
        place = "" if device < 0 else f" on device {device}"
        strips.append(Strip(f"resource {_as_written(server, name)}{place}", tuple(spans)))
    return tuple(strips)


def _as_written(server: Server, resource: str) -> str:
    """Return a resource's name as a configuration has it: the limiter knows no capitals."""
    groups = [group for one in server.models() for group in server.config(one.name).instance_group]
    names = [needed.name for group in groups for needed in group.rate_limiter.resources]
    return next((name for name in names if name.lower() == resource.lower()), resource)


def _users(server: Server, resource: str) -> Iterable[tuple[BatchRecord, int]]:
    """Return the executions of all models that held a resource, with the amount."""
    for model in {one.name for one in server.models()}:
        groups = server.config(model).instance_group
        needs = {
            group.name: sum(
                r.count for r in group.rate_limiter.resources if r.name.lower() == resource.lower()
            )
            for group in groups
        }
        if not any(needs.values()):
            continue
        for batch in server.batches(model):
            needed = needs.get(batch.instance.rpartition("_")[0], 0)
            if needed:
                yield batch, needed
