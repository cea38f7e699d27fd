"""``%triton_perf``: the same as `nbtriton.perf`, and how it is shown and stopped."""

from __future__ import annotations

import inspect
import io
import re
import threading
from dataclasses import replace

import numpy as np
import pytest
from IPython.core.magic_arguments import parse_argstring
from ipywidgets.widgets import widget

from nbtriton.common.errors import InvalidArgumentError, TritonError
from nbtriton.lab.perf.api import perf
from nbtriton.lab.perf.progress import PerfProgress, TerminalLine, progress_line
from nbtriton.lab.perf.report import PerfReport
from nbtriton.magics import live
from nbtriton.serving.server import server
from nbtriton.widgets.curve import CurveView
from nbtriton.widgets.living import living_charts
from tests.magics.cells import ADD_UP, STREAM
from tests.until import until

# Counted, not timed: on a busy machine nothing may end within a short window.
FAST = "--request-count 20"


def test_it_takes_everything_that_the_python_call_takes(notebook, monkeypatch):
    magic = notebook.shell.find_line_magic("triton_perf")
    defaults = vars(parse_argstring(magic, "m"))
    for name, parameter in list(inspect.signature(perf).parameters.items())[2:]:
        if name == "observer":
            continue
        assert name in defaults
        assert defaults[name] == parameter.default, name


def test_it_returns_a_report(doubled):
    report = doubled.ok(f"%triton_perf double -c 1,2 {FAST} -o kept").value
    assert isinstance(report, PerfReport)
    assert doubled.names["kept"] is report
    assert list(report.frame["concurrency"]) == [1, 2]
    forms = doubled.forms(report)
    assert "<svg" in forms["text/html"]
    assert "throughput" in forms["text/plain"]


def test_a_server_at_a_url_gives_the_same_report(doubled):
    served = doubled.ok("%triton_serve --http-port 0 --grpc-port none --metrics-port none").value
    url = f"127.0.0.1:{served.http_port}"
    report = doubled.ok(f"%triton_perf double -c 2 --url {url} --request-count 20").value
    (point,) = report.points
    assert (point.request_count, point.error_count) == (20, 0)
    assert point.server.success_count == 20
    assert f"double at http://{url}" in doubled.forms(report)["text/html"]
    doubled.ok("%triton_serve --stop")
    ran = doubled(f"%triton_perf double --url {url} --protocol http")
    assert "does not answer" in str(ran.error)


def test_it_sends_what_it_is_given(doubled):
    doubled.ok("seen = []")
    doubled.ok(
        '%%triton_model spy --max-batch-size 4\ndef spy(IN: "FP32[-1]") -> {"OUT": "FP32[-1]"}:\n'
        "    seen.append(IN)\n    return IN\n"
    )
    doubled.names["rows"] = [{"IN": np.full((1, 2), value, np.float32)} for value in (1, 2)]
    doubled.ok(f"%triton_perf spy --inputs rows {FAST}")
    assert {float(x[0, 0]) for x in doubled.names["seen"]} == {1.0, 2.0}
    doubled.names["seen"].clear()
    doubled.ok(f"%triton_perf spy --shape IN:3 -b 2 --input-data zero {FAST}")
    assert {x.shape for x in doubled.names["seen"]} == {(2, 3)}


def test_a_sweep_covers_configurations_and_restores(doubled):
    line = f"%triton_perf double -c 2 --dynamic-batching off,on --instances 1,2 {FAST}"
    frame = doubled.ok(line).value.frame
    assert len(frame) == 4
    config = server().config("double")
    assert not config.HasField("dynamic_batching")
    assert config.instance_group[0].count == 1


def test_lists_are_read(notebook):
    magic = notebook.shell.find_line_magic("triton_perf")
    options = parse_argstring(magic, "m --preferred 4/4,8 --max-batch-size 4,8 --shape A:0:3,4")
    assert options.preferred == [[4], [4, 8]]
    assert options.max_batch_size == [4, 8]
    assert options.shapes == [("A:0", [3, 4])]


