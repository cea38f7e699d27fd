"""The pipeline as cells of a notebook, which runs in a checkout of nbtriton."""

from __future__ import annotations

from bench.readability.build import ENSEMBLE, MODELS
from bench.readability.configs import configs

__all__ = ["cells"]

FILES = """import tempfile
from pathlib import Path

from bench.readability.corpus import excerpts
from bench.readability.vocabulary import write_vocabulary

files = Path(tempfile.mkdtemp())
write_vocabulary(files)  # tokenizer.json and words.json, made of two texts in the public domain
texts = excerpts({training})"""

BERT = """import nbtriton as nt
import torch

from bench.readability.bert import seeded

bert = seeded("{bert}")  # random weights; "large" has 334 million parameters
_ = nt.server().load({config}, bert, name="bert-large")"""

FOREST = """from bench.readability.build import column, features_of, train_forest

features = features_of(nt.server(), texts, {batch})
forest = train_forest(files / "checkpoint.tl", features, texts, trees={trees}, depth=16)
_ = nt.server().load({config}, files / "checkpoint.tl", name="cuml")"""

ASK = """import numpy as np

request = {"excerpt": column(texts[:4]), "BERT_WEIGHT": np.full((4, 1), 0.5, np.float32)}
nt.server().infer("ensemble_all", request)["SCORE"]"""


def cells(
    bert: str = "tiny", tokens: int = 128, trees: int = 100, training: int = 800, batch: int = 512
) -> list[str]:
    """Return the cells' sources: files, the four models, the ensemble, a request.

    Parameters
    ----------
    bert : str
        A size of `bench.readability.bert.SIZES`.
    tokens, trees, training, batch : int
        As in `bench.readability.build.Pipeline`.
    """
    texts = configs(tokens, batch)

    def literal(text: str) -> str:
        return f'"""{text}"""'

    def python(name: str) -> str:
        """Return the cells of a step in Python: configuration and model.py."""
        return f"%%triton_model {name} --config {name}_config\n" + (
            MODELS / name / "model.py"
        ).read_text(encoding="utf-8")

    given = 'parameters {{ key: "FILES" value {{ string_value: "{files}" }} }}'
    preprocess = f'preprocess_config = {literal(texts["preprocess"])} + f"""{given}"""'
    return [
        "%load_ext nbtriton",
        FILES.format(training=training),
        preprocess,
        python("preprocess"),
        BERT.format(bert=bert, config=literal(texts["bert-large"])),
        FOREST.format(batch=batch, trees=trees, config=literal(texts["cuml"])),
        f"postprocess_config = {literal(texts['postprocess'])}",
        python("postprocess"),
        f"%%triton_ensemble {ENSEMBLE}\n{texts[ENSEMBLE]}",
        ASK,
    ]
