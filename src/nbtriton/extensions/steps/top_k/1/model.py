"""Find the largest scores, with their labels: NumPy, on a GPU PyTorch."""

from pathlib import Path

import numpy as np

from .shared.parameters import read_parameters
from .shared.tensors import device_of, give, refuse, take

PARAMETERS = {
    "k": ("5", (1, 100000), "how many; of fewer scores all"),
    "labels": ("", None, "a file with a line a score; without it labels are the indices"),
}


class TritonPythonModel:
    def initialize(self, args):
        values = read_parameters(args["model_config"], PARAMETERS)
        self.device = device_of(args)
        self.k, name = values.values()
        file = Path(__file__).parent / name
        self.labels = file.read_text("utf-8").splitlines() if name else None

    def execute(self, requests):
        return [self.respond(take(request, "SCORES", self.device)) for request in requests]

    def respond(self, scores):
        if self.device is None:
            indices = np.argsort(-scores, axis=-1, kind="stable")[:, : self.k]
            best, rows = np.take_along_axis(scores, indices, -1), indices
        else:
            best, indices = scores.sort(dim=-1, descending=True, stable=True)
            best, indices = best[:, : self.k], indices[:, : self.k]
            rows = indices.cpu().numpy()
        if self.labels is not None and scores.shape[1] != len(self.labels):
            text = f"SCORES has {scores.shape[1]} scores for {len(self.labels)} labels"
            return refuse(text)
        names = rows if self.labels is None else np.array(self.labels, object)[rows]
        labels = np.array([str(one).encode() for one in names.reshape(-1)], object)
        return give(SCORES=best, INDICES=indices, LABELS=labels.reshape(rows.shape))
