"""The pipeline compared with direct calls of its frameworks: equal scores, and the times of both."""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

import nbtriton
from bench.figures import Missing
from bench.machine import machine
from bench.readability.build import ENSEMBLE, Pipeline, build, column
from bench.readability.corpus import excerpts

__all__ = ["Direct", "check"]

# Measured in turn, so that other load of the machine affects both.
_TURNS = 3


class Direct:
    """The tokenizer, BERT and the forest of a repository, without a server.

    Parameters
    ----------
    repository : Path
        Repository written by `build`.
    pipeline : Pipeline
        Its options, from which BERT's weights are made again.
    """

    def __init__(self, repository: Path, pipeline: Pipeline) -> None:
        try:
            import torch
            import treelite
            from tokenizers import Tokenizer

            from bench.readability.bert import seeded
        except ImportError:
            raise Missing(
                "needs torch, treelite and tokenizers: pip install 'nbtriton[readability]'"
            ) from None
        self._torch = torch
        self._predict: Any = treelite.gtil.predict
        self._tokenizer: Any = Tokenizer.from_file(
            str(repository / "preprocess" / "1" / "tokenizer.json")
        )
        self._tokenizer.enable_truncation(pipeline.tokens)
        self._tokenizer.enable_padding(length=pipeline.tokens)
        self._forest: Any = treelite.Model.deserialize(
            str(repository / "cuml" / "1" / "checkpoint.tl")
        )
        self.module = seeded(pipeline.bert, getattr(torch, pipeline.dtype))

    @property
    def threads(self) -> int:
        """Number of torch's threads."""
        return int(self._torch.get_num_threads())

    @property
    def parameters(self) -> int:
        """Number of BERT's parameters."""
        return sum(each.numel() for each in self.module.parameters())

    def bert(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return BERT's scores of texts, (texts, 1)."""
        encoded = self._tokenizer.encode_batch(list(texts))
        torch = self._torch
        with torch.inference_mode():
            found: npt.NDArray[np.float32] = self.module(
                torch.tensor([each.ids for each in encoded]),
                torch.tensor([each.attention_mask for each in encoded]),
            ).numpy()
        return found

    def score(
        self,
        texts: Sequence[str],
        features: npt.NDArray[np.float32],
        weight: npt.NDArray[np.float32],
    ) -> npt.NDArray[np.float32]:
        """Return the weighted means, (texts, 1); `features` are the forest's of each text."""
        trees = self._predict(self._forest, features)[:, 0, :].astype(np.float32)
        found: npt.NDArray[np.float32] = weight * self.bert(texts) + (1 - weight) * trees
        return found


def check(pipeline: Pipeline, rows: int, say: Callable[[str], None] = lambda _: None) -> str:
    """Build a pipeline, compare one request with direct calls of the frameworks, and return both times.

    Raises
    ------
    AssertionError
        The scores differ by more than 1e-4, or 2e-2 in bfloat16.
    """
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder), pipeline, say)
        say("loading")
        began = time.perf_counter()
        with nbtriton.Server(gpus=()) as server:
            control = server.load_repository(folder)
            if control.errors:
                raise Missing("; ".join(map(str, control.errors.values())))
            loaded_s = time.perf_counter() - began
            direct = Direct(Path(folder), pipeline)
            texts = excerpts(max(rows, 400))[:rows]
            given: dict[str, Any] = {"excerpt": column(texts)}
            features = np.asarray(
                server.infer("preprocess", {"INPUT0": given["excerpt"]})["TREE_FEATS"]
            )
            say("comparing")
            ours, theirs = [], []
            for turn in range(_TURNS + 1):
                # First BERT alone, as its scores are small compared with the forest's.
                weight = np.full((rows, 1), 0.5 if turn else 1.0, np.float32)
                given["BERT_WEIGHT"] = weight
                began = time.perf_counter()
                found = np.asarray(server.infer(ENSEMBLE, given)["SCORE"])
                between = time.perf_counter()
                expected = direct.score(texts, features, weight)
                ended = time.perf_counter()
                near = 1e-4 if pipeline.dtype == "float32" else 2e-2
                np.testing.assert_allclose(found, expected, rtol=near, atol=near)
                if turn:  # torch optimizes in the first turn
                    ours.append(between - began)
                    theirs.append(ended - between)
    environment = machine()
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    lines = [
        str(pipeline),
        (
            f"{direct.parameters / 1e6:.0f} million parameters; {rows} excerpt(s) a request; CPU: {environment['cpu']}, "
            f"{environment['cores']} cores, {direct.threads} threads, load average {os.getloadavg()[0]:.1f}"
        ),
        f"scores as those of tokenizers, torch and treelite called directly, within {near:g}",
        (
            f"a request {median(ours) * 1e3:,.0f} ms, called directly {median(theirs) * 1e3:,.0f} ms (medians of "
            f"{_TURNS}, in turn; directly without counting words); loaded in {loaded_s:.1f} s; peak memory "
            f"{peak_gib:.1f} GiB"
        ),
    ]
    return "\n".join(lines)
