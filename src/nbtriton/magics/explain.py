"""The magics that explain: what the recorder kept."""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class, output_can_be_silenced
from IPython.core.magic_arguments import argument, magic_arguments

from nbtriton.api import server
from nbtriton.engine.events import events
from nbtriton.magics.common import keep, keep_option, parse

__all__ = ["ExplainMagics"]


@magics_class
class ExplainMagics(Magics):
    """``%triton_events``."""

    @output_can_be_silenced
    @magic_arguments()
    @argument("name", nargs="?", default="", help="by default all models")
    @argument(
        "--by", choices=("event", "request", "batch"), default="event",
        help="what a row is (by default an event)",
    )  # fmt: skip
    @keep_option
    @line_magic
    def triton_events(self, line: str) -> Any:
        """Return what happened to the last requests and batches, as a DataFrame.

        The server's recorder keeps the last 4096 of each model, through reloads and sweeps
        (``%triton_server --recorder`` sets how many)::

            %triton_events
            frame = %triton_events double --by request
        """
        options = parse(self.triton_events, line)
        return keep(self.shell, options.out, events(server(), options.name, by=options.by))
