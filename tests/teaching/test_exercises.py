"""Exercises: what is right, wrong or open, what readers see, and what is remembered."""

from __future__ import annotations

import json

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.extensions.lessons import Overview, Progress, claim
from nbtriton.lab.perf.report import PerfReport


@nt.lessons.exercise(
    example="[1, 1]",
    solution="[1, 2]",
    hint="It was idle.",
    mistakes={"[3]": "It was idle when the first came."},
)
def sizes(answer, server):
    """Which batches
    leave?

    Three requests."""
    real = [
        batch.batch_size for batch in nt.lessons.last_batches(server, "double", request_count=2)
    ]
    assert answer == real, f"they were {real}"
    return "as recorded"


@nt.lessons.exercise(solution="server.infer(...)", hint="Send one.")
def warm(server):
    """Send a request to `double`."""
    assert server.statistics("double")["model_stats"][0]["inference_count"], "no request came"


@pytest.fixture
def progress(tmp_path) -> Progress:
    return Progress(tmp_path / "state" / "exercises.json")


@pytest.fixture
def server():
    def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:  # noqa: F821, N803, UP037
        return {"OUT": IN * 2}

    with nt.Server(gpus=()) as server:
        server.load("max_batch_size: 8", double, name="double")
        yield server


def ask(server, rows: int) -> None:
    server.infer("double", {"IN": np.ones((rows, 4), np.float32)})


def test_the_recorder_decides_and_not_the_text(server, progress):
    with pytest.raises(AssertionError, match="0 are recorded"):
        nt.lessons.last_batches(server, "double", request_count=2)
    assert (
        "Run the experiment first"
        in nt.lessons.check(server, sizes, [1, 2], progress=progress).feedback
    )
    ask(server, 1)
    ask(server, 2)
    mark = nt.lessons.check(server, sizes, [1, 2], progress=progress)
    assert (mark.correct, mark.feedback) == (True, "as recorded")
    # The same answer to another experiment is wrong, and the other way round.
    ask(server, 3)
    assert "they were [2, 3]" in nt.lessons.check(server, sizes, [1, 2], progress=progress).feedback
    assert nt.lessons.check(server, sizes, (2, 3), progress=progress).correct
    assert nt.lessons.check(server, sizes, np.array([2, 3]), progress=progress).correct


def test_a_known_mistake_has_its_own_words(server, progress):
    ask(server, 1)
    ask(server, 2)
    mark = nt.lessons.check(server, sizes, [3], progress=progress)
    assert (mark.correct, mark.feedback) == (False, "It was idle when the first came.")


def test_the_second_wrong_answer_brings_the_hint(server, progress):
    ask(server, 1)
    ask(server, 2)
    first, second = (nt.lessons.check(server, sizes, [4], progress=progress) for _ in range(2))
    assert "It was idle." not in repr(first)
    assert "--hint" in repr(first)
    for form in (repr(second), second._repr_html_()):
        assert "It was idle." in form
        assert "not yet" in form
        assert "--solution" in form


@pytest.mark.parametrize("answer", [..., None])
def test_no_answer_yet_is_open_and_not_a_try(server, progress, answer):
    mark = nt.lessons.check(server, sizes, answer, progress=progress)
    assert mark.correct is None
    assert "%triton_check sizes [1, 1]" in repr(mark)
    assert progress.read() == {}


@pytest.mark.parametrize("answer", [3, "[1, 2]", ["one"], [[1]], {"a": 1}, True, [True]])
def test_an_answer_of_another_form_gets_the_form(server, progress, answer):
    mark = nt.lessons.check(server, sizes, answer, progress=progress)
    assert mark.correct is None
    assert "looks like [1, 1]" in mark.feedback
    assert progress.read() == {}


def test_a_task_looks_at_what_was_done(server, progress):
    mark = nt.lessons.check(server, warm, progress=progress)
    assert mark.correct is False
    assert "no request came" in mark.feedback
    ask(server, 1)
    assert nt.lessons.check(server, warm, progress=progress).correct
    with pytest.raises(nt.TritonError, match="takes no answer"):
        nt.lessons.check(server, warm, 3, progress=progress)


def test_a_fault_of_the_check_is_shown_as_one(server, progress):
    @nt.lessons.exercise(example="1", solution="1", hint="none")
    def broken(answer, server):
        """What?"""
        return answer / 0

    with pytest.raises(ZeroDivisionError):
        nt.lessons.check(server, broken, 1, progress=progress)
    with pytest.raises(nt.TritonError, match="is not an exercise"):
        nt.lessons.check(server, ask, 1, progress=progress)


def test_progress_is_kept_and_forgotten(server, progress):
    assert "0 of 2 exercises solved" in repr(Overview([sizes, warm], progress))
    nt.lessons.check(server, warm, progress=progress)
    ask(server, 1)
    nt.lessons.check(server, warm, progress=progress)
    assert progress.read() == {"test_exercises.warm": {"solved": True, "tries": 2}}
    table = Overview([sizes, warm], Progress(progress.path))
    assert (table.solved, len(table.exercises)) == (1, 2)
    for word in ("1 of 2", "✓\xa0solved", "○\xa0open", "Which batches leave?"):
        assert word in repr(table)
    # A wrong answer afterwards takes nothing away.
    progress.record(warm.key, correct=False)
    assert progress.read()[warm.key] == {"solved": True, "tries": 3}
    progress.forget([warm.key])
    assert progress.read() == {}


