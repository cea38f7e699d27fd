"""The benches' harness on figures that cost nothing: turns, medians, targets, JSON, history."""

import contextlib
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench import against, history
from bench.__main__ import BENCHES, figures, main
from bench.figures import (
    Figure,
    Missing,
    Result,
    Sides,
    Wrong,
    alternate,
    ratio_at_least,
    ratio_at_most,
    together,
    value_at_most,
)
from bench.harness import Options, run, summary, table, write
from bench.machine import machine
from bench.page import PAGE, filled
from bench.stages import TABLES
from tests.children import run_python

ROOT = Path(__file__).parents[2]


def of(ours, theirs, *, better="lower", targets=(), note=""):
    """A figure whose sides give these values in turn, and the order in which they are asked."""
    asked = []

    def side(name, values):
        values = itertools.cycle(values)

        def measure():
            asked.append(name)
            value = next(values)
            if isinstance(value, Exception):
                raise value
            return value

        return measure

    @contextlib.contextmanager
    def sides(_session):
        yield Sides(side("ours", ours), None if theirs is None else side("theirs", theirs), note)

    return Figure("test.figure", "a title", "us", better, "the other", tuple(targets), sides), asked


def measured(figure, rounds=4):
    (result,) = run([figure], Options(rounds=rounds), say=lambda _: None)
    return result


def test_sides_take_turns_and_begin_in_turn():
    figure, asked = of([1.0], [2.0])
    measured(figure)
    assert asked == ["ours", "theirs", "theirs", "ours"] * 2


def test_the_ratio_is_the_median_of_the_rounds_not_of_the_sides():
    figure, _ = of([1.0, 2.0, 4.0], [10.0, 10.0, 10.0])
    result = measured(figure, rounds=3)
    assert result.ratios == (10.0, 5.0, 2.5)
    assert (result.value, result.other, result.ratio) == (2.0, 10.0, 5.0)


@pytest.mark.parametrize(("better", "ratio"), [("lower", 4.0), ("higher", 0.25), ("flat", 0.25)])
def test_the_ratio_says_how_many_times_better(better, ratio):
    figure, _ = of([2.0], [8.0], better=better)
    assert measured(figure).ratio == ratio


@pytest.mark.parametrize(
    ("targets", "met"),
    [
        ([ratio_at_least(4)], True),
        ([ratio_at_least(4.1)], False),
        ([ratio_at_most(4), value_at_most(2)], True),
        ([ratio_at_least(4), value_at_most(1.9)], False),
        ([ratio_at_least(4), value_at_most(1.9, aim=True)], True),
    ],
)
def test_targets_are_kept_or_missed(targets, met):
    figure, _ = of([2.0], [8.0], targets=targets)
    result = measured(figure)
    assert result.met is met
    assert ("MISSED" in table([result])) is any(
        t.met(result.ratio, result.value) is False for t in targets
    )


def test_without_the_other_side_the_first_is_measured_and_its_own_targets_judged():
    figure, asked = of([2.0], None, targets=[value_at_most(3)], note="no tritonserver here")
    result = measured(figure)
    assert (asked, result.ours, result.ratio) == (["ours"] * 4, (2.0,) * 4, None)
    assert result.met is True
    assert "no tritonserver here" in table([result])
    unjudged, _ = of([2.0], None, targets=[ratio_at_least(3)])
    assert measured(unjudged).met is None


def test_a_round_that_the_other_side_did_not_live_through_is_made_up_for():
    figure, _ = of([1.0, 2.0, 3.0, 4.0, 5.0], [10.0, Missing("it died"), 30.0, 40.0, 50.0])
    result = measured(figure)
    assert (result.ours, result.theirs) == ((1.0, 3.0, 4.0, 5.0), (10.0, 30.0, 40.0, 50.0))
    assert result.note == "it died"


def test_half_as_many_rounds_at_most_are_added():
    figure, asked = of([1.0], [10.0, Missing("it died")])
    result = measured(figure)
    assert (len(result.theirs), asked.count("ours")) == (3, 6)
    figure, asked = of([1.0], [Missing("it is never there")])
    result = measured(figure)
    assert (result.theirs, result.ratio, asked.count("theirs")) == ((), None, 6)


def test_sides_that_are_measured_together_are_so_once_a_round():
    found = itertools.count(1)
    sides = together(lambda: (float(next(found)), 10.0), "in turns")
    figure = Figure("test.figure", "a title", "us", "lower", "the other", (), lambda _: None)
    result = alternate(figure, sides, 3, lambda _: None)
    assert (result.ours, result.theirs) == ((1.0, 2.0, 3.0), (10.0,) * 3)
    assert result.note == "in turns"


