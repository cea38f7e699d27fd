"""The magic that marks answers: ``%triton_check``."""

from __future__ import annotations

from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import (
    Magics,
    line_magic,
    magics_class,
    no_var_expand,
    output_can_be_silenced,
)
from IPython.core.magic_arguments import argument, magic_arguments

from nbtriton.api import server
from nbtriton.errors import nearest
from nbtriton.magics.common import evaluate, parse
from nbtriton.teaching import Exercise, Overview, Progress, check

__all__ = ["TeachMagics"]


@magics_class
class TeachMagics(Magics):
    """``%triton_check``."""

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

        Exercises are variables of the notebook, made by ``@nt.exercise`` in a cell or imported from a file.
        A prediction has an answer; a task has none, it looks at what was done. Without a name it shows
        which ones are solved (kept in ``~/.local/state/nbtriton/exercises.json``)::

            %triton_check

            @nt.exercise(example="1", solution="4", hint="Look at dims.")
            def numbers_in_a_row(answer, server):
                "How many numbers does a row of the model `double` hold?"
                dims = server.config("double").input[0].dims
                assert answer == dims[0], f"dims is {list(dims)}."

            mark = %triton_check numbers_in_a_row 2 + 2
        """
        words = line.strip().removesuffix(";").split(maxsplit=1)
        name = words[0] if words and not words[0].startswith("-") else ""
        rest = words[1] if name and len(words) == 2 else ""
        is_answer = bool(rest) and not rest.startswith("--")
        options = parse(self.triton_check, name if is_answer else line)
        if not name:
            known = self._exercises()
            if options.reset:
                Progress.of_user().forget(one.key for one in known.values())
            return Overview(known.values(), Progress.of_user())
        exercise = self._find(name)
        if options.reset:
            Progress.of_user().forget([exercise.key])
            return exercise
        if options.hint or options.solution:
            return _Text(exercise.hint if options.hint else exercise.solution)
        answer = evaluate(self.shell, rest, f"%triton_check {name} ") if is_answer else ...
        return check(server(), exercise, answer)

    def _exercises(self) -> dict[str, Exercise]:
        names = self.shell.user_ns
        # A history of outputs holds what was shown; an exercise is there under its own name.
        return {
            one.name: one
            for name, one in names.items()
            if isinstance(one, Exercise) and name == one.name
        }

    def _find(self, name: str) -> Exercise:
        found = self.shell.user_ns.get(name)
        if isinstance(found, Exercise):
            return found
        known = self._exercises()
        hint = nearest(name, known) or "@nt.exercise makes one, or import it from its file"
        raise UsageError(f"there is no exercise '{name}' ({hint})")


class _Text(str):
    """A text that shows itself without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
