"""The interface between the engine and a backend, which runs batches.

The engine knows queues, but not the inside of models. A backend runs one batch, and knows nothing
of queues. A backend outside this package registers a `Backend` subclass under the entry point group
``nbtriton.backends``.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from nbtriton.backends.core.messages import BatchTimer, RequestOptions, Response

if TYPE_CHECKING:
    from nbtriton.backends.devices.base import Device
    from nbtriton.backends.devices.ledger import CopyLedger
    from nbtriton.model.config import ModelConfig
    from nbtriton.model.tensors import Array

# Passed on: what a backend needs beside the classes here.
__all__ = ["BatchTimer", "RequestOptions", "Response"]


# The folder of Python-based backends: ``--backend-directory`` is a setting of all backends.
BACKEND_DIRECTORY = "backend-directory"
# Settings that may be given for all backends at once: Triton passes no others on.
SETTINGS_OF_ALL = ("default-max-batch-size", BACKEND_DIRECTORY)
# The hint of an error where a stand-in would help.
WAY_OUT = (
    "to study it without, let a stand-in of its shapes run: nt.Server(stand_in=True), "
    "%triton_server --stand-in on, --stand-in of nbtriton serve, validate, perf and export"
)


def is_module(source: object) -> bool:
    """Return True for an ``nn.Module`` class or object that is no ``TritonPythonModel``."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if isinstance(source, type):
        return issubclass(source, torch.nn.Module) and source.__name__ != "TritonPythonModel"
    return isinstance(source, torch.nn.Module)


class RequestTrace(Protocol):
    """The trace of a request, for use by its model.

    Attributes
    ----------
    context : str or None
        Its OpenTelemetry context: JSON with ``traceparent``; None in Triton's own mode.
    """

    @property
    def context(self) -> str | None: ...
    def child(self) -> RequestTrace:
        """Open the trace of a request that the model sends."""


class BackendRequest(Protocol):
    """One request for a backend; implemented by the engine's own request.

    Attributes
    ----------
    inputs : dict of str to array
    requested_outputs : frozenset of str
        Never empty: by default all outputs of the model.
    owned_inputs : frozenset of str
        Names of inputs without other references, which the model may use without a copy. All others
        must be copied before the model may write to them or keep them.
    batch_size : int
        First dimension of the inputs, 1 for a model that does not batch.
    copies_outputs : bool
        The receiver of a response copies its outputs before the model continues, so they may be the
        model's own memory. Otherwise they must be copies.
    orders_events : bool
        The receiver of a response makes its own device work wait for the writers of the outputs.
        Otherwise they must be completely written when it gets them.
    trace : RequestTrace or None
        The trace of the request; None for most requests.
    """

    inputs: dict[str, Array]
    requested_outputs: frozenset[str]
    owned_inputs: frozenset[str]
    batch_size: int
    request_id: str
    correlation_id: int | str
    flags: int
    timeout_us: int
    priority: int
    parameters: Mapping[str, bool | int | str]

    @property
    def copies_outputs(self) -> bool: ...
    @property
    def orders_events(self) -> bool: ...
    @property
    def trace(self) -> RequestTrace | None: ...
    def is_cancelled(self) -> bool: ...
    def reschedule(self) -> None:
        """Execute the request again after this batch, which must leave it unanswered.

        Raises
        ------
        TritonError
            The model's ``sequence_batching`` is not iterative.
        """

    def send(self, response: Response | None, *, final: bool) -> None:
        """Deliver one response before `BackendInstance.execute` returns (response senders).

        Callable from any thread, also after `execute` returned. ``None`` with ``final=True`` ends the request
        without a further response. Sending after the final response raises `TritonError`.
        """

    def is_answered(self) -> bool:
        """Whether the final response was sent."""