@pytest.mark.parametrize(
    ("magic", "taken"),
    [
        ("triton_perf", {"": [True], " on": [True], " off": [False], " off,on": [False, True]}),
        ("triton_whatif", {"": [True], " on": [True], " off": [False], " off,on": [False, True]}),
        ("triton_replay", {"": [True], " on": [True], " off": [False], " off,on": [False, True]}),
        ("triton_figure", {"": True, " on": True, " off": False}),
        ("triton_model", {"": True, " on": True, " off": False}),
    ],
)
def test_dynamic_batching_is_written_alike_everywhere(notebook, magic, taken):
    kind = "cell" if magic == "triton_model" else "line"
    found = notebook.shell.find_magic(magic, kind)
    for text, value in taken.items():
        options = parse_argstring(found, f"m --dynamic-batching{text}")
        assert options.dynamic_batching == value, text
    assert parse_argstring(found, "m").dynamic_batching is None


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--dynamic-batching maybe", "'maybe' is neither on nor off"),
        ("--shape 3,4", "'3,4' is not NAME:DIMS"),
        ("--xyzzy", "unrecognized arguments: --xyzzy (%triton_perf? shows the options)"),
        ("--concurency 4", "--concurency 4 (did you mean '--concurrency'?)"),
        ("--max-batchsize=4", "--max-batchsize=4 (did you mean '--max-batch-size'?)"),
        ("--streaming=3", "argument --streaming: ignored explicit argument '3'"),
    ],
)
def test_a_wrong_option_is_one_line(doubled, line, text):
    ran = doubled(f"%triton_perf double {line}")
    assert text in ran.err
    assert len(ran.text.strip().splitlines()) == 1


