"""Scenes of moving boxes, drawn with seeds, what a detector would see of them, and how well tracks fit.

``python -m tests.steps.tracking --judge PYTHON`` compares the step `bytetrack` with the package `trackers`
of another environment (``pip install trackers==2.6.1`` there) and prints a line for each scene.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import nbtriton as nt

__all__ = ["SCENES", "Frame", "Scene", "quality", "run_step"]

WIDTH, HEIGHT = 1280.0, 720.0


@dataclass(frozen=True, slots=True)
class Frame:
    """What is there, with its numbers, and what a detector sees, with scores."""

    ids: Any
    truth: Any
    boxes: Any
    scores: Any


@dataclass(frozen=True, slots=True)
class Scene:
    """How a scene is drawn: objects that cross a field, each at its own speed.

    Parameters
    ----------
    seed, objects : int
    fps : int
        Objects move as far in a second whatever it is.
    seconds : float
    hidden : float
        The share of objects that are out of sight for a while and come back.
    dropped : float
        The share of frames that never arrive.
    jitter : float
        Pixels by which a detected corner is off.
    """

    seed: int
    objects: int = 12
    fps: int = 30
    seconds: float = 6.0
    hidden: float = 0.0
    dropped: float = 0.0
    jitter: float = 1.5

    def frames(self) -> list[Frame]:
        rng = np.random.default_rng(self.seed)
        count, length = self.objects, int(self.fps * self.seconds)
        size = np.stack([rng.uniform(30, 60, count), rng.uniform(60, 110, count)], axis=1)
        start = rng.uniform((0, 0), (WIDTH, HEIGHT), (count, 2))
        goal = rng.uniform((0, 0), (WIDTH, HEIGHT), (count, 2))
        # Farther ones are hidden by nearer ones.
        depth = rng.permutation(count)
        away = rng.random(count) < self.hidden
        gone = rng.uniform(0.3, 0.6, count)
        found = []
        for number in range(length):
            at = number / max(1, length - 1)
            centre = start + (goal - start) * at
            truth = np.concatenate([centre - size / 2, centre + size / 2], axis=1)
            # Out of sight for 0.4 s.
            there = ~(away & (np.abs(at - gone) < 0.2 / self.seconds))
            shown = np.array([_shown(truth, depth, one, there) for one in range(count)])
            scores = np.clip(rng.normal(0.9, 0.03, count) * (0.25 + 0.75 * shown), 0.0, 1.0)
            seen = there & (scores > 0.15) & (rng.random(count) > 0.01)
            boxes = truth + rng.normal(0.0, self.jitter, truth.shape)
            false = rng.poisson(0.3)
            corner = rng.uniform((0, 0), (WIDTH, HEIGHT), (false, 2))
            boxes = np.concatenate([boxes[seen], np.concatenate([corner, corner + 40], axis=1)])
            scores = np.concatenate([scores[seen], rng.uniform(0.1, 0.5, false)])
            order = rng.permutation(len(boxes))
            if rng.random() >= self.dropped:
                ids = np.flatnonzero(there & (shown > 0.3)) + 1
                found.append(
                    Frame(
                        ids,
                        truth[ids - 1],
                        boxes[order].astype(np.float32),
                        scores[order].astype(np.float32),
                    )
                )
        return found


def _shown(truth: Any, depth: Any, one: int, there: Any) -> float:
    """Return the share of a box that no nearer one covers, roughly."""
    nearer = (depth < depth[one]) & there
    corner = np.maximum(truth[nearer, :2], truth[one, :2])
    size = (np.minimum(truth[nearer, 2:], truth[one, 2:]) - corner).clip(0.0)
    area = float(np.prod(truth[one, 2:] - truth[one, :2]))
    return max(0.0, 1.0 - float((size[:, 0] * size[:, 1]).max(initial=0.0)) / area)


SCENES = {
    "crossings": Scene(1),
    "occlusions": Scene(2, objects=30),
    "re-entry": Scene(3, hidden=0.5),
    "100 objects": Scene(4, objects=100),
    "dropped frames": Scene(5, dropped=0.15),
    "10 a second": Scene(6, fps=10, seconds=12.0),
    "60 a second": Scene(7, fps=60),
    "20 objects": Scene(31, objects=20),
    "re-entry, 16 objects": Scene(47, objects=16, hidden=0.4, seconds=5.0),
    "15 a second, dropped frames": Scene(59, objects=14, fps=15, dropped=0.1, seconds=8.0),
}


def run_step(server: nt.Server, frames: Sequence[Frame], sequence_id: int = 1) -> list[Any]:
    """Return the ids that the step gives to each frame's boxes."""
    last = len(frames) - 1
    return [
        server.infer(
            "bytetrack",
            {"BOXES": frame.boxes[None], "SCORES": frame.scores[None]},
            sequence_id=sequence_id,
            sequence_start=number == 0,
            sequence_end=number == last,
        )["TRACK_IDS"][0]
        for number, frame in enumerate(frames)
    ]


