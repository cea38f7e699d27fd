"""Follow boxes from frame to frame, a sequence for each stream: ByteTrack (arXiv 2110.06864), SciPy."""

from collections import OrderedDict

import numpy as np
import triton_python_backend_utils as pb_utils
from scipy.optimize import linear_sum_assignment

from .shared.parameters import read_parameters

PARAMETERS = {
    "high": ("0.6", (0.0, 1.0), "score from which a box is strong, and matched first"),
    "low": ("0.1", (0.0, 1.0), "score below which a box is left out"),
    "new": ("0.7", (0.0, 1.0), "score from which a strong box without a track begins one"),
    "overlap": ("0.2", (0.0, 1.0), "lowest overlap (IoU) of a strong box with its track"),
    "weak_overlap": ("0.5", (0.0, 1.0), "the same for a weak box"),
    "buffer": ("30", (0, 100_000), "frames for which a lost track is kept"),
    "confirm": ("2", (1, 100), "frames in a row until a track has a number"),
}
# Variances of the motion of a corner and of its measurement. The filter's gains depend on their
# ratios alone, so they hold for boxes of any size.
MOTION, MEASUREMENT, FIRST = 0.01, 0.1, 1.0
# Streams that never say END: the least recently used leave.
MOST_STREAMS = 4096


def overlaps(a, b):
    """Return the IoU of each box of one array with each of another."""
    corner = np.maximum(a[:, None, :2], b[None, :, :2])
    size = (np.minimum(a[:, None, 2:], b[None, :, 2:]) - corner).clip(0.0)
    shared = size[..., 0] * size[..., 1]
    areas = [np.prod((one[:, 2:] - one[:, :2]).clip(0.0), axis=1) for one in (a, b)]
    return shared / np.maximum(areas[0][:, None] + areas[1][None, :] - shared, 1e-9)


