"""The entrance of requests: the version is looked up, the request built and submitted to the version.

The registry of versions (A1, A2, L2) is read on every request and changed rarely, so readers take no lock: every
change puts a new immutable `Entry` in the place of the old one. To iterate over the entries, make a
list first: that happens in one go, with and without a GIL, while others load and unload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import index
from threading import Lock, get_ident
from typing import Any, Final, NamedTuple, Protocol

from nbtriton.backends.base import RequestOptions, Response
from nbtriton.common.errors import (
    InvalidArgumentError,
    NotFoundError,
    TritonError,
    UnavailableError,
    UnsupportedError,
    nearest,
)
from nbtriton.model.config import ModelConfig, is_ensemble
from nbtriton.runtime.engine.core.ensemble_runtime import EnsembleRuntime
from nbtriton.runtime.engine.core.ensemble_steps import placed
from nbtriton.runtime.engine.core.future import InferenceFuture
from nbtriton.runtime.engine.core.request import (
    CallbackSink,
    InferenceRequest,
    JoinBatch,
    ResponseCallback,
)
from nbtriton.runtime.engine.core.runtime import ModelSignature, Runtime
from nbtriton.runtime.engine.diagnostics.tracing import Trace
from nbtriton.runtime.interrupts import INTERRUPTS
from nbtriton.scheduling import SEQUENCE_START

_DECOUPLED = "ModelInfer RPC doesn't support models with decoupled transaction policy"  # Y5


@dataclass(slots=True, frozen=True)
class Slot:
    """One version: its runtime, and its state as the repository index has it."""

    runtime: Runtime
    state: str = "READY"
    reason: str = ""


@dataclass(slots=True, frozen=True)
class Entry:
    """One model: its versions, its configuration as given, and the fields of it that have no effect.

    Attributes
    ----------
    ready : dict of int to Runtime
        The versions that are ready; -1 is the highest.
    members : frozenset of str
        For an ensemble: the models that its steps name.
    """

    slots: Mapping[int, Slot]
    user_config: ModelConfig
    ignored: Sequence[tuple[str, str]] = ()
    ready: dict[int, Runtime] = field(init=False)
    members: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        ready = {n: slot.runtime for n, slot in self.slots.items() if slot.state == "READY"}
        if ready:
            ready[-1] = ready[max(ready)]
        object.__setattr__(self, "ready", ready)
        configs = [slot.runtime.config for slot in self.slots.values()]
        steps = [
            step for one in configs if is_ensemble(one) for step in one.ensemble_scheduling.step
        ]
        object.__setattr__(self, "members", frozenset([step.model_name for step in steps]))

    @property
    def latest(self) -> Runtime | None:
        """The highest version that is ready."""
        return self.ready.get(-1)

    def with_slot(self, version: int, slot: Slot) -> Entry:
        """Return the entry with one version added or replaced."""
        return replace(self, slots={**self.slots, version: slot})


class Registry:
    """All models by name, and whether the server accepts requests for them.

    Attributes
    ----------
    entries : dict of str to Entry
        The loaded models.
    absent : dict of str to dict of int to str
        The versions that were loaded or whose load has begun, and why they do not serve. If a name
        has no versions, its version policy left none. Versions that serve now may be among
        them.
    refusal : str
        Why questions about models are refused; empty if they are answered.
    stopping : bool
        True once clients may not begin anything new.
    closed : callable, optional
        Makes the error of calls after the end of the server.
    """

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.absent: dict[str, dict[int, str]] = {}
        self.refusal = ""
        self.stopping = False
        self.closed: Callable[[], TritonError] | None = None

    def check_open(self) -> None:
        """Check that the server is open.

        Raises
        ------
        EngineStoppedError
            The server is closed, or lives in the parent process.
        """
        if self.closed is not None:
            raise self.closed()

    def runtimes(self) -> list[Runtime]:
        """Return every version of every model; other threads may load and unload meanwhile."""
        entries = list(self.entries.values())
        return [slot.runtime for entry in entries for slot in entry.slots.values()]

    def record_absent(self, name: str, versions: Mapping[int, str]) -> None:
        """Record versions that do not serve, and why."""
        self.absent.setdefault(name, {}).update(versions)

    def record_loading(self, name: str, version: int) -> None:
        """Record that a load of a version begins; the reason why an earlier one does not serve is kept."""
        self.absent.setdefault(name, {}).setdefault(version, "")

    def record_unwanted(self, name: str, version: int) -> None:
        """Record that the version policy does not want a version whose load had begun."""
        versions = self.absent.setdefault(name, {})
        if not versions.get(version):
            versions.pop(version, None)

    def find(self, name: object, version: object, decoupled: bool) -> Runtime:
        """Return the version that serves a request.

        Parameters
        ----------
        name, version
            As `resolve`.
        decoupled : bool
            Whether the sender takes any number of responses.

        Raises
        ------
        EngineStoppedError
            The server is closed.
        InvalidArgumentError, NotFoundError, UnavailableError, UnsupportedError
            As `resolve`; with Triton's text where the model is decoupled and the sender is not.
        """
        if self.closed is not None:
            raise self.closed()
        runtime = self.resolve(name, version)
        if runtime.signature.decoupled and not decoupled:
            raise UnsupportedError(_DECOUPLED, hint="use server.stream(…)")
        return runtime

    def resolve(self, name: object, version: object = -1) -> Runtime:
        """Return the runtime of a version; -1 is the highest that is ready (A1, A2).

        Raises
        ------
        InvalidArgumentError
            The name is not a string, or the version is not a whole number of Python's or NumPy's.
        NotFoundError, UnavailableError
            With Triton's texts.
        """
        known = name if type(name) is str else checked_name(name)
        number = version if type(version) is int else checked_version(version)
        entry = self.entries.get(known)
        runtime = None if entry is None else entry.ready.get(number)
        if runtime is None:
            raise self._missing(known, number)
        return runtime

    def entry(self, name: object, version: object = -1) -> Entry:
        """Return the entry of a model of which a version serves; arguments and errors as `resolve`.

        It is looked up once: another thread may unload the model in between.
        """
        known = checked_name(name)
        number = checked_version(version)
        entry = self.entries.get(known)
        if entry is None or number not in entry.ready:
            raise self._missing(known, number)
        return entry

    def _missing(self, name: str, number: int) -> TritonError:
        """Return the error of a version that does not serve now."""
        if self.refusal:
            return UnavailableError(self.refusal)
        entry = self.entries.get(name)
        reasons = dict(self.absent.get(name, {}))
        if entry is None and name not in self.absent:
            return NotFoundError(
                f"Request for unknown model: '{name}' is not found",
                hint=nearest(name, self.entries) or "no model is loaded",
            )
        if entry is not None:
            reasons |= {version: slot.reason for version, slot in entry.slots.items()}
        if number == -1:
            return NotFoundError(
                f"Request for unknown model: '{name}' has no available versions",
                hint="; ".join(dict.fromkeys(filter(None, reasons.values()))),
            )
        if number not in reasons:
            return NotFoundError(
                f"Request for unknown model: '{name}' version {number} is not found",
                hint="versions: " + ", ".join(str(version) for version in sorted(reasons)),
            )
        return UnavailableError(
            f"Request for unknown model: '{name}' version {number} is not at ready state",
            hint=reasons[number],
        )

    def configs(self) -> dict[str, ModelConfig]:
        """Return the configuration of the latest ready version of every model."""
        return {
            name: entry.latest.config
            for name, entry in list(self.entries.items())
            if entry.latest is not None
        }

    def versions(self) -> dict[str, list[int]]:
        """Return the ready versions of every model that has one."""
        return {
            name: [number for number, slot in entry.slots.items() if slot.state == "READY"]
            for name, entry in list(self.entries.items())
            if entry.latest is not None
        }

    def dependents(self, name: str) -> list[str]:
        """Return the ensembles that use a model, directly or through other ensembles."""
        found: list[str] = []
        front = [name]
        while front:
            used = front.pop()
            for other, entry in list(self.entries.items()):
                if used in entry.members and other not in found:
                    found.append(other)
                    front.append(other)
        return found


def checked_name(name: object) -> str:
    """Return the name of a model as a caller gave it.

    Raises
    ------
    InvalidArgumentError
        The name is not a string.
    """
    if isinstance(name, str):
        return name
    raise InvalidArgumentError(f"the name of a model is a text, found {name!r}")


def checked_version(version: Any) -> int:
    """Return the version of a model as a caller gave it; it may be NumPy's integer too.

    Raises
    ------
    InvalidArgumentError
        The version is not a whole number.
    """
    if isinstance(version, int):
        return version
    try:
        return index(version)
    except TypeError:
        number = isinstance(version, str) and version.isdecimal()
        raise InvalidArgumentError(
            f"the version of a model is a whole number, found {version!r}",
            hint=f"version={version}" if number else "-1 is the highest that is ready",
        ) from None


def versions_to_keep(config: ModelConfig, versions: Iterable[int]) -> set[int]:
    """Return the existing versions that the version policy selects (L2)."""
    policy = config.version_policy
    present = sorted(versions)
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return set(present)
    if choice == "specific":
        return set(present) & set(policy.specific.versions)
    count = policy.latest.num_versions if choice == "latest" else 1
    return set(present[-count:]) if count else set()


# Final: rule 13 of docs/compiled.md.
_interrupts: Final = INTERRUPTS
_thread_id: Final = get_ident


class ArrivalListener(Protocol):
    """Receives each request of a client before it is submitted: a recording, planned faults."""

    def __call__(
        self, request: InferenceRequest, version: int, options: RequestOptions
    ) -> TritonError | None:
        """Handle a request, on the thread that sends it; it must not raise.

        Parameters
        ----------
        request : InferenceRequest
            Admitted, with its inputs.
        version : int
            The one that the client asked for, -1 for any.
        options : RequestOptions
            As the client gave them.

        Returns
        -------
        TritonError or None
            An error refuses the request, as a full queue does.
        """

    def close(self) -> None:
        """Handle the end of the server."""


class Submission(NamedTuple):
    """One call of `RequestDispatcher.submit_many`.

    Parameters
    ----------
    owned : bool
        Nothing else refers to the memory of the inputs.
    signature : ModelSignature, optional
        Of the version that the caller has already looked up, to read the request by it.
    """

    name: str
    version: int
    inputs: Mapping[str, Any]
    options: RequestOptions
    on_response: ResponseCallback
    trace: Trace | None = None
    owned: bool = False
    signature: ModelSignature | None = None


class RequestDispatcher:
    """The entrance for requests of a server's users, endpoints and models.

    Parameters
    ----------
    registry : Registry
        The server's models; it refuses invalid names and versions.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        # A new tuple with each change: requests read it without a lock.
        self._listeners: tuple[ArrivalListener, ...] = ()
        self._changing = Lock()

    @property
    def listeners(self) -> tuple[ArrivalListener, ...]:
        """The listeners that get each request now."""
        return self._listeners

    def listen(self, listener: ArrivalListener) -> None:
        """Pass each request of a client to a listener from now on; not calls by models."""
        with self._changing:
            self._listeners = (*self._listeners, listener)

    def stop_listening(self, listener: ArrivalListener) -> None:
        """Pass nothing more to a listener."""
        with self._changing:
            self._listeners = tuple([one for one in self._listeners if one is not listener])

    def close(self) -> None:
        """Close the listeners: the server has ended."""
        for listener in self._listeners:
            listener.close()

    def _is_refused(self, request: InferenceRequest, version: Any, options: RequestOptions) -> bool:
        """Pass a request to the listeners; True if one of them has refused it."""
        for listener in self._listeners:
            error = listener(request, version, options)
            if error is not None:
                assert isinstance(request.runtime, Runtime)
                request.runtime.refuse_new(request, error)
                return True
        return False

    def call(
        self,
        name: object,
        version: Any,
        inputs: Mapping[str, Any],
        options: RequestOptions,
        caller: int = 0,
    ) -> tuple[InferenceRequest, Response]:
        """Send one request and return it with its response, which may be an error.

        A request that was refused raises; one that failed has the error in its response. If an
        instance is idle, the request runs on the calling thread. `caller` as in `InferenceRequest`.
        """
        if _thread_id() != _interrupts.main:  # the block takes 0.2 us, 2% of a request
            return self._call(name, version, inputs, options, caller)
        with _interrupts:
            return self._call(name, version, inputs, options, caller)

    def _call(
        self,
        name: object,
        version: Any,
        inputs: Mapping[str, Any],
        options: RequestOptions,
        caller: int,
    ) -> tuple[InferenceRequest, Response]:
        accepted = False
        heard = caller != 0 or not self._listeners
        while not accepted:  # replaced between the look-up and now: its successor takes it
            runtime = self._registry.find(name, version, False)
            request = runtime.signature.build_request(inputs, options)
            request.caller = caller
            request.keeps_response = True
            if not heard:
                heard = True
                if self._is_refused(request, version, options):
                    break
            accepted = runtime.submit_inline(request)
        if request.final_response is None:
            try:
                request.expect().exception()
            except BaseException:
                request.expect().cancel()  # after Ctrl-C nobody waits for the response
                raise
        try:
            return request, request.final_response  # type: ignore[return-value]
        finally:  # not in a local variable: the frames of a response's error may refer to this one
            request.final_response = None

    def submit(
        self,
        name: object,
        version: Any,
        inputs: Mapping[str, Any],
        options: RequestOptions,
        on_response: Callable[[Response, bool], None] | None = None,
        trace: Trace | None = None,
        caller: int = 0,
    ) -> tuple[InferenceRequest, InferenceFuture]:
        """Send one request and return it with its future at once; see `nbtriton.Server.submit`."""
        if _thread_id() != _interrupts.main:
            return self._submit(name, version, inputs, options, on_response, trace, caller)
        with _interrupts:
            return self._submit(name, version, inputs, options, on_response, trace, caller)

    def _submit(
        self,
        name: object,
        version: Any,
        inputs: Mapping[str, Any],
        options: RequestOptions,
        on_response: Callable[[Response, bool], None] | None,
        trace: Trace | None,
        caller: int,
    ) -> tuple[InferenceRequest, InferenceFuture]:
        heard = caller != 0 or not self._listeners
        try:
            while True:
                runtime = self._registry.find(name, version, on_response is not None)
                request = runtime.signature.build_request(inputs, options)
                request.caller = caller
                if not runtime.signature.reads_only:
                    request.copy_inputs()
                if trace is not None:
                    trace.follow(request)
                future = request.expect()
                if on_response is not None:
                    request.sink = CallbackSink(partial(_pass_on, on_response))
                if not heard:
                    heard = True
                    if self._is_refused(request, version, options):
                        return request, future
                # False: replaced between the look-up and now; its successor takes the request.
                if runtime.submit(request):
                    return request, future
        except BaseException:
            if trace is not None:
                trace.refused()
            raise

    def submit_many(
        self,
        calls: Sequence[Submission],
        join_batch: JoinBatch | None = None,
        *,
        heard: bool = False,
    ) -> list[InferenceRequest | TritonError]:
        """Send requests that came at the same moment, those for one model together.

        For endpoints: an idle model gets them as one batch, not the first alone and then the others.
        The requests have no future: all responses, errors too, go to ``on_response``.

        Parameters
        ----------
        calls : sequence of Submission
        join_batch : callable, optional
            ``join_batch(completion)`` before each response that is one of several of a batch. A
            function that it defers is called once, after the last of them, so that an endpoint
            wakes its own thread once for all of them.
        heard : bool
            The listeners know of these requests already.

        Returns
        -------
        list
            For each call the request, which may be cancelled, or the error that refuses it.
        """
        found: list[InferenceRequest | TritonError] = []
        with _interrupts:
            places: dict[Runtime, list[int]] = {}
            for place, call in enumerate(calls):
                try:
                    signature = call.signature
                    if signature is None:
                        signature = self._registry.find(call.name, call.version, True).signature
                    request = signature.build_request(call.inputs, call.options)
                    runtime = request.runtime
                    assert isinstance(runtime, Runtime)
                    if self._registry.stopping and (error := refusal(runtime, request)) is not None:
                        raise error
                except TritonError as error:
                    found.append(error)
                    if call.trace is not None:
                        call.trace.refused()
                    continue
                if call.trace is not None:
                    call.trace.follow(request)
                request.sink = CallbackSink(call.on_response, join_batch)
                if call.owned:
                    request.owned_inputs = frozenset(call.inputs)
                found.append(request)
                if (
                    self._listeners
                    and not heard
                    and self._is_refused(request, call.version, call.options)
                ):
                    continue
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
                        again = calls[place]._replace(signature=None)
                        (found[place],) = self.submit_many([again], join_batch, heard=True)
        return found


