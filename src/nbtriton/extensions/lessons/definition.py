"""An exercise: a function that checks an answer, with its question, hint, solution and known mistakes."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from nbtriton.common.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nbtriton.extensions.lessons.scenarios import Scenario


@dataclass(frozen=True, slots=True)
class Exercise:
    """An exercise, made by the decorator `exercise`; displayed as its question.

    Attributes
    ----------
    name : str
        The function's name.
    lesson : str
        The module of the function, ``"notebook"`` for one of a notebook's own cells.
    question : str
        The function's docstring.
    hint : str
    solution : str
        A Python expression, or for a task the text of a cell.
    example : str
        An expression of the answer's form; empty for a task.
    mistakes : mapping of str to str
        Wrong answers, as expressions, with the feedback for each.
    check : callable
        The function.
    scenario : Scenario or None
        The scenario of an exercise of `predict_batches`.
    line : int
        Its line in the file or the cell.
    """

    name: str
    lesson: str
    question: str
    hint: str
    solution: str
    example: str
    mistakes: Mapping[str, str]
    check: Callable[..., object] = field(repr=False)
    scenario: Scenario | None = field(default=None, repr=False)
    line: int = field(default=0, repr=False)

    @property
    def key(self) -> str:
        """The key of its progress."""
        return f"{self.lesson}.{self.name}"

    @property
    def is_task(self) -> bool:
        """Whether it is a task: something to do, without an answer."""
        return not self.example

    @property
    def how_to_answer(self) -> str:
        """The line to type."""
        return f"%triton_check {self.name} {self.example}".rstrip()

    def __repr__(self) -> str:
        how = "When it is done" if self.is_task else "Answer in this form"
        return f"{self.question}\n{how}: {self.how_to_answer}"

    def _repr_html_(self) -> str:
        return f'<div class="nbt-exercise"><b>{escape(self.name)}</b>{lines_html(repr(self))}</div>'


def exercise(
    *, solution: str, hint: str, example: str = "", mistakes: Mapping[str, str] | None = None
) -> Callable[[Callable[..., object]], Exercise]:
    """Make an exercise from a function that checks an answer.

    The function is called as ``check(answer, server)``, or as ``check(server)`` for a task. Its docstring is
    the question. A failed ``assert`` marks a wrong answer, and the reader sees its text, which should not give
    the right one away. `nbtriton.extensions.lessons.MachineBusyError` says that the experiment was disturbed. The return
    value is the feedback on a right answer. The function examines the server (`nbtriton.extensions.lessons.last_batches`,
    `nbtriton.events`, statistics) or sends requests itself.

    Parameters
    ----------
    solution : str
        A Python expression of a right answer; for a task the text of a cell that does it.
    hint : str
        A hint at the way to the answer.
    example : str
        An expression of the answer's form, such as ``"[1, 1]"``; required except for a task. An answer of
        another type is not marked; the reader sees this form.
    mistakes : mapping of str to str, optional
        Typical wrong answers, with the feedback for each.

    Raises
    ------
    InvalidArgumentError
        No question, no example of an answer, or an expression that is not Python.

    Examples
    --------
    >>> @nt.lessons.exercise(example="1", solution="4", hint="Look at dims.")
    ... def how_many(answer, server):
    ...     "How many numbers does one row of `double` hold?"
    ...     dims = server.config("double").input[0].dims
    ...     assert answer == dims[0], f"not {answer}"
    >>> nt.lessons.check(server, how_many, 4).correct
    True
    """

    def make(function: Callable[..., object]) -> Exercise:
        name = function.__name__
        question = inspect.getdoc(function) or ""
        takes_answer = len(inspect.signature(function).parameters) > 1
        if not question:
            raise InvalidArgumentError(
                f"exercise '{name}' has no question", hint="its docstring is the question"
            )
        if takes_answer != bool(example):
            raise InvalidArgumentError(
                f"exercise '{name}' takes {'an' if takes_answer else 'no'} answer and has "
                f"{'an' if example else 'no'} example of one",
                hint="check(answer, server) with example=…, or check(server) without",
            )
        for text in [example, *(mistakes or {})]:
            _check_literal(name, text)
        return Exercise(
            name=name,
            lesson=lesson_of(function),
            question=one_line_paragraphs(question),
            hint=hint,
            solution=inspect.cleandoc(solution),
            example=example,
            mistakes=dict(mistakes or {}),
            check=function,
            line=function.__code__.co_firstlineno,
        )

    return make


def lesson_of(function: Callable[..., object]) -> str:
    """Return the key prefix under which the progress of a function's exercise is saved."""
    module = function.__module__.rpartition(".")[2]
    return "notebook" if module == "__main__" else module


def lines_html(text: str) -> str:
    """Format each line as a block, with backquoted text and magics as code."""
    blocks = []
    for line in filter(None, text.splitlines()):
        words = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(line, quote=False))
        words = re.sub(r"(?:(?<=: )|^)(%triton_check (?:\S+ --\w+|.+$))", r"<code>\1</code>", words)
        blocks.append(f'<div style="margin:.2em 0">{words}</div>')
    return "".join(blocks)


def _check_literal(name: str, text: str) -> Any:
    try:
        return ast.literal_eval(text) if text else None
    except (SyntaxError, ValueError):
        raise InvalidArgumentError(
            f"exercise '{name}': {text} is not a plain Python value",
            hint="such as [1, 4] or 'delay'",
        ) from None


def one_line_paragraphs(text: str) -> str:
    """Join the lines of each paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
