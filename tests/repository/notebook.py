"""A stand-in for a notebook in tests of the export: cells run in one namespace."""

from __future__ import annotations

import ast
import linecache
from typing import Any


class Cells:
    """Runs cells as IPython does: in one namespace called ``__main__``, with the text of each cell."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self._count = 0

    def __call__(self, text: str) -> Any:
        """Run a cell; return the last object that it defines."""
        self._count += 1
        file = f"<cell {id(self)} {self._count}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(text, file, "exec"), self.names)
        last = ast.parse(text).body[-1]
        return self.names.get(getattr(last, "name", ""))
