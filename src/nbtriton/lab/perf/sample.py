"""A short load, measured as plain numbers instead of a report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic_ns

from nbtriton.lab.perf.breakdown import ServerBreakdown, breakdown
from nbtriton.lab.perf.driver import LoadSpec, make_load
from nbtriton.lab.perf.machine import descendants_s
from nbtriton.lab.perf.remote import Target
from nbtriton.lab.perf.traffic import Sequences
from nbtriton.runtime.interrupts import wait_in_slices

_POLL_S = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """The times and counts of a short load.

    Parameters
    ----------
    start_ns, end_ns : int
        Bounds of the measured time, on the clock of `time.monotonic_ns`.
    latencies_ns : sequence of int
        Of the requests that ended within it.
    errors : int
    first_error : str
    cpu_s : float
        Processor seconds of this process within it.
    workers_s : float
        Processor seconds of processes that this one started; nan if unknown.
    sender_s : float
        Processor seconds of the load's own thread; nan if unknown.
    foreign : int
        Requests of other clients that the models got while the load ran. Cancelled requests of a load may be counted
        after its end: they are missing here (below 0), and are among those of the next one.
    servers : tuple of ServerBreakdown or None
        The server's statistics of each requested model, between the two times.
    """

    start_ns: int
    end_ns: int
    latencies_ns: Sequence[int]
    errors: int
    first_error: str
    cpu_s: float
    workers_s: float
    sender_s: float
    foreign: int
    servers: tuple[ServerBreakdown | None, ...]

    @property
    def seconds(self) -> float:
        """Length of the measured time."""
        return (self.end_ns - self.start_ns) / 1e9

    @property
    def requests_per_s(self) -> float:
        """Successful requests per second."""
        return len(self.latencies_ns) / self.seconds


def measure_sample(
    spec: LoadSpec,
    models: Sequence[str],
    *,
    seconds: float,
    least: int = 0,
    longest_s: float = 0.0,
    warm_up: int = 1,
) -> Sample:
    """Run and measure a load for some time.

    Parameters
    ----------
    spec : LoadSpec
    models : sequence of str
        The models whose statistics are wanted.
    seconds : float
        Shortest measured time.
    least, longest_s : int, float
        Continue until this number of requests has ended, for at most this number of seconds, and until one has.
    warm_up : int
        Requests at the beginning that do not count.

    Raises
    ------
    KeyboardInterrupt
        After the load has stopped: no request of it is left.
    """
    target = spec.target
    run = make_load(spec)
    requests = _requests(target, models[0])
    try:
        run.start()
        limit_ns = monotonic_ns() + round(max(seconds, longest_s) * 1e9)
        while run.completed() < warm_up and monotonic_ns() < limit_ns:
            wait_in_slices(run.finished.wait, _POLL_S / 10)
        before = {name: target.statistics(name) for name in models}
        workers_s, sender_s = descendants_s(), run.sender_s()
        start_ns, cpu_s, first = monotonic_ns(), time.process_time(), run.completed()
        wait_in_slices(run.finished.wait, seconds)
        while (ended := run.completed() - first) < least and (
            not ended or monotonic_ns() < limit_ns
        ):
            wait_in_slices(run.finished.wait, _POLL_S)
        end_ns, cpu_s = monotonic_ns(), time.process_time() - cpu_s
        sender_s = run.sender_s() - sender_s
        run.collect(0, start_ns)
        window = run.collect(start_ns, end_ns)
        after = {name: target.statistics(name) for name in models}
    finally:
        run.stop()
    # It takes milliseconds, in which further load would push the sample's executions out of the recorder.
    workers_s = descendants_s() - workers_s
    foreign = _requests(target, models[0]) - requests - run.completed()
    if isinstance(spec.traffic, Sequences):  # whose last requests it does not count
        foreign = 0
    return Sample(
        start_ns,
        end_ns,
        window.latencies_ns,
        window.errors,
        window.first_error,
        cpu_s,
        workers_s,
        sender_s,
        foreign,
        tuple(breakdown(before[name], after[name], name) for name in models),
    )


def _requests(target: Target, model: str) -> int:
    """Return the number of requests that a model has answered, in all its versions."""
    return sum(
        entry["inference_stats"][end]["count"]
        for entry in target.statistics(model)["model_stats"]
        for end in ("success", "fail")
    )
