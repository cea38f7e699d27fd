"""`nt.perf` compared with perf_analyzer: ``python -m bench.agreement [--rounds N] [--server nbtriton]``.

Both load the same model of the same server in turns, over HTTP and gRPC, with windows of the same length; a ratio is of
the two runs of a round. If a busy machine leaves it undecided whether the median is within the target, up to three times
as many rounds are run. One model takes 5 ms, so that the server limits the throughput, as with real models. The other
takes microseconds, so that the clients do: a client in Python is slower than one in C++.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

import numpy as np

import nbtriton
from bench.figures import Missing, Wrong
from bench.load import WINDOWS, Measured, analyzer
from bench.models import DOUBLE, python_model
from bench.quiet import Watch
from bench.session import Session
from nbtriton.extensions.verify.reference import RunningServer
from nbtriton.lab.perf.options import Protocol

__all__ = ["main"]

# Target of the ratio of throughputs, if the server limits them.
WITHIN = 0.05
PACED = python_model("paced", "import time; time.sleep(0.005); out = x * 2")
# Factor of the rounds if the verdict is undecided.
_MORE = 3
X = {"IN": np.ones((1, 16), np.float32)}


@dataclass(frozen=True, slots=True)
class Level:
    """A load by both programs."""

    model: str
    protocol: Protocol
    concurrency: int
    paced: bool


PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")
LEVELS = tuple(
    Level(model, protocol, concurrency, model == "paced")
    for model, concurrencies in (("paced", (1, 8, 32)), ("double", (1,)))
    for protocol in PROTOCOLS
    for concurrency in concurrencies
)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the ratios of each load, and whether the target is met."""
    parser = argparse.ArgumentParser(prog="python -m bench.agreement", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of both in turns (5)")
    parser.add_argument("--interval-ms", type=int, default=400, help="length of a window (400)")
    parser.add_argument("--server", default="tritonserver", choices=("tritonserver", "nbtriton"))
    arguments = parser.parse_args(argv)
    print(
        f"nt.perf beside perf_analyzer on {arguments.server}, {arguments.rounds} rounds in turns; load average "
        f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n"
        f"{'':<26}{'perf_analyzer':>22}{'nt.perf':>22}   ratio of a round: median (lowest to highest)",
        flush=True,
    )
    agreed = []
    with ExitStack() as stack:
        session = Session(stack, arguments.interval_ms)
        try:
            # The reference has perf_analyzer, for either server.
            _ = session.reference
            start = session.real if arguments.server == "tritonserver" else session.served
            server = start(PACED, DOUBLE)
            for level in LEVELS:
                within = _measure(session, server, level, arguments.rounds)
                if level.paced:
                    agreed.append(within)
        except (Missing, Wrong) as reason:
            print(f"not measured: {reason}")
            return 1
    verdict = "met" if all(agreed) else "MISSED"
    print(
        f"throughput within {WITHIN:.0%} where the server sets the pace: {sum(agreed)} of {len(agreed)} "
        f"loads, {verdict}"
    )
    return 0


def _measure(session: Session, server: RunningServer, level: Level, rounds: int) -> bool:
    """Print the ratios of one load; return whether the throughputs agree."""
    watch = Watch()
    pairs: list[tuple[Measured, Measured]] = []
    for number in range(_MORE * rounds):
        if number >= rounds and not _is_open([ours / theirs for theirs, ours in _rates(pairs)]):
            break
        found: dict[bool, Measured] = {}
        for ours in (True, False) if number % 2 else (False, True):
            found[ours] = _ours(session, server, level) if ours else _theirs(session, server, level)
        pairs.append((found[False], found[True]))
    rates = [ours / theirs for theirs, ours in _rates(pairs)]
    latencies = [ours.p50_us / theirs.p50_us for theirs, ours in pairs]
    title = f"{level.model}, {level.protocol}, {level.concurrency} outstanding"
    cells = "".join(
        f"{median(pair[side].infer_per_s for pair in pairs):>10.0f}/s"
        f"{median(pair[side].p50_us for pair in pairs):>8.0f} us"
        for side in (0, 1)
    )
    print(
        f"{title:<30}{cells}   throughput {_spread(rates)}, p50 {_spread(latencies)}, {len(pairs)} rounds; others took "
        f"{watch.condition().others:.1f} cores",
        flush=True,
    )
    return abs(median(rates) - 1) <= WITHIN


def _rates(pairs: Sequence[tuple[Measured, Measured]]) -> list[tuple[float, float]]:
    return [(theirs.infer_per_s, ours.infer_per_s) for theirs, ours in pairs]


def _is_open(ratios: Sequence[float]) -> bool:
    """Return whether the median is outside the target, but its confidence interval is not entirely.

    The median of nine ratios lies between the second lowest and the second highest with 96%.
    """
    if abs(median(ratios) - 1) <= WITHIN:
        return False
    _, *inner, _ = sorted(ratios) if len(ratios) > 3 else (0.0, *sorted(ratios), 0.0)
    return inner[0] <= 1 + WITHIN and inner[-1] >= 1 - WITHIN


def _ours(session: Session, server: RunningServer, level: Level) -> Measured:
    url = server.http_url if level.protocol == "http" else server.grpc_url
    (point,) = nbtriton.perf(
        None, level.model, url=url, protocol=level.protocol, concurrency=level.concurrency, inputs=X,
        measurement_interval_ms=session.interval_ms, stability_percentage=999, max_trials=WINDOWS,
    ).points  # fmt: skip
    if point.error_count:
        raise Wrong(f"the server answered with an error: {point.first_error}")
    return Measured(point.infer_per_s, point.latency_p50_us)


def _theirs(session: Session, server: RunningServer, level: Level) -> Measured:
    url = server.http_url if level.protocol == "http" else server.grpc_url
    return analyzer(
        session.reference, url, level.model, "--sync", protocol=level.protocol,
        concurrency=level.concurrency, interval_ms=session.interval_ms,
    )  # fmt: skip


def _spread(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


if __name__ == "__main__":
    sys.exit(main())
