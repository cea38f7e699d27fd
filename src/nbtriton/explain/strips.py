"""What sequence slots and the rate limiter's resources hold over time, from the recorder's records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from nbtriton.drawing import Span, Strip
from nbtriton.engine import BatchRecord, RequestRecord

if TYPE_CHECKING:
    from nbtriton.engine import Server

__all__ = ["resource_strips", "sequence_strips"]


def sequence_strips(requests: Sequence[RequestRecord], begin: int) -> tuple[Strip, ...]:
    """Return a strip for each slot that sequences had, by instance.

    A sequence holds its slot from the arrival of its first recorded request to the answer of its last
    one. The lowest free slot of its instance is its own, as the scheduler assigns them.

    Parameters
    ----------
    requests : sequence of RequestRecord
        Of one model.
    begin : int
        The time that is 0 ms.
    """
    lives: dict[tuple[str, int | str], list[int]] = {}
    for request in requests:
        if request.sequence and request.batch is not None:
            key = (request.batch.instance, request.sequence)
            life = lives.setdefault(key, [request.arrival_ns, request.answered_ns])
            life[0] = min(life[0], request.arrival_ns)
            life[1] = max(life[1], request.answered_ns)
    slots: dict[str, list[list[Span]]] = {}
    for (instance, sequence), (first, last) in sorted(lives.items(), key=lambda item: item[1]):
        span = Span((first - begin) / 1e6, (last - begin) / 1e6, str(sequence))
        rows = slots.setdefault(instance, [])
        free = next((row for row in rows if row[-1].end_ms <= span.begin_ms), None)
        if free is None:
            rows.append([span])
        else:
            free.append(span)
    return tuple(
        Strip(f"{instance} slot {at}", tuple(row))
        for instance, rows in sorted(slots.items())
        for at, row in enumerate(rows)
    )


def resource_strips(server: Server, begin: int) -> tuple[Strip, ...]:
    """Return a strip for each resource of the rate limiter: how much of it executions held.

    Parameters
    ----------
    server : Server
    begin : int
        The time that is 0 ms.
    """
    pools = server.engine.inspection.resources()
    found = []
    for (name, device), (_, size) in sorted(pools.items()):
        changes: dict[int, int] = {}
        for batch, needed in _users(server, name):
            changes[batch.start_ns] = changes.get(batch.start_ns, 0) + needed
            changes[batch.end_ns] = changes.get(batch.end_ns, 0) - needed
        spans, used, since = [], 0, 0
        for at, change in sorted(changes.items()):
            if used:
                spans.append(
                    Span((since - begin) / 1e6, (at - begin) / 1e6, f"{used}/{size}", used / size)
                )
            used, since = used + change, at
        place = "" if device < 0 else f" on device {device}"
        found.append(Strip(f"resource {name}{place}", tuple(spans)))
    return tuple(found)


def _users(server: Server, resource: str) -> Iterable[tuple[BatchRecord, int]]:
    """Return the executions that held a resource, of any model, and how much of it."""
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
