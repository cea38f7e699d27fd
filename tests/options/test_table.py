"""An option is declared once: the magic, the command line and Python have the same."""

from __future__ import annotations

import inspect
import re

import pytest

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.magics import cli, magic_methods
from nbtriton.options import Option, blocks, only
from nbtriton.options.endpoints import ENDPOINTS
from nbtriton.options.server import SERVER
from nbtriton.serving.frontends import serve
from nbtriton.serving.frontends.serve.flags import flags_by_name

# Of nt.perf alone: Python objects, and what a line says by its place.
IN_PYTHON = {"server", "model", "observer", "background"}


def declared() -> dict[str, Option]:
    """Return the options of a measurement by their names in Python."""
    return {**blocks.PERF, "zero_input": only(blocks.DATA, "-z")[0]}


def test_python_documents_each_option_of_a_measurement():
    described = re.findall(r"^    ([\w, ]+) : ", nt.perf.__doc__, re.MULTILINE)
    assert {name for line in described for name in line.split(", ")} - IN_PYTHON == set(blocks.PERF)


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


# -- a server and its endpoints ----------------------------------------------------------------------

# What several flags of tritonserver say, of which each says more than this.
COMPOSED = {"cache_bytes", "summaries"}


def flags_of_magic(name: str) -> set[str]:
    actions = magic_methods()[name].parser._actions
    return {flag for action in actions for flag in action.option_strings}


@pytest.mark.parametrize(
    ("call", "table"),
    [
        (nt.Server, SERVER), (nt.server, SERVER), (nt.Server.set_options, SERVER),
        (nt.Server.serve, ENDPOINTS), (serve, ENDPOINTS), (nt.PerfRun, blocks.PERF), (nt.compare, blocks.PERF),
    ],
)  # fmt: skip
def test_signature_and_help_of_python_are_those_of_the_table(call, table):
    found = inspect.signature(call).parameters
    assert set(table) <= set(found)
    assert all(one.kind is not one.VAR_KEYWORD for one in found.values())
    for name, option in table.items():
        assert found[name].default in (option.default, ...)
        assert f"{name} : {option.type}" in call.__doc__


@pytest.mark.parametrize(
    ("magic", "table"), [("triton_server", SERVER), ("triton_serve", ENDPOINTS)]
)
def test_the_magic_has_the_options_of_the_table(magic, table):
    wanted = {flag for option in table.values() for flag in option.flags.split()}
    assert wanted <= flags_of_magic(magic)


@pytest.mark.parametrize("table", [SERVER, ENDPOINTS])
def test_serve_has_a_flag_for_each_option_that_a_line_can_say(table):
    found = {option.parameter for option in flags_by_name().values()}
    assert {name for name, option in table.items() if option.flags} - COMPOSED <= found


@pytest.mark.parametrize(
    ("call", "name"), [(nt.Server, "cache_byte"), (nt.server, "isolations"), (serve, "http_prt")]
)
def test_an_unknown_option_names_the_nearest(call, name):
    with pytest.raises(InvalidArgumentError, match=f"no option '{name}'") as caught:
        call(*([None] if call is serve else []), **{name: 1})
    assert "did you mean" in caught.value.hint
