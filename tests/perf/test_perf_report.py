"""The report: table, best point and files. Points are made by hand."""

from __future__ import annotations

import csv
import functools
import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError, NotFoundError
from nbtriton.lab.perf import conditions
from nbtriton.lab.perf.breakdown import ServerBreakdown
from nbtriton.lab.perf.curves import series_of
from nbtriton.lab.perf.point import PerfPoint, row_of
from nbtriton.lab.perf.report import PerfReport
from nbtriton.lab.perf.windows import DRIFT
from tests.children import run_python

SERVER = ServerBreakdown(
    model="m", version="1", success_count=100, inference_count=100, execution_count=25,
    request_us=900.0, queue_us=100.0, compute_input_us=10.0, compute_infer_us=500.0,
    compute_output_us=20.0, overhead_us=270.0, batch_sizes={4: 25},
)  # fmt: skip


def point(value=1, rate=100.0, p99=1000.0, **more) -> PerfPoint:
    given = {
        "mode": "concurrency", "value": value, "configuration": {}, "batch_size": 1,
        "infer_per_s": rate, "request_count": 100, "error_count": 0, "first_error": "",
        "latency_avg_us": 700.4, "latency_std_us": 5.0, "latency_p50_us": 650.0,
        "latency_p90_us": 800.0, "latency_p95_us": 900.0, "latency_p99_us": p99,
        "percentile": None, "percentile_us": None, "window_s": 1.0, "outcome": "stable",
        "server": SERVER,
    }  # fmt: skip
    return PerfPoint(**(given | more))


def steady(value=1, rate=100.0) -> PerfPoint:
    """A point whose windows are alike."""
    return point(value, rate, throughputs=(rate - 1, rate, rate + 1))


def failed() -> PerfPoint:
    nan = math.nan
    return point(
        8, 0.0, nan, request_count=0, error_count=7, first_error="queue full", outcome="failed",
        latency_avg_us=nan, latency_p50_us=nan, latency_p90_us=nan, latency_p95_us=nan,
        server=None, notes=("every request failed: queue full",),
    )  # fmt: skip


def report(*points, **more) -> PerfReport:
    return PerfReport(model="m", points=points, elapsed_s=1.5, **more)


@pytest.mark.parametrize(
    ("cores", "said"),
    [(0.0, ""), (0.19, ""), (1.6, "other programs used 1.6 of 2 cores: measure again")],
)
def test_a_busy_machine_is_told_as_such(cores, said):
    shown = report(point(1), environment={"cpus": 2, "other_programs_cores": cores})
    for text in shown._repr_mimebundle_().values():
        if "<svg" not in text[:10]:
            assert ("other programs" in text) == bool(said)
            assert said in text


@pytest.mark.parametrize(("outcome", "said"), [("not judged", True), ("predicted", False)])
def test_of_one_measured_window_it_is_said_that_it_is_one(outcome, said):
    for text in report(point(1, outcome=outcome))._repr_mimebundle_().values():
        if "<svg" not in text[:10]:
            assert ("one window: whether the level is stable" in text) == said


def test_of_a_level_that_drifts_no_longer_windows_are_advised():
    drifting = point(2, outcome="unstable", notes=("Failed to.", f"{DRIFT}, from 1 to 3 ms"))
    other = point(4, outcome="unstable", notes=("Failed to.",))
    alone = report(drifting)._repr_mimebundle_()["text/plain"]
    assert "1 of 1 levels did not become stable\n" in alone
    assert f"concurrency 2: {DRIFT}, from 1 to 3 ms" in alone
    both = report(drifting, other)._repr_mimebundle_()["text/plain"]
    assert "2 of 2 levels did not become stable; longer windows" in both


