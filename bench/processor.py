"""Processor time of a request, which unlike a rate does not depend on the machine's other load."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from bench.figures import Figure, Sides
from bench.load import analyzer, in_process
from bench.models import Model
from bench.processes import cpu_s
from bench.session import Session
from nbtriton.extensions.verify.reference import Reference, RunningServer

__all__ = ["IN_FLIGHT", "processor_figure", "processor_us"]

IN_FLIGHT = 32


def processor_figure(
    name: str, words: str, models: Sequence[Model], model: str, inputs: Mapping[str, Any]
) -> Figure:
    """Return the figure of a model with 32 requests in flight, in the kernel and over gRPC."""

    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        server, ms = session.ours(*models), session.interval_ms

        def here() -> object:
            return in_process(server, model, inputs, concurrency=IN_FLIGHT, interval_ms=ms)

        def theirs(reference: Reference, at: RunningServer) -> float:
            def load() -> object:
                return analyzer(
                    reference, at.grpc_url, model, concurrency=IN_FLIGHT, interval_ms=ms
                )

            return processor_us(at, model, load)

        def ours() -> float:
            return _spent_us(time.process_time, lambda: _succeeded(server.statistics(model)), here)

        yield session.beside(models, ours, theirs)

    return Figure(
        name, f"{words}, {IN_FLIGHT} in flight: processor time of a request, here with the client's",
        "us", "lower", "tritonserver alone", (), sides,
    )  # fmt: skip


def processor_us(server: RunningServer, model: str, load: Callable[[], object]) -> float:
    """Return a server's processor time of one request during a load."""
    pid, url = server.process.pid, f"http://{server.http_url}/v2/models/{model}/stats"

    def answered() -> int:
        with urllib.request.urlopen(url) as reply:
            return _succeeded(json.load(reply))

    return _spent_us(lambda: cpu_s(pid), answered, load)


def _spent_us(
    cpu_s: Callable[[], float], answered: Callable[[], int], load: Callable[[], object]
) -> float:
    before_s, before = cpu_s(), answered()
    load()
    after_s, after = cpu_s(), answered()
    return (after_s - before_s) / (after - before) * 1e6


def _succeeded(statistics: Mapping[str, Any]) -> int:
    return int(statistics["model_stats"][0]["inference_stats"]["success"]["count"])
