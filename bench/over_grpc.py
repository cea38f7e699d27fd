"""gRPC compared with the real tritonserver: the same model.py, the same perf_analyzer, the same flags.

nbtriton serves from its own process, as tritonserver does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from bench.figures import Figure, Sides, ratio_at_least
from bench.load import Measured, analyzer
from bench.models import DOUBLE
from bench.processor import IN_FLIGHT, processor_us
from bench.session import Session
from nbtriton.extensions.verify.reference import RunningServer

__all__ = ["FIGURES"]

# tritonserver 2.51 ends with SIGSEGV (in TRITONSERVER_InferenceRequestDelete) within a second of 32 requests in
# streams: it deletes a request's state that its core still holds, unless its pool, 8 by default, has room.
FLAGS = ("--grpc-infer-allocation-pool-size=128",)
STREAMING = ("--async", "--streaming")
LOADS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "calls": (f"{IN_FLIGHT} calls", ()),
    # perf_analyzer's default: four streams of eight requests each.
    "four_streams": (f"{IN_FLIGHT} in flight in four streams", STREAMING),
    "streams": (f"{IN_FLIGHT} streams", (*STREAMING, "--max-threads", str(IN_FLIGHT))),
}
# Measures one server under a load.
On = Callable[[RunningServer, Callable[[], Measured]], float]


def beside(
    measure: On, concurrency: int, flags: tuple[str, ...]
) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        # The reference has perf_analyzer: without it neither can be measured.
        reference, ms = session.reference, session.interval_ms

        def on(server: RunningServer) -> float:
            return measure(
                server,
                lambda: analyzer(
                    reference, server.grpc_url, "double", *flags,
                    concurrency=concurrency, interval_ms=ms,
                ),
            )  # fmt: skip

        real, ours = session.real(DOUBLE, flags=FLAGS), session.served(DOUBLE, flags=FLAGS)
        yield Sides(lambda: on(ours), lambda: on(real))

    return sides


FIGURES = (
    Figure(
        "grpc.one", "gRPC, one call at a time, p50", "us", "lower", "tritonserver", (),
        beside(lambda _, load: load().p50_us, 1, ()),
    ),
    *(
        Figure(
            f"grpc.{name}", f"gRPC, {words}", "infer/s", "higher", "tritonserver",
            (ratio_at_least(1),), beside(lambda _, load: load().infer_per_s, IN_FLIGHT, flags),
        )
        for name, (words, flags) in LOADS.items()
    ),
    *(
        Figure(
            f"grpc.processor.{name}", f"gRPC, {words}: processor time of a request",
            "us", "lower", "tritonserver", (),
            beside(lambda server, load: processor_us(server, "double", load), IN_FLIGHT, flags),
        )
        for name, (words, flags) in LOADS.items()
    ),
)  # fmt: skip
