"""Names in the lines of magics that a text suggests."""

from __future__ import annotations

import re

__all__ = ["quoted"]

# What no magic's line takes for a separator, an option, an input, a bracket or silence.
_PLAIN = re.compile(r"[\w./:+@][\w./:+@-]*")


def quoted(name: str) -> str:
    """Return a name as a word of a magic's line, in quotes where the line needs them.

    IPython's lines have no escapes in quotes: of a name that holds both kinds of quotes, the word may be
    read as another one.

    Examples
    --------
    >>> quoted("double"), quoted("my model")
    ('double', "'my model'")
    """
    if _PLAIN.fullmatch(name):
        return name
    quote = '"' if "'" in name else "'"
    return f"{quote}{name}{quote}"
