"""The step `bytetrack`: ids stay with their objects, each stream has its own, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError

pytest.importorskip("scipy", reason="SciPy is not installed")

from tests.steps.tracking import SCENES, Scene, quality, run_step

# IDF1 and MOTA of trackers 2.6.1 (ByteTrackTracker, minimum_iou_threshold=0.2, else its defaults), by
# `python -m tests.steps.tracking`.
JUDGE = {
    "crossings": (0.9831, 0.9662),
    "occlusions": (0.9810, 0.9622),
    "re-entry": (0.9896, 0.9793),
    "100 objects": (0.9559, 0.9177),
    "dropped frames": (0.9871, 0.9744),
    "10 a second": (0.9866, 0.9733),
    "60 a second": (0.9919, 0.9840),
    "20 objects": (0.9837, 0.9746),
    "re-entry, 16 objects": (0.9903, 0.9807),
    "15 a second, dropped frames": (0.9888, 0.9779),
}


@pytest.fixture
def load(server):
    def made(**parameters):
        server.load("", nt.step("bytetrack", **parameters), name="bytetrack")

    made()
    return made


def boxes_at(*places):
    return np.array([[x, y, x + 40, y + 80] for x, y in places], np.float32).reshape(-1, 4)


class Follow:
    """One stream, frame by frame."""

    def __init__(self, server, sequence_id=7):
        self.server, self.sequence_id, self.started = server, sequence_id, False

    def __call__(self, boxes, scores=None, *, end=False, **inputs):
        scores = np.full(len(boxes), 0.9) if scores is None else np.asarray(scores)
        given = {"BOXES": boxes[None], "SCORES": scores[None].astype(np.float32)}
        start, self.started = not self.started, True
        found = self.server.infer(
            "bytetrack", {**given, **inputs},
            sequence_id=self.sequence_id, sequence_start=start, sequence_end=end,
        )  # fmt: skip
        if end:
            self.started = False
        return found["TRACK_IDS"][0].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_tracks_are_as_good_as_those_of_the_judge(server, load, name):
    pytest.importorskip("motmetrics", reason="motmetrics is not installed")
    frames = SCENES[name].frames()
    assert quality(frames, run_step(server, frames)) == pytest.approx(JUDGE[name], abs=0.01)


def test_ids_are_in_the_order_of_the_boxes_and_come_with_the_second_frame(server, load):
    follow = Follow(server)
    assert follow(boxes_at((10, 10), (500, 300))) == [0, 0]
    assert follow(boxes_at((12, 10), (502, 300))) == [1, 2]
    assert follow(boxes_at((504, 300), (14, 10))) == [2, 1]
    assert follow(boxes_at()) == []
    assert follow(boxes_at((900, 600), (18, 10), (508, 300))) == [0, 1, 2]


def test_two_that_cross_keep_their_ids(server, load):
    follow = Follow(server)
    for step in range(60):
        ids = follow(boxes_at((100 + 5 * step, 200), (400 - 5 * step, 215)))
    assert ids == [1, 2]


def test_a_weak_box_continues_a_track_and_begins_none(server, load):
    follow = Follow(server)
    for x in (10, 12, 14):
        follow(boxes_at((x, 10)))
    assert follow(boxes_at((16, 10), (600, 10)), [0.3, 0.3]) == [1, 0]
    assert follow(boxes_at((18, 10), (600, 10)), [0.05, 0.3]) == [0, 0]
    assert follow(boxes_at((20, 10), (600, 10)), [0.9, 0.65]) == [1, 0]
    assert follow(boxes_at((22, 10), (600, 10)), [0.9, 0.65]) == [1, 0], "too weak to begin one"


@pytest.mark.parametrize(("away", "comes_back"), [(5, True), (6, False)])
def test_a_lost_track_is_kept_for_its_buffer(server, load, away, comes_back):
    load(buffer=5)
    follow = Follow(server)
    for x in (10, 14, 18, 22):
        follow(boxes_at((x, 10)))
    for _ in range(away):
        follow(boxes_at())
    ids = follow(boxes_at((26 + 4 * away, 10)))
    assert ids == ([1] if comes_back else [0])


def test_another_class_is_another_object(server, load):
    follow = Follow(server)
    car, person = (np.array([[kind]], np.int32) for kind in (1, 2))
    for x in (10, 12, 14):
        assert follow(boxes_at((x, 10)), CLASSES=car) in ([0], [1])
    assert follow(boxes_at((16, 10)), CLASSES=person) == [0]
    assert follow(boxes_at((18, 10)), CLASSES=person) == [2]


def test_a_stream_that_begins_again_counts_anew(server, load):
    follow = Follow(server)
    follow(boxes_at((10, 10)))
    assert follow(boxes_at((12, 10)), end=True) == [1]
    assert follow(boxes_at((300, 10))) == [0]
    assert follow(boxes_at((302, 10))) == [1]


@pytest.mark.medium
def test_64_streams_in_one_model_are_64_streams_alone(server, load):
    streams = [Scene(seed, objects=6, seconds=0.5).frames() for seed in range(100, 164)]
    alone = [run_step(server, frames) for frames in streams]
    together = [Follow(server, 1000 + number) for number in range(len(streams))]
    for number in range(len(streams[0])):
        for follow, frames, wanted in zip(together, streams, alone, strict=True):
            frame = frames[number]
            assert follow(frame.boxes, frame.scores) == wanted[number].tolist()


def test_boxes_that_are_no_numbers_have_no_track(server, load):
    follow = Follow(server)
    wrong = boxes_at((10, 10), (0, 0))
    wrong[1] = np.nan
    follow(wrong)
    assert follow(wrong, [0.9, np.nan]) == [1, 0]


def test_a_score_is_missing(server, load):
    with pytest.raises(InvalidArgumentError, match="2 BOXES, 1 SCORES and 2 CLASSES"):
        Follow(server)(boxes_at((1, 1), (2, 2)), [0.5])


@pytest.mark.slow
@pytest.mark.reference
def test_the_real_server_gives_the_same_ids(server, load, reference, tmp_path):
    grpcclient = pytest.importorskip("tritonclient.grpc")
    streams = [Scene(seed, objects=8, seconds=1.0).frames() for seed in (1, 2)]
    wanted = [run_step(server, frames) for frames in streams]
    server.export(tmp_path / "models", models=["bytetrack"])
    python = reference.shared_python(tmp_path / "python")
    if python is None:
        pytest.skip("the reference is for another version of Python")
    with (
        reference.server(tmp_path / "models", python=python) as running,
        grpcclient.InferenceServerClient(running.grpc_url) as client,
    ):
        for number, turn in enumerate(zip(*streams, strict=True)):
            for stream, frame in enumerate(turn):
                given = []
                for name, array in (("BOXES", frame.boxes), ("SCORES", frame.scores)):
                    given.append(grpcclient.InferInput(name, [1, *array.shape], "FP32"))
                    given[-1].set_data_from_numpy(array[None])
                result = client.infer(
                    "bytetrack", given, sequence_id=stream + 1,
                    sequence_start=number == 0, sequence_end=number == len(streams[0]) - 1,
                )  # fmt: skip
                assert result.as_numpy("TRACK_IDS")[0].tolist() == wanted[stream][number].tolist()