def test_a_wrong_level_is_perf_analyzers_sentence(doubled):
    ran = doubled("%triton_perf double -c 8:1")
    assert isinstance(ran.error, InvalidArgumentError)
    assert "Failed to parse --concurrency-range." in ran.out
    assert "Traceback" not in ran.text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("-b 16", "batch size 16 is larger than max_batch_size 8 of model 'double'"),
        ("--input-data funny", "no input data 'funny': No such file or directory"),
        ("--inputs np.ones(4)", "found a ndarray"),
        ("--inputs [np.ones(4)]", "found a list"),
        ("-c 2 --request-rate 5", "Please choose only one of the following modes"),
        ("--protocol http --streaming", "Streaming is only allowed with gRPC"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence_before_any_load(doubled, line, text):
    ran = doubled(f"%triton_perf double {line}")
    assert isinstance(ran.error, TritonError)
    assert text in ran.out
    assert "Traceback" not in ran.text
    assert server().statistics("double")["model_stats"][0]["execution_count"] == 0


def test_a_decoupled_model_and_a_sequence_model(notebook):
    notebook.ok(STREAM)
    ran = notebook("%triton_perf count --inputs {'N':np.array([3],np.int32)}")
    assert "model 'count' is decoupled" in ran.out
    assert "--streaming" in ran.out
    line = "%triton_perf count --streaming -c 2 --request-count 6 --inputs {'N':np.array([3],np.int32)}"
    (point,) = notebook.ok(line).value.points
    assert point.stream.response_count == 18
    notebook.ok(ADD_UP)
    (point,) = notebook.ok(
        "%triton_perf add_up --request-count 30 --sequence-length 3"
    ).value.points
    assert point.error_count == 0
    assert point.sequence_count > 5


def test_the_kernels_own_server_is_measured_over_a_protocol(doubled):
    report = doubled.ok("%triton_perf double --protocol http --request-count 5").value
    assert (report.points[0].request_count, report.settings["protocol"]) == (5, "http")
    served = doubled.ok("%triton_serve --http-port 0 --grpc-port none --metrics-port none").value
    report = doubled.ok("%triton_perf double --protocol http --request-count 5").value
    assert report.settings["url"] == f"127.0.0.1:{served.http_port}"


@pytest.fixture
def page(doubled, monkeypatch):
    """A notebook that has a kernel, in which even a short run is shown live."""
    monkeypatch.setattr(doubled.shell, "kernel", object(), raising=False)
    monkeypatch.setattr(live, "_SHOW_AFTER_S", 0.0)
    return doubled


def test_a_long_run_is_live_and_then_the_report_in_its_place(page):
    ran = page.ok(f"report = %triton_perf double -c 1 {FAST}")
    live, rest, batches = ran.shown
    assert 'class="nbt-place' in live["text/html"]
    assert "<svg" in rest["text/html"]
    assert 'class="nbt-place' not in rest["text/html"]
    assert 'data-role="batch"' in batches["text/html"]


def test_a_point_on_the_page_opens_the_batches_of_its_level(page):
    page.ok(f"report = %triton_perf double -c 1:2 {FAST}")
    report = page.names["report"]
    html = page.forms(report)["text/html"]
    (mark,) = re.findall('data-batches="([^"]+)"', html)
    charts = living_charts()
    sent = []
    charts.send = sent.append
    for point in ("0", "1", "2", "x"):
        charts.handle_message({"kind": "batches", "chart": mark, "point": point})
    charts.handle_message({"kind": "batches", "chart": "gone", "point": "0"})
    # A point that there is not has no answer.
    assert [reply["point"] for reply in sent] == ["0", "1"]
    assert all("batch" in str(reply["scene"]) for reply in sent)
    # Nothing of it is in another report.
    assert "data-batches" not in page.forms(replace(report, notes=("a copy",)))["text/html"]


def test_fifty_reports_leave_no_widget_more_than_one_and_its_layout(page):
    page.ok(f"report = %triton_perf double -c 1 {FAST}")
    report = page.names["report"]
    before = len(widget._instances)
    for _ in range(50):
        page.forms(report)
    page.ok(f"report = %triton_perf double -c 1 {FAST}")
    assert len(widget._instances) <= before + 2


def test_what_stands_in_its_place_is_not_shown_once_more(page):
    ran = page.ok(f"%triton_perf double -c 1 {FAST}")
    assert isinstance(ran.value, PerfReport)
    assert "throughput" not in ran.out
    # The next cell shows it as usual.
    assert "throughput" in page.ok("_").out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_report_as_any_result(doubled, monkeypatch):
    monkeypatch.setattr(live, "_SHOW_AFTER_S", 0.0)
    ran = doubled.ok(f"%triton_perf double -c 1 {FAST}")
    assert ran.shown == []
    assert "throughput" in ran.out


def test_a_terminal_prints_a_report_that_is_assigned_and_prints_it_once(doubled, monkeypatch):
    monkeypatch.setattr(live, "TerminalLine", lambda _stderr: TerminalLine(Terminal()))
    for line in ("report = %triton_perf", "%triton_perf"):
        ran = doubled.ok(f"{line} double -c 1 {FAST}")
        assert ["throughput" in shown["text/plain"] for shown in ran.shown] == [True]
        assert "throughput" not in ran.out
    assert doubled.ok(f"report = %triton_perf double -c 1 {FAST};").shown == []


def test_a_semicolon_silences(page):
    ran = page.ok(f"%triton_perf double -c 1 {FAST};")
    assert ran.shown == []
    assert ran.out == ""


@pytest.mark.medium
def test_a_run_in_the_background_is_live_at_once_and_then_the_report(page):
    ran = page.ok("run = %triton_perf double -c 1:1000 --request-count 100 --bg -o kept")
    run = page.names["run"]
    assert page.names["kept"] is run
    assert 'class="nbt-place' in ran.shown[0]["text/html"]
    assert until(lambda: run.progress is not None and run.progress.points)
    report = page.ok("run.stop()").value
    assert report.interrupted
    assert report.points


def test_a_run_that_fails_leaves_no_live_view(page):
    ran = page("%triton_perf double -c 8:1")
    assert isinstance(ran.error, InvalidArgumentError)
    assert ran.shown == []


@pytest.mark.medium
@pytest.mark.parametrize("dropped", [False, True])
def test_the_stop_button_interrupts_and_keeps_what_was_measured(page, monkeypatch, dropped):
    """Also where Python drops the interrupt, as it does in a callback of the garbage collector."""
    views: list[CurveView] = []
    drawn = CurveView.update

    def update(self, series, **options):
        drawn(self, series, **options)
        if series and self not in views:
            views.append(self)
            # What the page sends, heard on another thread as in a real kernel.
            word = {"kind": "stop", "view": "v"}
            threading.Thread(target=self.handle_message, args=(word,)).start()

    monkeypatch.setattr(CurveView, "update", update)
    if dropped:
        monkeypatch.setattr(live, "interrupt_main_thread", lambda: None)
    page.ok("report = %triton_perf double -c 1:1000 --request-count 500")
    report = page.names["report"]
    assert len(views) == 1
    assert report.interrupted
    assert 1 <= len(report.points) < 100
    assert page.ok("%triton_infer double IN=[[1, 2, 3, 4]]").value["OUT"][0, 0] == 2


def test_progress_is_a_line_and_a_share():
    done = PerfProgress(2, 6, "concurrency 2, instances=2", 1, 10, 99, 0, 3.0, 14.2, 4512.0, ())
    line, share = progress_line(done)
    assert line == (
        "concurrency 2, instances=2 (level 2 of 6) · window 1 of at most 10 · 4\u202f510 infer/s · "
        "about 14 s left"
    )
    assert 1 / 6 < share < 2 / 6
    # Of a search nobody knows the levels, but perhaps the time: 3 of some 17 s.
    assert progress_line(replace(done, levels=None))[1] == pytest.approx(3 / 17.2)
    assert progress_line(replace(done, levels=None, eta_s=None))[1] is None
    steps = PerfProgress.step(2, 8, "m: 4 rows", 1.0, 3.2)
    assert progress_line(steps) == ("m: 4 rows (step 3 of 8) · about 3 s left", 2 / 8)
    line, share = progress_line(replace(done, level=1, requests=1_500, max_requests=60_000))
    assert "1\u202f500 of 60\u202f000 requests" in line
    assert share == pytest.approx(1500 / 60_000 / 6)


def test_a_terminal_has_a_line_of_progress_that_goes_away():
    done = PerfProgress(2, 6, "concurrency 2, instances=2", 1, 10, 99, 0, 3.0, 14.2, 4512.0, ())
    terminal = Terminal()
    line = TerminalLine(terminal)
    line(done)
    line(replace(done, window=2))
    line.clear()
    line.clear()
    _, first, second, blank, rest = terminal.getvalue().split("\r")
    assert "window 1 of at most 10" in first
    assert "window 2 of at most 10" in second
    assert len(first) == len(second) == len(blank)
    assert (blank.strip(), rest) == ("", "")


def test_a_pipe_gets_a_line_of_progress_every_two_seconds():
    pipe = io.StringIO()
    line = TerminalLine(pipe)
    for done in range(20):
        line(PerfProgress.step(done, 20, f"m: {done} rows", done / 2, (20 - done) / 2))
    line.clear()
    assert not line.written
    assert pipe.getvalue().splitlines() == [
        f"m: {done} rows (step {done + 1} of 20) · about {(20 - done) // 2} s left"
        for done in (4, 8, 12, 16)
    ]


def test_inputs_as_triton_infer_takes_them_get_the_mapping_as_a_hint(doubled):
    error = doubled("%triton_perf double --inputs IN=x").error
    assert "write a mapping by name" in str(error)


def test_an_interrupt_as_the_measurement_ends_keeps_its_report(notebook):
    """Such as Stop, pressed as the last window ends."""

    class Ending:
        """A view that is stopped at the end, just before the interrupt arrives."""

        def stop(self):
            live.interrupt_main_thread()

    run = live.LiveRun(notebook.shell, "m", visible=False)
    run._shown = Ending()
    report = PerfReport("m", ())
    assert run.of(lambda: report) is report
    with pytest.raises(KeyboardInterrupt):
        live.LiveRun(notebook.shell, "m", visible=False).of(live.interrupt_main_thread)
