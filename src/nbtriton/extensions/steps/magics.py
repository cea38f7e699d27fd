"""The magic that lists and loads ready steps."""

from __future__ import annotations

import ast
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from html import escape
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, magics_class
from IPython.core.magic_arguments import argument

from nbtriton.extensions.steps import STEPS, declaration, step
from nbtriton.magics.common import arguments, magic
from nbtriton.model.config import apply_options
from nbtriton.options.blocks import SCHEDULING
from nbtriton.options.reading import unquoted
from nbtriton.serving.server import server

__all__ = ["StepMagics"]


@magics_class
class StepMagics(Magics):
    """``%triton_step``."""

    def __init__(self, shell: InteractiveShell | None = None, **options: Any) -> None:
        super().__init__(shell, **options)
        if shell is not None:
            # IPython leaves HTML out of help, unless `enable_html_pager`.
            hooks = shell.inspector.mime_hooks
            hooks["text/markdown"] = partial(_help, hooks.get("text/markdown"))

    @staticmethod
    def completions(_magic: str, _shell: InteractiveShell) -> list[str]:
        """Return the words that the line may begin with."""
        return list(STEPS)

    @magic()
    @argument("name", nargs="?", type=unquoted, help="the step; without it all are listed")
    @argument(
        "words", nargs="*", type=unquoted, metavar="[as MODEL] KEY=VALUE",
        help="the name of the model, by default the step's; and parameters of the step",
    )  # fmt: skip
    @arguments(SCHEDULING)
    def triton_step(self, options: Namespace) -> Any:
        """Load a ready step as a model, or list the steps.

        A step is a folder of a model repository: what is loaded here is what is exported::

            %triton_step
            %triton_step resize as thumb size=32,32 filter=bicubic
            %triton_step resize --instances 2
        """
        scheduling = vars(options)
        name, words, _ = (scheduling.pop(key) for key in ("name", "words", "line"))
        if name is None:
            return step()
        model = name
        if words[:1] == ["as"]:
            if len(words) == 1:
                raise UsageError("'as' needs the name of the model: %triton_step resize as thumb")
            model, words = words[1], words[2:]
        given = {}
        for word in words:
            key, equals, text = word.partition("=")
            if not equals:
                known = ", ".join(declaration(name).parameters) if name in STEPS else "…"
                raise UsageError(f"'{word}' is no parameter: write KEY=VALUE, KEY one of {known}")
            given[key] = _value(text)
        made = step(name, **given)
        config = apply_options(made.config, **scheduling)
        return server().load(config, made, name=model)


StepMagics.triton_step.__doc__ += "\nThe steps:\n\n" + "\n".join(
    f"    {name:16}{declaration(name).sentence}" for name in STEPS
)


def _help(before: Callable[[Any], str | None] | None, asked: Any) -> str | None:
    """Return the help of ``%triton_step?`` for a page, with pictures; of others what was there before."""
    if getattr(asked.obj, "__func__", None) is StepMagics.triton_step:
        help_text, _, _ = (asked.obj.__doc__ or "").partition("\nThe steps:")
        return f"<pre>{escape(help_text.removeprefix('::'))}</pre>\n\n{STEPS._repr_html_()}"
    return None if before is None else before(asked)


def _value(text: str) -> object:
    """Read a value as Python where it is a list of numbers in brackets; else it stays a text."""
    if text[:1] in ("(", "["):
        with suppress(SyntaxError, ValueError):
            return ast.literal_eval(text)
    return text
