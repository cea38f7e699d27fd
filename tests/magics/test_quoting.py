"""Names as words of a magic's line."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from IPython.utils.process import arg_split

from nbtriton.magics.ask import split_inputs
from nbtriton.options.reading import quoted, unquoted

# The quotes of a line know no escapes: a name that holds both cannot always be written. Those of an input's
# expression do: a backslash in front of the last quote would be read as one.
NAMES = st.from_regex(re.compile(r"[^\r\n\x00]*"), fullmatch=True).filter(
    lambda name: not ("'" in name and '"' in name) and not name.endswith("\\")
)


@pytest.mark.medium
@given(NAMES)
@example("my model")
@example("it's")
@example("it's mine")
@example('"x"')
@example("x;")
@example("--x")
@example("a=b")
@example("f(x")
@example("")
def test_a_name_is_read_as_it_was_written(name):
    line, inputs = split_inputs(f"{quoted(name)} -o out IN=x")
    assert inputs == {"IN": "x"}
    word, *rest = arg_split(line.rstrip().removesuffix(";"))
    assert unquoted(word) == name
    assert rest == ["-o", "out"]
    (alone,) = arg_split(quoted(name).rstrip().removesuffix(";"))
    assert unquoted(alone) == name


def test_plain_names_stay_as_they_are():
    for name in ("double", "model-2.1", "a/b:c", "модель", "scikit_learn+cu"):
        assert quoted(name) == name
    assert quoted("my model") == "'my model'"
