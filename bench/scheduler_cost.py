"""What a scheduling decision costs: ``python bench/scheduler_cost.py``.

Requests at four priority levels, each with a queue timeout, wait in one batcher; one instance runs
batches of four. For each number waiting: the cost of one more request, and of forming one batch.
Then the paths without a queue: one request on an idle model, and the dataflow of an ensemble.
Best of several rounds, garbage collection off, this process alone on one core.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from time import perf_counter_ns

from nbtriton.scheduling import (
    Batcher,
    BatcherSettings,
    EnsemblePlan,
    EnsembleRun,
    QueuePolicy,
    Run,
    Step,
    Ticket,
)

SECOND = 1_000_000_000
LEVELS = 4
BATCH = 4


def best(measure: Callable[[], float], rounds: int = 30) -> float:
    """Return the smallest of several measurements."""
    gc.collect()
    gc.disable()
    try:
        return min(measure() for _ in range(rounds))
    finally:
        gc.enable()


def with_waiting(waiting: int, delay_ns: int, steps: int = 100) -> tuple[float, float]:
    """Microseconds per submit and per formed batch with so many requests waiting."""
    settings = BatcherSettings(
        max_batch_size=BATCH,
        dynamic=True,
        preferred=(BATCH,),
        max_queue_delay_ns=delay_ns,
        priority_levels=LEVELS,
        default_policy=QueuePolicy(default_timeout_ns=3600 * SECOND),
    )
    batcher = Batcher(settings, 1)
    batcher.submit(0, Ticket(BATCH, priority=1))
    for number in range(waiting):
        batcher.submit(number, Ticket(priority=1 + number % LEVELS))
    now = SECOND
    submit_us: list[float] = []
    batch_us: list[float] = []

    def measure() -> float:
        nonlocal now
        tickets = [Ticket(priority=1 + at % LEVELS) for at in range(BATCH * steps)]
        begin = perf_counter_ns()
        for ticket in tickets:
            now += 1
            batcher.submit(now, ticket)
            batcher.wake_at()
        middle = perf_counter_ns()
        for _ in range(steps):
            now += 1
            (run,) = batcher.finish(now, 0)
            assert isinstance(run, Run)
            batcher.wake_at()
        end = perf_counter_ns()
        submit_us.append((middle - begin) / len(tickets) / 1000)
        batch_us.append((end - middle) / steps / 1000)
        return 0.0

    best(measure)
    assert batcher.waiting == waiting
    return min(submit_us), min(batch_us)


def idle(settings: BatcherSettings, requests: int = 1000) -> float:
    """Microseconds for submit, finish and two looks at the timer; nobody else waits."""
    batcher = Batcher(settings, 1)

    def measure() -> float:
        tickets = [Ticket() for _ in range(requests)]
        begin = perf_counter_ns()
        for ticket in tickets:
            batcher.submit(0, ticket)
            batcher.wake_at()
            batcher.finish(0, 0)
            batcher.wake_at()
        return (perf_counter_ns() - begin) / requests / 1000

    return best(measure)


def chain(steps: int, requests: int = 100) -> float:
    """Microseconds for the dataflow of one request through steps in a row."""
    plan = EnsemblePlan(
        [Step(f"m{at}", -1, {"IN": f"T{at}"}, {"OUT": f"T{at + 1}"}) for at in range(steps)],
        ["T0"],
        [f"T{steps}"],
    )

    def measure() -> float:
        begin = perf_counter_ns()
        for _ in range(requests):
            run = EnsembleRun(plan, plan.outputs)
            starts = run.start().starts
            while starts:
                start = starts[0]
                _, advance = run.response(start.step, start.iteration, new_wave=False)
                run.finished(start.iteration)
                starts = advance.starts
        return (perf_counter_ns() - begin) / requests / 1000

    return best(measure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, nargs="*", default=[10, 1_000, 100_000])
    options = parser.parse_args()
    print(f"{LEVELS} priority levels with timeouts, batches of {BATCH}; microseconds")
    print(f"{'waiting':>10} {'delay':>6} {'submit':>8} {'form a batch':>13}")
    for delay_ns in (0, SECOND // 1000):
        for waiting in options.waiting:
            submit_us, batch_us = with_waiting(waiting, delay_ns)
            delay = f"{delay_ns // 1_000_000} ms"
            print(f"{waiting:>10} {delay:>6} {submit_us:>8.2f} {batch_us:>13.2f}")
    print("\none request on an idle model, submit and finish; microseconds")
    for name, settings in {
        "default scheduler": BatcherSettings(max_batch_size=8),
        "dynamic batching": BatcherSettings(max_batch_size=8, dynamic=True, preferred=(8,)),
    }.items():
        print(f"  {name:<20} {idle(settings):>6.2f}")
    print("\ndataflow of one ensemble request; microseconds")
    for steps in (1, 2, 8, 32):
        took = chain(steps)
        print(f"  {steps:>2} steps in a row {took:>9.2f} {took / steps:>8.2f} per step")


if __name__ == "__main__":
    main()