def test_what_does_wrong_misses_its_target_and_says_how():
    figure, _ = of([1.0, Wrong("it copied")], [10.0], targets=[ratio_at_least(1)])
    result = measured(figure)
    assert result.met is False
    assert "it copied" in table([result])


def test_what_cannot_be_had_at_all_keeps_nothing_else_from_running():
    @contextlib.contextmanager
    def absent(_session):
        raise Missing("not here")
        yield

    missing = Figure("test.absent", "", "us", "lower", "", (value_at_most(1),), absent)
    fine, _ = of([1.0], [2.0], targets=[ratio_at_least(2)])
    first, second = run([missing, fine], Options(rounds=2), say=lambda _: None)
    assert (first.met, first.note) == (None, "not here")
    assert second.ratio == 2.0
    assert summary([first, second]).startswith("1 of 2")
    promised_nothing = measured(of([1.0], [2.0])[0])
    assert promised_nothing.met is None


def test_a_difference_below_nothing_has_no_ratio():
    figure, _ = of([1.0, 1.0, 1.0], [-5.0, 3.0, 5.0])
    result = measured(figure, rounds=3)
    assert result.ratios == (3.0, 5.0)
    assert result.other == 3.0


def test_a_run_leaves_its_rounds_as_json_and_a_line_in_the_history(tmp_path):
    options = Options(rounds=3, history=tmp_path / "history.jsonl", results=tmp_path / "results")
    fast, _ = of([1.0, 2.0, 3.0], [10.0], targets=[ratio_at_least(4)])
    results = run([fast], options, say=lambda _: None)
    path = write("test", results, options)
    text = json.loads(path.read_text())
    assert text["figures"][0]["rounds_ours"] == [1.0, 2.0, 3.0]
    assert {"cpu", "cores", "python", "nbtriton", "commit", "numpy"} <= text["machine"].keys()
    write("test", run([of([1.0], [10.0])[0]], options, say=lambda _: None), options)
    first, second = history.read(options.history)
    assert (first["figure"], first["ours"], first["theirs"]) == ("test.figure", 2.0, 10.0)
    assert (first["ratio"], first["met"], first["rounds"]) == (5.0, True, 3)
    shown = history.table([first, second])
    assert "5.00x" in shown
    assert "10.0x" in shown
    assert "+100%" in shown
    assert history.table([first, second], "nothing").count("\n") == 0


def test_the_newest_full_run_is_the_latest():
    def line(date, *, short, ours=1.0):
        return {"figure": "a", "date": date, "short": short, "ours": ours}

    full, later, empty = (
        line("1", short=False), line("2", short=True), line("3", short=False, ours=None),
    )  # fmt: skip
    assert history.latest([full, later, empty]) == {"a": full}
    assert history.latest([later, full]) == {"a": full}
    assert history.latest([later]) == {"a": later}


@pytest.mark.medium
def test_the_list_knows_every_figure_and_makes_targets_know_every_bench(capsys):
    assert main(["--list"]) == 0
    text = capsys.readouterr().out
    names = [figure.name for bench in BENCHES for figure in figures(bench)]
    assert len(names) == len(set(names))
    assert [line.split()[0] for line in text.splitlines()] == names
    (line,) = (
        line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("BENCHES")
    )
    assert line.partition(":=")[2].split() == list(BENCHES)


