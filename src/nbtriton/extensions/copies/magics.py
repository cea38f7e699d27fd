"""The magic that shows copies between host and GPUs."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from IPython.core.magic import Magics, magics_class
from IPython.core.magic_arguments import argument

from nbtriton.extensions.copies import bounces, copies
from nbtriton.magics import common
from nbtriton.serving.server import server


@magics_class
class CopiesMagics(Magics):
    """``%triton_copies``."""

    @common.magic()
    @argument("--clear", action="store_true", help="reset the counts after this table")
    def triton_copies(self, options: Namespace) -> Any:
        """Return the copies between host and GPUs, a row for each edge and direction, as a DataFrame.

        Each row has the writer and the reader of the tensor, its bytes, and the device's time, per
        copy and per request. If a step makes a tensor leave a GPU only to come back, it is named
        above the table, with the line of the configuration or of the model's code that causes it::

            %triton_copies
            frame = %triton_copies --clear
        """
        frame = copies(server(), clear=options.clear)
        for sentence in bounces(frame):
            print(sentence)  # noqa: T201
        return frame
