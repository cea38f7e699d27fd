"""The interface between the engine and a backend, which runs batches.

The engine knows queues and never looks into a model; a backend knows how one batch runs and never
looks into a queue. A backend outside this package registers a `Backend` subclass under the entry
point group ``nbtriton.backends``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from nbtriton.backends.core.request_options import RequestOptions
from nbtriton.backends.core.response import Response

if TYPE_CHECKING:
    from nbtriton.config import ModelConfig
    from nbtriton.devices.base import Device
    from nbtriton.tensors import Array

__all__ = [
    "BACKEND_DIRECTORY",
    "SETTINGS_OF_ALL",
    "WAY_OUT",
    "Backend",
    "BackendInstance",
    "BackendRequest",
    "BatchTimer",
    "InstanceContext",
    "ModelContext",
    "RequestOptions",
    "Response",
    "ServerHandle",
]


# The folder of Python-based backends: ``--backend-directory`` is a setting of all backends.
BACKEND_DIRECTORY = "backend-directory"
# Settings that may be given for all backends at once: Triton passes on no others.
SETTINGS_OF_ALL = ("default-max-batch-size", BACKEND_DIRECTORY)
# What an error says where a stand-in would do.
WAY_OUT = (
    "to study it without, let a stand-in of its shapes run: nt.Server(stand_in=True), "
    "%triton_server --stand-in on, --stand-in of nbtriton serve, validate, perf and export"
)


class RequestTrace(Protocol):
    """The trace of a request, as its model may use it.

    Attributes
    ----------
    context : str or None
        Its OpenTelemetry context: JSON with ``traceparent``; None in Triton's own mode.
    """

    @property
    def context(self) -> str | None: ...
    def child(self) -> RequestTrace:
        """Open the trace of a request that the model makes."""


class BackendRequest(Protocol):
    """One request as a backend sees it; the engine's own request object fulfils this.

    Attributes
    ----------
    inputs : dict of str to array
    requested_outputs : frozenset of str
        Never empty: all outputs of the model where the client named none.
    owned_inputs : frozenset of str
        Names of inputs that nothing else refers to: the model may have them as they are. All others
        are to be copied before the model may write to them or keep them.
    batch_size : int
        First dimension of the inputs, 1 for a model that does not batch.
    copies_outputs : bool
        The receiver of a response copies its outputs before the model goes on: they may be the model's own
        memory. Otherwise they are copies.
    orders_events : bool
        The receiver of a response lets its own work on a device wait for what wrote the outputs; otherwise
        they are written once it has them.
    trace : RequestTrace or None
        The trace that the request belongs to; None for most requests.
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
        """Execute the request once more after this batch, which must leave it unanswered.

        Raises
        ------
        TritonError
            The model's ``sequence_batching`` is not iterative.
        """

    def send(self, response: Response | None, *, final: bool) -> None:
        """Deliver one response ahead of `BackendInstance.execute` returning (response senders).

        Any thread may call it, also after `execute` returned. ``None`` with ``final=True`` ends
        the request without a further response. Sending after the final raises `TritonError`.
        """

    def is_answered(self) -> bool:
        """True once the final response was sent."""


class BatchTimer(Protocol):
    """Two marks inside one execution; the engine records the others (T9)."""

    def inputs_ready(self) -> None:
        """Inputs are gathered and on the device: compute_input ends, compute_infer starts."""

    def infer_done(self) -> None:
        """The model's own code returned: compute_infer ends, compute_output starts."""

    def marked(self, inputs_ready_ns: int, infer_done_ns: int) -> None:
        """Set both marks from another process, on the clock of `time.monotonic_ns`; 0 for none."""


