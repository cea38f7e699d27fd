"""Separate the inputs of ``%triton_infer`` from its options: ``NAME --version 2 IN=np.ones((1, 4))``."""

from __future__ import annotations

import re

from IPython.core.error import UsageError

from nbtriton.options.reading import unquoted

__all__ = ["split_inputs"]

# A tensor's name, of any alphabet or in quotes, and a single `=`, where a word of the line begins.
# Quotes with a backslash are a Python string, whose end an escaped quote is not.
_INPUT = re.compile(r"""([^\W\d][\w.:/\-]*|"[^"\\]+"|'[^'\\]+')\s*=(?!=)\s*""")
# `x --y` and `x -o y` are not Python in practice: they are options.
_OPTION = re.compile(r"(-o|--[a-z][a-z-]*)(?=\s|=|$)")
_QUOTED = re.compile(r"'''.*?'''|\"\"\".*?\"\"\"|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"")


def split_inputs(line: str) -> tuple[str, dict[str, str]]:
    """Split a line into its options and its inputs.

    An expression may hold spaces: it reaches to the next ``NAME=`` or option outside of brackets
    and quotes. A name may be in quotes.

    Returns
    -------
    options : str
        What is left of the line.
    inputs : dict of str to str
        Expressions by tensor name.

    Raises
    ------
    UsageError
        An input stands there twice.
    """
    options: list[str] = []
    inputs: dict[str, str] = {}
    current = ""
    i = depth = 0
    start = 0
    word = True  # a word may begin here

    def close(end: int) -> None:
        text = line[start:end].strip()
        if current in inputs:
            raise UsageError(f"the input '{current}' is given twice")
        if current:
            inputs[current] = text
        elif text:
            options.append(text)

    while i < len(line):
        if word and depth == 0:
            found = _INPUT.match(line, i)
            if found:
                close(i)
                current, start = unquoted(found[1]), found.end()
                i, word = found.end(), False
                continue
            if current and _OPTION.match(line, i):
                close(i)
                current, start = "", i
        char = line[i]
        quoted = _QUOTED.match(line, i)
        if quoted:
            i, word = quoted.end(), False
            continue
        depth += (char in "([{") - (char in ")]}")
        word = char.isspace()
        i += 1
    close(len(line))
    return " ".join(options), inputs
