"""The pipeline on the CPU: its slowest step alone, and the overlap of the tokenizer's time with BERT's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import monotonic_ns
from typing import Any

import nbtriton
from bench.figures import Figure, Missing, Sides, Target, ratio_at_least, together
from bench.load import in_process
from bench.readability.build import ENSEMBLE, Pipeline, build, requests
from bench.session import Session

__all__ = ["FIGURES", "overlap"]

PIPELINE = Pipeline(bert="mini")
ROWS = 16
IN_FLIGHT = 4
# Turns of a round, and requests of a turn: some seconds each, so that the first request, in which BERT waits for its
# tokens, counts little.
TURNS, REQUESTS = 2, 24
STEPS = ("preprocess", "bert-large", "cuml")

Batch = Mapping[str, Any]


@contextmanager
def served(folder: Any) -> Iterator[nbtriton.Server]:
    """Serve the pipeline on the CPU; all libraries use one thread for a batch, as instances do."""
    try:
        import torch
    except ImportError:
        raise Missing("needs torch") from None
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    build(folder, PIPELINE)
    try:
        with nbtriton.Server(gpus=()) as server:
            server.load_repository(folder)
            yield server
    finally:
        torch.set_num_threads(before)


def inputs_of(server: nbtriton.Server) -> dict[str, Batch]:
    """Return each step's inputs for one request, and the request itself."""
    (request,) = requests(ROWS, 1)
    words = server.infer("preprocess", {"INPUT0": request["excerpt"]})
    return {
        ENSEMBLE: request,
        "preprocess": {"INPUT0": request["excerpt"]},
        "bert-large": {"INPUT__0": words["BERT_IDS"], "INPUT__1": words["BERT_AM"]},
        "cuml": {"input__0": words["TREE_FEATS"]},
    }


def rows_per_s(server: nbtriton.Server, model: str, inputs: Batch, requests: int) -> float:
    found = in_process(
        server, model, inputs, concurrency=IN_FLIGHT, interval_ms=1000, requests=requests
    )
    return found.infer_per_s


def overlap(spans: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> float:
    """Return the share of the time of `spans` that overlaps with `others`.

    The spans of one list do not overlap each other, as they are of one instance.
    """
    total = sum(end - begin for begin, end in spans)
    shared = sum(
        max(0, min(end, until) - max(begin, since))
        for begin, end in spans
        for since, until in others
    )
    return shared / total if total else 0.0


def with_pipeline(
    measure: Callable[[nbtriton.Server, Session], Sides],
) -> Callable[[Session], AbstractContextManager[Sides]]:
    @contextmanager
    def sides(session: Session) -> Iterator[Sides]:
        server = session.resource("readability", lambda: served(session.folder()))
        yield measure(server, session)

    return sides


def beside_slowest(server: nbtriton.Server, session: Session) -> Sides:
    inputs = inputs_of(server)
    count = 4 if session.short else REQUESTS
    alone = {step: rows_per_s(server, step, inputs[step], count) for step in STEPS}
    slowest = min(alone, key=lambda step: alone[step])

    def both() -> tuple[float, float]:
        whole = single = 0.0
        for turn in range(TURNS):
            order = (ENSEMBLE, slowest) if turn % 2 == 0 else (slowest, ENSEMBLE)
            for model in order:
                rate = rows_per_s(server, model, inputs[model], count)
                if model == ENSEMBLE:
                    whole += rate
                else:
                    single += rate
        return whole / TURNS, single / TURNS

    return together(both, f"the slowest step is {slowest}; {PIPELINE}; {ROWS} excerpts a request")


def hidden(server: nbtriton.Server, session: Session) -> Sides:
    inputs = inputs_of(server)
    count = 4 if session.short else REQUESTS

    def share() -> float:
        begin = monotonic_ns()
        rows_per_s(server, ENSEMBLE, inputs[ENSEMBLE], TURNS * count)
        spans = {
            model: [
                (batch.start_ns, batch.end_ns)
                for batch in server.batches(model)
                if batch.start_ns > begin
            ]
            for model in ("preprocess", "bert-large")
        }
        # BERT has no work before the first batch of tokens.
        since = min(start for start, _ in spans["bert-large"])
        later = [span for span in spans["preprocess"] if span[0] > since]
        return 100 * overlap(later, spans["bert-large"])

    return Sides(share, None, f"{IN_FLIGHT} requests of {ROWS} excerpts in flight; {PIPELINE}")


FIGURES = (
    Figure(
        "readability.pipeline", f"the readability pipeline on the CPU, {IN_FLIGHT} requests in flight",
        "rows/s", "higher", "its slowest step alone", (ratio_at_least(0.95),), with_pipeline(beside_slowest),
    ),
    Figure(
        "readability.overlap", "time of the tokenizer in which BERT computes", "%", "higher",
        "none", (Target("value", at_least=90.0),), with_pipeline(hidden),
    ),
)  # fmt: skip
