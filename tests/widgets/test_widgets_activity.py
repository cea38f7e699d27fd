"""From the recorder's moments to what a server did over the last seconds."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from nbtriton.drawing.watch import watch_table
from nbtriton.runtime.engine import ServerHistory
from nbtriton.runtime.engine.core.snapshot import Change
from nbtriton.runtime.engine.status import pipelines
from nbtriton.widgets.activity import activities, covered_s, encode
from tests.widgets.samples import SECOND, FakeServer, instance, loaded, model


def history(times, make):
    """Return the history of one model, or of several, with a moment at each of the times."""
    server = FakeServer()
    found = None
    for at in times:
        made = make(at)
        server.shown = made if isinstance(made, tuple) else (made,)
        server.now_ns = int((100 + at) * SECOND)
        found = server.history()
    return found


def seconds(upto, step=0.25):
    return [i * step for i in range(int(upto / step) + 1)]


def test_rates_and_means_are_over_the_last_two_seconds():
    found = history(
        seconds(10), lambda at: loaded("m", at if at < 5 else 5 + 3 * (at - 5), rate=100)
    )
    (activity,) = activities(found)
    assert activity.infer_per_s == pytest.approx(300)
    assert activity.queue_ms == pytest.approx(2)
    assert activity.compute_ms == pytest.approx(3)


def test_executions_that_failed_make_no_batch_smaller():
    found = history(
        [0.0],
        lambda _: replace(
            model("m"), inference_count=4, execution_count=2, fail_count=1, batch_sizes={4: 1, 2: 1}
        ),
    )
    (activity,) = activities(found)
    columns, (row,) = watch_table([activity])
    assert row[columns.index("mean batch")] == 3


def test_the_whole_stretch_leaves_out_idle_time_before_and_after():
    found = history(seconds(20), lambda at: loaded("m", min(max(at - 5, 0), 8), rate=100, queued=0))
    (activity,) = activities(found, whole=True)
    assert activity.infer_per_s == pytest.approx(100)
    (activity,) = activities(found)
    assert activity.infer_per_s == 0


def test_a_request_of_seconds_counts_from_its_arrival():
    def at(second):
        runs = instance("m_0_0", busy_ns=min(max(second - 4, 0), 4) * SECOND)
        return replace(
            model("m"),
            instances=(runs,),
            inference_count=int(second >= 8),
            success_count=int(second >= 8),
        )

    (activity,) = activities(history(seconds(12), at), whole=True)
    assert activity.infer_per_s == pytest.approx(0.25)
    assert activity.peak_per_s == pytest.approx(1.0)
    assert activity.rate_over == "infer/s while it worked"


def test_a_model_from_which_nothing_comes_says_for_how_long():
    found = history(seconds(10), lambda at: loaded("m", min(at, 2)))
    for since, stalled_s in ((0, 0.0), (101, 8.0), (106, 4.0)):
        (one,) = found.models
        inside = replace(one, inside_since_ns=since * SECOND)
        (activity,) = activities(replace(found, models=(inside,)))
        assert activity.stalled_s == pytest.approx(stalled_s)
        assert activity.quiet_s == pytest.approx(8.0)


def runs_from_9(at):
    runs = instance("m_0_0", busy_ns=max(at - 9, 0) * SECOND)
    return replace(model("m"), instances=(runs,))


def test_busy_shares_come_from_busy_time():
    (activity,) = activities(history(seconds(4), lambda at: loaded("m", at, share=0.6)))
    first, second = activity.lanes
    assert first.busy[0] == 0
    assert first.busy[5] == pytest.approx(0.6)
    assert second.busy[5] == pytest.approx(0.3)
    assert (first.batch_size, second.batch_size) == (4, 0)
    assert (first.share, second.share) == pytest.approx((0.6, 0.3))
    # Of a model that hangs for the last of ten seconds there are three moments.
    (hanging,) = activities(history((0, 9, 10), runs_from_9))
    assert hanging.lanes[0].share == pytest.approx(0.1)


def test_the_deepest_queue_of_each_moment_is_drawn_and_the_newest_is_now():
    depths = {0: 0, 1: 9, 2: 2, 3: 4}
    (activity,) = activities(history(depths, lambda at: model("m", queued=depths[at])))
    assert activity.depths == (0, 9, 2, 4)


def test_what_is_older_than_the_span_is_not_shown():
    found = history(seconds(60, 0.2), lambda at: loaded("m", at, share=0.5))
    (activity,) = activities(found, span_s=30.0)
    assert activity.ages_s[0] == 30.0
    assert activity.ages_s[-1] == 0
    assert len(activity.ages_s) <= 152
    assert activity.lanes[0].busy[1] == pytest.approx(0.5)


def test_an_execution_longer_than_the_span_fills_its_lane():
    busy = {0: 0, 90: 90, 100: 100}
    found = history(busy, lambda at: model("m", instances=(instance(busy_ns=busy[at] * SECOND),)))
    (activity,) = activities(found, span_s=30.0)
    assert activity.lanes[0].busy == (0.0, pytest.approx(1.0), pytest.approx(1.0))


def test_batch_sizes_are_recent_or_else_since_load():
    (activity,) = activities(history(seconds(10), lambda at: loaded("m", at, batch=4)))
    assert activity.bins_since == "in this time"
    assert dict(activity.bins)["4"] == loaded("m", 10, batch=4).execution_count
    (activity,) = activities(history([0, 1], lambda _: loaded("m", 10, batch=4)))
    assert activity.bins_since == "since load"
    assert dict(activity.bins)["4"] == 250


def test_counts_are_of_all_loads_of_a_version():
    found = history(seconds(5), lambda at: loaded("m", at))
    again = found.models[0]
    moments = (*again.moments, again.moments[-1]._replace(at_ns=found.now_ns + SECOND))
    snapshot = replace(again, model=loaded("m", 0), moments=moments)  # loaded anew: begins at 0
    (activity,) = activities(ServerHistory(found.now_ns + SECOND, (snapshot,)))
    assert activity.inference_count == 500


def test_instances_come_and_go_and_the_others_keep_what_they_did():
    def at(second):
        lasting = instance("b", busy_ns=second * SECOND // 2)
        other = {0: (instance("a"),), 1: (instance("a"),), 2: (instance("c"), instance("d"))}
        return replace(model("m"), instances=(*other[second][:1], lasting, *other[second][1:]))

    (activity,) = activities(history((0, 1, 2), at))
    assert {lane.name: lane.busy for lane in activity.lanes} == {
        "c": (0.0, 0.0, 0.0),
        "b": (0.0, 0.5, 0.5),
        "d": (0.0, 0.0, 0.0),
    }


def test_only_loaded_models_of_the_given_names_are_shown():
    server = FakeServer(model("a"), model("b"), model("c"))
    assert [one.name for one in activities(server.history(), ("a", "b"))] == ["a", "b"]
    server.shown = (model("b"),)
    assert [one.name for one in activities(server.history(), ("a", "b"))] == ["b"]


def test_without_a_recorder_a_model_is_shown_as_it_is_now():
    (one,) = FakeServer(loaded("m", 5, queued=7)).history().models
    found = ServerHistory(SECOND, (replace(one, moments=()),))
    (activity,) = activities(found)
    assert (activity.queued, activity.inference_count, activity.depths) == (7, 500, ())
    assert [lane.busy for lane in activity.lanes] == [(), ()]
    assert covered_s(found) == 3


def test_a_frame_holds_what_its_layout_says():
    models = activities(history(seconds(1), lambda at: loaded("m", at)))
    frame = encode(7, models, now_ns=5)
    numbers = struct.unpack(f"<{len(frame) // 8}d", frame)
    activity = models[0]
    samples, lanes, bins = len(activity.ages_s), len(activity.lanes), len(activity.bins)
    assert numbers[:4] == (7, 30, 5, 1)
    assert numbers[4:6] == (3, 4)
    assert numbers[12:19] == (1, 0, samples, lanes, bins, 0, 0)
    assert len(numbers) == 19 + 2 * samples + lanes * (2 + samples) + bins
    assert numbers[19 : 19 + samples] == activity.ages_s
    assert numbers[-bins:] == tuple(n for _, n in activity.bins)


def ensemble(at):
    return replace(loaded("pipeline", at), platform="ensemble", instances=())


def test_models_come_in_the_order_of_their_pipeline_with_their_steps():
    models = (loaded("a", 0), ensemble(0), loaded("z", 0), loaded("b", 0))
    order = pipelines(models, lambda name: {"pipeline": ["z", "a"]}[name])
    assert [name for name, _ in order] == ["pipeline", "z", "a", "b"]
    found = history(
        seconds(4),
        lambda at: (loaded("a", at), ensemble(at), loaded("z", at, rate=300), loaded("b", at)),
    )
    shown = activities(found, pipeline=order)
    assert [one.name for one in shown] == ["pipeline", "z", "a", "b"]
    assert [name for name, _ in shown[0].shares] == ["z", "a"]


def test_a_change_of_the_configuration_is_marked_where_it_was():
    found = history(seconds(10), lambda at: loaded("m", at))
    (one,) = found.models
    changes = tuple(Change(found.now_ns - int(ago * SECOND), f"{ago} s") for ago in (70, 4))
    found = replace(found, models=(replace(one, changes=changes),))
    (shown,) = activities(found)
    assert shown.changes == ((pytest.approx(4), "4 s"),)


def test_a_frame_of_four_busy_models_is_small():
    found = history(seconds(40, 0.2), lambda at: tuple(loaded(f"m{i}", at) for i in range(4)))
    assert len(encode(1, activities(found))) < 64_000


@pytest.mark.parametrize(("upto", "covered"), [(0, 3), (6.5, 7), (100, 30)])
def test_a_short_run_fills_the_picture(upto, covered):
    assert covered_s(history(seconds(upto), lambda at: model("m"))) == covered


def test_an_ensemble_has_requests_in_flight_instead_of_a_queue():
    ensemble = model("all", platform="ensemble", instances=(), executing=12)
    (activity,) = activities(history([0, 1], lambda at: ensemble))
    assert activity.depths == (12, 12)
    assert (activity.queued, activity.executing) == (0, 12)


def test_of_more_models_than_have_cards_a_second_is_a_sample_with_its_deepest_queue():
    """Nine models with a queue of seven in one fifth of a second, 2.6 s before the end."""

    def at(second):
        deep = 7 if second == 7.4 else 3
        return tuple(loaded(f"m{n}", second, queued=deep) for n in range(9))

    times = [round(0.2 * n, 1) for n in range(51)]
    crowd = activities(history(times, at), span_s=4.5)
    alone = activities(history(times, lambda second: at(second)[0]), span_s=4.5)
    assert [one.ages_s for one in crowd] == [pytest.approx((4.5, 4, 3, 2, 1, 0.2, 0))] * 9
    assert {one.depths for one in crowd} == {(3.0, 3.0, 3.0, 7.0, 3.0, 3.0, 3.0)}
    assert len(alone[0].ages_s) == 24
    assert max(alone[0].depths) == 7
    # Busy times are counted, so that none is lost between two samples.
    for lanes in zip(crowd[0].lanes, alone[0].lanes, strict=True):
        assert lanes[0].share == pytest.approx(lanes[1].share)
        assert lanes[0].busy[2] == pytest.approx(lanes[1].busy[2])
    assert crowd[0].infer_per_s == pytest.approx(alone[0].infer_per_s)
