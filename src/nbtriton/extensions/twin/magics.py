"""The magic that makes a simulated copy of a running Triton."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from IPython.core.magic import Magics, magics_class
from IPython.core.magic_arguments import argument

from nbtriton.extensions.twin import TWIN
from nbtriton.magics.common import arguments, magic
from nbtriton.options.reading import unquoted
from nbtriton.serving.server import server


@magics_class
class TwinMagics(Magics):
    """``%triton_twin``."""

    @magic()
    @argument(
        "url", type=unquoted, metavar="URL", help="host:port of the server; http:// or grpc:// may be in front"
    )  # fmt: skip
    @argument("--model", type=unquoted, help="what predictions are about (that which clients asked most)")  # fmt: skip
    @argument("--load", action="store_true", help="load stand-ins of its models, for which the server needs --stand-in on")  # fmt: skip
    @arguments(tuple(TWIN.values()))
    def triton_twin(self, options: Namespace) -> Any:
        """Make a simulated copy of a running Triton from its configurations and its statistics.

        Its models get no request, unless ``--measure-s`` asks for it. The copy is a profile: what-if and tune answer about
        it, and its ``traffic`` is a table. With ``--load`` its models run here as stand-ins, for all views::

            twin = %triton_twin inference.example:8000
            %triton_whatif bert --profile twin --request-rate 800 --instances 1,2
            %triton_server --stand-in on
            twin = %triton_twin inference.example:8000 --load
            %triton_tune bert --profile twin --p99 20ms
        """
        from nbtriton.extensions.twin import twin
        from nbtriton.magics.live import LiveRun

        load = vars(options).pop("load")
        url, given, run = LiveRun.named(self.shell, options, "url")
        found = run.of(lambda: twin(url, **given))
        if load:
            found.stand_ins(server())
        return found
