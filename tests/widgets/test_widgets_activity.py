"""From snapshots to what a server did over the last seconds."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from nbtriton.engine.core.snapshot import ServerSnapshot
from nbtriton.widgets.activity import Recorder, encode
from tests.widgets.samples import SECOND, instance, loaded, model


def shot(seconds, *models):
    return ServerSnapshot(int((100 + seconds) * SECOND), models)


def record(times, make, **options):
    recorder = Recorder(**options)
    for at in times:
        recorder.add(shot(at, make(at)))
    return recorder


def seconds(upto, step=0.25):
    return [i * step for i in range(int(upto / step) + 1)]


def test_rates_and_means_are_over_the_last_two_seconds():
    recorder = record(
        seconds(10), lambda at: loaded("m", at if at < 5 else 5 + 3 * (at - 5), rate=100)
    )
    (activity,) = recorder.models()
    assert activity.infer_per_s == pytest.approx(300)
    assert activity.queue_ms == pytest.approx(2)
    assert activity.compute_ms == pytest.approx(3)


def test_the_whole_stretch_leaves_out_idle_time_before_and_after():
    recorder = record(seconds(20), lambda at: loaded("m", min(max(at - 5, 0), 8), rate=100))
    (activity,) = recorder.models(whole=True)
    assert activity.infer_per_s == pytest.approx(100)
    (activity,) = recorder.models()
    assert activity.infer_per_s == 0


def test_busy_shares_come_from_busy_time():
    recorder = record(seconds(4), lambda at: loaded("m", at, share=0.6))
    (activity,) = recorder.models()
    first, second = activity.lanes
    assert first.busy[0] == 0
    assert first.busy[5] == pytest.approx(0.6)
    assert second.busy[5] == pytest.approx(0.3)
    assert (first.batch_size, second.batch_size) == (4, 0)


def test_a_long_execution_is_busy_before_it_is_counted():
    running = model("m", instances=(instance(batch_size=8, busy_ns=0),))
    done = model("m", instances=(instance(batch_size=0, busy_ns=3 * SECOND),))
    recorder = Recorder()
    for at, what in ((0, running), (1, running), (2, running), (3, done)):
        recorder.add(shot(at, what))
    assert recorder.models()[0].lanes[0].busy == (0.0, 1.0, 1.0, 1.0)


def test_close_snapshots_are_merged_and_keep_the_deepest_queue():
    recorder = Recorder(step_s=0.2)
    for i, queued in enumerate((0, 1, 9, 0, 0, 0, 2)):
        recorder.add(shot(i * 0.05, model("m", queued=queued)))
    (activity,) = recorder.models()
    assert max(activity.depths) == 9
    assert activity.depths[-1] == 2
    assert len(activity.depths) < 7


def test_old_samples_are_forgotten():
    recorder = record(seconds(60, 0.2), lambda at: model("m"), span_s=30.0)
    (activity,) = recorder.models()
    assert activity.ages_s[0] <= 30.0
    assert activity.ages_s[-1] == 0
    assert len(activity.ages_s) <= 152


def test_batch_sizes_are_recent_or_else_since_load():
    recorder = record(seconds(10), lambda at: loaded("m", at, batch=4))
    (activity,) = recorder.models()
    assert activity.bins_since == "in this time"
    assert dict(activity.bins)["4"] == loaded("m", 10, batch=4).execution_count
    idle = record([0, 1], lambda _: loaded("m", 10, batch=4))
    (activity,) = idle.models()
    assert activity.bins_since == "since load"
    assert dict(activity.bins)["4"] == 250


def test_a_model_loaded_anew_begins_anew():
    recorder = record(seconds(5), lambda at: loaded("m", at))
    recorder.add(shot(6, loaded("m", 0)))
    recorder.add(shot(7, loaded("m", 1)))
    (activity,) = recorder.models()
    assert activity.infer_per_s == pytest.approx(100)
    assert len(activity.ages_s) == 2


def test_instances_come_and_go_and_the_others_keep_what_they_did():
    recorder = Recorder()
    for at, busy in ((0, 0), (1, 0.5), (2, 1)):
        lasting = instance("b", busy_ns=int(busy * SECOND))
        other = {0: (instance("a"),), 1: (instance("a"),), 2: (instance("c"), instance("d"))}[at]
        recorder.add(shot(at, replace(model("m"), instances=(*other[:1], lasting, *other[1:]))))
    (activity,) = recorder.models()
    assert {lane.name: lane.busy for lane in activity.lanes} == {
        "c": (0.0, 0.0, 0.0),
        "b": (0.0, 0.5, 0.5),
        "d": (0.0, 0.0, 0.0),
    }


def test_unloaded_models_and_other_names_are_not_shown():
    recorder = Recorder(("a", "b"))
    recorder.add(shot(0, model("a"), model("b"), model("c")))
    assert [activity.name for activity in recorder.models()] == ["a", "b"]
    recorder.add(shot(1, model("b")))
    assert [activity.name for activity in recorder.models()] == ["b"]


def test_a_frame_holds_what_its_layout_says():
    recorder = record(seconds(1), lambda at: loaded("m", at))
    models = recorder.models()
    frame = encode(7, models)
    numbers = struct.unpack(f"<{len(frame) // 8}d", frame)
    activity = models[0]
    samples, lanes, bins = len(activity.ages_s), len(activity.lanes), len(activity.bins)
    assert numbers[:2] == (7, 1)
    assert numbers[2:4] == (3, 4)
    assert numbers[11:14] == (samples, lanes, bins)
    assert len(numbers) == 14 + 2 * samples + lanes * (2 + samples) + bins
    assert numbers[14 : 14 + samples] == activity.ages_s
    assert numbers[-bins:] == tuple(n for _, n in activity.bins)


def test_a_frame_of_four_busy_models_is_small():
    recorder = Recorder()
    for at in seconds(40, 0.1):
        recorder.add(shot(at, *(loaded(f"m{i}", at) for i in range(4))))
    assert len(encode(1, recorder.models())) < 64_000


@pytest.mark.parametrize(("upto", "covered"), [(0, 1), (6.5, 7), (100, 30)])
def test_a_short_run_fills_the_picture(upto, covered):
    assert record(seconds(upto), lambda at: model("m")).covered_s == covered


def test_an_ensemble_has_requests_in_flight_instead_of_a_queue():
    ensemble = model("all", platform="ensemble", instances=(), executing=12)
    (activity,) = record([0, 1], lambda at: ensemble).models()
    assert activity.depths == (12, 12)
    assert (activity.queued, activity.executing) == (0, 12)
