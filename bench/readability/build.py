"""Model repository of the readability pipeline, with all its files."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import nbtriton
from bench.figures import Missing
from bench.readability.configs import configs
from bench.readability.corpus import excerpts, grade
from bench.readability.vocabulary import write_vocabulary

__all__ = ["ENSEMBLE", "Pipeline", "build", "requests", "train_forest", "write_bert"]

ENSEMBLE = "ensemble_all"
MODELS = Path(__file__).with_name("models")
# Features considered for a split: training takes a second instead of a minute.
FEATURES_OF_A_SPLIT = 16


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Options of a pipeline.

    Parameters
    ----------
    bert : {"tiny", "mini", "base", "large"}
        A size of `bench.readability.bert.SIZES`.
    dtype : {"float32", "bfloat16"}
        Type of BERT's weights.
    tokens : int
        Tokens of each excerpt: longer excerpts are cut, shorter ones padded.
    trees, depth : int
        Size of the forest.
    training : int
        Excerpts for the forest's training.
    max_batch_size : int
    """

    bert: str = "tiny"
    dtype: Literal["float32", "bfloat16"] = "float32"
    tokens: int = 128
    trees: int = 100
    depth: int = 16
    training: int = 800
    max_batch_size: int = 512

    def __str__(self) -> str:
        return (
            f"BERT {self.bert} in {self.dtype}, S={self.tokens} tokens, every excerpt padded or cut to S; "
            f"{self.trees} trees, {self.depth} deep"
        )


def build(
    folder: Path, pipeline: Pipeline | None = None, say: Callable[[str], None] = lambda _: None
) -> Path:
    """Write the repository into an empty folder, and return it.

    Raises
    ------
    Missing
        A required package is missing.
    """
    pipeline = pipeline or Pipeline()
    for name, text in configs(pipeline.tokens, pipeline.max_batch_size).items():
        version = folder / name / "1"
        version.mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(text, encoding="utf-8")
        code = MODELS / name / "model.py"
        if code.exists():
            shutil.copy(code, version)
    say("training the vocabulary")
    write_vocabulary(folder / "preprocess" / "1")
    say(f"making BERT {pipeline.bert}")
    write_bert(folder / "bert-large" / "1" / "model.pt", pipeline)
    say(f"training {pipeline.trees} trees")
    texts = excerpts(pipeline.training)
    with nbtriton.Server(gpus=()) as server:
        server.load_repository(folder, control_mode="explicit", load_models=["preprocess"])
        features = features_of(server, texts, pipeline.max_batch_size)
    train_forest(
        folder / "cuml" / "1" / "checkpoint.tl", features, texts, pipeline.trees, pipeline.depth
    )
    # As in the published tree; version control does not keep an empty folder.
    (folder / ENSEMBLE / "1" / "empty").touch()
    return folder


def features_of(
    server: nbtriton.Server, texts: tuple[str, ...], rows: int
) -> npt.NDArray[np.float32]:
    """Return the served `preprocess`'s features of texts, requested in batches."""
    batches = [
        server.infer("preprocess", {"INPUT0": column(texts[index : index + rows])})["TREE_FEATS"]
        for index in range(0, len(texts), rows)
    ]
    return np.concatenate([np.asarray(each) for each in batches])


def column(texts: tuple[str, ...]) -> npt.NDArray[Any]:
    """Return texts as a tensor with one excerpt per row."""
    return np.array([[text.encode()] for text in texts], dtype=object)


def requests(rows: int, count: int = 4) -> list[dict[str, npt.NDArray[Any]]]:
    """Return different requests to the ensemble, of `rows` excerpts each."""
    texts = excerpts(800)
    return [
        {
            "excerpt": column(tuple(texts[(index * rows + k) % len(texts)] for k in range(rows))),
            "BERT_WEIGHT": np.full((rows, 1), 0.5, np.float32),
        }
        for index in range(count)
    ]


def write_bert(path: Path, pipeline: Pipeline) -> None:
    """Trace a BERT with random weights into a TorchScript file."""
    try:
        import torch

        from bench.readability.bert import seeded
    except ImportError:
        raise Missing("needs torch: pip install 'nbtriton[torch]'") from None
    module = seeded(pipeline.bert, getattr(torch, pipeline.dtype))
    example = torch.ones(2, pipeline.tokens, dtype=torch.int32)
    jit: Any = torch.jit
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # torch calls tracing deprecated; the example is traced
        jit.trace(module, (example, example), check_trace=False).save(str(path))


def train_forest(
    path: Path, features: npt.NDArray[np.float32], texts: tuple[str, ...], trees: int, depth: int
) -> Any:
    """Train a random forest on the texts' grades, write it as a treelite checkpoint, and return it."""
    try:
        import treelite
        from sklearn.ensemble import RandomForestRegressor
    except ImportError:
        raise Missing(
            "needs treelite and scikit-learn: pip install 'nbtriton[readability]'"
        ) from None
    grades = np.array([grade(text) for text in texts], np.float32)
    forest = RandomForestRegressor(
        trees, max_depth=depth, max_features=FEATURES_OF_A_SPLIT, random_state=0
    ).fit(features, grades)
    treelite.sklearn.import_model(forest).serialize(path)
    return forest
