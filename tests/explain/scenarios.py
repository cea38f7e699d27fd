"""Records of a model under a virtual clock: the very schedulers, and loads with a known cause."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence

from nbtriton.extensions.lessons.running import records_of
from nbtriton.lab.explain.explanation import Explanation, explain
from nbtriton.lab.explain.findings import ModelRecord, Settings
from nbtriton.lab.explain.parts import children_of
from nbtriton.lab.perf.loads import Concurrency, RequestRate
from nbtriton.lab.perf.measure import Level, WindowPlan
from nbtriton.lab.perf.point import PerfPoint
from nbtriton.lab.perf.prepare import Workload
from nbtriton.lab.perf.windows import StabilityRule
from nbtriton.lab.simulate.experiment import Experiment
from nbtriton.lab.simulate.model_profile import Profile
from nbtriton.model.config import amend, normalize, normalize_instance_groups, parse_pbtxt
from nbtriton.runtime.engine import BatchRecord, RequestRecord
from nbtriton.scheduling import (
    Batcher,
    BatcherSettings,
    QueuePolicy,
    RejectTicket,
    RunBatch,
    Ticket,
)

US = 1_000
MS = 1_000_000

Arrival = tuple[int, int, object]  # when, rows, shape


def poisson(seed: int, count: int, mean_us: float) -> list[Arrival]:
    """Single rows of one shape, at random."""
    rng = random.Random(seed)
    at = 0.0
    found = []
    for _ in range(count):
        at += rng.expovariate(1 / mean_us)
        found.append((int(at * US), 1, None))
    return found


def explained(
    profile: Profile, load: dict[str, float], requests: int, config: str = ""
) -> tuple[PerfPoint, Explanation]:
    """Send a load to a profile in virtual time; return its result, and why it was so."""
    configs = {name: profile.config(name) for name in [*profile.ensembles, *profile.models]}
    if config:
        name = profile.model
        changed = normalize(amend(parse_pbtxt(profile.models[name].config), config), name=name)
        configs[name] = normalize_instance_groups(changed, gpus=None)
    sent = (
        Concurrency(load["concurrency"])
        if "concurrency" in load
        else RequestRate(load["request_rate"], "poisson")
    )
    level = Level(sent, Workload(({},), 1), StabilityRule(), WindowPlan(), request_count=requests)
    experiment = Experiment(profile, configs, traced=True)
    point, _ = experiment.measure(level, [profile.model])
    records = records_of(configs, experiment.trace)
    children = children_of(request for each in records for request in each.requests)
    found = {
        each.name: ModelRecord(
            Settings.of(configs[each.name]), each.requests, each.batches,
            children if each.name == profile.model else {},
        )
        for each in records
    }  # fmt: skip
    record = found.pop(profile.model)
    return point, explain(record, found if record.settings.ensemble else {})


def simulate(
    settings: Settings,
    arrivals: Sequence[Arrival],
    service: Callable[[int], int],
    hand_over: int = 0,
) -> ModelRecord:
    """Run a load; ``service(rows)`` gives nanoseconds of an execution."""
    batcher = Batcher(
        BatcherSettings(
            settings.max_batch_size, settings.dynamic,
            settings.preferred or (settings.max_batch_size,), settings.delay_ns,
            default_policy=QueuePolicy(max_queue_size=settings.max_queue_size),
        ),
        settings.instances,
    )  # fmt: skip
    order = itertools.count()
    events: list[tuple[int, int, str, object]] = []
    numbers: dict[int, int] = {}
    arrived: dict[int, int] = {}
    requests: list[RequestRecord] = []
    batches: list[BatchRecord] = []

    def post(at: int, kind: str, what: object) -> None:
        heapq.heappush(events, (at, next(order), kind, what))

    for at, rows, shape in arrivals:
        post(at, "arrive", Ticket(rows, shape))

    def apply(now: int, decisions: Sequence[object]) -> None:
        for decision in decisions:
            if isinstance(decision, RunBatch):
                start = now + hand_over
                post(
                    start + service(decision.size),
                    "end",
                    (decision, decision.tickets, start),
                )
            elif isinstance(decision, RejectTicket):
                number = numbers[id(decision.ticket)]
                requests.append(
                    RequestRecord(
                        settings.name, 1, number, "", 0, 0, decision.ticket.size, arrived[number], 0,
                        now, now, 0, None, decision.reason, decision.status, decision.message,
                    )
                )  # fmt: skip
        wake = batcher.wake_at()
        if wake is not None:
            post(max(wake, now), "wake", None)

    woken = -1
    while events:
        now, _, kind, what = heapq.heappop(events)
        if kind == "arrive":
            assert isinstance(what, Ticket)
            numbers[id(what)] = number = len(numbers) + 1
            arrived[number] = now
            apply(now, batcher.submit(now, what))
        elif kind == "wake":
            if now > woken:
                woken = now
                apply(now, batcher.tick(now))
        else:
            run, tickets, start = what
            mine = tuple(numbers[id(ticket)] for ticket in tickets)
            batch = BatchRecord(
                settings.name, 1, f"{settings.name}_{run.instance}", mine, run.size, run.reason,
                start - min(t.enqueued_ns for t in tickets), start, now, False, run.formed_ns,
                run.waiting, start, now,
            )  # fmt: skip
            batches.append(batch)
            requests += [
                RequestRecord(
                    settings.name, 1, number, "", 0, 0, ticket.size, arrived[number],
                    ticket.enqueued_ns, now, now, 0, batch, "", "", "",
                )
                for number, ticket in zip(mine, tickets, strict=True)
            ]  # fmt: skip
            apply(now, batcher.finish(now, run.instance))
    return ModelRecord(settings, requests, batches)
