"""Marginal cost: the difference of a model with many of something and a model with few."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from bench.figures import Sides
from bench.load import analyzer, in_process
from bench.models import Model
from bench.session import Session

__all__ = ["marginal_cost"]


def marginal_cost(
    models: Sequence[Model], kind: str, few: int, many: int, inputs: Mapping[str, Any]
) -> Callable[[Session], AbstractContextManager[Sides]]:
    """Return the sides of a figure: for each ``kind_many`` less ``kind_few`` on an idle server."""

    def each(p50_us: Callable[[str], float]) -> float:
        return (p50_us(f"{kind}_{many}") - p50_us(f"{kind}_{few}")) / (many - few)

    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        server, ms = session.ours(*models), session.interval_ms
        yield session.beside(
            models,
            lambda: each(lambda model: in_process(server, model, inputs, interval_ms=ms).p50_us),
            lambda real, running: each(
                lambda model: analyzer(real, running.grpc_url, model, interval_ms=ms).p50_us
            ),
        )

    return sides
