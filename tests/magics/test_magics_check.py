"""``%triton_check``."""

from __future__ import annotations

import inspect

import pytest

CELL = """\
@nt.lessons.exercise(example="1", solution="2 * 2", hint="Look at dims.", mistakes={"8": "That is the batch."})
def numbers(answer, server):
    "How many numbers does a row hold?"
    dims = server.config("double").input[0].dims
    assert answer == dims[0], f"dims is {list(dims)}"
    return "as in the configuration"
"""
TASK = """\
@nt.lessons.exercise(solution="%%triton_config double\\ndynamic_batching { }", hint="A config.")
def batched(server):
    "Let `double` batch."
    assert server.config("double").HasField("dynamic_batching"), "it does not"
"""


@pytest.fixture
def lesson(doubled, own_progress):
    doubled.ok(CELL)
    doubled.ok(TASK)
    return doubled


@pytest.mark.parametrize(
    ("typed", "correct"),
    [
        ("2 + 2", True),
        ("{'a': 4}['a']", True),
        ("guess", True),
        ("-4", False),
        ("8", False),
        ("...", None),
        ("", None),
        ("'4'", None),
    ],
)
def test_an_answer_is_any_expression(lesson, typed, correct):
    lesson.ok("guess = np.int32(4)")
    mark = lesson.ok(f"mark = %triton_check numbers {typed}\nmark").value
    assert mark.correct is correct
    assert lesson.forms(mark)["text/html"].startswith("<div")


def test_the_solution_solves_it_and_the_table_counts(lesson):
    assert "0 of 2" in lesson.forms(lesson.ok("%triton_check").value)["text/plain"]
    solution = lesson.ok("%triton_check numbers --solution").value
    assert repr(solution) == "2 * 2"
    assert lesson.ok(f"%triton_check numbers {solution}").value.correct
    assert lesson.ok("%triton_check batched").value.correct is False
    assert repr(lesson.ok("%triton_check batched --hint").value) == "A config."
    lesson.ok(lesson.ok("%triton_check batched --solution").value)
    assert lesson.ok("%triton_check batched").value.correct
    forms = lesson.forms(lesson.ok("%triton_check").value)
    assert "2 of 2 exercises solved" in forms["text/plain"]
    assert "2 of 2 exercises solved" in forms["text/html"]
    lesson.ok("%triton_check numbers --reset")
    assert "1 of 2" in repr(lesson.ok("%triton_check").value)
    lesson.ok("%triton_check --reset")
    assert "0 of 2" in repr(lesson.ok("%triton_check").value)


def test_what_is_wrong_is_said_in_a_line(lesson):
    assert "did you mean 'numbers'?" in lesson("%triton_check number 4").err
    assert "there is no exercise 'x y' (" in lesson("%triton_check 'x y' 4").err
    assert "there is no exercise 'x y' (" in lesson('%triton_check "x y"').err
    assert "there is no exercise '' (" in lesson("%triton_check '' 4").err
    assert lesson.ok("%triton_check 'numbers' 'a b'[0] == 'a' and 4").value.correct
    assert "unrecognized arguments: --hnt (did you mean '--hint'?)" in lesson("%triton_check numbers --hnt").err  # fmt: skip
    assert "NameError" in lesson("%triton_check numbers guess").text


@pytest.mark.medium
def test_names_are_completed(lesson):
    assert lesson.complete("%triton_check num") == ["numbers"]
    assert "--hint" in lesson.complete("%triton_check numbers --h")


def test_the_example_of_the_help_runs(doubled, own_progress):
    method = doubled.shell.find_magic("triton_check", "line")
    cell = inspect.cleandoc(method.parser.description.partition("::\n")[2])
    doubled.ok(cell)
    assert doubled.names["mark"].correct


@pytest.mark.medium
def test_a_figure_is_drawn_changed_and_predicted(lesson):
    figure = lesson.ok("%triton_figure one_instance --instances 2 -o two").value
    assert figure.finding.startswith("slow has 2 instances")
    assert lesson.ok("%triton_figure two --arrivals '0 5 5'").value is figure
    assert lesson.ok("two.batches").value["at_ms"].tolist() == [0, 5, 20]
    cell = """\
@nt.lessons.predict_batches
def leave():
    "Which batches leave?"
    return nt.lessons.scenario('name: "m" max_batch_size: 2 dynamic_batching { }', "0 1 2 3")
"""
    lesson.ok(cell)
    assert "1 instance, dynamic_batching" in repr(lesson.ok("%triton_figure leave").value)
    assert lesson.ok("%triton_check leave [1, 3]").value.correct is False
    assert lesson.ok("%triton_check leave [1, 2, 1]").value.correct
    # Once it is solved its figure shows what happens.
    assert "left together" in lesson.ok("%triton_figure leave").value.finding
    lesson.ok("%triton_infer double IN=[[1, 2, 3, 4]]")
    assert len(lesson.ok("%triton_figure double --request-count 1").value.batches) == 1
    assert "did you mean 'batch_forms'" in lesson("%triton_figure batch_form").text
    assert lesson.complete("%triton_figure two_") == ["two_models"]


def test_exercises_of_a_file_are_listed_as_it_defines_them(doubled, own_progress, tmp_path):
    (tmp_path / "file_of_exercises.py").write_text(
        "import nbtriton as nt\n\n" + CELL + "\n\n@nt.lessons.predict_batches\ndef all_at_once():\n"
        "    'Which batches leave?'\n    return 'batch_forms'\n\n\n" + TASK
    )
    doubled.ok(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})")
    doubled.ok("from file_of_exercises import all_at_once, batched, numbers")
    table = doubled.ok("%triton_check").value
    assert [one.name for one in table.exercises] == ["numbers", "all_at_once", "batched"]
