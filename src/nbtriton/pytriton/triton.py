"""`Triton`: functions bound as models of a server in this process, and its endpoints."""

from __future__ import annotations

import logging
import re
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

from nbtriton.common.checks import is_whole
from nbtriton.common.closing import Stopping
from nbtriton.pytriton.binding import Binding
from nbtriton.pytriton.config import TritonConfig, TritonSecurityConfig
from nbtriton.pytriton.exceptions import (
    PyTritonInvalidOperationError,
    PyTritonValidationError,
)
from nbtriton.pytriton.model_config import ModelConfig, Tensor, TritonModelConfig
from nbtriton.pytriton.stack import TritonContext, attach
from nbtriton.serving.frontends.serve.flags import FLAGS, parse_flags
from nbtriton.serving.frontends.serve.options import endpoint_options, server_options, start_log
from nbtriton.serving.server import Server

if TYPE_CHECKING:
    from nbtriton.serving.frontends import Endpoints

__all__ = [
    "DefaultTritonLifecyclePolicy",
    "Triton",
    "TritonConfig",
    "TritonLifecyclePolicy",
    "TritonSecurityConfig",
    "VertextAILifecyclePolicy",
]

_log = logging.getLogger("nbtriton.pytriton")

MONITORING_PERIOD_S = 10.0
_NAME = re.compile(r"[a-zA-Z0-9._-]+")
# Time for requests in flight when a Triton stops, and for the response with the reason.
_DRAIN_S = 5.0


@dataclass
class TritonLifecyclePolicy:
    """Time at which the endpoints open.

    Attributes
    ----------
    launch_triton_on_startup : bool
        Open by ``with Triton()``; otherwise by `Triton.run` or `Triton.serve`.
    local_model_store : bool
        No effect: models are not written to files.
    """

    launch_triton_on_startup: bool = True
    local_model_store: bool = False


DefaultTritonLifecyclePolicy = TritonLifecyclePolicy()
VertextAILifecyclePolicy = TritonLifecyclePolicy(
    launch_triton_on_startup=False, local_model_store=True
)


