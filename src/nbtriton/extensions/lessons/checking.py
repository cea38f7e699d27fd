"""Marking an answer: right, not yet, or not answered; and the reader's progress, in one JSON file of the user's."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtriton.common.checks import is_whole
from nbtriton.common.errors import InvalidArgumentError, TritonError
from nbtriton.drawing.table import Column, TableView
from nbtriton.extensions.lessons.definition import Exercise, MachineBusyError, lines_html

if TYPE_CHECKING:
    from nbtriton.runtime.engine import Server


@dataclass(frozen=True, slots=True)
class Progress:
    """Tries and solved exercises, by the exercise's key.

    The file belongs to the user, not to the notebook, whose folder may be read-only or a repository. Of two
    kernels that mark at the same instant one may lose its try.

    Parameters
    ----------
    path : Path
        A JSON file; may be missing.
    """

    path: Path

    @classmethod
    def of_user(cls) -> Progress:
        """Return ``nbtriton/exercises.json`` in ``XDG_STATE_HOME``, by default ``~/.local/state``."""
        state = os.environ.get("XDG_STATE_HOME")
        folder = Path(state) if state else Path.home() / ".local" / "state"
        return cls(folder / "nbtriton" / "exercises.json")

    def read(self) -> dict[str, dict[str, Any]]:
        """Return ``{"tries": int, "solved": bool}`` by key; empty without a readable file."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        pairs = found.items() if isinstance(found, dict) else ()
        return {
            key: one for key, one in pairs if isinstance(one, dict) and is_whole(one.get("tries"))
        }

    def record(self, key: str, *, correct: bool) -> tuple[int, str]:
        """Count a try; return the number of tries, and an error if it was not saved, or ``""``."""
        entries = self.read()
        before = entries.get(key, {})
        tries = before.get("tries", 0) + 1
        entries[key] = {"tries": tries, "solved": correct or bool(before.get("solved"))}
        return tries, self._write(entries)

    def forget(self, keys: Iterable[str]) -> None:
        """Delete the progress of these exercises."""
        entries = self.read()
        for key in keys:
            entries.pop(key, None)
        self._write(entries)

    def _write(self, entries: dict[str, dict[str, Any]]) -> str:
        part = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            part.replace(self.path)  # atomic
        except OSError as error:
            return f"Progress is not kept: {error.strerror} ({self.path})"
        return ""


class Overview(TableView):
    """Exercises with the reader's progress.

    Attributes
    ----------
    exercises : tuple of Exercise
    solved : int
    """

    __slots__ = ("_rows", "exercises", "solved")

    def __init__(self, exercises: Iterable[Exercise], progress: Progress) -> None:
        self.exercises = tuple(exercises)
        entries = progress.read()
        states = [entries.get(one.key, {}) for one in self.exercises]
        self.solved = sum(bool(one.get("solved")) for one in states)
        self._rows = [
            (one.name, _state(entry), entry.get("tries", 0), _first_line(one.question))
            for one, entry in zip(self.exercises, states, strict=True)
        ]

    def _table(self) -> tuple[Sequence[str | Column], Sequence[Sequence[object]], str]:
        caption = f"{self.solved} of {len(self.exercises)} exercises solved"
        return ("exercise", "state", "tries", "question"), self._rows, caption


def _state(entry: dict[str, Any]) -> str:
    # No line break between the sign and its word in a narrow column.
    if entry.get("solved"):
        return "✓\xa0solved"
    return "✗\xa0tried" if entry.get("tries") else "○\xa0open"


def _first_line(question: str) -> str:
    return question.partition("\n")[0].replace("`", "")


