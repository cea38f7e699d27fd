"""One declaration of an option gives every surface: signature, documentation, parser, check, table of a page."""

import argparse
import inspect
from typing import Annotated, Literal, TypedDict, Unpack

import pytest

from nbtriton.common.checks import whole
from nbtriton.common.errors import InvalidArgumentError
from nbtriton.options import Option, add_arguments, complete, rows, table, takes
from nbtriton.options.reading import int_list


class Base(TypedDict, total=False):
    seed: Annotated[int, Option("the seed of random data", 0, kind=whole(0))]
    quick: Annotated[bool, Option("short windows", default=False)]


class Family(Base, total=False):
    max_trials: Annotated[
        int, Option("windows a level", 10, kind=whole(1), analyzer="--max-trials (-r)")
    ]
    interval_ms: Annotated[float | None, Option("length of a window", value="MS", also="-p")]
    mode: Annotated[Literal["time", "count"], Option("when a window ends", "time")]
    sizes: Annotated["int | list[int] | None", Option("rows", value="LIST", read=int_list)]
    data: Annotated["dict[str, object] | None", Option("what to send", evaluated=True)]
    note: Annotated[str, Option("a text, 100% free", "", repeated=True, value="TEXT")]
    observer: Annotated[
        "object | None", Option("is called", on_lines=False, more="Not a thread's.")
    ]


@takes(Family)
def perf(model: str, **options: Unpack[Family]) -> Family:
    """Measure.

    Parameters
    ----------
    model : str
        A model.
    **options
        All of them.

    Returns
    -------
    Family
    """
    return complete(Family, options, of="perf")


def test_the_defaults_of_the_family_complete_what_is_given():
    assert perf("m", seed=3) == {
        "seed": 3, "quick": False, "max_trials": 10, "interval_ms": None, "mode": "time", "sizes": None,
        "data": None, "note": "", "observer": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sed": 1}, "perf has no option 'sed'"),
        ({"seed": -1}, "seed must be a whole number from 0 on; found -1"),
        ({"seed": None}, "seed must be a whole number from 0 on; found None"),
        ({"quick": 1}, "quick must be True or False; found 1"),
        (
            {"max_trials": 0},
            "Failed to parse --max-trials (-r). The value must be a whole number from 1 on; found 0.",
        ),
        ({"interval_ms": "x"}, "interval_ms must be a number; found 'x'"),
        ({"mode": "tim"}, "mode must be one of 'time', 'count'; found 'tim'"),
        ({"mode": None}, "mode must be one of 'time', 'count'; found None"),
    ],
)
def test_a_value_is_checked_by_its_declaration(options, message):
    with pytest.raises(InvalidArgumentError) as caught:
        perf("m", **options)
    assert caught.value.message == message
    if "nearest" in message or "sed'" in message:
        assert caught.value.hint == "did you mean 'seed'?"


def test_signature_and_documentation_list_the_options():
    parameters = inspect.signature(perf).parameters
    assert [*parameters] == ["model", *table(Family)]
    assert (parameters["max_trials"].default, parameters["sizes"].annotation) == (
        10,
        "int | list[int] | None",
    )
    assert "**options" not in perf.__doc__
    assert (
        "    observer : object | None, default None\n        Is called. Not a thread's.\n"
        in perf.__doc__
    )
    assert perf.__doc__.index("seed : int") < perf.__doc__.index("Returns")


def test_a_parser_has_every_option_that_a_line_can_write():
    parser = argparse.ArgumentParser()
    add_arguments(parser, table(Family).values())
    assert vars(parser.parse_args([])) == {}
    line = (
        "--quick -r 3 -p 2.5 --mode count --sizes 1,2 --note a --note 'b' --seed 4 --data {'x':[1]}"
    )
    assert vars(parser.parse_args(line.split())) == {
        "seed": 4, "quick": True, "max_trials": 3, "interval_ms": 2.5, "mode": "count", "sizes": [1, 2],
        "data": {"x": [1]}, "note": ["a", "b"],
    }  # fmt: skip
    assert "a text, 100% free" in parser.format_help()


def test_a_page_has_a_row_for_each_option():
    lines = rows(table(Family).values())
    assert "| `max_trials` | `--max-trials`, `-r` | `10` | windows a level |" in lines
    assert len(lines) == 2 + len(table(Family))
