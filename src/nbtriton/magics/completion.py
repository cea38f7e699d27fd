"""Completion on a magic's line: its options, then the names of models and tensors.

In the cell of an ensemble: the models that a step may use, and their inputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import inf
from types import SimpleNamespace
from typing import Any

from IPython.core.completer import (
    CompletionContext,
    SimpleCompletion,
    SimpleMatcherResult,
    context_matcher,
)
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics
from IPython.utils.process import arg_split

from nbtriton.common import entries
from nbtriton.common.errors import TritonError
from nbtriton.magics.cells import MADE
from nbtriton.options.reading import quoted, unquoted
from nbtriton.serving.server import server

_EVENT = "complete_command"


def register(shell: InteractiveShell, classes: Iterable[type[Magics]]) -> None:
    """Complete the lines of these magics if they have an argparse parser.

    A class with magics that name something other than a model has a static method ``completions(name, shell)``,
    which returns these words for one of its magics.
    """
    for cls in classes:
        own = getattr(cls, "completions", None)
        for name, method in (item for kind in cls.magics.values() for item in kind.items()):
            parser = getattr(getattr(cls, method), "parser", None)
            if parser is None:
                continue
            complete = _completer(name, parser, own)
            for key in (f"%{name}", f"%%{name}"):
                shell.set_hook(_EVENT, complete, str_key=key)
            shell.set_hook(_EVENT, complete, re_key=_assigned(name))
    shell.Completer.custom_matchers.append(_match_steps)


def unregister(shell: InteractiveShell, names: Iterable[str]) -> None:
    """Undo `register`; IPython has no call for it."""
    hooks = shell.strdispatchers.get(_EVENT)
    for name in names if hooks is not None else ():
        for key in (f"%{name}", f"%%{name}"):
            hooks.strs.pop(key, None)
        hooks.regexs.pop(re.compile(_assigned(name)), None)
    if _match_steps in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.remove(_match_steps)


def _assigned(name: str) -> str:
    """Match ``report = %triton_perf …``."""
    return rf"\s*[\w.\[\]'\"]+\s*=\s*%{name}\b"


def _completer(
    name: str, parser: Any, own: Callable[[str, InteractiveShell], list[str]] | None
) -> Any:
    actions = parser._actions  # noqa: SLF001 - argparse has no public list of options
    positional = [action for action in actions if not action.option_strings]
    taken = inf if positional and positional[0].nargs else 1

    def complete(shell: InteractiveShell, event: SimpleNamespace) -> list[str]:
        _, whole, typed = event.text_until_cursor.partition(f"%{name}")
        if not (whole and typed):
            return []  # the name itself
        words = arg_split(typed, strict=False)
        word = "" if typed[-1:].isspace() else words.pop()
        is_open = word[:1] in {"'", '"'}  # IPython completes the text after the quote
        if word.startswith("-"):
            # IPython replaces its `symbol`, which is not always the whole word.
            start = len(word) - len(event.symbol)
            options = [option for action in actions for option in action.option_strings]
            return [option[start:] for option in options if option.startswith(word)]
        action = next((a for a in actions if words and words[-1] in a.option_strings), None)
        if action is not None and action.nargs != 0:
            if action.dest == "env":
                return _words(MADE, is_open)
            names = _values(action)
            return [value for value in names if value.startswith(word)]
        if positional and positional[0].dest == "directory" and len(words) < taken:
            return []  # IPython completes paths
        if own is not None:
            return [] if words else _words(own(name, shell), is_open)
        return [*_words(_models(), is_open), *_tensors(name, [unquoted(word) for word in words])]

    return complete


@context_matcher()
def _match_steps(context: CompletionContext) -> SimpleMatcherResult:
    """Complete a line of a ``%%triton_ensemble`` cell: ``OUT = model(INPUT=…)``."""
    first = context.full_text.partition("\n")[0]
    if context.cursor_line == 0 or not first.lstrip().startswith("%%triton_ensemble"):
        return {"completions": []}
    written = context.line_with_cursor[: context.cursor_position]
    call = re.search(r"([\w.:-]+)\([^()]*$", written)
    ready = [name for _, source in entries.working("models") for name in source]
    names = [*_models(), *ready] if call is None else _inputs_of(call[1])
    found = [name for name in names if name.startswith(context.token)]
    return {"completions": [SimpleCompletion(name) for name in found], "suppress": bool(found)}


def _words(names: Iterable[str], is_open: bool) -> list[str]:
    """Return names as words of the line; after an open quote they are left as they are."""
    return list(names) if is_open else [quoted(name) for name in names]


def _values(action: Any) -> list[str]:
    """Return the values of an option: its choices, or those that its help lists, such as ``on|off``."""
    if action.choices:
        return [str(choice) for choice in action.choices]
    listed = action.metavar.split("|") if isinstance(action.metavar, str) else []
    # Capitals are placeholders for the user's values.
    return [value for value in listed if len(listed) > 1 and value == value.lower()]


def _models() -> tuple[str, ...]:
    return server().engine.inspection.model_names()


def _tensors(magic: str, words: list[str]) -> list[str]:
    """Return ``IN=`` for the inputs of a model that the line names already."""
    if magic != "triton_infer":
        return []
    return next((_inputs_of(word) for word in words if word in _models()), [])


def _inputs_of(model: str) -> list[str]:
    try:
        return [f"{tensor.name}=" for tensor in server().config(model).input]
    except TritonError:
        return []
