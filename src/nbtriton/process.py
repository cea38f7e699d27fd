"""The server as users have it, with repositories and endpoints; and the one a process shares."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtriton.engine import Server as EngineServer

if TYPE_CHECKING:
    from nbtriton.repository.control import ModelControl

__all__ = ["Server", "close_server", "server"]


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

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
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
    ) -> ModelControl:
        """Load the models of a repository as Triton would; none keeps another one out.

        Parameters
        ----------
        directory : path or sequence of paths
        control_mode : {"none", "explicit", "poll"}
            Load all models now; or those that `load_models` and `ModelControl.load` name; or all,
            and look every `poll_s` seconds for what changed.
        load_models, poll_s, auto_complete, config_name, strict_readiness, exit_on_error
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
        )
        self._controls.append(control)
        self.model_control = control
        return control

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Stop: endpoints first, then what polls, then the models. Harmless when repeated.

        Parameters
        ----------
        timeout_s : float
            Seconds to wait for requests that are executing.
        """
        while self._opened:
            self._opened.pop().close()
        for control in self._controls:
            control.close()
        super().close(timeout_s=timeout_s)
        for control in self._controls:
            control.clean_up()


_lock = threading.Lock()
_server: Server | None = None


def server() -> Server:
    """Return the process-wide server; it is made on first use and closed at exit."""
    global _server
    with _lock:
        if _server is None:
            _server = Server()
            atexit.register(close_server)
        return _server


def close_server() -> None:
    """Close the process-wide server, if there is one; the next `server()` makes a new one."""
    global _server
    with _lock:
        closing, _server = _server, None
        atexit.unregister(close_server)
    if closing is not None:
        # One second: an exit or an unload must not hang on a model that does.
        closing.close(timeout_s=1.0)
