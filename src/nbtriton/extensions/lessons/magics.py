"""The magics of lessons: ``%triton_check`` marks answers, ``%triton_figure`` draws what the scheduler does."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import (
    Magics,
    line_magic,
    magics_class,
    no_var_expand,
    output_can_be_silenced,
)
from IPython.core.magic_arguments import argument, magic_arguments

from nbtriton.common.errors import nearest
from nbtriton.extensions.lessons import SCENARIOS, Exercise, Overview, Progress, Scenario, check
from nbtriton.extensions.lessons.scenarios import SCENARIO
from nbtriton.magics.common import arguments, evaluate, magic, parse
from nbtriton.options.reading import unquoted

if TYPE_CHECKING:
    from argparse import Namespace

    from IPython.core.interactiveshell import InteractiveShell

    from nbtriton.serving.server import Server


@magics_class
class TeachMagics(Magics):
    """``%triton_check`` and ``%triton_figure``."""

    @no_var_expand
    @output_can_be_silenced
    @magic_arguments()
    @argument("name", nargs="?", default="", help="an exercise (by default a table of all)")
    @argument(
        "answer", nargs="*", metavar="EXPR",
        help="the answer, Python among the notebook's variables; ... is none yet",
    )  # fmt: skip
    @argument("--hint", action="store_true", help="show the hint")
    @argument("--solution", action="store_true", help="show the solution")
    @argument("--reset", action="store_true", help="forget the tries of this exercise, or of all")
    @line_magic
    def triton_check(self, line: str) -> Any:
        """Mark the answer to an exercise by what the scheduler really did, and keep the progress.

        Exercises are variables of the notebook, made by ``@nt.lessons.exercise`` in a cell or imported from a file.
        A prediction has an answer; a task has none, it looks at what was done. Without a name it shows
        which ones are solved (kept in ``~/.local/state/nbtriton/exercises.json``)::

            %triton_check

            @nt.lessons.exercise(example="1", solution="4", hint="Look at dims.")
            def numbers_in_a_row(answer, server):
                "How many numbers does a row of the model `double` hold?"
                dims = server.config("double").input[0].dims
                assert answer == dims[0], f"dims is {list(dims)}."

            mark = %triton_check numbers_in_a_row 2 + 2
        """
        word, rest = _first_word(line.strip().removesuffix(";"))
        is_answer = bool(rest) and not rest.startswith("--")
        options = parse(self.triton_check, word if is_answer else line)
        if not word:
            known = self._exercises()
            if options.reset:
                Progress.of_user().forget(one.key for one in known.values())
            return Overview(known.values(), Progress.of_user())
        exercise = self._find(unquoted(word))
        if options.reset:
            Progress.of_user().forget([exercise.key])
            return exercise
        if options.hint or options.solution:
            return _Text(exercise.hint if options.hint else exercise.solution)
        answer = evaluate(self.shell, rest, f"%triton_check {word} ") if is_answer else ...
        return check(_server(), exercise, answer)

    @magic()
    @argument(
        "name",
        type=unquoted,
        help="a figure, a variable with a scenario or an exercise, or a model with recorded requests: "
        + ", ".join(SCENARIOS),
    )
    @arguments(tuple(SCENARIO.values()))
    @argument(
        "--request-count", type=int, default=12, metavar="N",
        help="of a model: how many of its newest requests (12)",
    )  # fmt: skip
    def triton_figure(self, options: Namespace) -> Any:
        """Draw what the scheduler does with a few requests, to be played, stepped through and changed.

        The figures that explain Triton's scheduling, run by the very schedulers in virtual time. On a page
        requests, instances and settings can be changed; the picture stays in the file. Of a loaded model it
        shows what happened to its newest requests::

            %triton_figure batch_forms
            %triton_figure batch_forms --instances 2
            figure = %triton_figure one_instance --dynamic-batching on --max-queue-delay-us 5000
            figure.batches
        """
        from nbtriton.extensions.lessons.widget import Figure, figure

        server = _server()
        given = {name: getattr(options, name) for name in SCENARIO}
        changes: Any = {name: value for name, value in given.items() if value is not None}
        name = options.name
        found = self.shell.user_ns.get(name)
        if isinstance(found, Figure):
            made = found.change(**changes) if changes else found
        elif isinstance(found, Scenario | Exercise):
            made = figure(found, **changes)
        elif name not in SCENARIOS and server and name in server.engine.inspection.model_names():
            made = figure(server, name, request_count=options.request_count, **changes)
        else:
            made = figure(name, **changes)
        return made

    @staticmethod
    def completions(name: str, shell: InteractiveShell) -> list[str]:
        """Return the exercises of the notebook, or the figures and the models."""
        if name == "triton_check":
            return [one.name for one in shell.user_ns.values() if isinstance(one, Exercise)]
        from nbtriton.serving.server import server

        return [*SCENARIOS, *server().engine.inspection.model_names()]

    def _exercises(self) -> dict[str, Exercise]:
        names = self.shell.user_ns
        # A history of outputs holds what was shown; an exercise keeps its own name.
        found = [
            one for name, one in names.items() if isinstance(one, Exercise) and name == one.name
        ]
        # As a file defines them, not as it was imported; those of cells as they were first run.
        found.sort(key=lambda one: (one.lesson, 0 if one.lesson == "notebook" else one.line))
        return {one.name: one for one in found}

    def _find(self, name: str) -> Exercise:
        found = self.shell.user_ns.get(name)
        if isinstance(found, Exercise):
            return found
        known = self._exercises()
        hint = nearest(name, known) or "@nt.lessons.exercise makes one, or import it from its file"
        raise UsageError(f"there is no exercise '{name}' ({hint})")


def _first_word(line: str) -> tuple[str, str]:
    """Split a line into a name, as typed, and what follows; both are empty if an option stands first."""
    found = re.match(r"""(?!-)("[^"]*"(?!\S)|'[^']*'(?!\S)|\S+)\s*(.*)""", line, re.DOTALL)
    return (found[1], found[2]) if found else ("", "")


def _server() -> Server | None:
    """Return the server of the magics; None in a browser, which has none."""
    if sys.platform == "emscripten":
        return None
    from nbtriton.serving.server import server

    return server()


class _Text(str):
    """A text that shows itself without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
