"""The magics that bring models in and out: repositories, the ports of real clients, the options of the server."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from IPython.core.magic import Magics, magics_class
from IPython.core.magic_arguments import argument

from nbtriton.common import entries
from nbtriton.common.errors import LoadWarning
from nbtriton.magics.common import arguments, evaluate, magic
from nbtriton.options.reading import unquoted
from nbtriton.options.repository import EXPORT, REPOSITORY
from nbtriton.options.server import SERVER
from nbtriton.options.table import given_options
from nbtriton.serving.server import server
from nbtriton.serving.settings import ENDPOINTS, endpoint_port

if TYPE_CHECKING:
    from argparse import Namespace

    from nbtriton.serving.frontends import Endpoints


def _tls(*files: str | None) -> Any:
    """Return the TLS settings of the three files; None without any."""
    if not any(files):
        return None
    from nbtriton.serving.frontends import Tls

    certificate, key, root = (
        str(Path(unquoted(file)).expanduser()) if file else "" for file in files
    )
    return Tls(certificate, key, root, mutual=bool(root))


@contextmanager
def _said(category: type[Warning]) -> Iterator[None]:
    """Print warnings under the cell, without a place in our code."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        if issubclass(warning.category, category):
            print(warning.message, file=sys.stderr)  # noqa: T201 - a cell's own stderr


_EXPORT = {name: one for name, one in EXPORT.items() if one.flags}
# Those with a flag: a line has no objects.
_OPTIONS = {name: one for name, one in ENDPOINTS.items() if one.flags} | {
    f"{name}_port": endpoint_port(name) for name in entries.places("endpoints")
}
_PORTS = tuple(name for name in _OPTIONS if name.endswith("_port"))


@magics_class
class RepositoryMagics(Magics):
    """``%triton_load``, ``%triton_export``, ``%triton_serve``, ``%triton_server``."""

    # Of the class: another instance comes with `%reload_ext`, and the ports stay open.
    _endpoints: ClassVar[Endpoints | None] = None
    # With which they were opened.
    _serve_options: ClassVar[Mapping[str, Any]] = {}

    @magic()
    @argument("directory", nargs="+", metavar="REPO", help="a model repository, or several")
    @arguments(tuple(REPOSITORY.values()))
    def triton_load(self, options: Namespace) -> Any:
        """Load a model repository; shows every model's state and what is wrong with it.

        One that fails keeps no other one out. The result loads and unloads by name::

            %triton_load models/
            control = %triton_load models/ --control explicit --load-model double
            control.load("other")
        """
        given = given_options(options, REPOSITORY)
        with _said(LoadWarning):
            return server().load_repository(
                [os.path.expanduser(unquoted(text)) for text in options.directory],  # noqa: PTH111 - "" stays
                **given,
            )

    @magic()
    @argument("directory", metavar="DIR", help="where the repository is written")
    @argument(
        "names",
        type=unquoted,
        nargs="*",
        metavar="MODEL",
        help="by default all; an ensemble brings its own, a model those that it was seen to call",
    )
    @argument("--carry-all", action="store_true", help="all variables that the models use")
    @arguments(tuple(_EXPORT.values()))
    def triton_export(self, options: Namespace) -> Any:
        """Write models as a repository that the real Triton Inference Server runs.

        Says which variables of the notebook a model uses that its file will not have, and which
        models it called (by business logic scripting) when it ran here: those are written along.
        What it never called here, name yourself; ``--verify`` finds what is missing::

            %triton_export models/
            %triton_export models/ double --carry SCALE,TABLE
            %triton_export models/ --carry-all --verify
        """
        from nbtriton.serving.repository.export.writer import ExportWarning

        given = given_options(options, _EXPORT)
        if options.carry_all:
            given["carry"] = True
        if options.requests is not None:
            given["requests"] = evaluate(self.shell, options.requests, "--requests ")
        with _said(ExportWarning):
            folder = Path(unquoted(options.directory)).expanduser()
            return server().export(folder, options.names or None, on_progress=print, **given)

    @magic()
    @arguments(tuple(option.as_change() for option in _OPTIONS.values()))
    @argument(
        "--tls-cert", metavar="FILE", help="HTTP and gRPC over TLS, with this certificate (PEM)"
    )
    @argument("--tls-key", metavar="FILE", help="its private key (PEM)")
    @argument(
        "--tls-root", metavar="FILE", help="only clients whose certificates it vouches for (PEM)"
    )
    @argument("--stop", action="store_true", help="close the ports again")
    def triton_serve(self, options: Namespace) -> Any:
        """Answer real clients: tritonclient, perf_analyzer, curl. Run again, the ports are opened anew.

        Port 0 is any that is free, and the same one as before if this is run again. If the ports cannot be opened,
        such as one that another process has, those that were open are opened again. The result closes the ports with ``close()``; unloading nbtriton does as well::

            %triton_serve
            endpoints = %triton_serve --http-port 0 --metrics-port none
            %triton_serve --tls-cert server.pem --tls-key server.key
            %triton_serve --stop
        """
        tls = _tls(options.tls_cert, options.tls_key, options.tls_root)
        cls = type(self)
        open_ports: dict[str, int | None] = {}
        if cls._endpoints is not None:
            open_ports = {name: getattr(cls._endpoints, name) for name in _PORTS}
            cls._endpoints.close()
            cls._endpoints = None  # an interrupt before leaves them to the next call
        if options.stop:
            return None
        given = given_options(options, _OPTIONS)
        # Any port that is free: the one that clients know already.
        given |= {name: open_ports.get(name) or 0 for name in _PORTS if given.get(name) == 0}
        if tls is not None:
            given["http_tls"] = given["grpc_tls"] = tls
        try:
            cls._endpoints = server().serve(**given)
        except BaseException:
            if any(port is not None for port in open_ports.values()):
                cls._endpoints = server().serve(**{**cls._serve_options, **open_ports})
            raise
        cls._serve_options = given
        return cls._endpoints

    @magic()
    @arguments(tuple(option.as_change() for option in SERVER.values()))
    def triton_server(self, options: Namespace) -> Any:
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
        loaded = server().set_options(**given_options(options, SERVER))
        if loaded:
            print(f"loaded anew with these options: {', '.join(loaded)}")  # noqa: T201
        return server().options
