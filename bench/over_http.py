"""HTTP compared with the real tritonserver: the same model.py, the same perf_analyzer.

perf_analyzer has a thread for each connection: in its asynchronous mode one thread for all takes 75 us per
request, and would be the bottleneck. nbtriton serves from its own process, as tritonserver does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from bench.figures import Figure, Sides, ratio_at_least
from bench.load import Measured, analyzer
from bench.models import DOUBLE
from bench.processor import IN_FLIGHT, processor_us
from bench.session import Session
from nbtriton.extensions.verify.reference import RunningServer

__all__ = ["FIGURES"]

Value = Callable[[Measured], float]
On = Callable[[Session, RunningServer], float]


def loaded(kind: str, connections: int, value: Value) -> On:
    """Return the measurement of a server with tensors of one kind."""

    def measure(session: Session, server: RunningServer) -> float:
        return value(
            analyzer(
                session.reference, server.http_url, "double", "--sync",
                "--input-tensor-format", kind, "--output-tensor-format", kind,
                protocol="http", concurrency=connections, interval_ms=session.interval_ms,
            )
        )  # fmt: skip

    return measure


def processor(session: Session, server: RunningServer) -> float:
    """Return a server's processor time of one request."""
    load = loaded("binary", IN_FLIGHT, lambda measured: measured.p50_us)
    return processor_us(server, "double", lambda: load(session, server))


def beside(measure: On) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        # The reference has perf_analyzer: without it neither can be measured.
        real, ours = session.real(DOUBLE), session.served(DOUBLE)
        yield Sides(lambda: measure(session, ours), lambda: measure(session, real))

    return sides


FIGURES = (
    Figure(
        "http.binary", f"HTTP, {IN_FLIGHT} connections, binary tensors",
        "infer/s", "higher", "tritonserver", (ratio_at_least(1.5),),
        beside(loaded("binary", IN_FLIGHT, lambda measured: measured.infer_per_s)),
    ),
    Figure(
        "http.json", f"HTTP, {IN_FLIGHT} connections, tensors as JSON",
        "infer/s", "higher", "tritonserver", (),
        beside(loaded("json", IN_FLIGHT, lambda measured: measured.infer_per_s)),
    ),
    Figure(
        "http.one", "HTTP, one request at a time, binary tensors, p50",
        "us", "lower", "tritonserver", (),
        beside(loaded("binary", 1, lambda measured: measured.p50_us)),
    ),
    Figure(
        "http.processor", f"HTTP, {IN_FLIGHT} connections: processor time of a request",
        "us", "lower", "tritonserver", (), beside(processor),
    ),
)  # fmt: skip
