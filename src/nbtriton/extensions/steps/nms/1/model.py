"""Keep the best of boxes that overlap, a class at a time: NumPy."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

PARAMETERS = {
    "iou_threshold": ("0.5", (0.0, 1.0), "boxes whose overlap is above it are one object"),
    "score_threshold": ("0.25", (0.0, 1.0), "boxes with a score up to it are dropped"),
    "max_detections": ("300", (1, 100000), "how many are kept of an image"),
}
NAMES = ("BOXES", "SCORES", "CLASSES")


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
        (self.iou,), (self.score,), (self.most,) = (values[name] for name in PARAMETERS)

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        found = [pb_utils.get_input_tensor_by_name(request, name) for name in NAMES]
        boxes, scores, classes = (one and one.as_numpy() for one in found)
        if classes is None:
            classes = np.zeros(scores.shape, np.int32)
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
        made = [pb_utils.Tensor(name, output) for name, output in zip(NAMES, outputs)]
        return pb_utils.InferenceResponse(made)

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
