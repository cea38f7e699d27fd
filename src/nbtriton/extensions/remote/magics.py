"""The magic that takes a model from a running Triton."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from IPython.core.magic import Magics, magics_class
from IPython.core.magic_arguments import argument

from nbtriton.extensions.remote.model import REMOTE, remote
from nbtriton.magics.common import arguments, magic
from nbtriton.options.reading import unquoted
from nbtriton.serving.server import server


@magics_class
class RemoteMagics(Magics):
    """``%triton_remote``."""

    @magic()
    @argument("name", type=unquoted, metavar="NAME", help="what it is called here")
    @argument(
        "url", type=unquoted, metavar="URL", help="host:port of the server; http:// or grpc:// may be in front"
    )  # fmt: skip
    @arguments(tuple(REMOTE.values()))
    def triton_remote(self, options: Namespace) -> Any:
        """Take a model of a running Triton as a model here: as a step of an ensemble, for every other magic.

        Its configuration comes from there; batches are formed here and sent. So half of a pipeline runs in
        production, while the other half is a cell::

            %triton_remote bert inference.example:8001 --protocol grpc --timeout-s 5
            %triton_remote old inference.example:8000 --model bert --version 3
        """
        given: dict[str, Any] = {name: getattr(options, name) for name in REMOTE}
        return server().load("", remote(options.url, **given), name=options.name)
