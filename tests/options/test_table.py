"""An option is declared once: the magic, the command line and Python have the same."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

import pytest

import nbtriton as nt
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.extensions.autoscale import AUTOSCALE
from nbtriton.extensions.capacity import CAPACITY
from nbtriton.extensions.recordings import REPLAY
from nbtriton.extensions.remote.model import REMOTE
from nbtriton.extensions.tuning import TUNE
from nbtriton.extensions.twin import TWIN
from nbtriton.lab.perf.settings import DATA, LOAD, PERF
from nbtriton.lab.simulate.prediction import _PLACE
from nbtriton.lab.simulate.settings import PROFILE
from nbtriton.magics import cli, magic_methods
from nbtriton.options.repository import EXPORT, REPOSITORY
from nbtriton.options.server import SERVER
from nbtriton.options.table import Option, only
from nbtriton.serving.frontends import serve
from nbtriton.serving.frontends.flags import flags_by_name
from nbtriton.serving.settings import ENDPOINTS
from scripts.docs import public_names

# Of nt.perf alone: Python objects, and what a line says by its place.
IN_PYTHON = {"server", "model", "observer", "background"}


def declared() -> dict[str, Option]:
    """Return the options of a measurement by their names in Python."""
    return {**PERF, "zero_input": only(DATA, "-z")[0]}


def test_python_documents_each_option_of_a_measurement():
    described = re.findall(r"^([\w, ]+) : ", inspect.getdoc(nt.perf), re.MULTILINE)
    assert {name for line in described for name in line.split(", ")} - IN_PYTHON == set(PERF)


def test_the_command_line_has_what_is_declared():
    parser = cli._parser()
    (commands,) = [
        a for a in parser._actions if getattr(a, "choices", None) and "perf" in a.choices
    ]
    found = {flag for action in commands.choices["perf"]._actions for flag in action.option_strings}
    wanted = {flag for option in declared().values() for flag in option.flags.split()}
    assert wanted - found == {"--inputs"}  # arrays


def test_only_finds_options_by_any_spelling():
    assert [option.parameter for option in only(LOAD, "-c", "--speed")] == [
        "concurrency",
        "speed",
    ]


# -- a server and its endpoints ----------------------------------------------------------------------

# What several flags of tritonserver say, of which each says more than this.
COMPOSED = {"cache_bytes", "summaries"}


def flags_of_magic(name: str) -> set[str]:
    actions = magic_methods()[name].parser._actions
    return {flag for action in actions for flag in action.option_strings}


WHATIF = {name: one for name, one in PERF.items() if name not in _PLACE}


@pytest.mark.parametrize(
    ("call", "table"),
    [
        (nt.Server, SERVER), (nt.server, SERVER), (nt.Server.set_options, SERVER),
        (nt.Server.serve, ENDPOINTS), (serve, ENDPOINTS), (nt.Server.load_repository, REPOSITORY), (nt.Server.export, EXPORT),
        (nt.perf, PERF), (nt.types.PerfRun, PERF), (nt.compare, PERF), (nt.whatif, WHATIF),
        (nt.profile, PROFILE), (nt.tune, TUNE), (nt.replay, REPLAY), (nt.remote, REMOTE), (nt.twin, TWIN),
        (nt.autoscale, AUTOSCALE),
        (nt.capacity, CAPACITY),
    ],
)  # fmt: skip
def test_signature_and_help_of_python_are_those_of_the_table(call, table):
    found = inspect.signature(call).parameters
    assert set(table) <= set(found)
    heads = re.findall(r"^(\w+(?:, \w+)*)(?: : .*)?$", inspect.getdoc(call), re.MULTILINE)
    described = {name for head in heads for name in head.split(", ")}
    assert set(table) <= described
    for name, option in table.items():
        assert found[name].default in (option.default, ...)


@pytest.mark.parametrize(
    ("magic", "table"),
    [
        ("triton_server", SERVER), ("triton_serve", ENDPOINTS), ("triton_load", REPOSITORY), ("triton_export", EXPORT), ("triton_perf", PERF), ("triton_whatif", WHATIF),
        ("triton_profile", PROFILE), ("triton_tune", TUNE), ("triton_replay", REPLAY), ("triton_remote", REMOTE), ("triton_twin", TWIN),
        ("triton_autoscale", AUTOSCALE),
        ("triton_capacity", CAPACITY),
    ],
)  # fmt: skip
def test_the_magic_has_the_options_of_the_table(magic, table):
    wanted = {flag for option in table.values() for flag in option.flags.split()}
    assert wanted <= flags_of_magic(magic)


# Names of what is given, not options.
NAMES = {
    "plot": ["named"], "step": ["parameters"],
    "PageFigure": ["kwargs"], "PageFigure.add_subplot": ["kwargs"],
}  # fmt: skip


# Made by nbtriton alone.
RESULTS = {"Profile", "Tuning"}


def public_calls() -> dict[str, Any]:
    """Return what a person calls: the public names, and the methods of the public classes."""
    found = {}
    modules = ("nbtriton", "nbtriton.types", "nbtriton.extensions.lessons")
    public = [(import_module(module), name) for module in modules for name in public_names(module)]
    for module, name in public:
        one = getattr(module, name)
        if callable(one):
            found[name] = one
        if isinstance(one, type):
            methods = inspect.getmembers(one, inspect.isfunction)
            ours = ((key, each) for key, each in methods if each.__module__.startswith("nbtriton"))
            found |= {f"{name}.{key}": each for key, each in ours if not key.startswith("_")}
    return found


@pytest.mark.parametrize("name", sorted(public_calls()))
def test_a_public_call_shows_its_options(name):
    parameters = inspect.signature(public_calls()[name]).parameters.values()
    rest = [one.name for one in parameters if one.kind is one.VAR_KEYWORD]
    assert rest == NAMES.get(name, [])


@pytest.mark.parametrize("name", sorted(public_calls().keys() - RESULTS))
def test_a_public_call_takes_a_server_first_and_then_a_model(name):
    parameters = inspect.signature(public_calls()[name]).parameters.values()
    by_place = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    by_place = by_place[by_place[:1] == ["self"] :]
    assert "server" not in by_place[1:]
    # Behind what stands for a server: a profile, a repository, a figure.
    assert "model" not in by_place[2:]


@pytest.mark.parametrize("table", [SERVER, ENDPOINTS, REPOSITORY])
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
