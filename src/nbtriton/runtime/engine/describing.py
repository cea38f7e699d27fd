"""Docstrings of the compiled core's public classes, which compiling drops."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

__all__ = ["describe"]


def describe(*kinds: type) -> None:
    """Give classes that have lost their docstring that of their source, with their methods.

    The docstrings of compiled methods cannot be set: the class says a line of each.
    """
    for kind in kinds:
        if not kind.__doc__:
            kind.__doc__ = docstring_of(kind)


def docstring_of(kind: type) -> str:
    """Return a class's docstring as its source has it, and a line for each public method."""
    place = Path(sys.modules[kind.__module__].__file__ or "")
    source = place.with_name(f"{kind.__module__.rpartition('.')[2]}.py")
    if not source.is_file():
        return ""
    body = ast.parse(source.read_text(encoding="utf-8")).body
    (found,) = (n for n in body if isinstance(n, ast.ClassDef) and n.name == kind.__name__)
    lines = [ast.get_docstring(found) or "", "", "Methods", "-------"]
    for one in found.body:
        if isinstance(one, ast.FunctionDef) and not one.name.startswith("_"):
            arguments = "" if one.decorator_list else f"({ast.unparse(one.args)})"
            summary = (ast.get_docstring(one) or "").partition("\n\n")[0].replace("\n", " ")
            lines += [one.name + arguments.replace("(self, ", "(").replace("(self)", "()")]
            lines += [f"    {summary}"]
    return "\n".join(lines)
