"""Options of the tables as options of magics, and the values of those that are expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from IPython.core.magic_arguments import argument

from nbtriton.magics.common import evaluate
from nbtriton.options import Option
from nbtriton.options.reading import unquoted

Method = TypeVar("Method", bound=Callable[..., Any])


def arguments(*blocks: tuple[Option, ...]) -> Callable[[Method], Method]:
    """Add blocks of options to a magic, in this order."""

    def add(method: Method) -> Method:
        for option in reversed([option for block in blocks for option in block]):
            method = option.add(argument)(method)
        return method

    return add


def profile_option(help_text: str) -> Any:
    """Return the option ``--profile``."""
    return argument("--profile", type=unquoted, metavar="EXPR|FILE", help=help_text)


def read_options(shell: Any, options: dict[str, Any]) -> None:
    """Evaluate, in place, the options that are expressions; the names are those of `nbtriton.perf`."""
    options["shapes"] = dict(options["shapes"] or ()) or None
    if (text := options.get("inputs")) is not None:
        options["inputs"] = evaluate(shell, text, "--inputs ")
    if (text := options.get("intervals")) is not None:
        text = f"[{text}]" if "," in text else text
        options["intervals"] = evaluate(shell, text, "--intervals ")


def read_profile(shell: Any, given: str) -> Any:
    """Return the profile that an expression or the name of a file gives."""
    from nbtriton.lab.simulate import Profile

    if given.endswith(".json"):
        return Profile.load(given)
    return evaluate(shell, given, "--profile ")