def test_frame_has_a_row_a_point_and_units_in_its_names():
    frame = report(point(), point(2, configuration={"instances": 2})).frame
    assert frame["concurrency"].tolist() == [1, 2]
    assert frame["instances"].tolist()[1] == 2
    assert frame.loc[0, "server_compute_infer_us"] == 500
    assert frame.loc[0, "server_mean_batch_size"] == 4
    assert not [c for c in frame if c.startswith("latency") and not c.endswith("_us")]
    assert len(report().frame) == 0


def test_best_is_the_highest_throughput_within_the_limit():
    slow, fast, unstable = (
        point(1, 100, 1000),
        point(8, 500, 9000),
        point(16, 900, 500, outcome="unstable"),
    )
    found = report(slow, fast, unstable, failed())
    assert found.best() is fast
    assert found.best(p99_ms=5) is slow
    assert found.best(p99_ms=0.6) is unstable
    assert found.best("p99_latency") is slow
    with pytest.raises(NotFoundError) as error:
        found.best(p99_ms=0.1)
    assert "0.5 ms" in error.value.hint
    with pytest.raises(NotFoundError):
        report(failed()).best()
    with pytest.raises(InvalidArgumentError) as unknown:
        found.best("p99")
    assert "p99_latency" in unknown.value.hint


def test_of_equal_throughputs_the_best_is_the_one_with_the_lowest_p99():
    quick, slow, less = point(1, 498, 3000), point(2, 500, 9000), point(3, 490, 1000)
    assert report(quick, slow, less).best() is quick


def test_it_shows_itself_as_text_and_page_and_says_what_is_odd():
    bundle = report(
        point(), point(4, outcome="unstable", notes=("Failed.", "2 of 9 requests failed")),
        failed(), quick=True, interrupted=True, notes=("over the limit",),
    )._repr_mimebundle_(include=None, exclude=None)  # fmt: skip
    for form in (bundle["text/plain"], bundle["text/html"]):
        assert "m: 3 levels measured in 1.50 s, quick" in form
        assert "interrupted" in form
        assert "queue full" in form
        assert "1 of 3 levels did not become stable" in form
        assert "concurrency 4: 2 of 9 requests failed" in form
        assert "over the limit" in form
    lines = bundle["text/plain"].splitlines()
    assert lines[0].startswith("up to 100 infer/s at concurrency 1, p99 1.00 ms")
    assert re.split(r"\s{2,}", lines[2].strip())[:5] == [
        "concurrency", "throughput [infer/s]", "p50 [ms]", "p90 [ms]", "p99 [ms]",
    ]  # fmt: skip
    assert bundle["image/svg+xml"].startswith("<svg")
    assert "<script" not in bundle["text/html"]
    ET.fromstring(bundle["text/html"].replace("<br>", "<br/>"))


def test_an_empty_report_shows_its_headline_only():
    bundle = report()._repr_mimebundle_()
    assert bundle["text/plain"] == "m: 0 levels measured in 1.50 s"
    assert "<svg" not in bundle["text/html"]


def test_names_of_the_user_are_escaped():
    bundle = PerfReport(model="<b>x", points=(point(),))._repr_mimebundle_()
    assert "<b>x" not in bundle["text/html"]


def test_repr_is_one_short_line():
    found = report(point(4, configuration={"instances": 2}, batch_size=8))
    assert repr(found) == "<PerfReport m: 1 level measured in 1.50 s>"
    assert repr(found.points[0]) == (
        "<PerfPoint concurrency 4, instances=2, batch_size=8: 100 infer/s, p99 1.00 ms, stable>"
    )


def read(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.reader(file))


def test_PA60_csv_has_perf_analyzers_columns_sorted_by_throughput(tmp_path):
    report(point(1, 300), point(2, 200)).to_csv(tmp_path / "x.csv")
    head, *rows = read(tmp_path / "x.csv")
    assert head == [
        "Concurrency", "Inferences/Second", "Client Send", "Network+Server Send/Recv",
        "Server Queue", "Server Compute Input", "Server Compute Infer", "Server Compute Output",
        "Client Recv", "p50 latency", "p90 latency", "p95 latency", "p99 latency",
    ]  # fmt: skip
    # 700.4 us at the client less 630 us in the server's statistics.
    assert ",".join(rows[0]) == "2,200,0,70,100,10,500,20,0,650,800,900,1000"
    assert [row[0] for row in rows] == ["2", "1"]


