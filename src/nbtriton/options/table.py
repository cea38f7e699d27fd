"""What an option is, and what each surface makes of it."""

from __future__ import annotations

import inspect
import re
import reprlib
import types
from argparse import SUPPRESS
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from nbtriton.common.checks import SWITCH, Kind, is_number, is_whole
from nbtriton.common.errors import InvalidArgumentError, nearest
from nbtriton.options.reading import literal, unquoted

__all__ = ["Option", "add_arguments", "complete", "rows", "table", "takes"]

Function = TypeVar("Function", bound=Callable[..., Any])
Family = TypeVar("Family")

# The kinds that follow from a type.
_KINDS = {
    bool: SWITCH,
    int: Kind(is_whole, "a whole number"),
    float: Kind(is_number, "a number"),
    str: Kind(lambda value: isinstance(value, str), "a text"),
}


@dataclass(frozen=True, slots=True)
class Option:
    """One option: the metadata of an annotated field of a family.

    Parameters
    ----------
    help : str
        What it does, in one sentence without the default.
    default : object
        The value if it is not given. Where it is None, None may be given too.
    value : str
        How the value is written on a line, by its unit where it has one: ``"MS"``, ``"N"``, ``"on|off"``.
    kind : Kind, optional
        What is accepted, and the bound in words; by default what the type says.
    read : callable, optional
        An argparse type for a text on a line; by default what the type says.
    also : str
        Further spellings on a line, such as ``"-c --concurrency-range"``, beside the name itself.
    analyzer : str
        The spellings of perf_analyzer as its messages have them, such as ``"--max-trials (-r)"``; a refusal then has
        its text.
    more : str
        Further sentences for the documentation.
    repeated : bool
        Whether a line may have it several times; the value is a list.
    evaluated : bool
        Whether its text is an expression: of a notebook's variables in a magic, a literal elsewhere.
    on_lines : bool
        False for a Python object that no line can write.
    name, type
        Of the field; `table` sets them.
    """

    help: str
    default: Any = None
    value: str = ""
    kind: Kind | None = None
    read: Callable[[str], Any] | None = None
    also: str = ""
    analyzer: str = ""
    more: str = ""
    repeated: bool = False
    evaluated: bool = False
    on_lines: bool = True
    name: str = ""
    type: Any = None

    @property
    def flags(self) -> tuple[str, ...]:
        """All spellings on a line; the first is the name."""
        spelled = re.findall(r"(?<![\w-])--?[a-z][\w-]*", f"{self.also} {self.analyzer}")
        return tuple(dict.fromkeys([f"--{self.name.replace('_', '-')}", *spelled]))

    @property
    def plain_type(self) -> Any:
        """The type without None: a class, a Literal, or anything else."""
        if get_origin(self.type) in (Union, types.UnionType):
            rest = [each for each in get_args(self.type) if each is not type(None)]
            return rest[0] if len(rest) == 1 else None
        return self.type

    @property
    def choices(self) -> tuple[Any, ...]:
        """The allowed values of a Literal."""
        return get_args(self.plain_type) if get_origin(self.plain_type) is Literal else ()

    @property
    def line_help(self) -> str:
        """The help with the default, for a line."""
        if self.default is None or self.default in (False, ""):
            return self.help
        return f"{self.help} ({self.default})"

    def check(self, value: object) -> None:
        """Refuse a value that the option cannot have.

        Raises
        ------
        InvalidArgumentError
        """
        if value is None and self.default is None:
            return
        if self.choices:
            if not isinstance(value, str) or value not in self.choices:
                raise InvalidArgumentError(
                    self._unknown_choice(value), hint=nearest(str(value), self.choices)
                )
            return
        kind = self.kind or _KINDS.get(self.plain_type)
        if kind is not None and not kind.accepts(value):
            found = reprlib.repr(value)
            if self.analyzer:
                raise InvalidArgumentError(
                    f"Failed to parse {self.analyzer}. The value must be {kind.words}; found {found}."
                )
            raise InvalidArgumentError(f"{self.name} must be {kind.words}; found {found}")

    def _unknown_choice(self, value: object) -> str:
        allowed = ", ".join(map(repr, self.choices))
        if self.analyzer:
            return (
                f"Failed to parse {self.analyzer}. Unsupported type provided: '{value}'. "
                f"The available options are {allowed}."
            )
        return f"{self.name} must be one of {allowed}; found {value!r}"

    def settings(self, evaluate: Callable[[str], Any]) -> dict[str, Any]:
        """Return the keyword arguments of ``ArgumentParser.add_argument``; what a line lacks is not set."""
        settings: dict[str, Any] = {
            "dest": self.name, "default": SUPPRESS, "help": self.line_help.replace("%", "%%"),
        }  # fmt: skip
        if self.plain_type is bool and self.read is None:
            return settings | {"action": "store_true"}
        if self.repeated:
            settings["action"] = "append"
        if self.choices:
            return settings | {"choices": self.choices}
        plain = self.plain_type if self.plain_type in (int, float) else unquoted
        settings["type"] = evaluate if self.evaluated else self.read or plain
        return settings | {"metavar": self.value or "N"}


