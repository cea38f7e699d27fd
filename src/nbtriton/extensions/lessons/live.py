"""The live form of a figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import traitlets

from nbtriton.widgets.view import LiveView, asset


class FigureWidget(LiveView):
    """A figure on a page; nothing moves in it but what the page itself plays.

    Parameters
    ----------
    on_command : callable
        Called with what the reader asks for: ``edit``, ``move``, ``reset``, ``check`` or ``show``.
    """

    _esm = asset(Path(__file__).with_name("figure.js"))
    _css = asset(Path(__file__).with_name("figure.css"))

    stages: Any = traitlets.List().tag(sync=True)
    moments: Any = traitlets.List().tag(sync=True)
    fields: Any = traitlets.List().tag(sync=True)
    title = traitlets.Unicode("").tag(sync=True)
    finding = traitlets.Unicode("").tag(sync=True)
    problem = traitlets.Unicode("").tag(sync=True)
    question = traitlets.Unicode("").tag(sync=True)
    mark: Any = traitlets.List().tag(sync=True)
    span_ms = traitlets.Float(0.0).tag(sync=True)
    grid_ms = traitlets.Float(1.0).tag(sync=True)
    moved = traitlets.Int(-1).tag(sync=True)

    def __init__(self, on_command: Callable[[dict[str, Any]], None], **options: Any) -> None:
        self._on_command = on_command
        super().__init__(resting=True, **options)

    def handle_message(self, content: dict[str, Any]) -> None:
        """Handle a message of a page; nothing moves by itself, so the hub is not needed."""
        if content.get("kind") not in ("open", "ack", "here", "close"):
            self._on_command(content)