@pytest.mark.parametrize(("count", "head", "cell"), [
    (2, "mean batch of s0 / s1", "1.50 / 3.00"), (6, "mean batch of the 6 steps", "1.50 to 9.00"),
])  # fmt: skip
def test_the_mean_batches_of_many_steps_are_a_range(count, head, cell):
    steps = tuple(
        replace(SERVER, model=f"s{at}", batch_sizes={at + 1: 3, 2 * at + 2: 3})
        for at in range(count)
    )
    forms = report(point(composing=steps))._repr_mimebundle_()
    for form in forms["text/plain"], forms["text/html"]:
        assert head in form
        assert cell in form


def test_PA60_csv_of_rates_percentiles_and_sweeps(tmp_path):
    more = {"mode": "request_rate", "percentile": 97.0, "percentile_us": 950.0}
    report(
        point(10, configuration={"instances": 1}, **more),
        point(20, 200, configuration={"instances": 2}, batch_size=4, **more),
    ).save(tmp_path / "x.csv")
    head, *rows = read(tmp_path / "x.csv")
    assert head[0] == "Request Rate"
    assert head[-6:] == [
        "p90 latency", "p95 latency", "p97 latency", "p99 latency", "instances", "batch_size",
    ]  # fmt: skip
    assert rows[1][-2:] == ["2", "4"]
    for mode, title in (("replay", "Speed"), ("periodic", "Periodic Concurrency")):
        report(point(2, mode=mode)).save(tmp_path / "x.csv")
        assert read(tmp_path / "x.csv")[0][0] == title


def test_PA60_csv_of_an_ensemble_has_a_file_a_composing_model(tmp_path):
    step = replace(SERVER, model="add_sub", success_count=200)
    report(point(1, 300, composing=(step,))).to_csv(tmp_path / "x.csv")
    head, row = read(tmp_path / "add_sub_v1.x.csv")
    assert head[-1] == "Client Recv"
    # Twice a request: twice the rate; its network column is its overhead.
    assert ",".join(row) == "1,600,0,270,100,10,500,20,0"


@pytest.mark.medium
def test_save_by_the_names_ending(tmp_path):
    found = report(point(), failed(), settings={"seed": 0}, environment={"cpus": 2})
    found.save(tmp_path / "r.json")
    document = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert document["points"][0]["server"]["batch_sizes"] == {"4": 25}
    assert document["points"][1]["latency_p99_us"] is None
    found.save(str(tmp_path / "r.svg"))
    ET.parse(tmp_path / "r.svg")
    found.save(tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "http://" not in page.replace("http://www.w3.org/", "")
    found.save(tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InvalidArgumentError, match=r"\.xlsx"):
        found.save(tmp_path / "r.xlsx")


@pytest.mark.medium
def test_plot_draws_a_line_a_configuration_and_leaves_no_figure_open():
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    found = report(
        point(1, configuration={"instances": 1}), point(1, configuration={"instances": 2}), failed()
    )
    before = plt.get_fignums()
    figure = found.plot()
    assert len(figure.axes) == 2
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines] == ["instances=1", "instances=2"]
    assert plt.get_fignums() == before
    assert found.plot(figure.axes[0]) is figure
    page = figure._repr_html_()
    assert '<svg role="img" aria-label="Chart: ' in page
    # Shown, not changed: a file that is saved afterwards is as one before.
    legends = [axes.get_legend() for axes in figure.axes]
    assert all(legend.get_frame_on() for legend in legends if legend is not None)
    assert any(legends)
    assert "#ffffff" not in page
    assert "#000000" not in page
    assert "<style" not in page
    # A host that strips styles draws it too.
    assert re.search(r'<path [^>]*stroke="#0072b2"', page)