def table(family: type) -> Mapping[str, Option]:
    """Return the options of a family by name, in their order; a family has those of its bases first."""
    found = {}
    for name, annotation in family.__annotations__.items():
        (option,) = annotation.__metadata__
        found[name] = replace(option, name=name, type=annotation.__origin__)
    return found


def complete(family: type[Family], given: Mapping[str, Any], *, of: str) -> Family:
    """Return all options of a family: those that are given, checked, and the defaults of the others.

    Parameters
    ----------
    family : type
    given : mapping of str to object
    of : str
        The function that they are given to, for the message.

    Raises
    ------
    InvalidArgumentError
        An option is unknown, with the nearest name, or its value is not allowed.
    """
    options = table(family)
    for name in given:
        if name not in options:
            raise InvalidArgumentError(f"{of} has no option '{name}'", hint=nearest(name, options))
    values: Any = {name: option.default for name, option in options.items()} | dict(given)
    for name, option in options.items():
        option.check(values[name])
    return values  # type: ignore[no-any-return]


def takes(family: type) -> Callable[[Function], Function]:
    """Give a function with ``**options: Unpack[family]`` the family's signature and documentation.

    The entry ``**options`` of its docstring becomes one entry an option.
    """

    def add(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        options = table(family).values()
        keywords = [
            inspect.Parameter(o.name, inspect.Parameter.KEYWORD_ONLY, default=o.default, annotation=_written(o.type))
            for o in options
        ]  # fmt: skip
        function.__signature__ = signature.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
        documented = "".join(_documented(option) for option in options)
        text = function.__doc__ or ""
        function.__doc__ = re.sub(r"( *)\*\*options\n(\1 +.*\n)*", lambda _: documented, text)
        return function

    return add


def _documented(option: Option) -> str:
    text = " ".join(filter(None, (_sentence(option.help), option.more)))
    return (
        f"    {option.name} : {_written(option.type)}, default {option.default!r}\n        {text}\n"
    )


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _written(annotation: Any) -> str:
    """Return a type as its declaration writes it."""
    text = getattr(annotation, "__forward_arg__", None)
    if text is None:
        text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return re.sub(r"\b(typing|collections\.abc)\.", "", text)


def add_arguments(
    parser: Any, options: Iterable[Option], *, evaluate: Callable[[str], Any] = literal
) -> None:
    """Add options to an argparse parser, as far as a line can write them.

    The namespace has those that a line gives, no others: `complete` has the defaults.

    Parameters
    ----------
    parser : argparse.ArgumentParser, or one of its groups
    options : iterable of Option
    evaluate : callable
        An argparse type for options whose text is an expression.
    """
    for option in options:
        if option.on_lines:
            parser.add_argument(*option.flags, **option.settings(evaluate))


def rows(options: Iterable[Option]) -> list[str]:
    """Return the rows of a Markdown table: option, on a line, default, effect."""
    lines = ["| option | on a line | default | |", "|---|---|---|---|"]
    for option in options:
        flags = ", ".join(f"`{flag}`" for flag in option.flags) if option.on_lines else ""
        default = "" if option.default is None else f"`{option.default!r}`"
        effect = " ".join(filter(None, (option.help, option.more))).replace("|", "\\|")
        lines.append(f"| `{option.name}` | {flags} | {default} | {effect} |")
    return lines
