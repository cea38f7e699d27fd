"""An option: what a magic's line and a command line make of one declaration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nbtriton.options.reading import unquoted

__all__ = ["Option", "only"]


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a line; its name in Python is the first long spelling unless `name` has another.

    Parameters
    ----------
    flags : str
        Its spellings, separated by spaces, such as ``"-c --concurrency"``.
    help : str
        What it does, with the default in parentheses; ``%%`` is a per cent sign.
    value : str
        How the value is written, by its unit where it has one: ``"MS"``, ``"LIST"``.
    read : callable
        Makes a value of the text; raises `argparse.ArgumentTypeError`.
    default : object
    choices : tuple of str
        The allowed values.
    name : str
        The parameter in Python.
    action : str
        As argparse has it; ``"store"`` if empty.
    const : object
        The value of ``action="store_const"``.
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

    @property
    def parameter(self) -> str:
        """Its name in Python."""
        long = next(flag for flag in self.flags.split() if flag.startswith("--"))
        return self.name or long[2:].replace("-", "_")

    def add(self, to: Callable[..., Any]) -> Any:
        """Call an ``add_argument`` or IPython's ``argument`` with this option; return what it returns."""
        settings: dict[str, Any] = {
            "dest": self.parameter, "help": self.help, "default": self.default,
        }  # fmt: skip
        if self.action:
            settings["action"] = self.action
        if self.action == "store_const":
            settings["const"] = self.const
        elif self.action != "store_true":
            if self.choices:
                settings["choices"] = self.choices
            else:
                settings |= {"type": self.read, "metavar": self.value}
        return to(*self.flags.split(), **settings)


def only(block: tuple[Option, ...], *flags: str) -> tuple[Option, ...]:
    """Return those options of a block that have one of these spellings."""
    return tuple(option for option in block if set(flags) & set(option.flags.split()))
