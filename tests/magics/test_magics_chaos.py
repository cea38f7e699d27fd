"""``%triton_chaos``: the same as `nbtriton.chaos`."""

from __future__ import annotations

import inspect

import pytest
from IPython.core.magic_arguments import parse_argstring

import nbtriton as nt


def test_it_takes_everything_that_the_python_call_takes(notebook):
    defaults = vars(parse_argstring(notebook.shell.find_line_magic("triton_chaos"), "m"))
    for option, parameter in list(inspect.signature(nt.chaos).parameters.items())[2:]:
        if option != "observer":
            assert defaults[option] == parameter.default, option


def test_it_returns_a_report(doubled):
    line = (
        "%triton_chaos double --faults raise=0.5,queue_full=0.1 --request-count 40 --seed 2 -o kept"
    )
    report = doubled.ok(line).value
    assert doubled.names["kept"] is report
    assert sum(report.frame["count"]) == 40
    assert "effect" in doubled.forms(report)["text/html"]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("%triton_chaos double --faults slwo", "did you mean 'slow'?"),
        ("%triton_chaos double --faults slow=much", "has it a share for each"),
        ("%triton_chaos double --fault slow --sed 3", "did you mean '--seed'?"),
        ("%triton_chaos doubel", "did you mean 'double'?"),
    ],
)
def test_bad_lines_get_one_sentence(doubled, line, text):
    ran = doubled(line)
    assert ran.error is not None
    assert text in f"{ran.error} {ran.text}"
