"""Tokens for BERT and features for the trees, from excerpts."""

import json
import os
import re
import string
from collections import Counter

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")
SENTENCE = re.compile(r"[.!?]+")
PUNCTUATION = re.compile("[" + re.escape(string.punctuation) + "]")


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        given = config["parameters"].get("FILES")
        folder = (
            given["string_value"]
            if given
            else os.path.join(args["model_repository"], args["model_version"])
        )
        outputs = {output["name"]: output for output in config["output"]}
        tokens = int(outputs["BERT_IDS"]["dims"][0])
        self.tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self.tokenizer.enable_truncation(tokens)
        self.tokenizer.enable_padding(length=tokens)
        with open(os.path.join(folder, "words.json"), encoding="utf-8") as file:
            words = json.load(file)
        self.stop = frozenset(words["stop"])
        self.counted = words["common"] + words["rare"]
        self.device = None
        if args["model_instance_kind"] == "GPU":
            import torch

            if torch.cuda.is_available():
                self.device = torch.device("cuda", int(args["model_instance_device_id"]))

    def execute(self, requests):
        texts, ends = [], []
        for request in requests:
            rows = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            texts += [row[0].decode() for row in rows] if rows.shape[1] == 1 else [None] * len(rows)
            ends.append(len(texts))
        known = [text or "" for text in texts]
        # All rows of all requests at once: the tokenizer has threads and releases the GIL.
        encoded = self.tokenizer.encode_batch_fast(known)
        ids = np.array([each.ids for each in encoded], np.int32)
        mask = np.array([each.attention_mask for each in encoded], np.int32)
        outputs = {"BERT_IDS": ids, "BERT_AM": mask, "TREE_FEATS": self.features(known)}
        responses, begin = [], 0
        for end in ends:
            if None in texts[begin:end]:
                error = pb_utils.TritonError(
                    "a row of INPUT0 is one excerpt: its shape is [ROWS, 1]",
                    pb_utils.TritonError.INVALID_ARG,
                )
                responses.append(pb_utils.InferenceResponse(error=error))
            else:
                tensors = [self.tensor(name, value[begin:end]) for name, value in outputs.items()]
                responses.append(pb_utils.InferenceResponse(tensors))
            begin = end
        return responses

    def features(self, texts):
        """Counts of words, different words, punctuation, sentences, words per sentence, stop words and
        stop words per sentence; then the frequency of each counted word."""
        rows = np.zeros((len(texts), 7 + len(self.counted)), np.float32)
        for row, text in zip(rows, texts):
            words = WORD.findall(text.lower())
            counts = Counter(words)
            total = max(1, len(words))
            sentences = max(1, len(SENTENCE.findall(text)))
            stops = sum(count for word, count in counts.items() if word in self.stop)
            row[:7] = (
                len(words), len(counts), len(PUNCTUATION.findall(text)), sentences,
                len(words) / sentences, stops, stops / sentences,
            )  # fmt: skip
            row[7:] = [counts.get(word, 0) / total for word in self.counted]
        return rows

    def tensor(self, name, value):
        if self.device is None:
            return pb_utils.Tensor(name, value)
        import torch

        moved = torch.from_numpy(value).to(self.device)
        return pb_utils.Tensor.from_dlpack(name, torch.utils.dlpack.to_dlpack(moved))