@pytest.mark.slow
def test_the_command_measures_and_leaves_the_history_alone_on_request(tmp_path):
    before = history.HISTORY.read_bytes()
    done = run_python(
        "-m",
        "bench",
        "scale",
        "--only",
        r"submit\.1000$",
        "--rounds",
        "2",
        "--no-history",
        "--results",
        tmp_path,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert "round 2/2" in done.stdout
    (path,) = tmp_path.glob("scale-*.json")
    (figure,) = json.loads(path.read_text())["figures"]
    pairs = zip(figure["rounds_ours"], figure["rounds_theirs"], strict=True)
    assert figure["ratio"] == pytest.approx(sum(a / b for a, b in pairs) / 2, rel=1e-4)
    assert history.HISTORY.read_bytes() == before


def test_a_result_without_rounds_shows_as_not_measured():
    figure, _ = of([1.0], None, targets=[value_at_most(1)])
    assert "not measured" in table([Result(figure, note="why")])


def test_alternate_says_each_round():
    figure, _ = of([1.0], [2.0])
    said = []
    with figure.sides(None) as sides:
        alternate(figure, sides, 2, said.append)
    assert [line.split("  ")[-1] for line in said] == ["the other 2.00 us"] * 2


def test_the_pages_tables_are_written_from_the_history():
    page = (
        "before\n<!-- machine -->\n<!-- end -->\nbetween\n<!-- figures: memory -->\nold\n<!-- end -->\n"
        "<!-- stages: stages.step -->\n<!-- end -->\nafter\n"
    )
    line = {
        "figure": "memory.resident", "date": "2026-11-20T10:00:00", "commit": "abc+", "cpu": "a CPU",
        "cores": 2, "load": 0.5, "python": "3.11", "short": False, "ours": 50.0, "theirs": 40.0,
        "ratio": 1.25, "ratio_low": 1.2, "ratio_high": 1.3, "met": False, "note": "",
    }  # fmt: skip
    steps = {**line, "figure": "stages.step", "parts": {"one": 6.0, "two": 2.0}}
    text = filled(page, [line, steps])
    assert "old" not in text
    assert "| 50.0 MB | after the first tenth | 40.0 MB | 1.25x (1.20 to 1.30) |" in text
    assert "**missed**" in text
    assert "| one | 6.00 us | 75% |" in text
    assert "Measured 2026-11-20 on a CPU, 2 cores" in text
    assert re.sub(r"<!--.*?end -->\n", "", text, flags=re.DOTALL) == "before\nbetween\nafter\n"
    assert filled(text, [line, steps]) == text
    assert "not measured yet" in filled(page, [])


def test_a_table_of_the_page_is_of_one_run():
    page = "<!-- figures: kernel -->\n<!-- end -->"
    line = {
        "commit": "abc", "cpu": "a CPU", "cores": 2, "load": 0.5, "python": "3.11", "short": False,
        "theirs": 40.0, "ratio": 2.0, "ratio_low": 1.9, "ratio_high": 2.1, "met": True, "note": "",
    }  # fmt: skip

    def of_run(date: str, *figures: str, **values: object) -> list[dict]:
        return [{**line, "date": f"{date}T10:00:00", "figure": name, **values} for name in figures]

    pure = of_run("2026-11-23", "kernel.one", "kernel.many", ours=99.0)
    compiled = of_run("2026-11-21", "kernel.one compiled", "kernel.many compiled", ours=7.0)
    part = of_run("2026-11-22", "kernel.one compiled", ours=8.0)
    short = of_run(
        "2026-11-24", "kernel.one compiled", "kernel.many compiled", ours=9.0, short=True
    )
    text = filled(page, [*pure, *compiled, *part, *short])
    assert "`kernel`, compiled, 2026-11-21, commit abc, load average 0.5:" in text
    assert (text.count("| 7.00 us |"), text.count("| 7.00 infer/s |")) == (1, 1)
    assert not re.search(r"\| (99|8|9)\.", text)
    assert text.count("not in this run") == 1  # kernel.processor
    assert "`kernel`, pure Python, 2026-11-23" in filled(page, pure)


def test_a_compiled_build_has_a_course_of_its_own():
    assert machine()["compiled"] is False
    figure, _ = of([1.0], [2.0])
    lines = [
        history.entry(Result(figure, (ours,), (2.0,)), date, {**machine(), "compiled": compiled}, short=False)
        for ours, date, compiled in [(1.0, "2026-11-19", False), (0.5, "2026-11-20", True)]
    ]  # fmt: skip
    found = history.latest(lines)
    assert [found[name]["ours"] for name in (figure.name, f"{figure.name} compiled")] == [1.0, 0.5]


def test_the_page_shows_every_bench():
    shown = re.findall(r"<!-- (?:figures|stages): (.*?) -->", PAGE.read_text())
    assert {name for names in shown for name in names.split()} == {*BENCHES, *TABLES}


def test_two_builds_are_compared_round_by_round():
    slower = replace(of([], [])[0], name="a.slower")
    alone = replace(of([], [])[0], name="a.alone")
    kept: dict[str, against.Comparison] = {}
    for old, new in [(10.0, 11.0), (20.0, 22.0), (30.0, 24.0)]:
        rounds = (
            {"a.slower compiled": {"ours": value, "ratio": 100 / value}} for value in (old, new)
        )
        before, after = rounds
        against.compare(slower, before, after, kept)
        against.compare(
            alone, {**before, "a.alone compiled": {"ours": 1.0, "ratio": None}}, after, kept
        )
    (one,) = kept.values()
    assert one.gains == pytest.approx([10 / 11, 20 / 22, 30 / 24])
    assert one.worse
    line = against.table([one]).splitlines()[1]
    assert "0.91x (0.91 to 1.25)" in line
    assert line.endswith("WORSE")


@pytest.mark.parametrize(("better", "gain"), [("lower", 2.0), ("flat", 2.0), ("higher", 0.5)])
def test_a_build_is_better_by_the_direction_of_the_figure(better, gain):
    figure = of([], [], better=better)[0]
    assert against.Comparison(figure, ([10.0], [5.0])).gains == [gain]
