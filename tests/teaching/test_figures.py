"""Figures: the six by hand-computed schedules, sentences that are true of them, predictions that they mark."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import ConfigError, InvalidArgumentError, NotFoundError
from nbtriton.extensions.lessons import SCENARIOS, Progress
from nbtriton.extensions.lessons.figures import batch_rows, picture_of
from nbtriton.extensions.lessons.predicting import sizes_of
from nbtriton.extensions.lessons.running import run, traced
from nbtriton.extensions.lessons.scenes import figure_scenes, stage_scenes
from nbtriton.extensions.lessons.sentences import finding_of, moments_of
from nbtriton.lab.explain.timeline import sequence_strips

# Model, begin and end in milliseconds, requests, reason: computed by hand from arrivals and execution times.
SCHEDULES = {
    "two_models": [
        ("detect", 0, 30, ["1"], "batching_off"),
        ("classify", 0, 20, ["2"], "batching_off"),
    ],
    "one_instance": [("slow", 20 * k, 20 * k + 20, [str(k + 1)], "batching_off") for k in range(4)],
    "three_instances": [
        ("slow", 0, 20, ["1"], "batching_off"),
        ("slow", 0, 20, ["2"], "batching_off"),
        ("slow", 0, 20, ["3"], "batching_off"),
        ("slow", 20, 40, ["4"], "batching_off"),
    ],
    "batch_forms": [
        ("slow", 0, 20, ["1"], "no_delay"),
        ("slow", 20, 40, ["2", "3", "4"], "joined"),
        ("slow", 40, 60, ["5"], "no_delay"),
    ],
    # C has no slot until A has ended, at 45 ms; each slot gives one request to a batch.
    "sequence_slots": [
        ("chat", 0, 15, ["A1"], "sequence_ready"),
        ("chat", 15, 30, ["B1"], "sequence_ready"),
        ("chat", 30, 45, ["A2", "B2"], "sequence_ready"),
        ("chat", 45, 60, ["C1", "B3"], "sequence_ready"),
        ("chat", 60, 75, ["C2"], "sequence_ready"),
    ],
    "ensemble_request": [
        ("preprocess", 0, 10, ["1"], "batching_off"),
        ("classification", 10, 30, ["1"], "batching_off"),
        ("segmentation", 10, 50, ["1"], "batching_off"),
    ],
}
FINDINGS = {
    "two_models": "detect and classify have instances of their own: for 20 of 30 ms they ran at the same "
    "time, and neither waited for the other.",
    "one_instance": "slow has 1 instance, and one batch ran at a time: 3 of 4 requests waited, the "
    "longest for 60 ms.",
    "three_instances": "slow has 3 instances, and up to 3 batches ran at once: 1 of 4 requests waited, "
    "for 20 ms.",
    "batch_forms": "While request 1 ran, requests 2, 3 and 4 gathered: they left together at 20 ms, as "
    "one batch.",
    "sequence_slots": "2 slots for 3 sequences: sequence C waited 40 ms, until another one had ended and "
    "its slot was free at 45 ms.",
    "ensemble_request": "One request to pipeline became 3 internal ones; classification and segmentation "
    "ran side by side for 20 ms, and the response left after 50 ms.",
}
SLOW = 'name: "slow" max_batch_size: %d dynamic_batching { %s }'


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_six_figures_are_what_the_schedulers_do(name):
    happened = run(SCENARIOS[name]())
    found = [
        (row["model"], row["at_ms"], row["end_ms"], row["requests"], row["reason"])
        for row in batch_rows(happened)
    ]
    assert found == SCHEDULES[name]
    assert finding_of(happened) == FINDINGS[name]


def test_an_ensemble_request_has_six_moments():
    moments = moments_of(run(SCENARIOS["ensemble_request"]()))
    assert moments.at_ms == (0, 0, 10, 10, 30, 50)
    assert moments.words[3].startswith(
        "pipeline has preprocessed_image, all that classification and segmentation read"
    )
    assert "the response leaves, 50 ms after its request" in moments.words[5]


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"instances": 4}, "slow has 4 instances, and up to 4 batches ran at once: none of 4 requests waited."),
        ({"instances": 2}, "slow has 2 instances, and up to 2 batches ran at once: 2 of 4 requests waited, the longest for 20 ms."),
        ({"arrivals": "0 30"}, "slow has 1 instance, and one batch ran at a time: none of 2 requests waited."),
    ],
)  # fmt: skip
def test_the_sentence_stays_true_when_something_is_changed(changes, finding):
    assert finding_of(run(SCENARIOS["one_instance"]().changed(**changes))) == finding


def test_other_sentences_where_what_a_figure_is_about_does_not_happen():
    assert "never ran at the same time" in finding_of(
        run(SCENARIOS["two_models"]().changed(arrivals="0@detect 40@classify"))
    )
    assert "No two requests left together" in finding_of(
        run(SCENARIOS["batch_forms"]().changed(dynamic_batching=False))
    )
    delayed = run(SCENARIOS["batch_forms"]().changed(max_queue_delay_us=12_000))
    assert finding_of(delayed) == (
        "Requests 1, 2 and 3 left together at 12 ms: the oldest had waited for the queue delay."
    )
    assert "each found one free" in finding_of(
        run(SCENARIOS["sequence_slots"]().changed(max_batch_size=3))
    )


def test_models_run_side_by_side_for_no_longer_than_they_run():
    """With two instances each, every batch of one model overlaps with two of the other."""
    two = run(SCENARIOS["two_models"]().changed(instances=2, arrivals="0@detect 0@detect 0@classify 0@classify"))  # fmt: skip
    assert "for 20 of 30 ms they ran at the same time" in finding_of(two)
    pipeline = run(SCENARIOS["ensemble_request"]().changed(instances=2, arrivals="0 0"))
    assert "classification and segmentation ran side by side for 20 ms" in finding_of(pipeline)


def test_a_sequence_that_waits_has_no_slot_of_its_own():
    requests = run(SCENARIOS["sequence_slots"]()).records[0].requests
    strips = sequence_strips(requests, 0, slots=2)
    assert [strip.name for strip in strips] == ["chat_0_0 slot 0", "chat_0_0 slot 1"]
    spans = [[(one.label, one.begin_ms, one.end_ms) for one in strip.spans] for strip in strips]
    assert spans == [[("A", 0, 45), ("C", 45, 75)], [("B", 0, 60)]]


def test_every_token_has_its_place_at_every_moment():
    for name, make in SCENARIOS.items():
        picture = picture_of(run(make()))
        for stage in stage_scenes(picture):
            for request, places in zip(picture.requests, stage.places, strict=True):
                states = [(int(moment), int(state)) for moment, _, _, state in places]
                assert states[0][0] == request.arrive, name
                assert states[-1] == (request.end, 0), name
                runs = [moment for moment, state in states if state == 2]
                assert runs[:1] in ([], [request.leave]), name
            width = dict(stage.scene.attrs)["width"]
            assert all(x <= width for places in stage.places for _, x, _, state in places if state)


@pytest.mark.parametrize("name", SCENARIOS)
def test_text_of_a_picture_is_never_small_and_never_outside(name):
    for scene in figure_scenes(picture_of(run(SCENARIOS[name]()))):
        sizes = [dict(one.attrs)["font-size"] for one in scene.walk() if one.tag == "text"]
        assert min(sizes) >= 11
        assert all(dict(one.attrs)["x"] >= 0 for one in scene.walk() if one.tag == "text")


def test_long_names_say_which_instance_and_use_the_room_before_the_first_request():
    picture = picture_of(run(SCENARIOS["ensemble_request"]()))
    names = ["pipeline", *(f"{name}_of_grey_pictures" for name in ("crop", "classify", "segment"))]
    picture = replace(
        picture,
        models=tuple(
            replace(one, name=name, instances=(f"{name}_0", f"{name}_1"))
            for one, name in zip(picture.models, names, strict=True)
        ),
    )
    narrow = figure_scenes(picture)[0]
    words = [one.children[0] for one in narrow.walk() if one.tag == "text"]
    assert names[2] in words  # its request comes after 10 of 50 ms
    cut = [word for word in words if "…" in word and word[-2] == "_"]
    assert len(cut) == len(set(cut)) > 0


def test_errors_name_what_is_allowed():
    with pytest.raises(InvalidArgumentError, match="is no arrival"):
        nt.lessons.scenario(SLOW % (8, ""), "soon")
    with pytest.raises(InvalidArgumentError, match="3 rows, and max_batch_size of 'slow' is 2"):
        nt.lessons.scenario(SLOW % (2, ""), "0x3")
    with pytest.raises(NotFoundError, match="which this scenario has not"):
        nt.lessons.scenario(SLOW % (2, ""), "0@fast")
    with pytest.raises(InvalidArgumentError, match="has no sequence_batching"):
        nt.lessons.scenario(SLOW % (2, ""), "0#A")
    with pytest.raises(InvalidArgumentError, match="names no sequence"):
        nt.lessons.scenario('name: "chat" max_batch_size: 2 sequence_batching { }', "0")
    with pytest.raises(InvalidArgumentError, match="no execution time"):
        nt.lessons.scenario(SLOW % (2, ""), "0", execution_ms=0)
    with pytest.raises(InvalidArgumentError, match="1 to 32"):
        nt.lessons.scenario(SLOW % (2, ""), range(33))
    with pytest.raises(ConfigError, match="preferred size must be <= max batch size"):
        nt.lessons.scenario(SLOW % (4, ""), "0").changed(preferred=[8])
    with pytest.raises(InvalidArgumentError, match="33 instances of 'slow'; a figure has at most"):
        nt.lessons.figure("batch_forms", instances=33)
    with pytest.raises(InvalidArgumentError, match="has no option 'instance'") as caught:
        nt.lessons.scenario(SLOW % (4, ""), "0").changed(instance=2)
    assert "instances" in caught.value.hint


def test_a_default_preferred_size_does_not_stand_in_the_way():
    # Normalization prefers the largest size where a delay is set; a smaller batch has to be possible.
    scenario = nt.lessons.scenario(SLOW % (8, "max_queue_delay_microseconds: 5000"), "0 1 2 3 4 5")
    assert sizes_of(run(scenario.changed(max_batch_size=4))) == [4, 2]


def test_rows_and_times_by_batch_size():
    scenario = nt.lessons.scenario(SLOW % (8, ""), "0x2 1x3 2", execution_ms={1: 10, 4: 40})
    happened = run(scenario)
    assert sizes_of(happened) == [2, 4]
    assert [(row["at_ms"], row["end_ms"]) for row in batch_rows(happened)] == [(0, 20), (20, 60)]


# -- recorded ----------------------------------------------------------------------------------------


def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803, UP037
    return {"OUT": IN * 2}


def triple(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803, UP037
    return {"OUT": IN * 3}


ENSEMBLE = """
platform: "ensemble" max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
ensemble_scheduling {
  step { model_name: "digits" model_version: -1
    input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "middle" } }
  step { model_name: "triple" model_version: -1
    input_map { key: "IN" value: "middle" } output_map { key: "OUT" value: "OUT" } }
}
"""


@pytest.fixture(scope="module")
def server():
    with nt.Server(gpus=()) as server:
        config = "max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 60000000 }"
        server.load(config, double, name="digits")
        server.load("max_batch_size: 4", triple, name="triple")
        server.load(ENSEMBLE, name="both")
        row = np.ones((1, 4), np.float32)
        for future in [server.submit("digits", {"IN": row}) for _ in range(8)]:
            future.result()
        for future in [server.submit("both", {"IN": row}) for _ in range(4)]:
            future.result()
        yield server


def test_what_a_server_recorded_is_shown_as_it_was(server):
    figure = nt.lessons.figure(server, "digits", request_count=8)
    newest = nt.lessons.last_batches(server, "digits", request_count=8)
    assert [len(names) for names in figure.batches["requests"]] == [4, 4]
    assert figure.batches["reason"].tolist() == [batch.reason for batch in newest]
    # Changed, it is what the schedulers would do with the same arrivals.
    assert figure.change(max_batch_size=2).batches["rows"].tolist() == [2, 2, 2, 2]
    assert figure.reset().batches["rows"].tolist() == [4, 4]


def test_requests_that_ran_on_an_instance_that_is_gone():
    with nt.Server(gpus=()) as server:
        config = "max_batch_size: 4 instance_group { count: %d }"
        meet = threading.Barrier(2)

        def both(IN):  # noqa: N803
            meet.wait(60)
            return {"OUT": IN}

        ends = 'input { name: "IN" data_type: TYPE_FP32 dims: 4 } output { name: "OUT" data_type: TYPE_FP32 dims: 4 }'
        server.load(f"{ends} {config % 2}", both, name="m")
        row = np.ones((1, 4), np.float32)
        for future in [server.submit("m", {"IN": row}) for _ in range(2)]:
            future.result(60)
        server.load(f"{ends} {config % 1}", name="m")
        figure = nt.lessons.figure(server, "m", request_count=2)
        assert set(figure.batches["instance"]) == {"m_0_0", "m_0_1"}
        assert figure.static().svg
        assert set(figure.change(instances=1).batches["instance"]) == {"m_0_0"}


def test_a_recorded_ensemble_with_its_steps(server):
    happened = traced(server, "both", requests=4)
    assert [one.name for one in happened.records] == ["both", "digits", "triple"]
    assert [len(one.requests) for one in happened.records] == [4, 4, 4]
    assert "4 requests to both became 8 internal ones" in finding_of(happened)
    moments = moments_of(happened)
    assert "the response leaves" in moments.words[-1]


def test_nothing_recorded(server):
    with pytest.raises(InvalidArgumentError, match="1 to 32"):
        nt.lessons.figure(server, "digits", request_count=0)
    with pytest.raises(NotFoundError):
        nt.lessons.figure(server, "nothing")
    with pytest.raises(InvalidArgumentError, match="there is no figure 'batch_form'") as caught:
        nt.lessons.figure("batch_form")
    assert "batch_forms" in caught.value.hint


# -- predictions --------------------------------------------------------------------------------------


@nt.lessons.predict_batches
def which_leave():
    """Which batches leave?"""
    return nt.lessons.scenario(
        SLOW % (4, "max_queue_delay_microseconds: 3000 preferred_batch_size: [ 3 ]"),
        "0 1 2 2 10 12 40",
        execution_ms=5,
    )


def mark(answer, tmp_path):
    return nt.lessons.check(
        None, which_leave, answer, progress=Progress(tmp_path / "exercises.json")
    )


def test_the_schedulers_mark_a_prediction(tmp_path):
    assert which_leave.solution == "[3, 1, 2, 1]"
    right = mark([3, 1, 2, 1], tmp_path)
    assert right.correct
    assert "Batch 3 had 2 rows (requests 5 and 6)" in right.feedback
    for answer, feedback in (
        ([4, 2, 1], ("Batch 1 left with 3 rows (requests 1, 2 and 3), not 4: because a preferred size was "
         "reached (3), at 2 ms.")),
        ([3, 3, 1], ("Batch 2 left with 1 row (request 4), not 3: because its oldest request had come at 2 "
         "ms, and max_queue_delay_microseconds (3000 µs) ran out at 5 ms; an instance was free at 7 ms.")),
        ([3, 1], ("Batch 3 left with 2 rows (requests 5 and 6), which is missing in yours: because its "
         "oldest request had come at 10 ms, and max_queue_delay_microseconds (3000 µs) ran out at 13 ms. "
         "In all they carry 7 rows, yours 4.")),
        ([3, 1, 2, 1, 1], ("Batch 4 was the last one; it left with 1 row (request 7). In all they carry 7 "
         "rows, yours 8.")),
    ):  # fmt: skip
        wrong = mark(answer, tmp_path)
        assert wrong.correct is False
        assert wrong.feedback == feedback
    assert f"Hint: {which_leave.hint}" in repr(wrong)
    assert mark("[3]", tmp_path).correct is None


def test_a_prediction_says_what_comes():
    assert which_leave.question.startswith("Which batches leave?")
    assert "a queue delay of 3000 µs, preferred sizes 3" in which_leave.question
    assert "0 1 2 2 10 12 40 ms" in which_leave.question
    hidden = picture_of(run(which_leave.scenario), hidden=True)
    assert not hidden.batches
    assert not hidden.moments


def test_what_is_no_prediction():
    with pytest.raises(InvalidArgumentError, match="no question"):
        nt.lessons.predict_batches(lambda: "batch_forms")

    def no_scenario():
        """Which?"""
        return 3

    with pytest.raises(InvalidArgumentError, match="no scenario"):
        nt.lessons.predict_batches(no_scenario)
