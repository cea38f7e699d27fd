"""The live views that magics have put up: one a cell, all taken down at unload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nbtriton.widgets import LiveView, Shown

__all__ = ["Views", "views"]


class Views:
    """Views that no run ends, such as `%triton_watch`'s."""

    def __init__(self) -> None:
        self._shown: dict[object, Shown] = {}

    def show(self, shell: InteractiveShell, view: LiveView) -> Shown:
        """Show a view in place of the one that the same cell showed when it ran before."""
        from nbtriton.widgets import show_live

        key = _cell_id(shell)
        previous = self._shown.pop(key, None)
        if previous is not None:
            previous.finish()
        self._shown[key] = shown = show_live(view)
        return shown

    def finish(self) -> None:
        """Replace every view by its static form."""
        while self._shown:
            self._shown.popitem()[1].finish()


def _cell_id(shell: InteractiveShell) -> object:
    """Return what stays the same when a cell runs again, where the front end says it."""
    parent: Any = getattr(shell, "parent_header", None) or {}
    return (parent.get("metadata") or {}).get("cellId") or object()


views = Views()
