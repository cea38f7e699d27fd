"""The server in the kernel: the Python interface to everything the engine does."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nbtriton.backends import find_backend
from nbtriton.backends.base import RequestOptions, Response
from nbtriton.config import Dumpable, ModelConfig, as_config, is_ensemble
from nbtriton.engine.bls import ModelRepository, ModelServer
from nbtriton.engine.core.future import InferenceFuture
from nbtriton.engine.core.model_runtime import ModelRuntime
from nbtriton.engine.core.request import InferenceRequest, Submission
from nbtriton.engine.core.result import InferenceResult
from nbtriton.engine.core.runtime import Runtime
from nbtriton.engine.diagnostics.tracing import Trace
from nbtriton.engine.handle import ModelHandle
from nbtriton.engine.interrupts import interrupts_deferred
from nbtriton.engine.lifecycle.loading import is_light, updated_config
from nbtriton.engine.lifecycle.modified import stamp_ns
from nbtriton.engine.lifecycle.options import ServerOptions
from nbtriton.engine.lifecycle.stopping import refusal
from nbtriton.engine.lifecycle.versions import Versions
from nbtriton.engine.stream import ResponseStream
from nbtriton.errors import (
    ConfigError,
    ConfigWarning,
    InvalidArgumentError,
    TritonError,
    UnsupportedError,
)
from nbtriton.scheduling import SEQUENCE_END, SEQUENCE_START

__all__ = ["Server"]

_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"  # Y5


class Server(Versions):
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
        ``rate_limiter``. Off by default.
    rate_limit_resources : sequence of str
        Triton's ``--rate-limit-resource``: ``"R1:4"`` or ``"R1:4:0"`` for a device. By default a
        pool is as large as the largest need of one instance.
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
            ServerOptions(
                gpus, cache_bytes, rate_limit, rate_limit_resources, backend_config, summaries
            )
        )
        # The model repository that models may load from (`nbtriton.repository.ModelControl`).
        self.model_control: ModelRepository | None = None
        # One for all models: their calls and metrics belong to this server.
        self._models_view = ModelServer(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._parents is not None:
            state = "in the parent process"
        else:
            state = "closed" if self._closed else f"{len(self._registry.entries)} models"
        return f"<nbtriton.Server: {state}>"

    @property
    def models_view(self) -> ModelServer:
        return self._models_view

    def called_by(self, name: str) -> tuple[str, ...]:
        """Return the models that the code of a model was seen to call since this server began."""
        return tuple(self._models_view.calls.get(name, ()))

    # -- models ----------------------------------------------------------------------------------

    def load(
        self,
        config: str | Mapping[str, Any] | ModelConfig | Dumpable | None = None,
        model: object = None,
        *,
        name: str | None = None,
        version: int | None = None,
        example: object = None,
        batching: object = None,
    ) -> ModelHandle:
        """Load a model or an ensemble, or replace one that is loaded.

        A version that is loaded already goes on serving until its successor is ready; the requests
        it accepted are finished, and none is lost. Where nothing but ``instance_group`` and
        ``version_policy`` differ, there is no successor: instances are added and removed, and the
        others keep what they hold and what they have counted.

        Parameters
        ----------
        config : str, mapping, ModelConfig or pydantic model, optional
            ``config.pbtxt`` text, JSON, a dict, the message itself, or an object whose
            ``model_dump`` gives such a dict.
        model : object, optional
            A class with ``execute``, a `torch.nn.Module` (class or instance), an annotated
            function, the path of a ``model.py``, ``model.pt`` or ``model.onnx``, or an
            ``onnx.ModelProto``. None for an ensemble and for a backend without code (`identity`),
            or to keep the code of a model that is loaded.
        name : str, optional
            Needed where the configuration has none.
        version : int, optional
            By default the highest version there is, or 1.
        example : array, tuple or mapping of arrays, optional
            Sample inputs with a batch dimension, from which a torch module's tensors are learnt.
        batching : object, optional
            Custom batching: a class or an object with Triton's five functions,
            ``model_batch_include_request(request, batch)``, ``model_batch_initialize(batcher)``,
            ``model_batch_finalize(batch)``, ``model_batcher_initialize(model)`` and
            ``model_batcher_finalize(batcher)``. By default the model's own, if its class has them
            as static methods.

        Raises
        ------
        ConfigError
            The configuration is wrong; nothing has changed.
        LoadError
            The model's code failed to load; nothing has changed.

        Warns
        -----
        ConfigWarning
            For each field of the configuration that has no effect here; `ignored` returns them.
        """
        with self._changing:
            self._check_open()
            wanted = ModelConfig() if config is None else as_config(config)
            name = self._name(wanted, name)
            entry = self._registry.entries.get(name)
            current = entry.latest if entry is not None else None
            if config is None and entry is not None:
                wanted.CopyFrom(entry.user_config)
            wanted.name = name
            user_config = ModelConfig()
            user_config.CopyFrom(wanted)
            number = version or (max(entry.slots) if entry is not None else 1)
            serving = entry.slots.get(number) if entry is not None else None
        # Not under the lock: the model's own code may load others, or close the server.
        runtime = serving.runtime if serving is not None else None
        update = None
        if runtime is not None and self._goes_on(
            runtime, wanted, model, current, example, batching
        ):
            update = self.prepare_update(name, number, wanted)
        else:
            runtime = self._build(wanted, model, number, example, current, batching)
        with self._changing:
            with interrupts_deferred():  # all of it or nothing
                self._put(name, user_config, runtime, update)
            ignored = self._registry.entries[name].ignored
        for path, reason in ignored:
            warnings.warn(
                f"model '{name}': {path} has no effect here: {reason}", ConfigWarning, stacklevel=2
            )
        return ModelHandle(self, name)

    def _name(self, config: ModelConfig, name: str | None) -> str:
        if name and config.name and config.name != name:
            raise ConfigError(
                f"unexpected name '{config.name}' in the configuration of model '{name}'",
                hint="leave 'name' out of the configuration, or make the two equal",
                field="name",
            )
        found = name or str(config.name)
        if not found:
            raise ConfigError("model configuration must specify 'name'", field="name")
        return found

    def _goes_on(
        self,
        runtime: Runtime,
        config: ModelConfig,
        model: object,
        current: Runtime | None,
        example: object,
        batching: object,
    ) -> bool:
        """Tell whether a version can stay, with other instances perhaps (L16)."""
        if not isinstance(runtime, ModelRuntime) or not is_light(runtime, config):
            return False
        source = runtime.source
        if model is None:  # then the code is that of the latest version
            same = isinstance(current, ModelRuntime) and current.source is source
        else:
            # The same code with the same configuration is a fresh start.
            given = Path(model) if isinstance(model, str) else model
            same = given is source or (isinstance(given, Path) and given == source)
            if same:
                changed = updated_config(runtime, config, gpus=self._usable_gpus())
                same = changed != runtime.config
        return (
            same
            and stamp_ns(source) == runtime.stamp_ns
            and (example is None or example is runtime.example)
            and (batching is None or batching is runtime.batching)
        )

    def _build(
        self,
        config: ModelConfig,
        model: object,
        version: int,
        example: object,
        current: Runtime | None,
        batching: object,
    ) -> Runtime:
        if model is None and (is_ensemble(config) or config.platform == "ensemble"):
            if batching is not None:
                raise ConfigError(
                    f"the ensemble '{config.name}' forms no batches of its own",
                    hint="give the custom batching to one of its models",
                    field="batching",
                )
            return self.build(config, None, version)
        if model is None and isinstance(current, ModelRuntime):
            model = current.source
            example = current.example if example is None else example
            if batching is None and config.HasField("dynamic_batching"):
                batching = current.batching
        if model is None and (
            not config.backend or find_backend(config.backend, self._settings).needs_source
        ):
            raise InvalidArgumentError(
                f"no code for model '{config.name}'",
                hint="give model=…: a class, a torch module, a function or the path of a file; "
                'an ensemble has platform: "ensemble" and ensemble_scheduling',
            )
        if isinstance(model, str):
            model = Path(model)
        return self.build(config, model, version, example=example, batching=batching)

    # -- requests --------------------------------------------------------------------------------

    def infer(
        self,
        name: str,
        inputs: Mapping[str, Any],
        *,
        version: int = -1,
        outputs: Sequence[str] = (),
        request_id: str = "",
        priority: int = 0,
        timeout_us: int = 0,
        correlation_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        parameters: Mapping[str, bool | int | str] | None = None,
    ) -> InferenceResult:
        """Send one request and wait for its answer.

        Where an instance is idle the request runs in this very thread.

        Parameters
        ----------
        name : str
        inputs : mapping of str to array_like
            Whole tensors, with the batch dimension if the model batches. numpy in gives numpy out,
            torch and CuPy likewise; Python values are converted to the input's datatype.
        version : int
            -1 for the highest that is ready.
        outputs : sequence of str
            All by default.
        request_id, priority, timeout_us, correlation_id, sequence_start, sequence_end, parameters
            As in Triton's inference request.

        Raises
        ------
        TritonError
            With Triton's status and message.
        """
        flags = SEQUENCE_START if sequence_start else 0
        if sequence_end:
            flags |= SEQUENCE_END
        options = RequestOptions(
            outputs, request_id, priority, timeout_us, correlation_id, flags, parameters
        )
        request, response = self.ask(name, version, inputs, options)
        if response.error is not None:
            try:
                raise response.error.with_traceback(None)
            finally:  # else the error holds this frame, which holds the error and the server
                del request, response
        return request.result_of(response)

    def ask(
        self, name: str, version: int, inputs: Mapping[str, Any], options: RequestOptions
    ) -> tuple[InferenceRequest, Response]:
        """Send one request and return it with its response, which may be an error.

        What `infer` is made of, for callers that need to tell a request that was refused (raised
        here) from one that failed.
        """
        with interrupts_deferred():
            accepted = False
            while not accepted:  # replaced between the look-up and now: its successor takes it
                runtime = self._resolve(name, version, decoupled=False)
                request = runtime.signature.build_request(inputs, options)
                accepted = runtime.submit_here(request)
            if request.outcome is None:
                try:
                    request.expect().exception()
                except BaseException:
                    request.expect().cancel()  # after Ctrl-C nobody waits for the answer any more
                    raise
            assert request.outcome is not None
            return request, request.outcome

    def submit(
        self,
        name: str,
        inputs: Mapping[str, Any],
        *,
        version: int = -1,
        outputs: Sequence[str] = (),
        request_id: str = "",
        priority: int = 0,
        timeout_us: int = 0,
        correlation_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        parameters: Mapping[str, bool | int | str] | None = None,
        on_response: Callable[[Response, bool], None] | None = None,
        trace: Trace | None = None,
    ) -> InferenceFuture:
        """Send one request and return at once; arguments and errors as for `infer`.

        The inputs are copied: their memory may be changed as soon as this returns. Those of a model
        with READ_ONLY_INPUTS are not; leave them alone until the answer is there.

        Parameters
        ----------
        on_response : callable, optional
            ``on_response(response, final)`` for every response, on the thread that sends it;
            needed for decoupled models.
        trace : Trace, optional
            Told what happens; ended in any case.

        Returns
        -------
        InferenceFuture
            Can be waited for, awaited, given a callback, cancelled.
        """
        flags = SEQUENCE_START if sequence_start else 0
        if sequence_end:
            flags |= SEQUENCE_END
        options = RequestOptions(
            outputs, request_id, priority, timeout_us, correlation_id, flags, parameters
        )
        return self.send(name, version, inputs, options, on_response, trace).expect()

    def submit_many(self, calls: Sequence[Submission]) -> list[InferenceRequest | TritonError]:
        """Send requests that are there at the same moment, each model its share in one piece.

        For endpoints: a model that is idle gets them as one batch, not the first alone and then the
        others, and there is no future. All responses, errors too, come to ``on_response``.

        Returns
        -------
        list
            For each call the request, to be cancelled, or why it was refused.
        """
        found: list[InferenceRequest | TritonError] = []
        with interrupts_deferred():
            places: dict[Runtime, list[int]] = {}
            for place, call in enumerate(calls):
                try:
                    runtime = self._resolve(call.name, call.version, decoupled=True)
                    request = runtime.signature.build_request(call.inputs, call.options)
                    if self._stopping and (error := refusal(runtime, request)) is not None:
                        raise error
                except TritonError as error:
                    found.append(error)
                    if call.trace is not None:
                        call.trace.refused()
                    continue
                if call.trace is not None:
                    call.trace.follow(request)
                request.on_response = call.on_response
                if call.gives:
                    request.owned_inputs = frozenset(call.inputs)
                found.append(request)
                places.setdefault(runtime, []).append(place)
            for runtime, where in places.items():
                requests: list[Any] = [found[place] for place in where]
                for place, accepted in zip(where, runtime.submit_many(requests), strict=True):
                    if isinstance(accepted, TritonError):
                        found[place] = accepted
                        trace = calls[place].trace
                        if trace is not None:
                            trace.refused()
                    elif not accepted:  # replaced between the look-up and now
                        found[place] = self.submit_many([calls[place]])[0]
        return found

    async def infer_async(
        self, name: str, inputs: Mapping[str, Any], **options: Any
    ) -> InferenceResult:
        """Send one request and await its answer; arguments and errors as for `infer`.

        A coroutine: nothing is sent, and no input copied, before it runs, which a task does when
        its maker next awaits. So give each an array of its own, or use `submit`, whose future can
        be awaited too. A cancelled task gives its request up.
        """
        return await self.submit(name, inputs, **options)

    def stream(
        self,
        name: str,
        inputs: Mapping[str, Any],
        *,
        version: int = -1,
        outputs: Sequence[str] = (),
        request_id: str = "",
        priority: int = 0,
        timeout_us: int = 0,
        correlation_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
        parameters: Mapping[str, bool | int | str] | None = None,
    ) -> ResponseStream:
        """Send one request and iterate over its responses as they come; arguments as for `infer`.

        Works for decoupled models (any number of responses) and for others (one), with ``for`` and
        with ``async for``. Leaving the loop early cancels the request.
        """
        flags = SEQUENCE_START if sequence_start else 0
        if sequence_end:
            flags |= SEQUENCE_END

        options = RequestOptions(
            outputs, request_id, priority, timeout_us, correlation_id, flags, parameters
        )
        return ResponseStream(partial(self.send, name, version, inputs, options))

    def send(
        self,
        name: str,
        version: int,
        inputs: Mapping[str, Any],
        options: RequestOptions,
        on_response: Callable[[Response, bool], None] | None = None,
        trace: Trace | None = None,
    ) -> InferenceRequest:
        """Send one request: what `submit` and `stream` are made of."""
        with interrupts_deferred():
            try:
                while True:
                    runtime = self._resolve(name, version, decoupled=on_response is not None)
                    request = runtime.signature.build_request(inputs, options)
                    if not runtime.signature.reads_only:
                        request.copy_inputs()
                    if trace is not None:
                        trace.follow(request)
                    request.expect()
                    if on_response is not None:
                        request.on_response = partial(_pass_on, on_response)
                    # False: replaced between the look-up and now; its successor takes the request.
                    if runtime.submit(request):
                        return request
            except BaseException:
                if trace is not None:
                    trace.refused()
                raise

    def _resolve(self, name: str, version: int, *, decoupled: bool) -> Runtime:
        if self._closed:
            self._check_open()
        runtime = self._registry.resolve(name, version)
        if runtime.signature.decoupled and not decoupled:
            raise UnsupportedError(_DECOUPLED, hint="use server.stream(…)")
        return runtime


def _pass_on(
    on_response: Callable[[Response, bool], None],
    _: InferenceRequest,
    response: Response,
    final: bool,
) -> None:
    on_response(response, final)
