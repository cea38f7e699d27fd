"""The magic that shows a stream of frames."""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class, output_can_be_silenced
from IPython.core.magic_arguments import argument, magic_arguments

from nbtriton.extensions.show import SHOW
from nbtriton.magics.ask import read_request
from nbtriton.magics.common import arguments, keep, keep_option
from nbtriton.options.reading import unquoted
from nbtriton.serving.server import server

__all__ = ["ShowMagics"]


@magics_class
class ShowMagics(Magics):
    """``%triton_show``."""

    @output_can_be_silenced
    @magic_arguments()
    @argument("name", type=unquoted, help="a model that answers with FRAME")
    @argument("inputs", nargs="*", metavar="INPUT=EXPR", help="a Python expression for each input")
    @arguments(tuple(SHOW.values()))
    @keep_option
    @line_magic
    def triton_show(self, line: str) -> Any:
        """Show the frames of a stream live, with boxes, labels and track ids over them.

        The stream is that of one request; ``stop()`` of the result ends it, and its newest frame stays
        in the notebook::

            %triton_show video URL=["street.mp4"]
            view = %triton_show street --labels car,person --wait URL=["street.mp4"]
        """
        from nbtriton.extensions.show.view import show

        options, values = read_request(self, self.triton_show, line)
        given = {name: getattr(options, name) for name in SHOW}
        given = {name: value for name, value in given.items() if value is not None}
        return keep(self.shell, options.out, show(server(), options.name, values, **given))
