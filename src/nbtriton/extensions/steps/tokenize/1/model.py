"""Make the ids of a text's tokens, as a tokenizer.json says: tokenizers."""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

PARAMETERS = {
    "tokenizer": ("tokenizer.json", None, "a file that tokenizers reads"),
    "max_length": ("512", (1, 1000000), "tokens that are left of a longer text"),
    "pad": (
        "longest",
        ("longest", "max_length"),
        "to the longest text of a request, or to max_length",
    ),
}


def read_parameters(config):
    """Return the values of each of PARAMETERS: what the configuration says, checked, or the default."""
    given = {key: one["string_value"] for key, one in json.loads(config)["parameters"].items()}
    if unknown := {key for key in given if key.islower()} - PARAMETERS.keys():
        raise ValueError(f"unknown parameter '{min(unknown)}', known are {', '.join(PARAMETERS)}")
    values = {}
    for name, (default, allowed, _) in PARAMETERS.items():
        text = given.get(name, default)
        try:
            found = [type(allowed[0])(word) for word in text.split(",")] if allowed else [text]
        except ValueError:
            found = []
        words = not allowed or isinstance(allowed[0], str)
        valid = [x in (allowed or found) if words else allowed[0] <= x <= allowed[1] for x in found]
        if not all(valid) or len(valid) != len(default.split(",")):
            raise ValueError(f"{name} is '{text}', allowed is {allowed}, as in '{default}'")
        values[name] = found
    return values


class TritonPythonModel:
    def initialize(self, args):
        values = read_parameters(args["model_config"])
        (name,), (self.most,), (pad,) = (values[name] for name in PARAMETERS)
        self.tokenizer = Tokenizer.from_file(str(Path(__file__).parent / name))
        padding = self.tokenizer.padding or {"pad_id": self.tokenizer.token_to_id("[PAD]") or 0}
        self.fixed, self.empty = pad == "max_length", padding["pad_id"]
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.most)

    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(one, "TEXT").as_numpy() for one in requests]
        texts = [text.decode() for tensor in tensors for text in tensor.reshape(-1)]
        rows = iter([one.ids for one in self.tokenizer.encode_batch(texts)])
        return [self.respond([next(rows) for _ in range(tensor.size)]) for tensor in tensors]

    def respond(self, rows):
        length = self.most if self.fixed else max(map(len, rows))
        ids = np.full((len(rows), length), self.empty, np.int64)
        mask = np.zeros_like(ids)
        for at, row in enumerate(rows):
            ids[at, : len(row)] = row
            mask[at, : len(row)] = 1
        tensors = [pb_utils.Tensor("INPUT_IDS", ids), pb_utils.Tensor("ATTENTION_MASK", mask)]
        return pb_utils.InferenceResponse(tensors)
