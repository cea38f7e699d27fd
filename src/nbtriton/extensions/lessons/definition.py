"""An exercise: a function that checks an answer, with its question, hint, solution and known mistakes; what it may ask of the recorder."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Protocol

from nbtriton.common.checks import Kind, check, whole
from nbtriton.common.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nbtriton.extensions.lessons.scenarios import Scenario
    from nbtriton.runtime.engine import BatchRecord, RequestRecord, Server


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


_RECORDS = Kind(lambda value: hasattr(value, "batches"), "a server")

# How many times as long as meant an execution may take before an experiment counts as disturbed.
_TOO_LONG = 1.5


class MachineBusyError(Exception):
    """The machine was too busy for an experiment: an answer to it is neither right nor wrong.

    A check raises it with a sentence for the reader, who runs the experiment again.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"Your machine was busy: {what}. This says nothing about the answer; run the experiment again."
        )


class _Measured(Protocol):
    @property
    def disturbance(self) -> str: ...


def claim(sentence: str, *measured: _Measured) -> str:
    """Return a sentence about measurements, and what other programs did meanwhile if it was much.

    Parameters
    ----------
    sentence : str
    *measured : PerfReport, Profile, Comparison or Others
        What the sentence is about; the first that was disturbed is told.

    Examples
    --------
    >>> report = nt.perf(server, "double", concurrency=1, request_count=4)
    >>> print(claim("One outstanding request, four answers.", report))  # doctest: +ELLIPSIS
    One outstanding request, four answers....
    """
    disturbance = next((one.disturbance for one in measured if one.disturbance), "")
    return f"{sentence}\nBut {disturbance}." if disturbance else sentence


def sent_within(requests: Iterable[RequestRecord], limit_ms: float) -> None:
    """Raise `MachineBusyError` if requests that are sent at once came over a longer time."""
    came = [one.arrival_ns for one in requests]
    spread_ms = (max(came) - min(came)) / 1e6
    if spread_ms > limit_ms:
        raise MachineBusyError(f"requests that are sent at once came within {spread_ms:.0f} ms")


def took_about(took_ns: float, meant_ms: float) -> None:
    """Raise `MachineBusyError` if an execution took half as long again as it is meant to."""
    if took_ns > _TOO_LONG * meant_ms * 1e6:
        raise MachineBusyError(f"what takes {meant_ms:g} ms took {took_ns / 1e6:.0f} ms")


def last_batches(
    server: Server,
    model: str,
    *,
    request_count: int,
    within_ms: float | None = None,
    took_ms: Sequence[float] = (),
) -> tuple[BatchRecord, ...]:
    """Return the batches with a model's newest requests, oldest first.

    Parameters
    ----------
    server : Server
    model : str
    request_count : int
        Number of requests in the experiment.
    within_ms : float, optional
        Milliseconds within which all of them have to come for the experiment to be what it is meant to be.
    took_ms : sequence of float, optional
        How long each request's execution is meant to take, in the order of their arrival.

    Raises
    ------
    MachineBusyError
        They came over a longer time, or an execution took half as long again.
    AssertionError
        Fewer are recorded: the reader has not run the experiment.
    NotFoundError
        Nothing was ever recorded under this name.

    Examples
    --------
    >>> _ = server.infer("double", {"IN": ones})
    >>> [batch.batch_size for batch in nt.lessons.last_batches(server, "double", request_count=1)]
    [1]
    """
    check(
        {"server": server, "request_count": request_count},
        {"server": _RECORDS, "request_count": whole(1)},
    )
    batches: list[BatchRecord] = []
    missing = request_count
    for batch in reversed(server.batches(model)):
        if missing <= 0:
            break
        batches.append(batch)
        missing -= len(batch.requests)
    assert missing <= 0, (
        f"Run the experiment first: it sends {request_count} requests to {model}, "
        f"{request_count - missing} are recorded."
    )
    found = tuple(reversed(batches))
    if within_ms is not None:
        numbers = {number for batch in found for number in batch.requests}
        sent_within((one for one in server.requests(model) if one.number in numbers), within_ms)
    for meant_ms, batch in zip(took_ms, sorted(found, key=_first_request), strict=False):
        took_about(batch.end_ns - batch.start_ns, meant_ms)
    return found


def _first_request(batch: BatchRecord) -> int:
    return min(batch.requests)
