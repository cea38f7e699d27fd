"""Torch models on the CPU at their best batch size, compared with a loop that calls the module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from statistics import median

import nbtriton
from bench import overhead
from bench.figures import Figure, Sides, ratio_at_least, together
from bench.nets import NETS, Net, bare, prepared, times_ns, turns_of
from bench.session import Session

__all__ = ["FIGURES"]

# Consecutive calls of one side in a turn.
TURN = 5


def whole_batches(net: Net) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        module, batch = prepared(net)
        x = net.rows(batch)
        with nbtriton.Server(gpus=()) as server:
            server.load(net.config(batch), module, name=net.name)
            served = turns_of(lambda: server.infer(net.name, {"INPUT__0": x}))

            def rows_per_s() -> tuple[float, float]:
                ours, theirs = times_ns(
                    [served, bare(module, x)], TURN, 6 * session.interval_ms / 1000
                )
                return batch / median(ours) * 1e9, batch / median(theirs) * 1e9

            yield together(rows_per_s, f"batches of {batch}")

    return sides


FIGURES = (
    *(
    Figure(
        f"torch.{net.name}", f"torch {net.name} on the CPU, whole batches of the best size",
        "rows/s", "higher", "a bare loop", (ratio_at_least(0.97),), whole_batches(net),
    )
    for net in NETS
    ),
    *overhead.FIGURES,
)  # fmt: skip
