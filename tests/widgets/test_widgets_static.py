"""What stays in a notebook, and how a live view is replaced by it."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest
from ipywidgets.widgets import widget

import nbtriton as nt
from nbtriton.magics.common import views
from nbtriton.widgets.curve import CurveView
from nbtriton.widgets.dag import DagView
from nbtriton.widgets.publisher import Hub
from nbtriton.widgets.show import show_live
from nbtriton.widgets.static import StaticView, curve_view, dag_view, frame_view
from nbtriton.widgets.table import TableView
from nbtriton.widgets.watch import WatchView
from tests.children import run_python
from tests.widgets.samples import SECOND, Clock, FakeServer, digits_graph, loaded, sweep


def test_every_form_is_in_the_bundle():
    bundle = dag_view(digits_graph())._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "image/svg+xml"}
    assert bundle["image/svg+xml"].startswith("<svg")
    assert "<script" not in bundle["text/html"]
    assert repr(dag_view(digits_graph())) == bundle["text/plain"]


def test_a_curve_comes_with_its_numbers():
    view = curve_view(sweep(), title="digits")
    assert '<table class="nbt-curve-table"' in view.html
    assert "1\u202f670" in view.html
    assert "up to 1\u202f670 infer/s" in view.text


def test_a_saved_curve_is_small():
    # Of two pictures the page shows the one that fits.
    assert len(curve_view(sweep()).html) < 50_000


def test_save_by_ending(tmp_path):
    view = dag_view(digits_graph())
    assert view.save(tmp_path / "a.svg").read_text(encoding="utf-8").startswith("<svg")
    assert view.save(tmp_path / "a.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert view.save(tmp_path / "a.txt").read_text(encoding="utf-8") == view.text


def test_a_frame_keeps_its_named_index():
    frame = pd.DataFrame({"p99_ms": [1.5], "n": [3]}, index=pd.Index(["digits"], name="model"))
    view = frame_view(frame)
    assert view.text.splitlines()[0].split() == ["model", "p99", "[ms]", "n"]
    assert "digits" in view.html
    plain = frame_view(frame.reset_index(drop=True))
    assert plain.text.splitlines()[0].split() == ["p99", "[ms]", "n"]


class Handle:
    def __init__(self):
        self.updates = []

    def update(self, thing):
        self.updates.append(thing)


class Notebook:
    """An IPython with a kernel that keeps what is displayed."""

    kernel = object()

    def __init__(self):
        self.displayed = []
        self.handle = Handle()
        self.events = self
        self.calls = []

    def register(self, event, call):
        assert event == "post_run_cell"
        self.calls.append(call)

    def unregister(self, event, call):
        assert event == "post_run_cell"
        self.calls.remove(call)

    def end_cell(self):
        for call in tuple(self.calls):
            call(None)

    def display(self, thing, *, display_id=False):
        self.displayed.append(thing)
        return self.handle if display_id else None


@pytest.fixture
def notebook(monkeypatch):
    import IPython
    import IPython.display

    book = Notebook()
    monkeypatch.setattr(IPython, "get_ipython", lambda: book)
    monkeypatch.setattr(IPython.display, "display", book.display)
    monkeypatch.delenv("NBTRITON_LIVE", raising=False)
    return book


@pytest.fixture
def view():
    return CurveView(on_hub=Hub(threaded=False), clock=Clock())


WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def watched():
    """A server, its clock and hub, and a view of it."""
    clock, hub = Clock(), Hub(threaded=False)
    server = FakeServer(loaded("digits", 1))
    server.drain()
    return server, clock, hub, WatchView(server, clock=clock, on_hub=hub)


def test_the_picture_is_displayed_and_the_page_puts_the_live_view_in_its_place(notebook, view):
    with show_live(view) as shown:
        (first,) = notebook.displayed
        bundle = first._repr_mimebundle_()
        assert f'class="nbt-place {view.place}"' in bundle["text/html"]
        # A saved widget would be blank when the notebook is opened again.
        assert WIDGET not in bundle
        view.update(sweep())
        assert not notebook.handle.updates
    (rest,) = notebook.handle.updates
    assert isinstance(rest, StaticView)
    assert "2 instances" in rest.html
    assert "nbt-place" not in rest.html
    assert view.comm is None  # closed
    shown.stop()
    assert len(notebook.handle.updates) == 1
    assert not notebook.calls


def test_a_block_after_the_end_of_a_view_begins_nothing(notebook, watched):
    _server, _clock, hub, view = watched
    shown = show_live(view)
    shown.stop()
    with shown:
        assert not hub.views
    assert not hub.views


def test_a_host_that_makes_views_only_gets_a_widget_until_it_rests(notebook, watched, monkeypatch):
    server, clock, hub, view = watched
    monkeypatch.setenv("VSCODE_PID", "1")
    show_live(view)
    assert notebook.displayed[0]._repr_mimebundle_()[WIDGET]["model_id"] == view.model_id
    for _ in range(24):
        clock.pass_(0.5)
        hub.tick()
    (rest,) = notebook.handle.updates
    assert WIDGET not in rest._repr_mimebundle_()
    server.shown = (loaded("digits", 2),)
    clock.pass_(0.5)
    hub.tick()
    assert WIDGET in notebook.handle.updates[-1]._repr_mimebundle_()


def test_a_view_that_rests_leaves_its_last_picture(notebook, watched):
    server, clock, hub, view = watched
    shown = show_live(view)
    server.now_ns += SECOND
    server.shown = (loaded("digits", 3, rate=500),)
    server.drain()
    for _ in range(40):
        clock.pass_(0.5)
        hub.tick()
    (rest,) = notebook.handle.updates
    assert "1\u202f500" in rest.html
    shown.stop()


def test_every_cell_ends_with_the_counts_of_its_end(notebook, watched):
    server, clock, hub, view = watched
    shown = show_live(view)
    notebook.end_cell()
    assert not notebook.handle.updates  # nothing has moved
    # Executed without a page, one cell for longer than a silent page is waited for.
    for second in range(1, 61):
        server.now_ns += SECOND
        server.shown = (loaded("digits", second, rate=1000),)
        clock.pass_(1.0)
        hub.tick()
    notebook.handle.updates.clear()  # which the notebook's autosave would have found
    notebook.end_cell()
    assert "60\u202f000 done" in notebook.handle.updates[0].html
    notebook.end_cell()
    assert len(notebook.handle.updates) == 1
    shown.stop()
    assert "60\u202f000 done" in notebook.handle.updates[-1].html


def test_a_view_as_the_value_of_a_cell_comes_in_every_form(watched):
    bundle, _ = watched[3]._repr_mimebundle_()
    assert {"text/plain", "text/html", "image/svg+xml", WIDGET} <= set(bundle)
    assert "digits" in bundle["text/plain"]


def test_the_result_of_the_run_may_take_its_place(notebook, view):
    shown = show_live(view, lambda: "the result")
    shown.stop()
    assert notebook.handle.updates == ["the result"]


def test_it_is_replaced_when_the_run_fails(notebook, view):
    with pytest.raises(KeyboardInterrupt), show_live(view):
        raise KeyboardInterrupt
    assert len(notebook.handle.updates) == 1


def test_live_0_shows_pictures_that_cells_renew(notebook, watched, monkeypatch):
    monkeypatch.setenv("NBTRITON_LIVE", "0")
    server, _clock, hub, view = watched
    with show_live(view):
        assert "nbt-place" not in notebook.displayed[0].html
        assert not hub.views
        server.shown = (loaded("digits", 9),)
        notebook.end_cell()
        assert len(notebook.handle.updates) == 1


def test_a_terminal_gets_only_the_result(notebook, view):
    notebook.kernel = None
    with show_live(view):
        assert not notebook.displayed
    assert [type(thing) for thing in notebook.displayed] == [StaticView]


def test_without_ipython_nothing_is_shown_and_nothing_breaks(view, monkeypatch, capfd):
    monkeypatch.delitem(sys.modules, "IPython")
    with show_live(view):
        view.update(sweep())
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def table():
    """A live table of a number that changes, its server, clock and hub."""
    clock, hub, rows = Clock(), Hub(threaded=False), [0]
    server = FakeServer(loaded("digits", 1))
    view = TableView(lambda: pd.DataFrame({"n": list(rows)}), server, clock=clock, on_hub=hub)
    return view, rows, clock, hub


def test_a_view_whose_last_state_fails_is_stopped_all_the_same(notebook, table):
    view, rows, _, hub = table
    shown = show_live(view)
    rows.clear()
    view._source = lambda: rows[0]
    with pytest.raises(IndexError):
        shown.stop()
    assert not hub.views
    assert view.comm is None
    shown.stop()


def test_a_live_table_changes_at_most_twice_a_second(notebook, table):
    view, rows, clock, hub = table
    seen = set()
    with show_live(view) as shown:
        for _ in range(50):
            rows[0] += 1
            clock.pass_(0.1)
            hub.tick()
            view.handle_message({"kind": "ack", "view": "page"})
            seen.add(view.html)
        assert 9 <= len(seen) <= 12
        rows[0] = 1234
        assert shown.frame["n"].tolist() == [1234]
    assert "1\u202f234" in notebook.handle.updates[-1].html
    assert not hub.views


def test_an_unchanged_table_is_not_sent_again_and_its_page_hears_that_the_kernel_lives(
    notebook, table
):
    view, _, clock, hub = table
    with show_live(view):
        hub.tick()
        before, beat = view.frames_sent, view.beat
        for _ in range(8):
            clock.pass_(0.5)
            hub.tick()
            view.handle_message({"kind": "ack", "view": "page"})
        assert view.frames_sent <= before + 1
        assert view.beat >= beat + 3


def test_drawing_imports_nothing_heavy():
    heavy = "IPython pandas numpy torch anywidget ipywidgets threading"
    code = (
        "import sys; before = set(sys.modules); import nbtriton.drawing.scene, nbtriton.drawing;"
        f"new = set(sys.modules) - before; print([m for m in {heavy.split()!r} if m in new])"
    )
    done = run_python("-c", code, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture(scope="module")
def served():
    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8", model=double, name="double")
        server.infer("double", {"IN": np.ones((1, 4), np.float32)})
        yield server


def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803, UP037
    return {"OUT": IN * 2}


CELLS = {
    "%triton_watch": lambda server: views.show(WatchView(server, on_hub=Hub(threaded=False))),
    "%triton_dag --live": lambda server: views.show(DagView.of(server, "double", on_hub=Hub(threaded=False))),
    "%triton_status --live": lambda server: views.show(
        TableView(lambda: pd.DataFrame({"n": [1]}), server, on_hub=Hub(threaded=False))
    ),
    "%triton_timeline": lambda server: nt.timeline(server, "double")._repr_mimebundle_(),
    "%triton_figure": lambda _: nt.lessons.figure("one_instance")._ipython_display_(),
}  # fmt: skip


@pytest.mark.medium
@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_that_runs_again_leaves_one_view_with_its_layout(notebook, served, cell):
    notebook.parent_header = {"metadata": {"cellId": cell}}
    before = set(open_widgets())
    for count in range(50):
        notebook.execution_count = count
        CELLS[cell](served)
    try:
        assert len(set(open_widgets()) - before) <= 2
        # Another cell has its own.
        notebook.parent_header = {"metadata": {"cellId": f"{cell} again"}}
        CELLS[cell](served)
        assert 2 < len(set(open_widgets()) - before) <= 4
    finally:
        views.stop()


def open_widgets():
    """The ids of all widgets that have a comm."""
    return list(widget._instances)