def test_a_broken_file_is_begun_anew(progress):
    progress.path.parent.mkdir()
    progress.path.write_text("{")
    assert progress.record("a", correct=True) == (1, "")
    assert json.loads(progress.path.read_text()) == {"a": {"solved": True, "tries": 1}}
    progress.path.write_text('{"a": 3, "b": {"tries": "two"}, "c": {"solved": true, "tries": 2}}')
    assert progress.read() == {"c": {"solved": True, "tries": 2}}
    assert progress.record("a", correct=False) == (1, "")


def test_where_nothing_can_be_written_marks_go_on(server, tmp_path):
    (tmp_path / "file").write_text("")
    mark = nt.lessons.check(server, warm, progress=Progress(tmp_path / "file" / "exercises.json"))
    assert mark.correct is False
    assert "Progress is not kept" in repr(mark)


def test_the_users_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert Progress.of_user().path == tmp_path / "nbtriton" / "exercises.json"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Progress.of_user().path == tmp_path / ".local" / "state" / "nbtriton" / "exercises.json"


def with_answer(answer, server):
    """What?"""


def task(server):
    """Do it."""


def mute(server):
    pass


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (mute, {}, "no question"),
        (with_answer, {}, "takes an answer"),
        (task, {"example": "1"}, "takes no answer"),
        (with_answer, {"example": "one()"}, "not a plain Python value"),
        (with_answer, {"example": "1", "mistakes": {"[": ""}}, "not a plain Python value"),
    ],
)
def test_an_exercise_that_cannot_work_is_refused(function, options, words):
    with pytest.raises(nt.TritonError, match=words):
        nt.lessons.exercise(solution="1", hint="", **options)(function)


def test_a_question_shows_itself():
    assert repr(sizes) == "Which batches leave?\n\nThree requests.\nAnswer in this form: %triton_check sizes [1, 1]"  # fmt: skip
    html = sizes._repr_html_()
    assert html.index("Which batches leave?</div>") < html.index(">Three requests.</div>")
    assert "Answer in this form: <code>%triton_check sizes [1, 1]</code>" in html
    assert "When it is done: %triton_check warm" in repr(warm)
    assert "Send a request to <code>double</code>." in warm._repr_html_()


def test_what_a_check_says_is_no_markup(server, progress):
    @nt.lessons.exercise(solution="", hint="")
    def odd(server):
        """What?"""
        raise AssertionError("a < b & `c<d>`")

    assert "a &lt; b &amp; <code>c&lt;d&gt;</code>" in nt.lessons.check(server, odd, progress=progress)._repr_html_()  # fmt: skip


def test_a_busy_machine_is_told_and_is_no_wrong_answer(server, progress):
    meant: dict = {}

    @nt.lessons.exercise(example="1", solution="2", hint="Count.")
    def how_many(answer, server):
        """How many batches?"""
        assert answer == len(nt.lessons.last_batches(server, "double", request_count=2, **meant)), (
            "another number"
        )
        return "as recorded"

    for _ in range(2):
        ask(server, 1)
    first, second = server.requests("double")[-2:]
    apart_ms = (second.arrival_ns - first.arrival_ns) / 1e6
    for name, value, words in (
        ("within_ms", apart_ms / 2, "requests that are sent at once came within"),
        ("took_ms", (1e6, 1e-6), "what takes 1e-06 ms took"),
    ):
        meant |= {name: value}
        for answer in (1, 2):
            mark = nt.lessons.check(server, how_many, answer, progress=progress)
            assert mark.correct is None
            assert "Your machine was busy: " + words in mark.feedback
        del meant[name]
    assert progress.read() == {}
    meant |= {"within_ms": apart_ms * 2, "took_ms": (1e6, 1e6)}
    assert nt.lessons.check(server, how_many, 2, progress=progress).correct is True
    assert nt.lessons.check(server, how_many, 1, progress=progress).correct is False


def test_what_a_reader_s_model_refuses_is_a_wrong_answer_to_a_task(server, progress):
    @nt.lessons.exercise(solution="", hint="Look at its input.")
    def takes_two(server):
        """Make `double` take two numbers."""
        server.infer("double", {"IN": np.ones((1, 2), np.float32)})

    mark = nt.lessons.check(server, takes_two, progress=progress)
    assert mark.correct is False
    assert "unexpected shape for input 'IN'" in mark.feedback


def test_a_claim_on_a_busy_machine_says_what_others_used():
    quiet, busy = (
        PerfReport(model="m", points=(), environment={"cpus": 2, "other_programs_cores": cores})
        for cores in (0.0, 1.6)
    )
    assert claim("Twice as fast.", quiet) == "Twice as fast."
    first, second = claim("Twice as fast.", quiet, busy, busy).splitlines()
    assert first == "Twice as fast."
    assert second.startswith("But while it was measured, other programs used 1.6 of 2 cores")