def test_options_are_written_as_they_are_typed_and_only_those_that_differ_name_a_curve():
    found = report(
        *(point(1, configuration={"instances": 2, "dynamic_batching": on}) for on in (False, True))
    )
    assert [one.name for one in series_of(found)] == ["dynamic_batching=off", "dynamic_batching=on"]
    assert "instances=2, dynamic_batching=off" in repr(found.points[0])
    assert found.frame["dynamic_batching"].tolist() == [False, True]
    table = found._repr_mimebundle_()["text/plain"]
    assert "off" in table
    assert "False" not in table


@pytest.mark.medium
def test_several_reports_in_one_picture(tmp_path):
    one = report(steady(1), steady(2, 190))
    other = replace(one, points=(steady(1, 150), steady(2, 300)))
    figure = nt.plot(before=one, after=other)
    assert [series.name for series in figure.series] == ["before", "after"]
    assert "after is best: up to 300 infer/s" in figure.text.splitlines()[0]
    assert "1.6 times the throughput of before" in figure.text
    assert [series.name for series in nt.plot(one, other).series] == ["m", "m [2]"]
    predicted = nt.plot(one, replace(other, simulated=True))
    assert [series.label for series in predicted.series] == ["m", "m (predicted)"]
    assert "up to 190 infer/s" in predicted.text
    for name, begin in (
        ("a.svg", b"<svg"),
        ("a.png", b"\x89PNG"),
        ("a.csv", b"configuration,concurrency"),
    ):
        assert figure.save(tmp_path / name).read_bytes().startswith(begin)
    with pytest.raises(InvalidArgumentError, match="nothing to plot"):
        nt.plot()
    with pytest.raises(InvalidArgumentError, match="str is not a report"):
        nt.plot("before")


@pytest.mark.medium
def test_nt_perf_is_a_function_after_its_package_is_imported():
    code = (
        "import nbtriton, nbtriton.lab.perf.api\n"
        "import inspect, sys\n"
        "assert inspect.isfunction(nbtriton.perf), nbtriton.perf\n"
        "names = list(inspect.signature(nbtriton.perf).parameters)\n"
        "assert names[:2] == ['server', 'model'] and 'concurrency' in names, names\n"
        "heavy = {'pandas', 'torch', 'matplotlib', 'anywidget', 'IPython', 'grpc'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    run_python("-c", code, check=True)


@pytest.mark.parametrize(("seconds", "limits"), [(0.95, True), (0.2, False)])
def test_a_load_generator_without_time_left_says_so(monkeypatch, seconds, limits):
    """With clocks of its own: one second has passed."""
    walls, cpus = iter([10.0, 11.0]), iter([5.0, 5.0 + seconds])
    # Other threads of this process have the real ones.
    clocks = SimpleNamespace(
        monotonic=functools.partial(next, walls), process_time=functools.partial(next, cpus)
    )
    monkeypatch.setattr(conditions, "time", clocks)

    def measure(level, on_progress):
        return point(), False

    measured, _ = conditions.observed(measure, [conditions.Usage(remote=True)])(None, None)
    assert measured.cpu_percent == pytest.approx(100 * seconds)
    assert measured.memory_mb > 10
    assert any("load generator used 95%" in note for note in measured.notes) == limits
    assert {"cpu_percent", "memory_mb"} <= set(row_of(measured))


def test_a_rate_that_was_asked_for_is_written_whole():
    points = tuple(point(rate, mode="request_rate") for rate in (744.0, 1116.0, 1116.25))
    html = PerfReport("m", points)._repr_mimebundle_()["text/html"]
    rates = re.findall(r'<tr data-point="\d"><td[^>]*>([^<]+)</td>', html)
    assert rates[:3] == ["744", "1\u202f116", "1\u202f120"]
