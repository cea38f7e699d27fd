"""Single requests that dynamic batching joins, beside a loop that is handed ready batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import nbtriton
from bench.figures import Figure, Sides, ratio_at_least
from bench.load import in_process
from bench.nets import NETS, Net, bare_rows_per_s, prepared
from bench.session import Session

__all__ = ["FIGURES"]


def single_rows(net: Net) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        module, batch = prepared(net)
        ms = session.interval_ms
        ready, row = net.rows(batch), {"INPUT__0": net.rows(1).numpy()}
        with nbtriton.Server(gpus=()) as server:
            server.load(net.config(batch), module, name=net.name)
            # Two batches' worth in flight: one waits while the other is computed.
            yield Sides(
                lambda: (
                    in_process(
                        server, net.name, row, concurrency=2 * batch, interval_ms=ms
                    ).infer_per_s
                ),
                lambda: bare_rows_per_s(module, ready, 3 * ms / 1000),
                f"batches of {batch}",
            )

    return sides


FIGURES = tuple(
    Figure(
        f"batching.{net.name}", f"single requests to a torch {net.name}, two batches in flight",
        "rows/s", "higher", "a bare loop with ready batches", (ratio_at_least(0.9),),
        single_rows(net),
    )
    for net in NETS
)  # fmt: skip