# The number of wrong answers after which the hint is shown unasked.
_TRIES_BEFORE_HINT = 2


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark for an answer, displayed as a sentence.

    Attributes
    ----------
    exercise : Exercise
    correct : bool or None
        None for an unmarked answer: none yet, not in the required form, or on a busy machine.
    feedback : str
    tries : int
        Number of marked answers, this one included.
    note : str
        Why progress was not saved; empty if it was.
    """

    exercise: Exercise
    correct: bool | None
    feedback: str
    tries: int = 0
    note: str = ""

    @property
    def verdict(self) -> str:
        """The mark in words."""
        return {True: "✓ right", False: "✗ not yet", None: "○ open"}[self.correct]

    @property
    def shows_hint(self) -> bool:
        """Whether so many answers were wrong that the hint is shown unasked."""
        return self.correct is False and self.tries >= _TRIES_BEFORE_HINT

    @property
    def _lines(self) -> list[str]:
        lines = [self.feedback]
        if self.correct is False:
            if self.shows_hint:
                lines.append(f"Hint: {self.exercise.hint}")
                lines.append(f"%triton_check {self.exercise.name} --solution shows the solution.")
            else:
                lines.append(f"%triton_check {self.exercise.name} --hint shows a hint.")
        return [line for line in (*lines, self.note) if line]

    def __repr__(self) -> str:
        return "\n".join([f"{self.verdict}: {self.exercise.name}", *self._lines])

    def _repr_html_(self) -> str:
        # Okabe-Ito's green and vermilion; the sign and the word say the same.
        colour = {True: "#009E73", False: "#D55E00", None: "#999999"}[self.correct]
        lines = lines_html("\n".join(self._lines))
        return (
            f'<div class="nbt-mark" role="status" style="border-left:4px solid {colour};'
            f'padding:.2em .8em"><b>{escape(self.verdict)}</b>: {escape(self.exercise.name)}{lines}</div>'
        )


def check(
    server: Server | None,
    exercise: Exercise,
    answer: object = ...,
    *,
    progress: Progress | None = None,
) -> Mark:
    """Mark the answer to an exercise, and save the progress.

    Parameters
    ----------
    server : Server or None
        The server with the reader's models, which the check examines. May be None for exercises with models
        of their own: those of `predict_batches`, and those that ask `nbtriton.whatif`.
    exercise : Exercise
        Made by the decorator `exercise`.
    answer : object
        ``...`` (Ellipsis) or None is no answer yet, and not marked. A task has no answer.
    progress : Progress, optional
        The saved progress; by default in the user's state folder.

    Returns
    -------
    Mark
        ``correct`` and ``feedback``; a wrong answer raises nothing.

    Raises
    ------
    InvalidArgumentError
        Not an exercise, or a task with an answer.

    Examples
    --------
    >>> @nt.lessons.exercise(solution="", hint="Send one request.")
    ... def warm(server):
    ...     "Send a request to the model `double`."
    ...     assert server.requests("double"), "no request came"
    ...     return "It came."
    >>> nt.lessons.check(server, warm)  # doctest: +ELLIPSIS
    ✗ not yet: warm
    no request came...
    """
    if not isinstance(exercise, Exercise):
        raise InvalidArgumentError(
            f"{exercise!r:.80} is not an exercise", hint="one is made by @nt.lessons.exercise(...)"
        )
    if exercise.is_task:
        if answer is not ...:
            raise InvalidArgumentError(
                f"exercise '{exercise.name}' is a task, it takes no answer",
                hint=exercise.how_to_answer,
            )
        given: tuple[object, ...] = (server,)
    else:
        if answer is ... or answer is None:
            return Mark(exercise, None, repr(exercise))
        answer = _plain(answer)
        example = ast.literal_eval(exercise.example)
        if not _same_form(answer, example):
            form = f"An answer looks like {exercise.example}, this is {answer!r:.80}."
            return Mark(exercise, None, form)
        given = (answer, server)
    correct, feedback = _run(exercise, given)
    if correct is None:
        return Mark(exercise, None, feedback)
    tries, note = (progress or Progress.of_user()).record(exercise.key, correct=correct)
    return Mark(exercise, correct, feedback, tries, note)


def _run(exercise: Exercise, given: tuple[object, ...]) -> tuple[bool | None, str]:
    try:
        said = exercise.check(*given)
    except MachineBusyError as busy:
        return None, str(busy)
    except AssertionError as error:
        # The scheduler decides what is wrong; a known mistake only has a better explanation.
        for mistake, feedback in exercise.mistakes.items():
            if not exercise.is_task and given[0] == _plain(ast.literal_eval(mistake)):
                return False, feedback
        return False, str(error) or "The check failed."
    except TritonError as error:
        if not exercise.is_task:
            raise
        return False, error.message  # of the reader's model
    return True, str(said or "")


def _plain(answer: Any) -> object:
    """Convert arrays, Series and their scalars into Python's own values, tuples into lists."""
    tolist = getattr(answer, "tolist", None)
    if tolist is not None:
        return _plain(tolist())
    if isinstance(answer, list | tuple):
        return [_plain(item) for item in answer]
    if isinstance(answer, dict):
        return {key: _plain(value) for key, value in answer.items()}
    return answer


def _same_form(answer: object, example: object) -> bool:
    """Return True if an answer has the example's type; all numbers count as one type."""
    if isinstance(example, list) and example:
        return isinstance(answer, list) and all(_same_form(one, example[0]) for one in answer)
    if isinstance(example, bool) or isinstance(answer, bool):
        return isinstance(answer, type(example)) and isinstance(example, type(answer))
    if isinstance(example, int | float):
        return isinstance(answer, int | float)
    return isinstance(answer, type(example))
