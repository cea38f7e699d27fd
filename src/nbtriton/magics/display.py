"""Suppression of a cell's value that its magic has already displayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_ON_SCREEN = "nbtriton.widgets.show", "Shown"


def register(shell: InteractiveShell) -> None:
    """Register with a shell; nothing is imported."""
    shell.display_formatter.ipython_display_formatter.for_type_by_name(*_ON_SCREEN, _nothing)


def unregister(shell: InteractiveShell) -> None:
    """Undo `register`."""
    shell.display_formatter.ipython_display_formatter.pop(".".join(_ON_SCREEN), None)


def _nothing(value: object) -> None:
    """Show nothing; in a terminal, which has no live views, show the current state."""
    in_terminal = getattr(value, "in_terminal", "")
    if in_terminal:
        print(f"\n{in_terminal}")  # noqa: T201 - a cell's own output
