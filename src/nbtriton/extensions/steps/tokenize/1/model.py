"""Make the ids of a text's tokens, as a tokenizer.json says: tokenizers."""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from .shared.parameters import read_parameters
from .shared.tensors import give, take

PARAMETERS = {
    "tokenizer": ("tokenizer.json", None, "a file that tokenizers reads"),
    "max_length": ("512", (1, 1000000), "tokens that are left of a longer text"),
    "pad": (
        "longest",
        ("longest", "max_length"),
        "to the longest text of a request, or to max_length",
    ),
}


class TritonPythonModel:
    def initialize(self, args):
        values = read_parameters(args["model_config"], PARAMETERS)
        name, self.most, pad = values.values()
        self.tokenizer = Tokenizer.from_file(str(Path(__file__).parent / name))
        padding = self.tokenizer.padding or {"pad_id": self.tokenizer.token_to_id("[PAD]") or 0}
        self.fixed, self.empty = pad == "max_length", padding["pad_id"]
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.most)

    def execute(self, requests):
        tensors = [take(one, "TEXT", None) for one in requests]
        texts = [text.decode(errors="replace") for tensor in tensors for text in tensor.reshape(-1)]
        rows = iter([one.ids for one in self.tokenizer.encode_batch(texts)])
        return [self.respond([next(rows) for _ in range(tensor.size)]) for tensor in tensors]

    def respond(self, rows):
        length = self.most if self.fixed else max(map(len, rows))
        ids = np.full((len(rows), length), self.empty, np.int64)
        mask = np.zeros_like(ids)
        for at, row in enumerate(rows):
            ids[at, : len(row)] = row
            mask[at, : len(row)] = 1
        return give(INPUT_IDS=ids, ATTENTION_MASK=mask)
