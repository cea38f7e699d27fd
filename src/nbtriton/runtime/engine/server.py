"""The server in the kernel: the Python interface to everything the engine does."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, Unpack

from nbtriton.backends.devices.device_set import DeviceSet
from nbtriton.common.closing import Closing
from nbtriton.common.errors import ConfigWarning
from nbtriton.model.config import Dumpable, ModelConfig, scheduling_choice
from nbtriton.options.server import SERVER, ServerSettings
from nbtriton.options.table import signed
from nbtriton.runtime.engine.core.execution import InferenceResult
from nbtriton.runtime.engine.core.snapshot import (
    BatchRecord,
    ModelSnapshot,
    RequestRecord,
    ServerHistory,
    ServerSnapshot,
)
from nbtriton.runtime.engine.engine import Engine
from nbtriton.runtime.engine.inference import InferenceCalls
from nbtriton.runtime.engine.lifecycle.closing import close_at_exit
from nbtriton.runtime.engine.lifecycle.options import ServerOptions


@signed(SERVER)
class Server(InferenceCalls, Closing):
    """Models, ensembles and the scheduler that runs them, inside this process.

    Parameters
    ----------
    **options
        See `nbtriton.options.server.ServerSettings`.

    Notes
    -----
    Settings are mappings of mappings: ``backend_config={"onnxruntime": {"default-max-batch-size": "8"}}``, with the empty
    name for all backends, and ``host_policies={"near": {"cpu-cores": "0-3"}}``.

    Attributes
    ----------
    engine : Engine
        The parts of the server, for what is built upon it: endpoints, repositories.

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

    def __init__(self, **options: Unpack[ServerSettings]) -> None:
        self.engine = Engine(ServerOptions(**options))
        close_at_exit(self)

    def __repr__(self) -> str:
        state = self.engine.state
        if state == "open":
            models = len(self.engine.registry.entries)
            state = f"{models} model{'' if models == 1 else 's'}"
        return f"<nbtriton.Server: {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a server cannot be sent to another process: its models run in threads of this one. "
            "Make an nbtriton.Server() there, or ask this one over HTTP (server.serve())"
        )

    @property
    def devices(self) -> DeviceSet:
        """The GPUs that models may use, by id; simulated ones report their memory and their copies."""
        return self.engine.lifecycle.builder.devices

    # -- models ----------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> ModelHandle:
        """Return a model that is loaded, as `load` does; `NotFoundError` for another name."""
        self.engine.inspection.config(name)
        return ModelHandle(self, name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.is_ready(name)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the models that accept requests."""
        names = dict.fromkeys(model.name for model in self.models())
        return iter([name for name in names if name in self])

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)

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
        ``version_policy`` differ, the version has no successor: instances are added and removed, and the
        others keep what they hold and what they have counted.

        Parameters
        ----------
        config : str, mapping, ModelConfig or pydantic model, optional
            ``config.pbtxt`` text, JSON, a dict, the message itself, or an object whose
            ``model_dump`` gives such a dict.
        model : object, optional
            A class with ``execute``, a `torch.nn.Module` (class or instance), an annotated
            function, the path of a ``model.py``, ``model.pt`` or ``model.onnx``, or an
            ``onnx.ModelProto``; or a `ReadyModel`, whose own configuration `config` changes. None for an ensemble and for a backend without code (`identity`),
            or to keep the code of a model that is loaded.
        name : str, optional
            Needed where the configuration has none.
        version : int, optional
            From 0 on; by default the highest version that is loaded, or 1.
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
        InvalidArgumentError
            An argument is of another kind, or there is no code; nothing has changed.

        Warns
        -----
        ConfigWarning
            For each field of the configuration that has no effect here (`ignored` returns them), and
            once for what works here and not in Triton 2.51.

        Examples
        --------
        >>> def triple(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        ...     return {"OUT": IN * 3}
        >>> server.load("max_batch_size: 8  dynamic_batching { }", triple, name="triple").name
        'triple'
        >>> server.unload("triple", timeout_s=None)
        True
        """
        name, remarks = self.engine.lifecycle.load(
            config, model, name=name, version=version, example=example, batching=batching
        )
        for _, text in remarks:
            warnings.warn(f"model '{name}': {text}", ConfigWarning, stacklevel=2)
        return ModelHandle(self, name)

    def unload(
        self, model: str, unload_dependents: bool = False, *, timeout_s: float | None = 0.0
    ) -> bool:
        """Unload all versions of a model.

        New requests are refused at once; those that were accepted are finished (L18). Unloading
        what is not loaded succeeds, as in Triton; a load that has begun in another thread raises.

        Parameters
        ----------
        model : str
        unload_dependents : bool
            For an ensemble: unload its composing models too, unless another ensemble uses them.
        timeout_s : float or None
            Seconds to wait until the last request is finished; 0 does not wait, None has no limit.

        Returns
        -------
        bool
            True once nothing of the model is left.

        Examples
        --------
        >>> def half(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        ...     return {"OUT": IN / 2}
        >>> _ = server.load("max_batch_size: 8", half, name="half")
        >>> server.unload("half", timeout_s=None)
        True
        """
        return self.engine.lifecycle.unload(model, unload_dependents, timeout_s=timeout_s)

    def models(self) -> tuple[ModelSnapshot, ...]:
        """Return every version of every model, by name.

        Examples
        --------
        >>> [(model.name, model.version, model.state) for model in server.models()]
        [('double', 1, 'READY')]
        """
        return self.engine.inspection.models()

    def is_ready(self, model: str, version: int = -1) -> bool:
        """Return True if a request to this version would be accepted.

        Raises
        ------
        InvalidArgumentError
            The name is no text, or the version no whole number.

        Examples
        --------
        >>> server.is_ready("double"), server.is_ready("doubel")
        (True, False)
        """
        return self.engine.inspection.is_ready(model, version)

    def config(self, model: str, version: int = -1) -> ModelConfig:
        """Return a copy of the completed configuration of a version.

        Examples
        --------
        >>> server.config("double").max_batch_size
        8
        """
        return self.engine.inspection.config(model, version)

    def ignored(self, model: str) -> dict[str, str]:
        """Return the fields of a model's configuration that have no effect here, with the reasons.

        Raises
        ------
        NotFoundError
            No such model.

        Examples
        --------
        >>> server.ignored("double")
        {}
        """
        return self.engine.inspection.ignored(model)

    def metadata(self, model: str, version: int = -1) -> dict[str, Any]:
        """Return Triton's model metadata: tensors with the batch dimension.

        Examples
        --------
        >>> server.metadata("double")["inputs"]
        [{'name': 'IN', 'datatype': 'FP32', 'shape': [-1, 4]}]
        """
        return self.engine.inspection.metadata(model, version)

    @property
    def options(self) -> ServerOptions:
        """The options of this server, a copy of them; `set_options` changes them."""
        return self.engine.lifecycle.builder.options.changed()

    @signed(SERVER, changes=True)
    def set_options(self, **changes: Unpack[ServerSettings]) -> tuple[str, ...]:
        """Change the options that are named; the models are loaded anew with them.

        As with `load`, a version serves until its successor is ready, and no request is lost; what
        its code held and counted begins anew. Options that are the same change nothing.

        Parameters
        ----------
        **changes
            See `nbtriton.options.server.ServerSettings`.

        Returns
        -------
        tuple of str
            The models that were loaded anew.

        Raises
        ------
        InvalidArgumentError
            An option that does not exist or cannot be.
        ConfigError, LoadError
            A model cannot be loaded with them, or was updated meanwhile; nothing has changed.
        UnavailableError
            Another caller is changing options.

        Examples
        --------
        >>> server.set_options(cache_bytes=1_000_000)
        ('double',)
        """
        return self.engine.lifecycle.set_options(**changes)

    # -- statistics ------------------------------------------------------------------------------

    def statistics(self, model: str = "", version: int = -1) -> dict[str, Any]:
        """Return the statistics in the form of Triton's endpoint.

        Parameters
        ----------
        model : str
            All models by default.
        version : int
            All versions by default.

        Returns
        -------
        dict
            ``{"model_stats": [...]}``; counts, and durations in nanoseconds.

        Examples
        --------
        >>> server.statistics("double")["model_stats"][0]["name"]
        'double'
        """
        return self.engine.inspection.statistics(model, version)

    def batches(
        self, model: str, version: int = -1, *, since_ns: int = 0, most: int | None = None
    ) -> tuple[BatchRecord, ...]:
        """Return a model's recent executions, oldest first; none for an ensemble.

        Those of earlier loads of the same version are among them. For a model that is unloaded
        they are kept, too. ``since_ns``, on the clock of `time.monotonic_ns`, leaves out those that had
        ended by then; ``most`` is how many of each version are read, the newest.

        Raises
        ------
        NotFoundError
            Nothing was ever recorded under this name.
        UnavailableError
            The server has no recorder.

        Examples
        --------
        >>> _ = server.infer("double", {"IN": ones})
        >>> batch = server.batches("double")[-1]
        >>> batch.batch_size, batch.reason
        (1, 'batching_off')
        """
        return self.engine.inspection.batches(model, version, since_ns=since_ns, most=most)

    def requests(
        self, model: str, version: int = -1, *, since_ns: int = 0, most: int | None = None
    ) -> tuple[RequestRecord, ...]:
        """Return a model's recent answered requests, in the order of their answers; as `batches`.

        One that was alone in its batch is among them once the batch has ended, which for a
        decoupled model is after its last response.

        Examples
        --------
        >>> _ = server.infer("double", {"IN": ones})
        >>> server.requests("double")[-1].size  # rows
        1
        """
        return self.engine.inspection.requests(model, version, since_ns=since_ns, most=most)

    def in_flight(self, model: str = "", version: int = -1) -> tuple[RequestRecord, ...]:
        """Return the requests that are accepted and not answered yet, oldest first; also without a recorder.

        One with a ``batch`` runs, any other waits, or is that of an ensemble: then the requests with its
        number as ``caller`` are its steps. What is still to come is 0: ``answered_ns``, and the
        ``end_ns`` of the batch.

        Parameters
        ----------
        model : str
            All models by default.
        version : int
            All versions by default, those that finish their last requests among them.

        Raises
        ------
        NotFoundError
            No such model.

        Examples
        --------
        >>> server.in_flight()
        ()
        """
        return self.engine.inspection.in_flight(model, version)

    def history(self) -> ServerHistory:
        """Return what all models did over the last minutes of activity, as counted by the recorder.

        Examples
        --------
        >>> _ = server.infer("double", {"IN": ones})
        >>> server.history().models[0].model.name
        'double'
        """
        return self.engine.inspection.history()

    def snapshot(self) -> ServerSnapshot:
        """Return everything that can be seen at this moment.

        Examples
        --------
        >>> server.snapshot().models[0].state
        'READY'
        """
        return self.engine.inspection.snapshot()

    def close(self, *, timeout_s: float = 5.0) -> None:
        """Stop: finish what runs, answer what waits, end all threads. Idempotent.

        Parameters
        ----------
        timeout_s : float
            Seconds to wait for requests that are executing. Those that still wait in a queue are
            answered with `EngineStoppedError` at once, and those that still run when the time is
            up, likewise. A model or a callback that closes the server waits for nothing.
        """
        self.engine.close(timeout_s=timeout_s)


class ModelHandle:
    """A loaded model: call it with its inputs by name.

    The handle stays valid when the model is replaced; after an unload its methods raise.

    Examples
    --------
    >>> model = server.load(name="double")
    >>> float(model(IN=ones)["OUT"].sum())
    8.0
    """

    __slots__ = ("name", "server")

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name

    def __call__(self, **inputs: Any) -> InferenceResult:
        """Send one request; see `Server.infer`."""
        return self.server.infer(self.name, inputs)

    @property
    def config(self) -> ModelConfig:
        """A copy of the completed configuration."""
        return self.server.config(self.name)

    @property
    def statistics(self) -> dict[str, Any]:
        """Triton's statistics of all versions."""
        return self.server.statistics(self.name)

    def unload(self) -> bool:
        """Unload the model; see `Server.unload`.

        Examples
        --------
        >>> def half(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        ...     return {"OUT": IN / 2}
        >>> handle = server.load("max_batch_size: 8", half, name="half")
        >>> _ = handle.unload()
        """
        return self.server.unload(self.name)

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        from nbtriton.runtime.engine.shown import show_model

        if not self.server.is_ready(self.name):
            return {"text/plain": repr(self)}
        return show_model(self.name, self.config)

    def __repr__(self) -> str:
        if not self.server.is_ready(self.name):
            return f"<model '{self.name}': not ready>"
        config = self.server.config(self.name)
        inputs = ", ".join(tensor.name for tensor in config.input)
        outputs = ", ".join(tensor.name for tensor in config.output)
        traits = [
            config.backend or "ensemble",
            f"max_batch_size {config.max_batch_size}",
            scheduling_choice(config) or "default scheduler",
        ]
        return f"<model '{self.name}': {inputs} -> {outputs} | {', '.join(traits)}>"
