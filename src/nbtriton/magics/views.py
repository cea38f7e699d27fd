"""The live views that magics have put up: one a cell, all taken down at unload."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nbtriton.packages import needed

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nbtriton.widgets import LiveTable, LiveView, Shown

__all__ = ["Views", "views"]


class Views:
    """Views that no run ends, such as `%triton_watch`'s."""

    def __init__(self) -> None:
        self._ends: dict[object, Callable[[], None]] = {}

    def show(self, shell: InteractiveShell, view: LiveView) -> Shown:
        """Show a view in place of the one that the same cell showed when it ran before."""
        with needed("a live view"):
            from nbtriton.widgets import show_live

        self._end_previous(shell)
        shown = show_live(view)
        self._ends[_cell_id(shell)] = shown.stop
        return shown

    def show_table(self, shell: InteractiveShell, source: Callable[[], Any]) -> LiveTable:
        """Show a table that stays up to date, likewise."""
        with needed("a live view"):
            from nbtriton.widgets import LiveTable

        self._end_previous(shell)
        table = LiveTable(source)
        self._ends[_cell_id(shell)] = table.stop
        return table.show()

    def stop(self) -> None:
        """Replace every view by its static form."""
        while self._ends:
            self._ends.popitem()[1]()

    def _end_previous(self, shell: InteractiveShell) -> None:
        end = self._ends.pop(_cell_id(shell), None)
        if end is not None:
            end()


def _cell_id(shell: InteractiveShell) -> object:
    """Return what stays the same when a cell runs again, where the front end says it."""
    parent: Any = getattr(shell, "parent_header", None) or {}
    return (parent.get("metadata") or {}).get("cellId") or object()


views = Views()