class Tracks:
    """The tracks of one stream: arrays with a row for each.

    Corners move at a constant velocity (a Kalman filter). All four have the same variances, so a track
    has three numbers for them: of the place, of the velocity, and their covariance.
    """

    def __init__(self, values):
        self.values = values
        self.last = 0
        self.boxes, self.velocities = np.zeros((0, 4)), np.zeros((0, 4))
        self.variances = np.zeros((0, 3))
        self.ids, self.classes = np.zeros(0, np.int64), np.zeros(0, np.int64)
        # Frames since its last box, and frames in a row with one.
        self.missed, self.hits = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def keep(self, rows):
        for name in ("boxes", "velocities", "variances", "ids", "classes", "missed", "hits"):
            setattr(self, name, getattr(self, name)[rows])

    def predict(self):
        self.boxes = self.boxes + self.velocities
        place, both, speed = self.variances.T
        moved = [place + 2 * both + speed + MOTION, both + speed, speed + MOTION]
        self.variances = np.stack(moved, axis=1)
        self.hits = np.where(self.missed > 0, 0, self.hits)
        self.missed = self.missed + 1

    def correct(self, rows, boxes):
        place, both, speed = self.variances[rows].T
        gain, turn = place / (place + MEASUREMENT), both / (place + MEASUREMENT)
        error = boxes - self.boxes[rows]
        self.boxes[rows] += gain[:, None] * error
        self.velocities[rows] += turn[:, None] * error
        left = [(1 - gain) * place, (1 - gain) * both, speed - turn * both]
        self.variances[rows] = np.stack(left, axis=1)
        self.missed[rows] = 0
        self.hits[rows] += 1
        for row in rows[(self.ids[rows] == 0) & (self.hits[rows] >= self.values["confirm"])]:
            self.last += 1
            self.ids[row] = self.last

    def match(self, rows, boxes, classes, least):
        """Return the tracks and the boxes that belong together, as positions in both."""
        shared = overlaps(self.boxes[rows], boxes)
        shared[self.classes[rows][:, None] != classes[None, :]] = 0.0
        # What overlaps too little takes no part: it may not keep others from their best.
        shared[shared < max(least, 1e-9)] = 0.0
        a, b = linear_sum_assignment(shared, maximize=True)
        found = shared[a, b] > 0.0
        return a[found], b[found]

    def update(self, boxes, scores, classes):
        """Match a frame's boxes; return the number of each one's track, 0 for none."""
        values = self.values
        boxes = boxes.astype(np.float64)
        scores = np.where(np.isfinite(boxes).all(axis=1), scores, -1.0)
        given = np.zeros(len(boxes), np.int64)
        self.predict()
        # Lost for too long, or seen once only.
        seen = self.missed <= np.where(self.ids > 0, values["buffer"] + 1, 1)
        self.keep(seen)
        strong = np.flatnonzero(scores >= values["high"])
        weak = np.flatnonzero((scores >= values["low"]) & (scores < values["high"]))
        everyone = np.arange(len(self.boxes))
        a, b = self.match(everyone, boxes[strong], classes[strong], values["overlap"])
        self.correct(everyone[a], boxes[strong[b]])
        given[strong[b]] = self.ids[everyone[a]]
        # What hides behind another is seen weakly: it continues a track, and begins none.
        rest = np.setdiff1d(everyone, a)
        c, d = self.match(rest, boxes[weak], classes[weak], values["weak_overlap"])
        self.correct(rest[c], boxes[weak[d]])
        given[weak[d]] = self.ids[rest[c]]
        fresh = np.setdiff1d(strong, strong[b])
        fresh = fresh[scores[fresh] >= values["new"]]
        given[fresh] = self.begin(boxes[fresh], classes[fresh])
        return given

    def begin(self, boxes, classes):
        count = len(boxes)
        ids = np.zeros(count, np.int64)
        if self.values["confirm"] == 1:
            ids += self.last + 1 + np.arange(count)
            self.last += count
        self.boxes = np.concatenate([self.boxes, boxes])
        self.velocities = np.concatenate([self.velocities, np.zeros((count, 4))])
        self.variances = np.concatenate([self.variances, np.tile([FIRST, 0.0, FIRST], (count, 1))])
        self.ids = np.concatenate([self.ids, ids])
        self.classes = np.concatenate([self.classes, classes])
        self.missed = np.concatenate([self.missed, np.zeros(count, np.int64)])
        self.hits = np.concatenate([self.hits, np.ones(count, np.int64)])
        return ids


class TritonPythonModel:
    def initialize(self, args):
        self.values = read_parameters(args["model_config"], PARAMETERS)
        self.streams = OrderedDict()

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        stream, flags = request.correlation_id(), request.flags()
        if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START or stream not in self.streams:
            self.streams[stream] = Tracks(self.values)
            if len(self.streams) > MOST_STREAMS:
                self.streams.popitem(last=False)
        tracks = self.streams[stream]
        self.streams.move_to_end(stream)
        if flags & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
            del self.streams[stream]
        tensors = [pb_utils.get_input_tensor_by_name(request, n) for n in ("BOXES", "SCORES")]
        boxes, scores = (tensor.as_numpy()[0] for tensor in tensors)
        given = pb_utils.get_input_tensor_by_name(request, "CLASSES")
        classes = np.zeros(len(boxes)) if given is None else given.as_numpy()[0]
        if not len(boxes) == len(scores) == len(classes):
            text = f"{len(boxes)} BOXES, {len(scores)} SCORES and {len(classes)} CLASSES"
            code = pb_utils.TritonError.INVALID_ARG
            error = pb_utils.TritonError(f"{text}: each box has one", code)
            return pb_utils.InferenceResponse([], error)
        ids = tracks.update(boxes, scores, classes.astype(np.int64))
        return pb_utils.InferenceResponse([pb_utils.Tensor("TRACK_IDS", ids[None])])
