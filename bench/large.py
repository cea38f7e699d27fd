"""Large tensors through three steps: nothing is copied between them, so size must not show.

A first step makes the tensor and a last one cuts it down, so that neither a client nor a wire has to
carry it; between them are none or three steps. Those either make their answer without touching it, or
pass on the very array they got.

Where the caller sends the tensor, the steps get the caller's own memory: their code shows that they
only read it. A last step cuts it down here, too. Without that step the caller gets all of it back, as
memory of its own, and that is a copy: measured apart, against the time of a bare one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter

import numpy as np

from bench.figures import Figure, Sides, ratio_at_most, value_at_most
from bench.load import analyzer, in_process
from bench.models import Model, chain, ensemble, python_model
from bench.session import Session

__all__ = ["FIGURES"]

# An image of ImageNet's size is 602,112 bytes; 64 MB is what a volume or a clip of video takes.
SMALL, IMAGE, LARGE = 16, 3 * 224 * 224, 16_000_000
ANSWERS = {"made": "out = np.empty_like(x)", "passed": "out = x"}
STEPS = 3
# Of 64 MB: with a copy in each step, 20 of them would take some seconds.
REQUESTS = 20
X = {"IN": np.ones((1, SMALL), np.float32)}


def models(answer: str, elements: int) -> tuple[Model, ...]:
    """Return the steps, and ensembles `none` and `three` of that answer and size."""
    dims, key = str(elements), f"{answer}_{elements}"
    grow = python_model(
        f"grow_{key}", f"out = np.empty((len(x), {elements}), np.float32)", out_dims=dims
    )
    step = python_model(f"step_{key}", ANSWERS[answer], dims=dims, out_dims=dims)
    cut = python_model(f"cut_{key}", f"out = x[:, :{SMALL}]", dims=dims)
    return (
        grow, step, cut,
        ensemble(f"none_{key}", [grow, cut]),
        ensemble(f"three_{key}", [grow, *[step] * STEPS, cut]),
    )  # fmt: skip


def per_step(answer: str, elements: int, p50_us: Callable[[str], float]) -> float:
    none, three = (p50_us(f"{which}_{answer}_{elements}") for which in ("none", "three"))
    return (three - none) / STEPS


def image(answer: str) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        loaded = models(answer, IMAGE)
        server, ms = session.ours(*loaded), session.interval_ms

        def ours(name: str) -> float:
            return in_process(server, name, X, interval_ms=ms).p50_us

        yield session.beside(
            loaded,
            lambda: per_step(answer, IMAGE, ours),
            lambda real, at: per_step(
                answer,
                IMAGE,
                lambda name: analyzer(real, at.grpc_url, name, interval_ms=3 * ms).p50_us,
            ),
        )

    return sides


@contextmanager
def size(session: Session) -> Iterator[Sides]:
    server = session.ours(*models("passed", LARGE), *models("passed", SMALL))
    ms = session.interval_ms

    def p50_us(name: str) -> float:
        return in_process(server, name, X, interval_ms=ms, requests=REQUESTS).p50_us

    yield Sides(
        lambda: per_step("passed", LARGE, p50_us), lambda: per_step("passed", SMALL, p50_us)
    )


def from_caller(session: Session) -> Callable[[str, int], float]:
    """Return the p50 of what the caller sends, ``cut`` down at the end or given ``back``."""
    loaded = []
    for elements in (LARGE, SMALL):
        dims = str(elements)
        step = python_model(f"step_{dims}", ANSWERS["passed"], dims=dims, out_dims=dims)
        cut = python_model(f"cut_{dims}", f"out = x[:, :{SMALL}]", dims=dims)
        loaded += [
            step, cut, chain(f"back_{dims}", step, STEPS),
            ensemble(f"cut_three_{dims}", [*[step] * STEPS, cut]),
        ]  # fmt: skip
    server, ms = session.ours(*loaded), session.interval_ms

    def p50_us(which: str, elements: int) -> float:
        x = {"IN": np.ones((1, elements), np.float32)}
        name = f"{which}_{elements}"
        return in_process(server, name, x, interval_ms=ms, requests=REQUESTS).p50_us

    return p50_us


@contextmanager
def sent(session: Session) -> Iterator[Sides]:
    p50_us = from_caller(session)
    yield Sides(lambda: p50_us("cut_three", LARGE), lambda: p50_us("cut_three", SMALL))


@contextmanager
def back(session: Session) -> Iterator[Sides]:
    p50_us = from_caller(session)
    x = np.ones((1, LARGE), np.float32)

    def copy_us() -> float:
        times = []
        for _ in range(REQUESTS):
            start = perf_counter()
            x.copy()
            times.append(perf_counter() - start)
        return statistics.median(times) * 1e6

    yield Sides(lambda: p50_us("back", LARGE), copy_us)


FIGURES = (
    *(
        Figure(
            f"large.image.{answer}", f"a 602 kB tensor {words} by each of three steps: a step, p50",
            "us", "lower", "tritonserver", (value_at_most(10),), image(answer),
        )
        for answer, words in (("made", "made anew"), ("passed", "passed on"))
    ),
    Figure(
        "large.size", "a tensor of 64 MB passed on by each of three steps: a step, p50",
        "us", "flat", "64 bytes", (ratio_at_most(1.25),), size, first="64 MB",
    ),
    Figure(
        "large.sent", "64 MB sent by the caller through three steps and a last one that cuts it down: "
        "all of it, p50",
        "us", "flat", "64 bytes", (ratio_at_most(1.25),), sent, first="64 MB",
    ),
    Figure(
        "large.back", "64 MB sent by the caller through three steps and back: all of it, p50",
        "us", "flat", "one bare copy", (), back, first="three steps",
    ),
)  # fmt: skip