def quality(frames: Sequence[Frame], tracks: Sequence[Any]) -> tuple[float, float]:
    """Return IDF1 and MOTA of the boxes that have a track, with an overlap of one half."""
    import motmetrics

    kept = motmetrics.MOTAccumulator(auto_id=True)
    for frame, ids in zip(frames, tracks, strict=True):
        tracked = ids > 0
        shared = _overlaps(frame.truth, frame.boxes[tracked])
        kept.update(frame.ids, ids[tracked], np.where(shared >= 0.5, 1.0 - shared, np.nan))
    found = motmetrics.metrics.create().compute(kept, metrics=["idf1", "mota"])
    return float(found["idf1"].iloc[0]), float(found["mota"].iloc[0])


def _overlaps(a: Any, b: Any) -> Any:
    """Return the IoU of each pair; that of motmetrics 1.4 needs NumPy 1."""
    low, high = (
        np.maximum(a[:, None, :2], b[None, :, :2]),
        np.minimum(a[:, None, 2:], b[None, :, 2:]),
    )
    shared = (high - low).clip(0.0).prod(axis=2)
    areas = [(one[:, 2:] - one[:, :2]).prod(axis=1) for one in (a, b)]
    return shared / (areas[0][:, None] + areas[1][None, :] - shared)


_JUDGE = """
import sys
import numpy as np
import supervision as sv
from trackers import ByteTrackTracker
data, found = np.load(sys.argv[1]), {}
for scene in range(int(data["scenes"])):
    tracker = ByteTrackTracker(minimum_iou_threshold=0.2)
    for number in range(int(data[f"{scene}"])):
        boxes, scores = data[f"{scene}.{number}.boxes"], data[f"{scene}.{number}.scores"]
        kept = np.flatnonzero(scores >= 0.1)
        given = sv.Detections(boxes[kept], confidence=scores[kept], data={"place": kept})
        done, ids = tracker.update(given), np.zeros(len(boxes), np.int64)
        if len(done):
            ids[done.data["place"]] = done.tracker_id + 1
        found[f"{scene}.{number}"] = ids
np.savez(sys.argv[2], **found)
"""


def judged(python: str, scenes: Sequence[Sequence[Frame]]) -> list[list[Any]]:
    """Return the ids that `trackers` gives to the boxes of each scene, in another environment."""
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = {"scenes": np.int64(len(scenes))}
        for scene, frames in enumerate(scenes):
            given[f"{scene}"] = np.int64(len(frames))
            for number, frame in enumerate(frames):
                given[f"{scene}.{number}.boxes"] = frame.boxes
                given[f"{scene}.{number}.scores"] = frame.scores
        paths = [str(Path(folder, name)) for name in ("given.npz", "found.npz")]
        np.savez(paths[0], **given)
        subprocess.run([python, "-c", _JUDGE, *paths], check=True)
        with np.load(paths[1]) as found:
            return [
                [found[f"{scene}.{number}"] for number in range(len(frames))]
                for scene, frames in enumerate(scenes)
            ]


def main(argv: Sequence[str]) -> None:
    """Print IDF1 and MOTA of the step and of the judge, a line for each scene."""
    parser = argparse.ArgumentParser(prog="python -m tests.steps.tracking", description=__doc__)
    parser.add_argument("--judge", required=True, metavar="PYTHON")
    options = parser.parse_args(argv)
    scenes = [scene.frames() for scene in SCENES.values()]
    others = judged(options.judge, scenes)
    with nt.Server(gpus=()) as server:
        server.load("", nt.step("bytetrack"), name="bytetrack")
        print(f"{'scene':16} {'IDF1':>7} {'judge':>7} {'MOTA':>7} {'judge':>7}")
        for name, frames, other in zip(SCENES, scenes, others, strict=True):
            (idf1, mota), (f, m) = quality(frames, run_step(server, frames)), quality(frames, other)
            print(f"{name:16} {idf1:7.4f} {f:7.4f} {mota:7.4f} {m:7.4f}")


if __name__ == "__main__":
    main(sys.argv[1:])