class Triton(Stopping):
    """Python functions served as models from this process, as by PyTriton's ``Triton``.

    A bound model is available at once through `server`, and to clients after `run`.

    Parameters
    ----------
    config : TritonConfig, optional
        Other fields come from variables such as ``PYTRITON_TRITON_CONFIG_HTTP_PORT``.
    workspace : path, optional
        No effect: models are not written to files.
    triton_lifecycle_policy : TritonLifecyclePolicy, optional
    security_config : TritonSecurityConfig, optional
        By default clients need no token.
    server : nbtriton.Server, optional
        The server to use, such as ``nt.server()``; it stays open. By default a new one.

    Attributes
    ----------
    server : nbtriton.Server
        For `nbtriton.watch`, `nbtriton.perf` and other tools.

    Examples
    --------
    >>> from nbtriton.pytriton import ModelClient, Tensor, Triton, TritonConfig, batch
    >>> @batch
    ... def double(data):
    ...     return [data * 2]
    >>> with Triton(config=TritonConfig(http_port=0, grpc_port=0, allow_metrics=False)) as triton:
    ...     triton.bind(
    ...         model_name="Double",
    ...         infer_func=double,
    ...         inputs=[Tensor(name="data", dtype=np.float32, shape=(-1,))],
    ...         outputs=[Tensor(name="result", dtype=np.float32, shape=(-1,))],
    ...     )
    ...     with ModelClient(triton.url, "Double") as client:
    ...         client.infer_sample(np.float32([1, 2]))["result"].tolist()
    [2.0, 4.0]
    """

    def __init__(
        self,
        *,
        config: TritonConfig | None = None,
        workspace: Path | str | None = None,  # noqa: ARG002 - PyTriton's
        triton_lifecycle_policy: TritonLifecyclePolicy | None = None,
        security_config: TritonSecurityConfig | None = None,
        server: Server | None = None,
    ) -> None:
        self._config = TritonConfig.from_env().merged(config)
        self._security = security_config
        self._policy = triton_lifecycle_policy or (
            VertextAILifecyclePolicy
            if self._config.allow_vertex_ai
            else DefaultTritonLifecyclePolicy
        )
        self._arguments = self._parsed()
        self._shared_server = server
        self._server = server
        self._context = TritonContext()
        self._models: dict[str, Binding] = {}
        self._endpoints: Endpoints | None = None
        self._closing = ExitStack()
        self._changed = threading.Condition(threading.RLock())

    @property
    def server(self) -> Server:
        """Server with the bound models."""
        with self._changed:
            if self._server is None:
                self._server = Server(**server_options(self._arguments))
            return self._server

    @property
    def url(self) -> str:
        """Address of the HTTP endpoint; without HTTP of the gRPC endpoint.

        Raises
        ------
        PyTritonInvalidOperationError
            The endpoints are not open.
        """
        endpoints = self._endpoints
        if endpoints is None:
            raise PyTritonInvalidOperationError("this Triton does not run", hint="triton.run()")
        if endpoints.http_port is not None:
            return f"http://{endpoints.host}:{endpoints.http_port}"
        return f"grpc://{endpoints.host}:{endpoints.grpc_port}"

    @property
    def endpoints(self) -> Endpoints | None:
        """The open endpoints; None unless they are open."""
        return self._endpoints

    def bind(
        self,
        model_name: str,
        infer_func: Callable[..., Any] | Sequence[Callable[..., Any]],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        model_version: int = 1,
        config: ModelConfig | None = None,
        strict: bool = False,
        trace_config: Sequence[str] | None = None,  # noqa: ARG002 - PyTriton's
    ) -> None:
        """Load a function as a model.

        Parameters
        ----------
        model_name : str
        infer_func : callable or sequence of callable
            Called with a list of `Request`, returns a list of dicts of arrays; decorators of
            `nbtriton.pytriton.decorators` change this. Each of several functions is an instance.
        inputs, outputs : sequence of Tensor
        model_version : int
        config : ModelConfig, optional
        strict : bool
            Refuse outputs whose names, dtypes or shapes differ from the declaration.
        trace_config : sequence of str, optional
            No effect: `TritonConfig.trace_config` includes the functions.

        Raises
        ------
        PyTritonValidationError
            A name, tensor or function is wrong.
        PyTritonInvalidOperationError
            The model exists already.
        """
        if not isinstance(model_name, str) or not _NAME.fullmatch(model_name):
            raise PyTritonValidationError(
                f"the name '{model_name}' is not possible for a model",
                hint="letters, digits, dots, underscores and dashes",
            )
        if not (is_whole(model_version) and model_version >= 1):
            raise PyTritonValidationError(
                f"model '{model_name}': model_version is {model_version!r}",
                hint="a whole number from 1 on",
            )
        if not isinstance(config, ModelConfig | None):
            raise PyTritonValidationError(
                f"model '{model_name}': config is {config!r}", hint="a ModelConfig"
            )
        functions = list(infer_func) if isinstance(infer_func, Sequence) else [infer_func]
        if not functions or not all(callable(function) for function in functions):
            raise PyTritonValidationError(
                f"model '{model_name}': infer_func is {infer_func!r}",
                hint="a function, or a list of functions, one for each instance",
            )
        settings = config or ModelConfig()
        described = TritonModelConfig.of(
            model_name, model_version, inputs, outputs, settings, len(functions)
        )
        binding = Binding(
            described,
            [attach(function, described, self._context) for function in functions],
            strict=strict,
            on_unrecoverable=self._fail,
        )
        fields = described.to_dict()
        with self._changed:
            key = f"{model_name.lower()}/{model_version}"
            if key in self._models:
                raise PyTritonInvalidOperationError(
                    f"model '{model_name}' is bound already", hint="triton.stop() unbinds all"
                )
            for function in functions:
                self._context.model_configs.add(function, described)
            if settings.model_warmup:
                binding.warm_up(settings.model_warmup)
            self.server.load(fields, binding.model(), name=model_name, version=model_version)
            self._models[key] = binding

    def run(self) -> None:
        """Open the endpoints and return.

        Raises
        ------
        UnavailableError
            A port is in use.
        """
        with self._changed:
            if self._endpoints is not None:
                return
            self._warn_without_effect()
            server = self.server
            with ExitStack() as opened:
                options = endpoint_options(self._arguments)
                if self._arguments.given & {"log-verbose", "log-file"}:
                    options["log"] = opened.enter_context(closing(start_log(self._arguments)))
                if self._config.model_repository is not None:
                    control = server.load_repository(
                        self._config.model_repository, control_mode="explicit", load_models=["*"]
                    )
                    opened.callback(control.close)
                endpoints = server.serve(**options)
                opened.callback(endpoints.close, drain_s=_DRAIN_S)
                self._closing = opened.pop_all()
            self._endpoints = endpoints
        _log.info("models are served at %s", self.url)

    def connect(self) -> None:
        """Open the endpoints, as `run`; no other process has to start."""
        self.run()

    def serve(self, monitoring_period_s: float = MONITORING_PERIOD_S) -> None:
        """Open the endpoints and wait until Ctrl-C, `stop` or an unrecoverable error; then stop.

        Parameters
        ----------
        monitoring_period_s : float
            Interval of the checks of the endpoints, in seconds.
        """
        self.run()
        _log.info("Ctrl-C stops it")
        try:
            with self._changed:
                while self.is_alive():
                    self._changed.wait(monitoring_period_s)
        except KeyboardInterrupt:
            _log.info("interrupted")
        finally:
            self.stop()

    def stop(self) -> bool:
        """Close the endpoints and unload the models; False if there was nothing to stop.

        Requests in flight get 5 s; the rest end with an error.
        """
        with self._changed:
            server, self._server = self._server, self._shared_server
            models, self._models = self._models, {}
            opened, self._closing = self._closing, ExitStack()
            stopped = self._endpoints is not None or bool(models)
            self._endpoints = None
            self._context = TritonContext()
            self._changed.notify_all()
        # Without the lock, for which a request in flight may wait.
        opened.close()
        if self._shared_server is None:
            if server is not None:
                server.close(timeout_s=max(0.0, self._arguments.exit_timeout_secs))
        else:
            for binding in models.values():
                self._shared_server.unload(binding.config.model_name, timeout_s=_DRAIN_S)
        return stopped

    def is_alive(self) -> bool:
        """Return True while the endpoints are open."""
        endpoints = self._endpoints
        return endpoints is not None and bool(endpoints.http_port or endpoints.grpc_port)

    def is_connected(self) -> bool:
        """Return True while the endpoints are open."""
        return self.is_alive()

    def get_access_token(self) -> str | None:
        """Return the token of the security configuration."""
        return None if self._security is None else self._security.access_token

    def __enter__(self) -> Self:
        if self._policy.launch_triton_on_startup:
            self.run()
        return self

    def __repr__(self) -> str:
        names = ", ".join(binding.config.model_name for binding in self._models.values())
        return f"<nbtriton.pytriton.Triton: {names or 'no models'}; {self._endpoints or 'closed'}>"

    def _parsed(self) -> SimpleNamespace:
        flags = self._config.to_flags()
        return parse_flags([*flags, *([] if self._security is None else self._security.to_flags())])

    def _warn_without_effect(self) -> None:
        for name in sorted(self._arguments.given):
            if not FLAGS[name].effect:
                field = name.replace("-", "_")
                warnings.warn(
                    f"TritonConfig.{field} has no effect here: {FLAGS[name].help}", stacklevel=4
                )

    def _fail(self) -> None:
        """Stop after an unrecoverable error; on a thread, as its request is answered first."""
        _log.error("an inference function raised PyTritonUnrecoverableError; this Triton stops")
        threading.Thread(target=self.stop, name="nbtriton-pytriton-stop", daemon=True).start()