class ServerHandle(Protocol):
    """The server, as a model that it runs may use it (business logic scripting)."""

    def note_call(self, caller: str, callee: str) -> None:
        """Note that the code of a model calls another one."""

    def submit(
        self,
        model_name: str,
        version: int,
        inputs: Mapping[str, Array],
        options: RequestOptions,
        on_response: Callable[[Response, bool], None] | None = None,
        trace: Any = None,
    ) -> Any:
        """Send a request; ``on_response(response, final)`` gets every response, if it is given.

        Returns
        -------
        nbtriton.engine.InferenceFuture
        """

    def call(
        self, model_name: str, version: int, inputs: Mapping[str, Array], options: RequestOptions
    ) -> Response:
        """Send a request and wait for its response.

        Where an instance is idle the request runs in this very thread. A request that was refused
        raises; one that failed has the error in its response.
        """

    def awaits(self, future: Any) -> None:
        """Note that a coroutine of the model that calls may await a future of `submit`."""

    def wait_for_coroutine(self, wait: Callable[[float], bool]) -> None:
        """Wait until ``wait(seconds)`` is True: until a coroutine of the caller's has ended.

        If it awaits calls that can never be answered, one of them is refused.
        """

    def is_model_ready(self, name: str, version: int = -1) -> bool: ...
    def is_decoupled(self, name: str, version: int = -1) -> bool: ...
    def load_model(
        self, name: str, config: str = "", files: Mapping[str, bytes] | None = None
    ) -> None: ...
    def unload_model(self, name: str, unload_dependents: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class ModelContext:
    """One version of one model, as its backend gets it.

    Parameters
    ----------
    name, version
        As in the repository.
    config : ModelConfig
        Normalised; auto-completed once `Backend.complete_config` has run.
    source : object
        What the model is: a class, an `nn.Module` (class or instance), a function, or a `Path` to
        a file (``model.py``, ``model.pt``, …).
    model_directory : Path or None
        ``<repository>/<model>``; None for a model that lives in a notebook.
    server : ServerHandle or None
        For models that call other models; None while auto-completing.
    example : object, optional
        One call's inputs with the batch dimension (an array, a tuple or a dict), from which a
        backend may complete the configuration.
    settings : mapping of str to str
        The server's settings for this backend (Triton's ``--backend-config``).
    devices : mapping of int to Device
        The GPUs of the server that can be asked, by id.
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


@dataclass(frozen=True, slots=True)
class InstanceContext:
    """One instance of one model version: its name (``m_0_1``), where it runs, its host policy."""

    model: ModelContext
    name: str
    kind: str  # "KIND_CPU", "KIND_GPU" or "KIND_MODEL"; KIND_AUTO is resolved before
    device_id: int = 0
    host_policy: str = ""

    @property
    def device(self) -> Device | None:
        """The GPU that it runs on; None on the host."""
        return self.model.devices.get(self.device_id) if self.kind == "KIND_GPU" else None


class BackendInstance(ABC):
    """One loaded instance. The engine never calls it from two threads at once.

    Attributes
    ----------
    any_thread : bool
        False if `execute` must always run on the instance's own thread. Otherwise an idle instance
        may run a request in the thread of its caller, which saves two hand-overs between threads.
    readiness : callable or None
        Asks the model itself whether it can take requests now, on any thread; it may take seconds.
        None for a model that always can.
    running : object
        What the code of the model may ask for while it runs; see `nbtriton.backends.core.executing`. Set
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
            In queue order; their batch sizes add up to at most ``max_batch_size``.
        timer : BatchTimer
            Call its marks where they happen; a missing mark counts as "at the end".

        Returns
        -------
        sequence of Response or None
            One entry a request, in order; None for a request answered through ``send``.
            None alone for a decoupled model. A list then belongs to the engine, which clears it,
            and so is the memory of the outputs: the model must not refer to it any more.

        Raises
        ------
        TritonError
            Fails every request of the batch that is not answered yet.
        """

    def capturable(self) -> Callable[[Mapping[str, Array]], Mapping[str, Array]] | None:
        """Return what a graph of several models may capture of this one; None for nothing.

        A function of the inputs of one request by name, arrays of its GPU that it may write to, to all outputs by
        name, arrays there as well. It gives work to the current stream alone; what it raises says why it cannot.
        Called on one thread at a time, which need not be that of `execute`.
        """
        return None

    def watch(self, on_lost: Callable[[str], None]) -> None:
        """Set the function to call when the instance is lost, such as with the process that it runs in.

        ``on_lost(cause)`` is called once for each loss, on any thread, and before `execute` raises because
        of it; at once if the instance is lost already.
        """

    def restart(self) -> None:
        """Create anew what was lost; called on the instance's own thread while nothing is executed.

        Raises
        ------
        Exception
            It could not be created; it is lost as before.
        """

    def abandon(self) -> None:
        """End `execute`, whose requests have been answered, or `finalize`; called on any thread."""

    def finalize(self) -> None:
        """Release what the instance holds; nothing is executed afterwards."""


class Backend(ABC):
    """Completes and instantiates models of one kind.

    Examples
    --------
    A backend whose models add one, for a configuration with ``backend: "plus_one"`` where the entry point
    ``plus_one`` of the group ``nbtriton.backends`` names it:

    >>> class PlusOne(Backend):
    ...     def create_instance(self, context):
    ...         return PlusOneInstance()
    >>> class PlusOneInstance(BackendInstance):
    ...     def execute(self, requests, timer):
    ...         timer.compute_started()
    ...         answers = [{"OUT": request.inputs["IN"] + 1} for request in requests]
    ...         timer.compute_ended()
    ...         return [Response(answer) for answer in answers]
    """

    name: ClassVar[str]
    # Triton's name of it in ``platform`` and in metadata.
    platform: ClassVar[str] = ""
    # Where its instances live: "thread" for threads of this process, "process".
    isolation: ClassVar[str] = "thread"
    # Reported as the ``runtime`` of a configuration that names none.
    runtime: ClassVar[str] = ""
    # Keys of `ModelContext.settings` that have an effect.
    settings: ClassVar[tuple[str, ...]] = ()
    # False for a backend whose models are their configuration alone.
    needs_source: ClassVar[bool] = True
    # Packages that it imports with its first model.
    packages: ClassVar[tuple[str, ...]] = ()
    # The class of operations, of those of simulated GPUs, that a batch counts as there where the backend does not
    # know them.
    operation: ClassVar[str] = "module"
    # Of a stand-in: what is missing.
    stand_in: ClassVar[str] = ""

    @classmethod
    def runtimes(cls) -> tuple[str, ...]:
        """Return what a configuration may name as its ``runtime``: what Triton's files are called."""
        return (cls.runtime or f"libtriton_{cls.name}.so",)

    @classmethod
    def accepts(cls, source: object) -> bool:  # noqa: ARG003 - for subclasses
        """Return whether this backend runs such a source, where a configuration names no backend."""
        return False

    @classmethod
    def missing(cls, source: object, config: ModelConfig) -> str:  # noqa: ARG003
        """Return what keeps such a source from running here: a package or a file; empty if nothing."""
        for package in cls.packages:
            if find_spec(package) is None:
                return f"the package '{package}' is not installed"
        if isinstance(source, Path) and not source.exists():
            return f"the file '{source.name}' does not exist"
        return "there is no file" if source is None and cls.needs_source else ""

    def complete_config(self, context: ModelContext) -> ModelConfig:
        """Return the configuration with what the model itself knows filled in."""
        return context.config

    def check(self, context: ModelContext) -> None:
        """Compare the completed configuration with the model; asked before anything is created.

        Raises
        ------
        TritonError
            They do not fit, with Triton's text.
        """

    def prefers_gpu(self) -> bool:
        """Return whether a model without ``instance_group`` gets KIND_GPU where a GPU is available."""
        return True

    def batching(self, context: ModelContext) -> object:
        """Return what may define the five functions of custom batching; asked after completion."""
        return context.source

    def open(self, context: ModelContext) -> None:
        """Prepare what the instances of this version share; one Backend object serves one version."""

    @abstractmethod
    def create_instance(self, context: InstanceContext) -> BackendInstance:
        """Create one instance; called on the instance's own thread."""

    def cancelled(self, request: BackendRequest) -> None:
        """Handle the cancellation of a request that an instance may have; on any thread, briefly.

        An instance in this process sees it by `BackendRequest.is_cancelled`.
        """

    def knows_simulated(self, context: InstanceContext) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether an instance works with the arrays of a simulated GPU itself."""
        return False

    def weights_bytes(self, context: ModelContext) -> int:
        """Return how much memory the model takes on each GPU, apart from its batches, as far as it is known."""
        source = context.source
        return source.stat().st_size if isinstance(source, Path) and source.is_file() else 0

    def served(self, context: ModelContext) -> object:
        """Return what the instances run, for writing it to a file: by default the source."""
        return context.source

    def close(self) -> None:
        """Release what the instances shared; all instances are finalized before."""
