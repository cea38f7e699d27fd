"""Single requests joined by dynamic batching, compared with a loop over ready batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter

import torch

import nbtriton
from bench.figures import Figure, Sides, ratio_at_least
from bench.load import in_process
from bench.nets import NETS, Net, prepared
from bench.session import Session

__all__ = ["FIGURES"]


def all_rows_per_s(module: torch.nn.Module, x: torch.Tensor, seconds: float) -> float:
    """Return the throughput of a bare loop, counted as that of a load."""
    count, begin = 0, perf_counter()
    with torch.inference_mode():
        while (elapsed_s := perf_counter() - begin) < seconds:
            module(x)
            count += 1
    return count * len(x) / elapsed_s


def single_rows(net: Net) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        module, batch = prepared(net)
        ms = session.interval_ms
        ready, row = net.rows(batch), {"INPUT__0": net.rows(1).numpy()}
        with nbtriton.Server(gpus=()) as server:
            server.load(net.config(batch), module, name=net.name)
            # Two batches in flight: one waits while the other is computed.
            yield Sides(
                lambda: (
                    in_process(
                        server, net.name, row, concurrency=2 * batch, interval_ms=ms
                    ).infer_per_s
                ),
                lambda: all_rows_per_s(module, ready, 3 * ms / 1000),
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
