"""Torch models on the CPU at their best batch size, beside a loop that only calls the module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import nbtriton
from bench.figures import Figure, Sides, ratio_at_least
from bench.nets import NETS, Net, bare_rows_per_s, prepared, rows_per_s
from bench.session import Session

__all__ = ["FIGURES"]


def whole_batches(net: Net) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        module, batch = prepared(net)
        x = net.rows(batch)
        seconds = 3 * session.interval_ms / 1000
        with nbtriton.Server(gpus=()) as server:
            server.load(net.config(batch), module, name=net.name)

            yield Sides(
                lambda: rows_per_s(lambda: server.infer(net.name, {"INPUT__0": x}), batch, seconds),
                lambda: bare_rows_per_s(module, x, seconds),
                f"batches of {batch}",
            )

    return sides


FIGURES = tuple(
    Figure(
        f"torch.{net.name}", f"torch {net.name} on the CPU, whole batches of the best size",
        "rows/s", "higher", "a bare loop", (ratio_at_least(0.97),), whole_batches(net),
    )
    for net in NETS
)  # fmt: skip
