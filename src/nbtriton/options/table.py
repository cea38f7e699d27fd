"""An option, declared once: what Python, a magic's line, a command line and the documentation make of it."""

from __future__ import annotations

import inspect
import re
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ForwardRef, TypeVar

from nbtriton.common.checks import Kind, check
from nbtriton.common.errors import InvalidArgumentError, nearest
from nbtriton.options.reading import unquoted

Signed = TypeVar("Signed", bound=Callable[..., Any])
_REST = re.compile(r"^( *)\*\*\w+\n(?:\1 +\S.*\n)+", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a line; its name in Python is the first long spelling unless `name` has another.

    Parameters
    ----------
    flags : str
        Its spellings, separated by spaces, such as ``"-c --concurrency"``; empty for Python's alone.
    help : str
        What it does, with the default in parentheses; ``%%`` is a per cent sign.
    value : str
        How the value is written, by its unit where it has one: ``"MS"``, ``"LIST"``.
    read : callable
        Makes a value of the text; raises `argparse.ArgumentTypeError` or `InvalidArgumentError`.
    default : object
    choices : tuple of str
        The allowed values.
    name : str
        The parameter in Python.
    action : str
        As argparse has it; ``"store"`` if empty.
    const : object
        The value of ``action="store_const"``.
    alone : object
        What the option means without a value; by default it needs one.
    join : callable
        Makes the value in Python of the list of an option that may be repeated.
    kind : Kind, optional
        The values that Python takes.
    type : str
        The annotation in Python.
    unset : str
        What the default means, where it is None or empty.
    off : str
        The word of a magic's line for that.
    unit : str
        Behind a number that is shown.
    ours : bool
        Whether tritonserver 2.51 lacks it, of a flag of ``nbtriton serve``.
    analyzer : bool
        Whether it is one of perf_analyzer's, whose texts its errors have.
    analyzed : str
        What it is called there, if not by its long spelling.
    """

    flags: str
    help: str
    value: str = ""
    read: Callable[[str], Any] = unquoted
    default: Any = None
    choices: tuple[str, ...] = ()
    name: str = ""
    action: str = ""
    const: Any = None
    alone: Any = None
    join: Callable[[list[Any]], Any] = list
    kind: Kind | None = None
    type: str = ""
    unset: str = ""
    off: str = ""
    unit: str = ""
    ours: bool = False
    analyzer: bool = False
    analyzed: str = ""

    @property
    def parameter(self) -> str:
        """Its name in Python."""
        return self.name or next(iter(self.long), "").replace("-", "_")

    @property
    def long(self) -> list[str]:
        """The long spellings, without their dashes."""
        return [flag[2:] for flag in self.flags.split() if flag.startswith("--")]

    def add(self, to: Callable[..., Any]) -> Any:
        """Call an ``add_argument`` or IPython's ``argument`` with this option; return what it returns."""
        settings: dict[str, Any] = {
            "dest": self.parameter, "help": self.help,
            "default": [] if self.action == "append" and self.default == () else self.default,
        }  # fmt: skip
        if self.action:
            settings["action"] = self.action
        if self.action == "store_const":
            settings["const"] = self.const
        elif self.action not in ("store_true", "store_false"):
            if self.choices:
                settings["choices"] = self.choices
            else:
                settings |= {
                    "type": self._of_line,
                    "metavar": f"{self.value}|{self.off}" if self.off else self.value,
                }
        if self.alone is not None:
            settings |= {"nargs": "?", "const": self.alone}
        return to(*self.flags.split(), **settings)

    def _of_line(self, text: str) -> Any:
        text = unquoted(text)
        if text == self.default:  # which argparse reads as well
            return text
        try:
            return None if self.off and text == self.off else self.read(text)
        except InvalidArgumentError as error:
            refused = (
                f"'{text}' is neither {self.value} nor '{self.off}'" if self.off else error.message
            )
            raise ArgumentTypeError(refused) from None
        except ValueError:
            read = getattr(self.read, "__name__", "option")
            raise ArgumentTypeError(f"invalid {read} value: {text!r}") from None

    def as_change(self) -> Option:
        """Return the option of a line that says what is to be changed: without it nothing is."""
        words = f"{self.help}; '{self.off}': {self.unset}" if self.off else self.help
        return replace(self, default=SUPPRESS, help=words)

    def of_parsed(self, found: Any) -> Any:
        """Return the value in Python of what a parser found."""
        if self.action != "append" or found is None:
            return found
        return self.join([one for one in found if one is not None])

    def check(self, value: Any) -> None:
        """Refuse a value that Python cannot give."""
        if self.choices and value not in (*self.choices, self.default):
            what, listed = self.parameter.replace("_", " "), ", ".join(map(repr, self.choices))
            raise InvalidArgumentError(
                f"Failed to parse --{self.long[0]}. Unsupported type provided: '{value}'. The available options are {listed}."
                if self.analyzer
                else f"unknown {what} '{value}': it is {' or '.join(self.choices)}",
                hint=nearest(str(value), self.choices),
            )
        if self.kind is None or self.kind.accepts(value):
            return
        if not self.analyzer:
            check({self.parameter: value}, {self.parameter: self.kind})
        short = "".join(f" ({flag})" for flag in self.flags.split() if not flag.startswith("--"))
        raise InvalidArgumentError(
            f"Failed to parse {self.analyzed or f'--{self.long[0]}{short}'}. The value must be {self.kind.words}; found {value!r}."
        )


def given_options(parsed: object, table: Mapping[str, Option]) -> dict[str, Any]:
    """Return the values in Python of the options of a table that a parser found."""
    found = vars(parsed)
    return {name: one.of_parsed(found[name]) for name, one in table.items() if name in found}


def only(block: tuple[Option, ...], *flags: str) -> tuple[Option, ...]:
    """Return those options of a block that have one of these spellings."""
    return tuple(option for option in block if set(flags) & set(option.flags.split()))


def table_of(settings: type) -> dict[str, Option]:
    """Return the options that a TypedDict annotates its keys with, by their names in Python."""
    found = {}
    for name, hint in settings.__annotations__.items():
        base = hint.__origin__
        text = base.__forward_arg__ if isinstance(base, ForwardRef) else base.__name__
        found[name] = replace(hint.__metadata__[0], name=name, type=text)
    return found


def read_settings(
    what: str, table: Mapping[str, Option], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the value of each option of a table: what is given, else its default.

    Raises
    ------
    InvalidArgumentError
        An option that is not in the table, with the nearest one, or a value that it does not take.
    """
    for name in given:
        if name not in table:
            raise InvalidArgumentError(f"{what} has no option '{name}'", hint=nearest(name, table))
    found = {name: given.get(name, option.default) for name, option in table.items()}
    for name, option in table.items():
        option.check(found[name])
    return found


def signed(table: Mapping[str, Option], *, changes: bool = False) -> Callable[[Signed], Signed]:
    """Give a function or a class that takes ``**options`` the signature and the documentation of a table.

    A function that changes options leaves those that are not named as they are: their default is ``...``.
    """

    def sign(of: Signed) -> Signed:
        function: Any = of.__init__ if isinstance(of, type) else of  # type: ignore[misc]
        found = inspect.signature(function)
        named = [one for one in found.parameters.values() if one.kind is not one.VAR_KEYWORD]
        own = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=... if changes else one.default, annotation=one.type)
            for name, one in table.items()
            if name not in found.parameters
        ]  # fmt: skip
        function.__signature__ = found.replace(parameters=[*named, *own])
        of.__doc__ = _REST.sub(lambda rest: _entries(table, rest[1]), of.__doc__ or "")
        return of

    return sign


def _entries(table: Mapping[str, Option], indent: str) -> str:
    """Return the parameters of a table as numpydoc has them."""
    lines = []
    for name, option in table.items():
        text = option.help.replace("%%", "%")
        lines.append(f"{indent}{name} : {option.type}\n{indent}    {text[:1].upper()}{text[1:]}.\n")
    return "".join(lines)