def _pass_on(
    on_response: Callable[[Response, bool], None],
    _: InferenceRequest,
    response: Response,
    final: bool,
) -> None:
    on_response(response, final)


_STOPPED = "Server is stopping, scheduler for model has stopped accepting new inference requests"


def refusal(runtime: Runtime, request: InferenceRequest) -> TritonError | None:
    """Return the error of a request that begins something new, in Triton's words.

    None for requests that may continue: those of a sequence that has begun, also through an ensemble. A
    request that breaks a rule of sequences is left to the batcher, which refuses it.
    """
    if isinstance(runtime, EnsembleRuntime):
        return _of_ensemble(runtime, request)
    if not runtime.config.HasField("sequence_batching"):
        return _error(request.log_prefix + _STOPPED)
    begins = bool(request.flags & SEQUENCE_START)
    if not request.correlation_id:
        begins = runtime.config.sequence_batching.iterative_sequence  # it is given an id
    return _error(_STOPPED) if begins and request.batch_size <= 1 else None


def _of_ensemble(ensemble: EnsembleRuntime, request: InferenceRequest) -> TritonError | None:
    plan = ensemble.plan
    try:
        steps = [ensemble.resolve(step.model_name, step.model_version) for step in plan.steps]
        continues = request.correlation_id and not request.flags & SEQUENCE_START
        if continues and any(map(_has_sequences, steps)):
            return None
    except TritonError:  # a model is missing, which the ensemble reports
        return None
    for step, reads in zip(steps, plan.step_inputs, strict=True):
        if reads <= plan.inputs:
            error = refusal(step, request)
            return None if error is None else placed(error, ensemble.name)
    return None


def _has_sequences(runtime: Runtime) -> bool:
    if not isinstance(runtime, EnsembleRuntime):
        return runtime.config.HasField("sequence_batching")
    return any(
        _has_sequences(runtime.resolve(step.model_name, step.model_version))
        for step in runtime.plan.steps
    )


def _error(text: str) -> UnavailableError:
    error = UnavailableError(text)
    error.accepted = False
    return error
