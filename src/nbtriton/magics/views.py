"""The live views of magics: one per cell, all removed at unload, none shown again as the value of its cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nbtriton.common.packages import needed

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nbtriton.widgets import LiveView, Shown

_ON_SCREEN = "nbtriton.widgets.show", "Shown"


class Views:
    """Views that do not end with a run, such as `%triton_watch`'s."""

    def __init__(self) -> None:
        self._ends: dict[object, Callable[[], None]] = {}

    def show(self, view: LiveView) -> Shown:
        """Show a view, replacing the one from an earlier run of the same cell."""
        with needed("a live view"):
            from nbtriton.widgets.show import cell_id, show_live

        self._end_previous(cell_id())
        shown = show_live(view)
        self._ends[cell_id()] = shown.stop
        return shown

    def stop(self) -> None:
        """Replace every view by its static form."""
        while self._ends:
            self._ends.popitem()[1]()

    def _end_previous(self, cell: object) -> None:
        end = self._ends.pop(cell, None)
        if end is not None:
            end()

    def register(self, shell: InteractiveShell) -> None:
        """Keep a shell from showing a view again as the value of its cell; nothing is imported."""
        shell.display_formatter.ipython_display_formatter.for_type_by_name(*_ON_SCREEN, _nothing)

    def unregister(self, shell: InteractiveShell) -> None:
        """Undo `register`."""
        shell.display_formatter.ipython_display_formatter.pop(".".join(_ON_SCREEN), None)


views = Views()


def _nothing(value: object) -> None:
    """Show nothing; in a terminal, which has no live views, show the current state."""
    in_terminal = getattr(value, "in_terminal", "")
    if in_terminal:
        print(f"\n{in_terminal}")  # noqa: T201 - a cell's own output
