"""Keep the best of boxes that overlap, a class at a time: NumPy."""

import numpy as np
import triton_python_backend_utils as pb_utils

from .shared.parameters import read_parameters
from .shared.tensors import answer, give

PARAMETERS = {
    "iou_threshold": ("0.5", (0.0, 1.0), "boxes whose overlap is above it are one object"),
    "score_threshold": ("0.25", (0.0, 1.0), "boxes with a score up to it are dropped"),
    "max_detections": ("300", (1, 100000), "how many are kept of an image"),
}
NAMES = ("BOXES", "SCORES", "CLASSES")


class TritonPythonModel:
    def initialize(self, args):
        values = read_parameters(args["model_config"], PARAMETERS)
        self.iou, self.score, self.most = values.values()

    def execute(self, requests):
        return answer(requests, self.respond)

    def respond(self, request):
        found = [pb_utils.get_input_tensor_by_name(request, name) for name in NAMES]
        boxes, scores, classes = (one and one.as_numpy() for one in found)
        if classes is None:
            classes = np.zeros(scores.shape, np.int32)
        if not boxes.shape[:2] == scores.shape == classes.shape:
            raise ValueError("each of BOXES has one of SCORES and CLASSES")
        kept = [self.keep(*row) for row in zip(boxes, scores, classes)]
        shape = len(kept), max(map(len, kept))
        outputs = (
            np.zeros((*shape, 4), np.float32),
            np.zeros(shape, np.float32),
            np.full(shape, -1, np.int32),
        )
        for at, row in enumerate(kept):
            for output, values in zip(outputs, (boxes, scores, classes)):
                output[at, : len(row)] = values[at, row]
        return give(**dict(zip(NAMES, outputs)))

    def keep(self, boxes, scores, classes):
        """Return the indices of one image's boxes that are kept, best first."""
        kept, sizes = [], (boxes[:, 2:] - boxes[:, :2]).prod(1)
        left = np.argsort(-scores, kind="stable")
        left = left[scores[left] > self.score]
        while len(left) and len(kept) < self.most:
            best, left = left[0], left[1:]
            kept.append(best)
            low = np.maximum(boxes[best, :2], boxes[left, :2])
            shared = (np.minimum(boxes[best, 2:], boxes[left, 2:]) - low).clip(0).prod(1)
            over = shared > self.iou * (sizes[best] + sizes[left] - shared)
            left = left[~(over & (classes[left] == classes[best]))]
        return kept
