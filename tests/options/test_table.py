"""An option is declared once: the magic, the command line and Python have the same."""

from __future__ import annotations

import inspect

import nbtriton as nt
from nbtriton.magics import cli, magic_methods
from nbtriton.options import Option, blocks, only

# Of nt.perf alone: Python objects, and what a line says by its place.
IN_PYTHON = {"server", "model", "observer", "background"}


def declared() -> dict[str, Option]:
    """Return the options of a measurement by their names in Python."""
    names = [name for name in blocks.__all__ if name != "SCHEDULING"]
    return {option.parameter: option for name in names for option in getattr(blocks, name)}


def test_python_has_what_is_declared():
    parameters = set(inspect.signature(nt.perf).parameters) - IN_PYTHON
    assert parameters == set(declared())


def test_the_command_line_has_what_is_declared():
    parser = cli._parser()
    (commands,) = [
        a for a in parser._actions if getattr(a, "choices", None) and "perf" in a.choices
    ]
    found = {flag for action in commands.choices["perf"]._actions for flag in action.option_strings}
    wanted = {flag for option in declared().values() for flag in option.flags.split()}
    assert wanted - found == {"--inputs"}  # arrays


def test_the_magic_has_what_is_declared():
    parser = magic_methods()["triton_perf"].parser
    found = {flag for action in parser._actions for flag in action.option_strings}
    wanted = {flag for option in declared().values() for flag in option.flags.split()}
    assert wanted - found == set()


def test_only_finds_options_by_any_spelling():
    assert [option.parameter for option in only(blocks.LOAD, "-c", "--speed")] == [
        "concurrency",
        "speed",
    ]
