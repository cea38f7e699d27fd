"""Data of `preprocess`, made from the bundled texts: BERT's vocabulary, and the words to count."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

from bench.figures import Missing
from bench.readability.corpus import STOP_WORDS, texts

__all__ = ["COUNTED", "PIECES", "write_vocabulary"]

# Limit of the vocabulary: BERT's 30,522 word pieces need more text.
PIECES = 4000
# Ranks of the words whose frequencies are features.
COUNTED = 100
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def write_vocabulary(folder: Path) -> None:
    """Write ``tokenizer.json`` (lower case, WordPiece, as BERT's) and ``words.json``."""
    _tokenizer(folder / "tokenizer.json")
    counts = Counter(re.findall(r"[a-z]+(?:'[a-z]+)*", " ".join(texts()).lower()))
    # Equally frequent words are in alphabetical order.
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    words = {
        "common": ranked[:COUNTED],
        "rare": ranked[-COUNTED:],
        "stop": list(STOP_WORDS),
    }
    (folder / "words.json").write_text(json.dumps(words, indent=1) + "\n", encoding="utf-8")


def _tokenizer(file: Path) -> None:
    try:
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    except ImportError:
        raise Missing("needs tokenizers: pip install 'nbtriton[readability]'") from None
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106 - a token of text
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=PIECES, special_tokens=list(SPECIAL), show_progress=False
    )
    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    tokenizer.save(str(file))
