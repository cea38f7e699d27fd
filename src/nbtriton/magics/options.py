"""The magic that sets the options of the server that the magics use."""

from __future__ import annotations

from typing import Any

from IPython.core.magic import Magics, line_magic, magics_class, output_can_be_silenced
from IPython.core.magic_arguments import magic_arguments

from nbtriton.magics.arguments import arguments
from nbtriton.magics.common import keep, keep_option, parse
from nbtriton.options.server import SERVER
from nbtriton.serving.server import server


@magics_class
class OptionsMagics(Magics):
    """``%triton_server``."""

    @output_can_be_silenced
    @magic_arguments()
    @arguments(tuple(option.as_change() for option in SERVER.values()))
    @keep_option
    @line_magic
    def triton_server(self, line: str) -> Any:
        """Set the options of the server that the magics use; shows all that are set.

        What is not named stays as it is, and the same options again change nothing. With other
        ones the models that are loaded are loaded anew; it says which. Python has the same by
        ``nt.server(cache_bytes=…)``::

            %triton_server --rate-limit execution_count --rate-limit-resource R1:4
            %triton_server --isolation process
            %triton_server --gpus simulated:2
            %triton_server --cache-bytes 1000000 --backend-config default-max-batch-size=8
            options = %triton_server
        """
        given = vars(parse(self.triton_server, line))
        out = given.pop("out")
        changes = {name: SERVER[name].of_parsed(value) for name, value in given.items()}
        loaded = server().set_options(**changes)
        if loaded:
            print(f"loaded anew with these options: {', '.join(loaded)}")  # noqa: T201
        return keep(self.shell, out, server().options)
