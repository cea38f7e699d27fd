"""The server as users have it, with repositories and endpoints; and the one a process shares."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtriton.backends.forking import per_process
from nbtriton.engine import Server as EngineServer
from nbtriton.engine.lifecycle.options import ServerOptions
from nbtriton.packages import needed

if TYPE_CHECKING:
    from nbtriton.frontends import Endpoints
    from nbtriton.repository.control import ModelControl
    from nbtriton.repository.export.writer import Exported
    from nbtriton.repository.verify.find_server import RealServer
    from nbtriton.repository.verify.verification import Verification

__all__ = ["Server", "close_server", "server"]

# Addresses on which an endpoint answers this machine by its loopback address.
_LOOPBACK = ("127.0.0.1", "localhost", "0.0.0.0")  # noqa: S104 - compared, not bound


class Server(EngineServer):
    """Models, ensembles and the scheduler that runs them, inside this process.

    Parameters
    ----------
    gpus : sequence of int, optional
        Ids of the GPUs that models may use; all visible ones by default.
    cache_bytes : int, optional
        Size of the response cache, as in ``--cache-config local,size=N``. Without one,
        ``response_cache { enable: true }`` has no effect, as in Triton.
    rate_limit : {"off", "execution_count"}
        Triton's ``--rate-limit``: whether instances wait for the resources of their group's
        ``rate_limiter``.
    rate_limit_resources : sequence of str
        Triton's ``--rate-limit-resource``: ``"R1:4"`` or ``"R1:4:0"`` for a device.
    backend_config : mapping of str to mapping, optional
        Triton's ``--backend-config``, by the backend's name: ``{"onnxruntime":
        {"default-max-batch-size": "8"}}``. Settings under the empty name are for all backends; its
        ``backend-directory`` is where Python-based backends are, a folder with a ``model.py`` each.
    summaries : bool
        Triton's ``--metrics-config summary_latencies``: keep quantiles of latencies for the metrics.

    Examples
    --------
    >>> import numpy as np, nbtriton as nt
    >>> def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    ...     return {"OUT": IN * 2}
    >>> with nt.Server() as server:
    ...     _ = server.load("max_batch_size: 8", model=double, name="double")
    ...     server.infer("double", {"IN": np.ones((1, 4), np.float32)})["OUT"]
    array([[2., 2., 2., 2.]], dtype=float32)
    """

    def __init__(
        self,
        *,
        gpus: Sequence[int] | None = None,
        cache_bytes: int | None = None,
        rate_limit: str = "off",
        rate_limit_resources: Sequence[str] = (),
        backend_config: Mapping[str, Mapping[str, str]] | None = None,
        summaries: bool = False,
    ) -> None:
        super().__init__(
            gpus=gpus,
            cache_bytes=cache_bytes,
            rate_limit=rate_limit,
            rate_limit_resources=rate_limit_resources,
            backend_config=backend_config,
            summaries=summaries,
        )
        self._opened: list[Any] = []
        self._controls: list[ModelControl] = []

    def load_repository(
        self,
        directory: str | Path | Sequence[str | Path],
        *,
        control_mode: str = "none",
        load_models: Sequence[str] = (),
        poll_s: float = 15.0,
        auto_complete: bool = True,
        config_name: str = "",
        strict_readiness: bool = True,
        exit_on_error: bool = False,
        load_threads: int = 4,
        load_retries: int = 0,
    ) -> ModelControl:
        """Load the models of a repository as Triton would; none keeps another one out.

        Parameters
        ----------
        directory : path or sequence of paths
        control_mode : {"none", "explicit", "poll"}
            Load all models now; or those that `load_models` and `ModelControl.load` name; or all,
            and look every `poll_s` seconds for what changed.
        load_models, poll_s, auto_complete, config_name, strict_readiness, exit_on_error, load_threads, load_retries
            As in `nbtriton.repository.control.ModelControl`.

        Returns
        -------
        ModelControl
            It shows the state of every model; the server closes it.

        Raises
        ------
        NotFoundError
            There is no such directory.
        """
        from nbtriton.repository.control import ModelControl

        self._check_open()
        control = ModelControl(
            self,
            directory,
            mode=control_mode,
            load_models=load_models,
            poll_s=poll_s,
            auto_complete=auto_complete,
            config_name=config_name,
            strict_readiness=strict_readiness,
            exit_on_error=exit_on_error,
            load_threads=load_threads,
            load_retries=load_retries,
        )
        for old in self._controls:
            if old.directories == control.directories:  # a cell that runs again
                old.close()
        self._controls.append(control)
        self.model_control = control
        return control

    def export(
        self,
        directory: str | Path,
        models: Sequence[str] | None = None,
        *,
        carry: Collection[str] | bool = (),
        files: Mapping[str, Mapping[str, str | bytes | Path]] | None = None,
        torch: str = "torchscript",
        overwrite: bool = False,
        verify: bool = False,
        requests: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        reference: RealServer | Path | str | None = None,
    ) -> Exported | Verification:
        """Write models as a repository that the real Triton runs.

        Warns about every variable of the notebook that a model uses and its file will not have.

        Parameters
        ----------
        directory : path
            Made if it is not there; one that holds other things is refused without `overwrite`.
        models : sequence of str, optional
            All by default; the models of an ensemble come with it, and those that a model was seen
            to call by business logic scripting since this server began.
        carry : collection of str or True
            Notebook variables to write along; True for all that are used.
        files : mapping, optional
            Labels, warmup data and other files by model and path within its directory.
        torch : {"torchscript", "export", "python"}
            What torch modules become: TorchScript or ``torch.export`` files for Triton's pytorch
            backend, or TorchScript and a ``model.py`` that runs it in the python backend.
        overwrite : bool
            Replace models of the same names that no export has written.
        verify : bool
            Send the same requests to this server and to the real tritonserver over what was
            written.
        requests : mapping, optional
            Requests to verify with, by model; generated ones for models without.
        reference : path or ``"install"``, optional
            Where the real server is; `nbtriton.repository.verify.find_server.find_server`.

        Returns
        -------
        Exported or Verification
            Both show themselves as a table.

        Raises
        ------
        AlreadyExistsError
            The directory holds other things.
        UnsupportedError
            A model that cannot be written.
        UnavailableError
            No real server was found.
        """
        from nbtriton.repository.export.writer import ExportWarning, export_repository
        from nbtriton.repository.verify.find_server import find_server

        real = find_server(reference) if verify else None
        exported = export_repository(
            self, directory, models, carry=carry, files=files, torch=torch, overwrite=overwrite
        )
        for text in exported.warnings:
            warnings.warn(text, ExportWarning, stacklevel=2)
        if real is None:
            return exported
        from nbtriton.repository.verify.verification import verify_repository

        return verify_repository(
            exported.directory,
            server=self,
            models=[model.name for model in exported.models],
            requests=requests,
            reference=real,
        )

    def serve(self, **options: Any) -> Endpoints:
        """Answer clients over KServe's protocol, as tritonserver does.

        Clients may load and unload models if the last `load_repository` had
        ``control_mode="explicit"``.

        Parameters
        ----------
        **options
            As in `nbtriton.frontends.serve`: ``http_port``, ``grpc_port`` and ``metrics_port`` (0
            for any that is free, None for none) and ``host``, by default this machine alone.

        Returns
        -------
        Endpoints
            Closed by its ``close()``, and with the server.

        Raises
        ------
        UnavailableError
            A port is taken; nothing is left open.
        """
        with needed("an endpoint", extra="serve"):
            from nbtriton.frontends import serve

        self._check_open()
        options.setdefault("control", self.model_control)
        endpoints = serve(self, **options)
        self._opened.append(endpoints)
        return endpoints

    @contextlib.contextmanager
    def reached_over(self, protocol: str) -> Iterator[str]:
        """Yield ``host:port`` where this server answers clients over ``"http"`` or ``"grpc"``.

        That is where it serves, or a free port of this machine that is open meanwhile.
        """
        for endpoints in self._opened:
            port = getattr(endpoints, f"{protocol}_port")
            if port is not None and endpoints.host in _LOOPBACK:
                yield f"127.0.0.1:{port}"
                return
        closed = {"http_port": None, "grpc_port": None, "metrics_port": None}
        with self.serve(**closed | {f"{protocol}_port": 0}) as opened:
            try:
                yield f"127.0.0.1:{getattr(opened, f'{protocol}_port')}"
            finally:
                self._opened.remove(opened)

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Stop: endpoints first, then what polls, then the models. Harmless when repeated.

        Parameters
        ----------
        timeout_s : float
            Seconds to wait for requests that are executing.
        """
        if self._parents is not None:
            return
        while self._opened:
            self._opened.pop().close()
        for control in self._controls:
            control.close(timeout_s=timeout_s)
        super().close(timeout_s=timeout_s)
        for control in self._controls:
            control.clean_up()


_lock = per_process(threading.Lock)
_server: Server | None = None


def server(**options: Any) -> Server:
    """Return the process-wide server; it is made on first use and closed at exit.

    Parameters
    ----------
    **options
        Of `Server`, such as ``cache_bytes=…``, ``rate_limit="execution_count"``, ``gpus=[0]`` or
        ``backend_config={…}``. What is not named stays as it is. Other options than it has change
        the server that is there: its models are loaded anew, as by `Server.set_options`, which
        returns their names.

    Raises
    ------
    InvalidArgumentError
        An option that does not exist or cannot be.
    ConfigError, LoadError
        A model cannot be loaded with these options; nothing has changed.
    """
    global _server
    with _lock():
        if _server is None:
            ServerOptions().changed(**options)  # before anything is made
            _server = Server()
        found = _server
    if options:
        found.set_options(**options)
    return found


def close_server() -> None:
    """Close the process-wide server, if there is one; the next `server()` makes a new one."""
    global _server
    with _lock():
        closing, _server = _server, None
    if closing is not None:
        # One second: an exit or an unload must not hang on a model that does.
        closing.close(timeout_s=1.0)