class ServerHandle(Protocol):
    """The server, for the code of its models (business logic scripting)."""

    def note_call(self, caller: str, callee: str) -> None:
        """Record that the code of a model calls another model."""

    def submit(
        self,
        model_name: str,
        version: int,
        inputs: Mapping[str, Array],
        options: RequestOptions,
        on_response: Callable[[Response, bool], None] | None = None,
        trace: Any = None,
    ) -> Any:
        """Send a request; ``on_response(response, final)``, if given, gets every response.

        Returns
        -------
        nbtriton.runtime.engine.InferenceFuture
        """

    def call(
        self, model_name: str, version: int, inputs: Mapping[str, Array], options: RequestOptions
    ) -> Response:
        """Send a request and wait for its response.

        With an idle instance the request runs in the calling thread. A refused request raises; a failed one
        has the error in its response.
        """

    def awaits(self, future: Any) -> None:
        """Record that a coroutine of the calling model may await a future of `submit`."""

    def wait_for_coroutine(self, wait: Callable[[float], bool]) -> None:
        """Wait until ``wait(seconds)`` is True: until a coroutine of the caller has ended.

        If it awaits calls in a deadlock, one of them is refused.
        """

    def is_model_ready(self, name: str, version: int = -1) -> bool: ...
    def is_decoupled(self, name: str, version: int = -1) -> bool: ...
    def max_unread_responses(self, name: str, version: int = -1) -> int: ...
    def load_model(
        self, name: str, config: str = "", files: Mapping[str, bytes] | None = None
    ) -> None: ...
    def unload_model(self, name: str, unload_dependents: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelContext:
    """One version of one model, as passed to its backend.

    Parameters
    ----------
    name, version
        As in the repository.
    config : ModelConfig
        Normalised; auto-completed after `Backend.complete_config`.
    source : object
        The model itself: a class, an `nn.Module` (class or instance), a function, or a `Path` to a file
        (``model.py``, ``model.pt``, …).
    model_directory : Path or None
        ``<repository>/<model>``; None for a model defined in a notebook.
    server : ServerHandle or None
        For models that call other models; None during auto-completion.
    example : object, optional
        One call's inputs with the batch dimension (an array, a tuple or a dict), from which a backend may
        complete the configuration.
    settings : mapping of str to str
        The server's settings for this backend (Triton's ``--backend-config``).
    devices : mapping of int to Device
        The available GPUs of the server, by id.
    ledger : CopyLedger, optional
        The server's, for what goes to other machines.
    """

    name: str
    version: int
    config: ModelConfig
    source: object
    model_directory: Path | None = None
    server: ServerHandle | None = None
    example: object | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[int, Device] = field(default_factory=dict)
    ledger: CopyLedger | None = None


@dataclass(frozen=True, slots=True)
class InstanceContext:
    """One instance of one model version: its name (``m_0_1``), device, and host policy."""

    model: ModelContext
    name: str
    kind: str  # "KIND_CPU", "KIND_GPU" or "KIND_MODEL"; KIND_AUTO is already resolved
    device_id: int = 0
    host_policy: str = ""

    @property
    def device(self) -> Device | None:
        """The GPU of the instance; None on the host."""
        return self.model.devices.get(self.device_id) if self.kind == "KIND_GPU" else None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an instance on another machine is, and the bytes of its messages since it was started there."""

    node: str
    sent_bytes: int
    received_bytes: int


class BackendInstance(ABC):
    """One loaded instance. The engine never calls it from two threads concurrently.

    Attributes
    ----------
    any_thread : bool
        False if `execute` must always run on the instance's own thread. Otherwise an idle instance may run a
        request in the caller's thread, which saves two hand-overs between threads.
    readiness : callable or None
        Asks the model whether it can accept requests now; any thread may call it, and it may take seconds.
        None for a model that always accepts them.
    running : object
        The context that the model's code may query while it runs; see `nbtriton.backends.core.executing`. Set
        by the creator of the instance, before the first `execute`.
    """

    any_thread: bool = True
    readiness: Callable[[], bool] | None = None
    running: object = None

    @abstractmethod
    def execute(
        self, requests: Sequence[BackendRequest], timer: BatchTimer
    ) -> Sequence[Response | None] | None:
        """Run one batch.

        Parameters
        ----------
        requests : sequence of BackendRequest
            In queue order; their batch sizes sum to at most ``max_batch_size``.
        timer : BatchTimer
            The marks to set; a missing mark counts as "at the end".

        Returns
        -------
        sequence of Response or None
            One entry per request, in order; None for a request answered through ``send``. For a
            decoupled model, None instead of the sequence. The engine owns a returned list, which it
            clears, and the memory of the outputs:
            the model must keep no reference to them.

        Raises
        ------
        TritonError
            Fails every unanswered request of the batch.
        """

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """Set the function to call when the instance is lost, for example with its process.

        ``on_lost(cause)`` is called once for each loss, on any thread, and before `execute` raises
        because of it; immediately if the instance is already lost.
        """

    def restart(self) -> None:
        """Recreate a lost instance; called on its own thread while nothing is executed.

        Raises
        ------
        Exception
            The instance could not be created, and remains lost.
        """

    def abandon(self) -> None:
        """Abort `execute`, whose requests have been answered, `restart` or `finalize`; called on any thread."""

    def placement(self) -> Placement | None:
        """Return where it is, if not on this machine; called on any thread."""
        return None

    def finalize(self) -> None:
        """Release the resources of the instance; nothing is executed afterwards."""


class Backend(ABC):
    """Completes and instantiates models of one kind.

    Examples
    --------
    A backend whose models add one, for a configuration with ``backend: "plus_one"`` and an entry point
    ``plus_one`` in the group ``nbtriton.backends``:

    >>> class PlusOne(Backend):
    ...     def create_instance(self, context):
    ...         return PlusOneInstance()
    >>> class PlusOneInstance(BackendInstance):
    ...     def execute(self, requests, timer):
    ...         timer.inputs_ready()
    ...         answers = [{"OUT": request.inputs["IN"] + 1} for request in requests]
    ...         timer.infer_done()
    ...         return [Response(answer) for answer in answers]
    """

    name: ClassVar[str]
    # Triton's name of the backend in ``platform`` and in metadata.
    platform: ClassVar[str] = ""
    # Where its instances live: "thread" for threads of this process, or "process".
    isolation: ClassVar[str] = "thread"
    # The reported ``runtime`` of a configuration without one.
    runtime: ClassVar[str] = ""
    # Keys of `ModelContext.settings` that have an effect.
    settings: ClassVar[tuple[str, ...]] = ()
    # False for a backend whose models consist of their configuration only.
    needs_source: ClassVar[bool] = True
    # Packages that it imports with its first model.
    packages: ClassVar[tuple[str, ...]] = ()
    # The operation class of a batch on a simulated GPU, if the backend does not use simulated arrays itself.
    operation: ClassVar[str] = "module"
    # Parameters that follow from a served object, and that its exported file lacks.
    object_parameters: ClassVar[tuple[str, ...]] = ()
    # For a stand-in: the missing package.
    stand_in: ClassVar[str] = ""

    @classmethod
    def runtimes(cls) -> tuple[str, ...]:
        """Return the allowed values of ``runtime`` in a configuration: Triton's file names."""
        return (cls.runtime or f"libtriton_{cls.name}.so",)

    @classmethod
    def accepts(cls, source: object) -> bool:  # noqa: ARG003 - for subclasses
        """Return whether this backend runs such a source, for a configuration without a backend."""
        return False

    @classmethod
    def missing(cls, source: object, config: ModelConfig) -> str:  # noqa: ARG003
        """Return the missing package or file without which a source cannot run here; empty if nothing is missing."""
        for package in cls.packages:
            if find_spec(package) is None:
                return f"the package '{package}' is not installed"
        if isinstance(source, Path) and not source.exists():
            return f"the file '{source.name}' does not exist"
        return "there is no file" if source is None and cls.needs_source else ""

    def complete_config(self, context: ModelContext) -> ModelConfig:
        """Return the configuration completed from the model itself."""
        return context.config

    def check(self, context: ModelContext) -> None:
        """Compare the completed configuration with the model, before any instance is created.

        Raises
        ------
        TritonError
            They do not match, with Triton's text.
        """

    def prefers_gpu(self) -> bool:
        """Return whether a model without ``instance_group`` gets KIND_GPU if a GPU is available."""
        return True

    def batching(self, context: ModelContext) -> object:
        """Return the object that may define the five functions of custom batching, after completion."""
        return context.source

    def open(self, context: ModelContext) -> None:
        """Prepare the shared resources of this version's instances; one Backend object serves one version."""

    @abstractmethod
    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Create one instance; called on its own thread."""

    def cancelled(self, request: BackendRequest) -> None:
        """Handle the cancellation of a request in an instance; called on any thread, must be short.

        An instance in this process sees it by `BackendRequest.is_cancelled`.
        """

    def knows_simulated(self, context: InstanceContext) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether an instance uses the arrays of a simulated GPU itself."""
        return False

    def weights_bytes(self, context: ModelContext) -> int:
        """Return the model's memory on each GPU, without its batches, as far as known."""
        source = context.source
        return source.stat().st_size if isinstance(source, Path) and source.is_file() else 0

    def served(self, context: ModelContext) -> object:
        """Return the model that the instances run, for saving it to a file: by default the source."""
        return context.source

    @classmethod
    def default_file(cls, config: ModelConfig) -> str:  # noqa: ARG003 - for subclasses
        """Return the file of a model without ``default_model_filename``; empty where Triton's own rules name it."""
        return ""

    @classmethod
    def files_beside(cls, path: Path) -> Sequence[str]:  # noqa: ARG003
        """Return the names of the files that a model's file refers to, relative to its folder."""
        return ()

    @classmethod
    def export(cls, served: Any, folder: Path) -> str:  # noqa: ARG003
        """Write what `served` returned into a version's folder of a repository, if it is no source code.

        Returns
        -------
        str
            The kind of model; empty if the export writes such objects itself.
        """
        return ""

    def close(self) -> None:
        """Release the shared resources, after all instances are finalized, or once `open` has failed."""
