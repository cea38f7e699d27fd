"""The public `Server`, with repositories and endpoints, and the process-wide server."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

from nbtriton.backends.forking import per_process
from nbtriton.common import entries
from nbtriton.common.errors import EngineStoppedError, LoadWarning
from nbtriton.options.repository import COPY, EXPORT, REPOSITORY, ExportSettings, RepositorySettings
from nbtriton.options.server import SERVER, ServerSettings
from nbtriton.options.table import read_settings, signed
from nbtriton.runtime.engine import Server as EngineServer
from nbtriton.runtime.engine.lifecycle.options import ServerOptions
from nbtriton.runtime.interrupts import interrupts_deferred
from nbtriton.serving.settings import ENDPOINTS, EndpointSettings, endpoint_ports

if TYPE_CHECKING:
    from nbtriton.serving.frontends import Endpoints
    from nbtriton.serving.repository.control import ModelControl
    from nbtriton.serving.repository.export.writer import Exported, Verified


class Server(EngineServer):  # noqa: D101 - the docstring of what it extends
    __doc__ = EngineServer.__doc__

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        from nbtriton.runtime.engine.status import show_server

        return show_server(self)

    # Made once, on first use: several threads may need it at the same time.

    @property
    def _endpoints(self) -> list[Endpoints]:
        found: list[Endpoints] = self.__dict__.setdefault("_endpoint_list", [])
        return found

    @property
    def _controls(self) -> list[ModelControl]:
        found: list[ModelControl] = self.__dict__.setdefault("_control_list", [])
        return found

    @property
    def endpoints(self) -> tuple[Endpoints, ...]:
        """Open endpoints of `serve`."""
        return tuple([one for one in list(self._endpoints) if one.is_open])

    @signed(REPOSITORY)
    def load_repository(
        self, directory: str | Path | Sequence[str | Path], **options: Unpack[RepositorySettings]
    ) -> ModelControl:
        """Load the models of a repository as Triton does; a model that fails does not affect others.

        Parameters
        ----------
        directory : path or sequence of paths
        **options
            See `nbtriton.options.repository.RepositorySettings`.

        Returns
        -------
        ModelControl
            Displays the state of every model; closed by the server.

        Raises
        ------
        NotFoundError
            The directory does not exist.

        Warns
        -----
        LoadWarning
            For each model that failed while another load of it serves: that goes on.

        Examples
        --------
        >>> import tempfile
        >>> server.load_repository(tempfile.mkdtemp()).errors
        {}
        """
        from nbtriton.serving.repository.control import ModelControl, kept_reason

        self.engine.check_open()
        control = ModelControl(self, directory, **options)
        for old in self._controls:
            if old.directories == control.directories:  # the cell ran again
                old.close()
        self._controls.append(control)
        self.engine.model_control = control
        for name, error in control.kept.items():
            text = kept_reason(name, error).strip()
            warnings.warn(f"model '{name}': {text}", LoadWarning, stacklevel=2)
        return control

    def control_of(self, model: str) -> ModelControl | None:
        """Return the control of the repository from which a model serves; None for other models.

        Examples
        --------
        >>> server.control_of("double") is None
        True
        """
        return next((one for one in reversed(self._controls) if one.holds(model)), None)

    @signed(EXPORT)
    def export(
        self,
        directory: str | Path,
        models: Sequence[str] | None = None,
        *,
        on_progress: Callable[[str], None] = lambda _: None,
        **options: Unpack[ExportSettings],
    ) -> Exported | Verified:
        """Write models as a repository for the real Triton.

        Warns about every notebook variable that a model uses and its file lacks.

        Parameters
        ----------
        directory : path
            Created if it does not exist; refused without `overwrite` if it has other contents.
        models : sequence of str, optional
            All by default. Composing models of ensembles are included, and models called by business
            logic scripting so far.
        on_progress : callable, optional
            Called with a description of a long step, such as packing an environment.
        **options
            See `nbtriton.options.repository.ExportSettings`.

        Returns
        -------
        Exported or Verified
            Both are displayed as tables.

        Raises
        ------
        AlreadyExistsError
            The directory has other contents.
        UnsupportedError
            A model cannot be written.
        UnavailableError
            No real server was found.

        Examples
        --------
        >>> import tempfile
        >>> exported = server.export(tempfile.mkdtemp(), ["double"])
        >>> (exported.directory / "double" / "config.pbtxt").exists()
        True
        """
        from nbtriton.serving.repository.export.writer import (
            ExportWarning,
            export_repository,
            write_beside,
        )

        given = read_settings("an export", EXPORT, options)
        verification: Callable[..., Verified] | None = None
        if given["verify"]:
            missing = "verify=True needs nbtriton.extensions.verify, which is not here"
            verification = entries.find("verifiers", "tritonserver", missing)(given["reference"])
        missing = "needs nbtriton.extensions.platforms, which is not here"
        platforms = {
            name: entries.find("platforms", name, f"{name} {missing}")
            for name in ("kubernetes", "ray_serve")
            if given[name]
        }
        exported = export_repository(
            self, directory, models, on_progress=on_progress, **{name: given[name] for name in COPY}
        )
        for text in exported.warnings:
            warnings.warn(text, ExportWarning, stacklevel=2)
        names = [model.name for model in exported.models]
        for platform, files in platforms.items():
            for path in write_beside(
                exported.directory, files(exported.directory, names, given[platform])
            ):
                on_progress(f"wrote {path}")
        if verification is None:
            return exported
        return verification(
            exported.directory,
            server=self,
            models=names,
            requests=given["requests"],
            on_progress=on_progress,
        )

    @signed(ENDPOINTS | endpoint_ports())
    def serve(self, **options: Unpack[EndpointSettings]) -> Endpoints:
        """Serve clients over KServe's protocol, as tritonserver does.

        Clients may load and unload models if the last `load_repository` had
        ``control_mode="explicit"``. Clients are not authenticated.

        Parameters
        ----------
        **options
            See `nbtriton.serving.settings.EndpointSettings`, and of each endpoint that an extension adds ``NAME_port``.

        Returns
        -------
        Endpoints
            Closed by its ``close()``, and with the server.

        Raises
        ------
        UnavailableError
            A port is in use; nothing is left open.

        Examples
        --------
        >>> with server.serve(http_port=0, grpc_port=0, metrics_port=None) as endpoints:
        ...     endpoints.http_port > 0
        True
        """
        from nbtriton.serving.frontends import serve

        self.engine.check_open()
        known = self._endpoints
        with interrupts_deferred():  # from its first thread on something is to be closed
            endpoints = serve(self, **options)
            known.append(endpoints)
        try:
            self.engine.check_open()
        except EngineStoppedError:  # by a thread that may have closed those before it
            endpoints.close()
            raise
        for one in list(known):  # one by one, because another thread may open more endpoints
            if not one.is_open:
                with contextlib.suppress(ValueError):
                    known.remove(one)
        return endpoints

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        import asyncio  # 20 ms, only for callers that await

        await asyncio.to_thread(self.close)  # the loop delivers what is awaited meanwhile

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Stop endpoints, the polling of repositories, and models, in this order; idempotent.

        Parameters
        ----------
        timeout_s : float
            Seconds to wait for executing requests.

        Examples
        --------
        >>> with nt.Server() as own:  # closes it at the end of the block
        ...     pass
        >>> own.close()
        """
        if self.engine.in_parent:
            return
        self._close_endpoints()
        for control in list(self._controls):
            control.close(timeout_s=timeout_s)
        super().close(timeout_s=timeout_s)
        self._close_endpoints()  # opened by other threads meanwhile
        for control in self._controls:
            control.clean_up()

    def _close_endpoints(self) -> None:
        for endpoints in list(self._endpoints):  # which stay: Ctrl-C may end the wait for one
            endpoints.close()


_lock = per_process(threading.Lock)
_server: Server | None = None


@signed(SERVER, changes=True)
def server(**options: Unpack[ServerSettings]) -> Server:
    """Return the process-wide server, made on first use and closed at exit.

    Options that are not named stay as they are. Different values change the existing server: its models are loaded
    again, as by `Server.set_options`, which returns their names.

    Parameters
    ----------
    **options
        See `nbtriton.options.server.ServerSettings`.

    Raises
    ------
    InvalidArgumentError
        An option does not exist, or its value is invalid.
    ConfigError, LoadError
        A model cannot be loaded with these options; nothing has changed.

    Examples
    --------
    >>> nt.server(cache_bytes=1_000_000) is nt.server()
    True
    """
    global _server
    with _lock():
        if _server is None:
            ServerOptions(**options)  # checked before the server is made
            _server = Server()
        found = _server
    if options:
        found.set_options(**options)
    return found


def close_server() -> None:
    """Close the process-wide server, if any; the next `server()` makes a new one."""
    global _server
    with _lock():
        closing, _server = _server, None
    if closing is not None:
        # One second: an exit or an unload must not wait for a model that hangs.
        closing.close(timeout_s=1.0)
