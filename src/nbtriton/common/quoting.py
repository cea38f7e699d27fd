"""Names in suggested lines of magics."""

from __future__ import annotations

import re

# Characters that have no meaning in a magic's line: no separator, option, input, bracket or semicolon.
_PLAIN = re.compile(r"[\w./:+@][\w./:+@-]*")


def quoted(name: str) -> str:
    """Return a name as a word of a magic's line, in quotes where the line needs them.

    Quotes in IPython's lines have no escapes: a name with both kinds of quotes may be read as a
    different one.

    Examples
    --------
    >>> quoted("double"), quoted("my model")
    ('double', "'my model'")
    """
    if _PLAIN.fullmatch(name):
        return name
    quote = '"' if "'" in name else "'"
    return f"{quote}{name}{quote}"
