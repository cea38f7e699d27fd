"""Large tensors through steps: cost of a copy, and gain by READ_ONLY_INPUTS.

A model's outputs are copied, as the model may keep them. Its inputs are its own: memory without other
references is passed on without a copy. So a step of an ensemble costs one bare copy of its output.

With READ_ONLY_INPUTS, a promise by the model's owner, a model reads shared memory: parallel steps that read
the request's tensor take the same time for any size.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from time import perf_counter

import numpy as np

from bench.figures import Figure, Sides, ratio_at_least, ratio_at_most
from bench.load import analyzer, in_process
from bench.models import READ_ONLY, Model, ensemble, python_model
from bench.session import Session

__all__ = ["FIGURES"]

# An image of ImageNet's size has 602,112 bytes; a volume or a video clip 64 MB.
SMALL, IMAGE, LARGE = 16, 3 * 224 * 224, 16_000_000
ANSWERS = {"made": "out = np.empty_like(x)", "passed": "out = x"}
STEPS = 3
# Requests of 64 MB: with a copy in each step, 20 take a second.
REQUESTS = 20
X = {"IN": np.ones((1, SMALL), np.float32)}


def grow(key: str, elements: int) -> Model:
    """Return the step that makes the tensor, so that no client has to send it."""
    body = f"out = np.empty((len(x), {elements}), np.float32)"
    return python_model(f"grow_{key}", body, out_dims=str(elements))


def cut(key: str, elements: int) -> Model:
    """Return a step that reads the tensor and returns a part of it."""
    body = f"out = x[:, :{SMALL}]"
    return python_model(f"cut_{key}", body, dims=str(elements), extra=READ_ONLY)


def row(answer: str, elements: int) -> tuple[Model, ...]:
    """Return ensembles `none` and `three`, with 0 and 3 steps between the first and last."""
    dims, key = str(elements), f"{answer}_{elements}"
    first, last = grow(key, elements), cut(key, elements)
    step = python_model(f"step_{key}", ANSWERS[answer], dims=dims, out_dims=dims)
    return (
        first, step, last,
        ensemble(f"none_{key}", [first, last]),
        ensemble(f"three_{key}", [first, *[step] * STEPS, last]),
    )  # fmt: skip


def fan(name: str, reader: Model, readers: int) -> Model:
    """Return an ensemble whose parallel steps read the request's tensor."""
    steps = "\n".join(
        f'  step {{ model_name: "{reader.name}" model_version: -1'
        f' input_map {{ key: "IN" value: "IN" }} output_map {{ key: "OUT" value: "OUT{index}" }} }}'
        for index in range(readers)
    )
    outputs = "\n".join(
        f'output {{ name: "OUT{index}" data_type: TYPE_FP32 dims: [ {SMALL} ] }}'
        for index in range(readers)
    )
    config = f"""
platform: "ensemble"
max_batch_size: 32
input {{ name: "IN" data_type: TYPE_FP32 dims: [ {reader.dims} ] }}
{outputs}
{READ_ONLY}
ensemble_scheduling {{
{steps}
}}
"""
    return Model(name, config)


def per_step(none: str, three: str, p50_us: Callable[[str], float]) -> float:
    return (p50_us(three) - p50_us(none)) / STEPS


def copy_us(elements: int) -> float:
    """Return the time of one bare copy."""
    x = np.ones((1, elements), np.float32)
    times = []
    for _ in range(REQUESTS):
        start = perf_counter()
        x.copy()
        times.append(perf_counter() - start)
    return statistics.median(times) * 1e6


def image(answer: str) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        loaded = row(answer, IMAGE)
        server, ms = session.ours(*loaded), session.interval_ms
        names = f"none_{answer}_{IMAGE}", f"three_{answer}_{IMAGE}"

        def ours(name: str) -> float:
            return in_process(server, name, X, interval_ms=ms).p50_us

        yield session.beside(
            loaded,
            lambda: per_step(*names, ours),
            lambda real, server: per_step(
                *names,
                lambda name: analyzer(real, server.grpc_url, name, interval_ms=3 * ms).p50_us,
            ),
        )

    return sides


@contextmanager
def passed(session: Session) -> Iterator[Sides]:
    server, ms = session.ours(*row("passed", LARGE)), session.interval_ms

    def p50_us(name: str) -> float:
        return in_process(server, name, X, interval_ms=ms, requests=REQUESTS).p50_us

    names = f"none_passed_{LARGE}", f"three_passed_{LARGE}"
    yield Sides(lambda: per_step(*names, p50_us), lambda: copy_us(LARGE))


@contextmanager
def sent(session: Session) -> Iterator[Sides]:
    loaded: list[Model] = []
    for elements in (LARGE, SMALL):
        reader = cut(f"sent_{elements}", elements)
        loaded += [reader, fan(f"sent_{elements}", reader, STEPS)]
    server, ms = session.ours(*loaded), session.interval_ms

    def p50_us(elements: int) -> float:
        x = {"IN": np.ones((1, elements), np.float32)}
        return in_process(server, f"sent_{elements}", x, interval_ms=ms, requests=REQUESTS).p50_us

    yield Sides(lambda: p50_us(LARGE), lambda: p50_us(SMALL))


@contextmanager
def copied(session: Session) -> Iterator[Sides]:
    writer = cut("copied", LARGE)
    writer = replace(writer, config=writer.config.replace(READ_ONLY, ""))
    server, ms = session.ours(writer), session.interval_ms
    x = {"IN": np.ones((1, LARGE), np.float32)}
    yield Sides(
        lambda: in_process(server, writer.name, x, interval_ms=ms, requests=REQUESTS).p50_us,
        lambda: copy_us(LARGE),
    )


FIGURES = (
    *(
        Figure(
            f"large.step.{answer}", f"a 602 kB tensor {words} by each of three steps: a step, p50",
            "us", "lower", "tritonserver", (ratio_at_least(2),), image(answer),
        )
        for answer, words in (("made", "made anew"), ("passed", "passed on"))
    ),
    Figure(
        "large.passed", "a tensor of 64 MB passed on by each of three steps: a step, p50",
        "us", "flat", "one bare copy", (ratio_at_most(1.25),), passed, first="a step",
    ),
    Figure(
        "large.copied", "64 MB sent by the caller to a model that may write to them: all of it, p50",
        "us", "flat", "one bare copy", (ratio_at_most(1.25),), copied, first="a request",
    ),
    Figure(
        "large.uncopied", "64 MB sent by the caller to three steps side by side, READ_ONLY_INPUTS: all of "
        "it, p50",
        "us", "flat", "64 bytes", (ratio_at_most(1.25),), sent, first="64 MB",
    ),
)  # fmt: skip
