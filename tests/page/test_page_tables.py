"""Every kind of table as a page shows it: one unit of time a table, one unit a column, one form of per cent."""

from __future__ import annotations

import re
import time

import pytest

import nbtriton as nt
from nbtriton.widgets.publisher import Hub
from nbtriton.widgets.timeline import live_timeline
from nbtriton.widgets.watch import WatchView
from tests.page.test_page_selection import ENSEMBLE, ROW, double, select_end

pytestmark = [pytest.mark.browser, pytest.mark.medium]

# All tables of a page: the unit under each head, and the cells of each column as they are read.
TABLES = """() => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  return [...document.querySelectorAll("table")].map((table) => {
    const [first, ...rows] = table.rows;
    return [...first.cells].map((head, at) => [
      head.innerText.trim(),
      rows.filter((row) => row.cells[at]).map((row) => row.cells[at].innerText.trim()),
    ]);
  });
}"""
# A moment of a run, and a setting in the unit in which it is set, are no latencies.
APART = ("at\n", "max queue delay\n")
TIME = re.compile(r"(?:^|[\s\[\d])(ns|µs|us|ms|s)\]?$")
FEW = {"request_count": 20, "concurrency": [1, 4]}


def slow(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803, UP037
    time.sleep(0.003)
    return {"OUT": IN}


@pytest.fixture(scope="module")
def server():
    with nt.Server(gpus="simulated:1") as server:
        on_gpu = "instance_group { kind: KIND_GPU }"
        server.load(
            f"max_batch_size: 4 dynamic_batching {{ }} {on_gpu}", model=double, name="first"
        )
        server.load("max_batch_size: 4 dynamic_batching { }", model=slow, name="second")
        server.load(ENSEMBLE, name="both")
        nt.perf(server, "both", concurrency=4, request_count=300)
        yield server


def measured(server):
    # What a busy machine keeps as well: a table of what is within a limit is empty where nothing is.
    within = {"p99_ms": 60_000}
    profile = nt.profile(server, "second", duration_s=0.3)
    few = {"concurrency": [1, 2], "request_count": 50}
    yield "profile", profile
    yield "perf of microseconds", nt.perf(server, "first", **FEW)
    yield "perf", (report := nt.perf(server, "both", **FEW))
    yield "plot", nt.plot(report)
    yield "whatif", nt.whatif(profile, "second", **few)
    yield "tune", nt.tune(server, "second", **within, instances=[1, 2], duration_s=1.0)
    yield (
        "compare",
        nt.compare("first", "second", server=server, rounds=4, concurrency=2, request_count=20),
    )
    yield "chaos", nt.chaos(server, "first", faults={"slow": 0.2}, request_count=100, seed=1)
    machines = {"small": {"instances": 2, "price_per_hour": 0.5}}
    # Of times that are given: those of a busy machine may make any load unstable, and no fleet holds that.
    given = nt.types.Profile.declared({"m": {1: 3, 4: 4}}, {"m": "dynamic_batching { }"})
    yield "capacity", nt.capacity(given, request_rate=30, **within, machines=machines)
    with nt.autoscale(server, "second", between=(2, 3), p99_ms=20) as scaling:
        yield "autoscale", scaling


def read(server):
    watch = WatchView(server, on_hub=Hub(threaded=False))
    yield "watch", watch.static()
    watch.close()
    yield "status", nt.status(server)
    yield "events of requests", nt.events(server, by="request")
    yield "events", nt.events(server)
    yield "why", nt.why(server, "both")
    yield "why of a step", nt.why(server, "second")
    yield "copies", nt.copies(server)
    yield "doctor", nt.doctor(server)
    yield "options", server.options
    yield "graph", nt.dag(server, "both")
    yield "answer", server.infer("both", {"IN": ROW})
    yield "figure", nt.lessons.figure("batch_forms").static()
    yield "exercises", nt.lessons.Overview((), nt.lessons.Progress.of_user())


def problems(columns):
    """Return what is wrong with a table: heads with their units, and the cells beneath them."""
    found, times = [], set()
    for head, cells in columns:
        unit = TIME.search(head)
        inside = {
            one[1] for one in map(TIME.search, cells) if one and re.match(r"[\d\u2212]", cells[0])
        }
        if not head.startswith(APART):
            times |= {unit[1]} if unit else inside
        if len(inside) > 1 or (unit and inside):
            found.append(f"{head!r} mixes {sorted(inside)}")
        if any(re.search(r"\d[\s\u202f]%", cell) for cell in cells):
            found.append(f"{head!r} has a space before %")
        if "\n%" in head and any("%" in cell for cell in cells):
            found.append(f"{head!r} says % twice")
    found += [f"us in {head!r}" for head, _ in columns if re.search(r"\bus\b", head)]
    return found + ([f"times in {sorted(times)}"] if len(times) > 1 else [])


def html(value):
    bundle = getattr(value, "_repr_mimebundle_", None)
    return bundle()["text/html"] if bundle is not None else value._repr_html_()


def test_a_table_has_one_unit_of_time_and_one_form_of_per_cent(server, open_view):
    forms = {
        name: html(value)
        for read_or_measured in (read, measured)
        for name, value in read_or_measured(server)
    }
    view = live_timeline(server, "both", on_hub=Hub(threaded=False))
    view.refresh()
    page = open_view(view)
    select_end(page)
    tables = [("stretch", table) for table in page.evaluate(TABLES)]
    view.close()
    for name, form in forms.items():
        page.set_content(form)
        tables += [(name, table) for table in page.evaluate(TABLES)]
    assert {name for name, _ in tables} >= set(forms) - {"doctor"}
    assert any(
        "per copy" in head for name, table in tables if name == "copies" for head, _ in table
    )
    wrong = {f"{name}: {one}" for name, table in tables for one in problems(table)}
    assert not wrong
