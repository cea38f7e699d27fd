"""Figures on the Python side: what a page asks for, what it is sent, and what stays."""

from __future__ import annotations

import pytest

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.extensions.lessons import Progress
from nbtriton.extensions.lessons.live import FigureWidget
from nbtriton.extensions.lessons.widget import Figure
from tests.widgets.samples import which_batches


@pytest.fixture
def asked(own_progress):
    """A figure whose batches are to be predicted, and its widget."""
    figure = nt.lessons.figure(which_batches)
    return figure, figure.widget


def test_what_is_changed_on_the_page_is_run_anew():
    figure = nt.lessons.figure("batch_forms")
    widget = figure.widget
    before = widget.stages
    widget.handle_message({"kind": "edit", "changes": {"arrivals": "0 1 2, 3", "instances": "2"}})
    assert widget.problem == ""
    assert figure.batches["requests"].tolist() == [["1"], ["2"], ["3", "4"]]
    assert widget.stages != before
    assert widget.finding == figure.finding
    assert {name: value for name, _, _, value in widget.fields}["instances"] == "2"
    assert "requests 3 and 4 gathered" in figure.static().text
    widget.handle_message({"kind": "edit", "changes": {"dynamic_batching": False}})
    assert figure.batches["rows"].tolist() == [1, 1, 1, 1]
    widget.handle_message({"kind": "reset"})
    assert figure.batches["rows"].tolist() == [1, 3, 1]


def test_a_request_is_moved():
    figure = nt.lessons.figure("batch_forms")
    figure.widget.handle_message({"kind": "move", "request": 0, "at_ms": 12.0})
    assert figure.scenario.arrivals_text == "5 10 12 15 35"
    assert figure.widget.moved == 2
    figure.widget.handle_message({"kind": "move", "request": 4, "at_ms": -3.0})
    assert figure.scenario.arrivals_text == "0 5 10 12 15"
    figure.widget.handle_message({"kind": "move", "request": 99, "at_ms": 1.0})
    assert figure.scenario.arrivals_text == "0 5 10 12 15"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"arrivals": "soon"}, "'soon' is no arrival"),
        ({"instances": "many"}, "'many' is no number"),
        ({"instances": ""}, "'' is no number"),
        ({"max_batch_size": "-1"}, "max_batch_size"),
        ({"preferred": "16"}, "preferred size must be <= max batch size"),
        ({"colour": "1"}, "a scenario has no option 'colour'"),
    ],
)
def test_a_mistake_is_reported_and_the_figure_stays(changes, problem):
    figure = nt.lessons.figure("batch_forms")
    figure.widget.handle_message({"kind": "edit", "changes": changes})
    assert problem in figure.widget.problem
    assert figure.batches["rows"].tolist() == [1, 3, 1]
    figure.widget.handle_message({"kind": "edit", "changes": {"instances": "1"}})
    assert figure.widget.problem == ""


def test_a_prediction_is_hidden_until_it_is_right(asked):
    figure, widget = asked
    assert widget.question.startswith("Which batches leave?")
    assert widget.moments == widget.fields == []
    static = figure.static()
    assert "gathered" not in static.html + static.text
    assert 'data-role="batch"' not in static.html
    widget.handle_message({"kind": "check", "answer": "[5]"})
    assert widget.mark[0] == "wrong"
    assert "Batch 1 left with 1 row (request 1), not 5" in widget.mark[2]
    widget.handle_message({"kind": "check", "answer": "1 3"})
    assert widget.mark[-1].startswith("Hint: ")
    assert widget.moments == []
    widget.handle_message({"kind": "check", "answer": "soon"})
    assert "is no answer" in widget.problem
    widget.handle_message({"kind": "check", "answer": ""})
    assert widget.mark[0] == "open"
    widget.handle_message({"kind": "check", "answer": "1, 3, 1"})
    assert widget.mark[0] == "right"
    assert len(widget.moments) == 11
    assert not widget.question
    # It is the progress of the exercise, and the same figure shows it from now on.
    assert Progress.of_user().read()[which_batches.key]["solved"]
    assert nt.lessons.figure(which_batches).finding == figure.finding


def test_who_wants_to_see_it_sees_it(asked):
    figure, widget = asked
    widget.handle_message({"kind": "show"})
    assert "gathered" in figure.finding
    assert which_batches.key not in Progress.of_user().read()


def test_what_stays_needs_no_script(tmp_path):
    bundle = nt.lessons.figure("sequence_slots")._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "image/svg+xml"}
    assert "<script" not in bundle["text/html"]
    assert "sequence C waited 40 ms" in bundle["text/plain"]
    assert bundle["image/svg+xml"].count('data-role="batch"') == 5
    assert len(bundle["text/html"]) < 60_000
    path = nt.lessons.figure("sequence_slots").save(tmp_path / "slots.svg")
    assert path.read_text("utf-8") == bundle["image/svg+xml"]


def test_an_edit_is_one_small_message():
    figure = nt.lessons.figure("ensemble_request")
    sent = []
    figure.widget.send_state = sent.append
    figure.widget.handle_message({"kind": "edit", "changes": {"arrivals": " ".join("0" * 16)}})
    assert len(sent) == 1
    assert len(str(figure.widget.stages)) < 500_000


@pytest.mark.medium
def test_the_oldest_of_many_figures_stay_as_pictures():
    figures = [nt.lessons.figure("one_instance") for _ in range(18)]
    shown = [one.widget for one in figures]
    assert all(isinstance(one, FigureWidget) for one in shown)
    assert shown[0].comm is None
    assert figures[0].widget is not shown[0]  # put up once more, it has another one
    figures[0].change(instances=2)
    assert "2 instances" in figures[0].finding


def test_what_is_no_figure():
    @nt.lessons.exercise(example="1", solution="4", hint="Look.")
    def no_scenario(answer, server):
        """How many?"""

    with pytest.raises(InvalidArgumentError, match="has no scenario"):
        nt.lessons.figure(no_scenario)
    with pytest.raises(InvalidArgumentError, match="as it is asked"):
        nt.lessons.figure(which_batches, instances=2)
    with pytest.raises(InvalidArgumentError, match="int is nothing"):
        nt.lessons.figure(3)
    assert isinstance(nt.lessons.figure(which_batches), Figure)
