"""A loaded model version as the rest of the engine sees it: how a request comes in and its responses leave.

From the top: `Mailbox`, by which threads share state that only one of them at a time may touch;
`ModelSignature`, the checks
of a request before any scheduler sees it (A3 to A16), whose errors are raised to the caller at once and never
count in the statistics; `Runtime`, the interface of a version, whether a backend runs it or it is an ensemble.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any, Final, Generic, NoReturn, TypeVar

import numpy as np

from nbtriton.backends.base import Response
from nbtriton.backends.core.executing import EXECUTING
from nbtriton.backends.core.messages import RequestOptions
from nbtriton.common.errors import InternalError, InvalidArgumentError, TritonError
from nbtriton.model.config import ModelConfig, TensorSpec, input_specs, output_specs, reads_only
from nbtriton.model.tensors import (
    Array,
    as_array,
    datatype_of,
    kind_of,
    numpy_dtype,
    shape_of,
    to_numpy,
)
from nbtriton.runtime.engine.core.cache import ResponseCache
from nbtriton.runtime.engine.core.execution import Completion, InlineCompletion, Statistics, now_ns
from nbtriton.runtime.engine.core.faults import Claim, Faults, fits
from nbtriton.runtime.engine.core.history import Meter, ModelHistory
from nbtriton.runtime.engine.core.request import InferenceRequest, RequestOwner, as_triton_error
from nbtriton.runtime.engine.core.snapshot import InstanceSnapshot, ModelSnapshot

M = TypeVar("M")


class Mailbox(Generic[M]):
    """A queue of messages and the right to handle them, which one thread at a time has.

    Theory of operation. A thread posts its message and then tries to get the right. If it gets it, it handles all
    waiting messages, its own among them; if not, another thread has it, and will find the message before it stops.
    So messages are handled one at a time and in order, no thread is blocked, and no message is left behind.

    No message is left behind because the two threads act in opposite order. The one that posts adds the message first
    and tries to get the right second. The one that handles releases the right first and looks for messages second
    (`acquire_next`). If the message was added before that look, the owner sees it; if it was added afterwards, the
    right is free by then, or has a new owner, which looks again in turn.

    The right is an item in a list: popping it is atomic with and without a GIL, and takes a third of the time of a lock.

    What does not work:

    - Releasing the right as the last step, without another look: a message that came in between waits for the next
      one, which may never come.
    - A flag that says whether somebody is handling messages: two threads may pass between reading and setting it.
    - Handling a message at once while this thread already has the right: the handler that posted it is then
      interrupted half-way. A handler that posts leaves its message to the loop that called it.
    - Waiting, in a handler, for a message to be handled: nobody else can handle it. A handler does not wait at all,
      because everybody's messages wait with it; handlers are short.
    - Checking `closed` without a lock: a message could be added between the check and the close. Only the thread that
      has the right may trust the check (`ModelRuntime._submit`), since the closing message is then handled later.

    A model version has a mailbox for the events of its batcher. Responses that must not overtake each other go through
    one as well: those of a model that preserves their order (D12), and those of a decoupled ensemble (E14).

    Attributes
    ----------
    messages : deque
        The waiting messages. Any thread may check whether there are any, as each event does several
        times; only the methods add and remove them.
    closed : bool
        No more messages are accepted by `post_if_open`.
    """

    __slots__ = ("_closing", "_right", "closed", "messages")

    def __init__(self) -> None:
        self.messages: deque[M] = deque()
        self._right = [None]
        self._closing = threading.Lock()
        self.closed = False

    def post(self, message: M) -> None:
        """Add a message; `acquire_next` or `drain` has to follow."""
        self.messages.append(message)

    def post_if_open(self, message: M) -> bool:
        """Post a message unless the mailbox is closed; False if it is."""
        with self._closing:
            if not self.closed:
                self.messages.append(message)
            return not self.closed

    def close(self, last: M) -> None:
        """Accept no more messages after this one."""
        with self._closing:
            self.closed = True
            self.messages.append(last)

    def try_acquire(self) -> bool:
        """Acquire the right to handle messages; False if another thread has it."""
        try:
            self._right.pop()
        except IndexError:
            return False
        return True

    def release(self) -> None:
        """Release the right; `acquire_next` or `drain` has to follow."""
        self._right.append(None)

    def acquire_next(self) -> M | None:
        """Acquire the right and pop the first message.

        None, without the right, if no message waits or another thread handles them.
        """
        # Checked again after a release: a message that came in between must not be left behind.
        while self.messages and self.try_acquire():
            try:
                return self.messages.popleft()
            except IndexError:
                self.release()
        return None

    def pop(self) -> M | None:
        """Pop one more message, or None; for the thread that has the right."""
        try:
            return self.messages.popleft()
        except IndexError:
            return None

    def drain(self, handle: Callable[[M], object]) -> None:
        """Handle all messages, unless another thread is doing so."""
        while (message := self.acquire_next()) is not None:
            try:
                while message is not None:
                    handle(message)
                    message = self.pop()
            finally:
                self.release()


class EventKind:
    """Events of a `ModelRuntime`'s mailbox.

    Numbers, so that the compiled core calls the handlers directly. A bound method would be made for
    each event and called through Python: 800 instructions, twice per step.
    """

    SUBMIT: Final = 0
    SUBMIT_MANY: Final = 1
    IDLE: Final = 2
    IDLE_IN_SEQUENCE: Final = 3
    ENDED: Final = 4
    CANCEL: Final = 5
    WAKE: Final = 6
    UPDATE: Final = 7
    DRAIN: Final = 8
    FAIL_PENDING: Final = 9
    REFUSE: Final = 10
    GRANTED: Final = 11
    SUSPEND: Final = 12
    RESUME: Final = 13
    GIVE_UP: Final = 14
    LOOK: Final = 15
    SUBMIT_CANCELLED: Final = 16


# Final: rule 13 of docs/compiled.md.
_ndarray: Final = np.ndarray

_ANY_PRIORITY: Final = 2**64 - 1
# Limit of accepted shapes cached per input; 1,000 lengths of text would take some 200 kB.
_MOST_SHAPES: Final = 1000
# Floats only come over gRPC.
_PARAMETER: Final = (bool, int, str, float)


class _InputRule:
    """The checks of one input, prepared for the hot path."""

    __slots__ = (
        "cached", "compared", "datatype", "dims", "dtype", "fixed", "name", "optional", "plain",
        "reshape",
    )  # fmt: skip

    def __init__(self, spec: Any) -> None:
        self.name: str = spec.name
        self.datatype: str = spec.datatype
        self.dims: tuple[int, ...] = spec.dims
        self.optional: bool = spec.optional
        self.reshape: tuple[int, ...] | None = spec.reshape
        self.fixed = -1 not in spec.dims
        self.compared = not self.fixed and not spec.allow_ragged_batch  # G1
        # The dtype that needs no `as_array`; BYTES elements and BF16 are always checked.
        self.dtype = numpy_dtype(spec.datatype) if spec.datatype not in ("BYTES", "BF16") else None
        # Only the batch size follows from its shape.
        self.plain = self.reshape is None and not self.compared
        # Accepted shapes, each with the shape of one item: most clients send few different ones.
        self.cached: dict[tuple[int, ...], tuple[int, ...]] = {}

    def matches(self, shape: tuple[int, ...]) -> bool:
        """True if a shape without batch dimension fits ``dims``."""
        return shape == self.dims if self.fixed else fits(shape, self.dims)

    def reshaped(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that the model sees: each -1 takes the next variable dimension (A12)."""
        assert self.reshape is not None
        return _filled(self.reshape, self.dims, shape)


def _filled(
    wanted: tuple[int, ...], dims: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[int, ...]:
    """Return a shape in which each -1 is the next size that another shape has for a -1 of its dims."""
    variable = iter([n for want, n in zip(dims, shape, strict=False) if want == -1])
    return tuple([next(variable) if want == -1 else want for want in wanted])


class ModelSignature:
    """The signature of one model version: it checks and builds every request.

    Parameters
    ----------
    config : ModelConfig
        Normalised and completed.
    version : int
    runtime : RequestOwner, optional
        The version that the requests are for.
    """

    def __init__(
        self, config: ModelConfig, version: int = 1, runtime: RequestOwner | None = None
    ) -> None:
        self.name: str = config.name
        self.version = version
        self._runtime = runtime
        self.max_batch_size: int = config.max_batch_size
        self.decoupled: bool = config.model_transaction_policy.decoupled
        self.reads_only = reads_only(config)
        self.inputs = input_specs(config)
        self.outputs = output_specs(config)
        self._rules = {name: _InputRule(spec) for name, spec in self.inputs.items()}
        # Outputs that leave with a shape other than the model's.
        self.reshaped_outputs = {
            name: (spec.reshape, spec.dims)
            for name, spec in self.outputs.items()
            if spec.reshape is not None
        }
        self._required = [rule.name for rule in self._rules.values() if not rule.optional]
        self._any_optional = len(self._required) < len(self._rules)
        # With a batch dimension every backend takes the batch size from some input.
        self.may_lack_inputs = self.max_batch_size > 0 and not self._required
        self._all_outputs = frozenset(self.outputs)
        self.faults = Faults(self.name, self.max_batch_size, self.inputs, self._all_outputs)
        batcher = config.dynamic_batching
        self._priority_levels: int = batcher.priority_levels
        self._default_priority: int = batcher.default_priority_level
        self._shape_tensors = {name: s for name, s in self.inputs.items() if s.is_shape_tensor}
        # Checks the other inputs, which have a batch dimension.
        self._others: ModelSignature | None = None
        if self._shape_tensors:
            others = ModelConfig()
            others.CopyFrom(config)
            del others.input[:]
            others.input.extend(one for one in config.input if not one.is_shape_tensor)
            self._others = ModelSignature(others, version, runtime)
        if config.HasField("ensemble_scheduling"):
            # Its steps may or may not have levels: any priority passes through (E5).
            self._priority_levels = _ANY_PRIORITY
            self._default_priority = 0

    def build_request(
        self,
        inputs: Mapping[str, Any],
        options: RequestOptions,
        parent: InferenceRequest | None = None,
    ) -> InferenceRequest:
        """Check a request and make it.

        Parameters
        ----------
        inputs : mapping of str to array_like
            Whole tensors, batch dimension first if the model batches. Python values become arrays
            of the input's datatype; arrays must already have it.
        options : RequestOptions
        parent : InferenceRequest, optional
            The ensemble's request of which it is a step; then the inputs, if a dict, belong to the step.

        Raises
        ------
        InvalidArgumentError
            With Triton's text; the order of the checks is Triton's.
        """
        if self._others is not None:
            return self._with_shape_tensors(self._others, inputs, options, parent)
        requested = self._all_outputs
        outputs = options.outputs
        request_id = options.request_id
        parameters = options.parameters
        if type(outputs) is not tuple or outputs:
            requested = _names(outputs) or requested
            if not requested <= self._all_outputs:
                if not isinstance(outputs, str):
                    outputs = list(outputs) or sorted(requested)  # an iterator has ended
                self.faults.check({}, outputs)
        rules = self._rules
        # The dict that an ensemble makes for its step is the step's own.
        arrays: dict[Any, Any] = (  # names are checked below
            _copied(inputs)
            if not isinstance(inputs, dict)
            else inputs.copy()
            if parent is None
            else inputs
        )
        # The number is right and each is found below, so these are all of them.
        if len(arrays) != len(rules) and not self._has_required(arrays):
            self._refuse(arrays, request_id)
        kind = "numpy"
        batching = self.max_batch_size > 0
        batch_size = 0
        first = True
        key: list[Hashable] = []
        changed: dict[str, Any] | None = None  # not yet replaced: an error describes the original
        for name, given in arrays.items():
            rule = rules.get(name)
            if rule is None:
                self._refuse(arrays, request_id)
            value: Array = given
            if type(given) is not _ndarray or given.dtype != rule.dtype:
                value = as_array(given, rule.datatype, name=name)
                if datatype_of(value) != rule.datatype:
                    self._refuse(arrays, request_id)
                if kind == "numpy":
                    kind = kind_of(value)
            shape: tuple[int, ...] = value.shape
            if batching and (not shape or (not first and shape[0] != batch_size)):
                self._refuse(arrays, request_id)
            first = False
            item = rule.cached.get(shape)
            if item is None:
                item = self._checked(rule, shape)
                if item is None:
                    self._refuse(arrays, request_id)
            if batching:
                batch_size = shape[0]
            if not rule.plain:
                if rule.compared:
                    key.append((name, item))
                if rule.reshape is not None:
                    value = value.reshape((*shape[: len(shape) - len(item)], *rule.reshaped(item)))
            if value is not given:
                changed = changed or {}
                changed[name] = value
        if batching and not 0 < batch_size <= self.max_batch_size and arrays:
            self._refuse(arrays, request_id)
        if changed:
            arrays.update(changed)
        if parameters and parent is None:
            _check_parameters(parameters)
        if self._any_optional:  # G5
            key.append(frozenset(arrays))
        priority = options.priority
        timeout_us = options.timeout_us
        sequence_id = options.correlation_id
        if (timeout_us or sequence_id) and parent is None:
            _check_numbers(timeout_us, sequence_id)
        return InferenceRequest(
            self._runtime,
            arrays,
            requested,
            batch_size,
            kind,
            tuple(sorted(key, key=str)) if key else None,
            self._priority(priority if isinstance(priority, int) else _whole("priority", priority))
            if self._priority_levels
            else 0,
            timeout_us if isinstance(timeout_us, int) else _whole("timeout_us", timeout_us),
            request_id,
            sequence_id
            if isinstance(sequence_id, (int, str))
            else _whole("sequence_id", sequence_id),
            options.flags,
            parameters,
            parent,
        )

    def _with_shape_tensors(
        self,
        others: ModelSignature,
        inputs: Mapping[str, Any],
        options: RequestOptions,
        parent: InferenceRequest | None,
    ) -> InferenceRequest:
        """Make a request of a model with shape tensors, which share a batch if they are equal (G9)."""
        arrays = {
            name: as_array(value, self.inputs[name].datatype, name=name)
            if name in self.inputs
            else value
            for name, value in _copied(inputs).items()
        }
        self.faults.check(_claims(arrays, self.inputs), options.outputs, options.request_id)
        rest = {name: array for name, array in arrays.items() if name not in self._shape_tensors}
        request = others.build_request(rest, options, parent)
        shapes = []
        for name, spec in self._shape_tensors.items():
            if name in arrays:
                request.inputs[name] = arrays[name]
                values = to_numpy(arrays[name]).reshape(-1).tolist()
                batching = self.max_batch_size > 0
                if batching and len(values) > spec.dims[0] and values[0] != request.batch_size:
                    raise InvalidArgumentError(
                        f"shape tensor '{name}' for model '{self.name}' begins with {values[0]}, the "
                        f"batch size of the request is {request.batch_size}",
                        hint=f"give {spec.dims[0]} values without it, or the batch size first",
                    )
                shapes.append((name, tuple(values[-spec.dims[0] :])))
        request.shape_key = (request.shape_key, *shapes)
        return request

    def reshape_outputs(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return outputs as their clients see them: ``dims`` instead of ``reshape``.

        Each -1 of ``dims`` takes the next variable dimension of the model's output. An output whose
        number of elements does not fit is left as it is.
        """
        shaped = dict(outputs)
        for name in self.reshaped_outputs.keys() & outputs.keys():
            made, dims = self.reshaped_outputs[name]
            array = outputs[name]
            batch = tuple(array.shape[:1]) if self.max_batch_size > 0 else ()
            item = array.shape[len(batch) :]
            if len(item) < len(made):
                continue
            shape = (*batch, *_filled(dims, made, item))
            if math.prod(shape) == math.prod(array.shape):
                shaped[name] = array.reshape(shape)
        return shaped

    def _priority(self, priority: int) -> int:
        return priority if 0 < priority <= self._priority_levels else self._default_priority  # A16

    def _has_required(self, inputs: Mapping[Any, Any]) -> bool:
        """True if no required input is missing."""
        return all(name in inputs for name in self._required)

    def _checked(self, rule: _InputRule, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Check a new shape, and return that of one item; None if it does not fit."""
        item = tuple(shape[1:] if self.max_batch_size > 0 else shape)
        if not rule.matches(item):
            return None
        if len(rule.cached) >= _MOST_SHAPES:
            rule.cached.clear()
        rule.cached[tuple(shape)] = item
        return item

    def _refuse(self, inputs: Mapping[Any, Any], request_id: str) -> NoReturn:
        """Raise the error of inputs that are wrong."""
        self.faults.check(_claims(inputs, self.inputs), (), request_id)
        raise InternalError(f"a request to '{self.name}' was refused without a reason")


def _copied(inputs: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a caller's inputs as a new dict."""
    try:
        return dict(inputs)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            "the inputs of a request are a mapping of arrays by name, found type "
            f"{type(inputs).__name__}"
        ) from None


def _claims(inputs: Mapping[Any, Any], specs: Mapping[str, TensorSpec]) -> dict[str, Claim]:
    claims: dict[str, Claim] = {}
    for name, value in inputs.items():
        if not isinstance(name, str):
            raise InvalidArgumentError(f"the name of an input is a text, found {name!r}")
        spec = specs.get(name)
        if spec is None:
            claims[name] = ("", tuple(getattr(value, "shape", ())))
        else:
            array = as_array(value, spec.datatype, name=name)
            claims[name] = (datatype_of(array), shape_of(array))
    return claims


def _names(outputs: Any) -> frozenset[str]:
    """Return the requested outputs, none for None; names are not checked against the model."""
    if outputs is None:
        return frozenset()
    names: frozenset[Any] = frozenset()
    try:
        names = frozenset(outputs)
    except TypeError:  # not a list, or a list of lists
        wrong = True
    else:
        wrong = False
        for name in names:
            wrong = wrong or not isinstance(name, str)
    if wrong:
        raise InvalidArgumentError(f"outputs are a list of names, found {outputs!r}")
    return names


def _whole(name: str, value: Any) -> int:
    """Return a whole number, of Python's or NumPy's."""
    try:
        return index(value)
    except TypeError:
        words = "a whole number or a text" if name == "sequence_id" else "a whole number"
        raise InvalidArgumentError(f"{name} must be {words}, found {value!r}") from None


def _check_numbers(timeout_us: object, sequence_id: object) -> None:
    """Refuse numbers that do not fit into Triton's unsigned 64 bits."""
    for name, value in (("timeout_us", timeout_us), ("sequence_id", sequence_id)):
        if name == "sequence_id" and isinstance(value, str):
            continue
        if not 0 <= _whole(name, value) < 1 << 64:
            raise InvalidArgumentError(f"{name} must be from 0 to 2^64 - 1, found {value}")


def _check_parameters(parameters: Any) -> None:
    """Refuse parameters that no client could send; the endpoints do their own checks."""
    if not isinstance(parameters, Mapping):
        raise InvalidArgumentError(
            f"the parameters of a request are a mapping, found type {type(parameters).__name__}"
        )
    for name, value in parameters.items():
        if not isinstance(name, str) or not isinstance(value, _PARAMETER):
            what = (
                f"parameter '{name}'" if isinstance(name, str) else f"the parameter name {name!r}"
            )
            kind = type(value if isinstance(name, str) else name).__name__
            raise InvalidArgumentError(
                f"{what} has invalid type. It should be either 'int', 'bool', or 'string'.",
                hint=f"found type {kind}",
            )


_log = logging.getLogger("nbtriton.runtime.engine")

# Models that call each other on one thread; the next one gets a separate thread. Each takes some 20
# of Python's 1,000 nested calls.
_DEEPEST: Final = 24


class Runtime(RequestOwner):
    """One version of one model, ready for requests.

    Parameters
    ----------
    config : ModelConfig
        Normalised and completed.
    version : int
    """

    def __init__(self, config: ModelConfig, version: int) -> None:
        self.config = config
        self.name = config.name
        self.process = os.getpid()
        self.version = version
        # The model's directory in a repository; None for a model of a notebook.
        self.directory: Path | None = None
        self.signature = ModelSignature(config, version, self)
        self.statistics = Statistics()
        # Set by the server before the first request if its recorder is on.
        self.history = None
        # Set by the server before the first request if it has a cache and the model wants it (K1).
        self.cache: ResponseCache | None = None
        # Whether every answer that was not in the cache before its request counts as a miss.
        self.counts_twins = False
        self._holding = threading.Lock()
        self._holds = 0
        self._unpublished = False

    def own_checks(self) -> Sequence[Callable[[], bool]]:
        """Return the model's own readiness checks; each may take seconds."""
        return ()

    @property
    def orders_inputs(self) -> bool:
        """True if inputs on a device need not be written yet: their readers wait for the writers' events."""
        return self.cache is None  # which reads them on the host

    @property
    def iterative(self) -> bool:
        return bool(self.config.sequence_batching.iterative_sequence)

    def submit(self, request: InferenceRequest, completion: Completion | None = None) -> bool:
        """Accept an admitted request; False if this version is already drained.

        Parameters
        ----------
        completion : Completion, optional
            The calling thread's completion, which runs immediate consequences.
        """
        if self.cache is not None and self._answer_from_cache(self.cache, request, completion):
            return True
        return self._enter(request, completion)

    def submit_inline(self, request: InferenceRequest) -> bool:
        """Submit, and execute on the calling thread as much as an idle instance can."""
        # A chain of models that call each other would hit Python's limit of nested calls.
        if len(EXECUTING.get().callers) >= _DEEPEST:
            return self.submit(request)
        inline = InlineCompletion(request)
        try:
            accepted = self.submit(request, inline)
            inline.execute()
        except BaseException:  # Ctrl-C in a model; the executed requests are answered
            inline.hand_over()
            request.expect().cancel()
            raise
        return accepted

    def submit_many(
        self, requests: Sequence[InferenceRequest], completion: Completion | None = None
    ) -> Sequence[bool | TritonError]:
        """Accept requests of the same moment; return for each what `submit` returned or raised."""
        found: list[bool | TritonError] = []
        for request in requests:
            try:
                found.append(self.submit(request, completion))
            except TritonError as error:
                found.append(error)
        return found

    @abstractmethod
    def _enter(self, request: InferenceRequest, completion: Completion | None) -> bool:
        """Schedule a request that the cache cannot answer; False if this version is drained."""

    def respond(self, request: InferenceRequest, response: Response | None, *, final: bool) -> None:
        """Deliver one response that a model has sent; see `RequestOwner.respond`."""
        request.start_response(final=final)
        self.deliver(request, response, final=final)

    def deliver(
        self,
        request: InferenceRequest,
        response: Response | None,
        *,
        final: bool,
        completion: Completion | None = None,
    ) -> None:
        """Pass on a response; the right to send it has been acquired."""
        if self.signature.reshaped_outputs and response is not None and response.outputs:
            try:
                outputs = self.signature.reshape_outputs(response.outputs)
                response = Response(outputs, response.error, response.parameters)
            except Exception as error:  # such as a device's
                response = Response(error=as_triton_error(error, self.name))
        if request.cache_key and response is not None:
            self._keep(request, response)
        request.deliver(response, final=final, completion=completion)

    def _answer_from_cache(
        self, cache: ResponseCache, request: InferenceRequest, completion: Completion | None
    ) -> bool:
        """Answer from the cache if it can: before the queue, without an execution (K3)."""
        start = now_ns()
        try:
            key = cache.key(self.name, self.version, request.inputs, request.requested_outputs)
            outputs = cache.look_up(key)
        except Exception:  # such as no memory for the copy: it is executed
            _log.exception("a response of '%s' is not looked up", self.name)
            return False
        now = now_ns()
        if outputs is None:
            request.cache_key = key
            request.lookup_ns = now - start
            return False
        if self.history is not None:
            self.history.advance(now)
        self.statistics.record_cache_hit(
            now - request.start_ns, start - request.start_ns, now - start
        )
        self._join_order(request)
        request.outcome = "cache_hit"
        if request.try_finish():
            self.deliver(request, Response(outputs), final=True, completion=completion)
        return True

    def refuse_new(self, request: InferenceRequest, error: TritonError) -> None:
        """Refuse a request that was not submitted yet, like a full queue (Q4)."""
        self._join_order(request)
        request.outcome = "queue_full"
        error.accepted = False
        request.fail(error)

    def _join_order(self, request: InferenceRequest) -> None:
        """Enter a request that no instance executes into the order of responses, if preserved."""

    def _keep(self, request: InferenceRequest, response: Response) -> None:
        assert self.cache is not None
        start = now_ns()
        if response.error is None:
            # Inserted by a faster twin: neither a hit nor a miss (K4), except for an ensemble.
            try:
                missed = self.cache.insert(request.cache_key, response.outputs) or self.counts_twins
            except (
                Exception
            ):  # for example, no memory left on a device: the request is answered anyway
                _log.exception("a response of '%s' is not cached", self.name)
                missed = True
        else:  # never inserted, but an execution's error still counts as a miss
            missed = request.execution is not None
        if missed:
            self.statistics.record_cache_miss(request.lookup_ns + now_ns() - start)

    def acquire(self) -> bool:
        """Keep this version for later requests (E17); False if it is being unloaded."""
        with self._holding:
            if self._unpublished:
                return False
            self._holds += 1
            return True

    def release(self) -> None:
        """Undo one `acquire`."""
        with self._holding:
            self._holds -= 1
            last = self._unpublished and not self._holds
        if last:
            self.drain()

    def unpublish(self) -> None:
        """Drain this version, which is no longer published, once it has no more holders."""
        with self._holding:
            self._unpublished = True
            free = not self._holds
        if free:
            self.drain()

    def record_in(self, history: ModelHistory) -> None:
        """Start recording this version's requests."""
        history.attach(self.statistics, self.meters, summary_of(self.config))
        self.history = history

    def end_record(self) -> None:
        """Hand the counts over to the history: this version has ended."""
        if self.history is not None:
            self.history.detach(self.statistics)

    def meters(self) -> list[Meter]:
        """Return the busy times of the instances, if it has any."""
        return []

    @abstractmethod
    def drain(self) -> None:
        """Accept no more requests; finish the accepted ones, then release everything."""

    def fail_pending(self, reason: str) -> None:
        """Answer all waiting requests with UNAVAILABLE: the server is stopping. An ensemble's wait in its steps."""

    def log_unloaded(self) -> None:
        """Log that the version is unloaded."""
        _log.info("successfully unloaded '%s' version %d", self.name, self.version)

    def fail_running(self, reason: str) -> None:
        """Answer all others with UNAVAILABLE, likewise; later responses of models are dropped."""

    @abstractmethod
    def wait_drained(self, timeout_s: float | None) -> bool:
        """Wait until nothing of this version is left; False if time ran out."""

    @abstractmethod
    def in_flight(self) -> int:
        """Return the number of accepted requests that have not ended, or of open sequences."""

    @abstractmethod
    def requests_inside(self) -> list[InferenceRequest]:
        """Return the accepted requests that are not answered yet."""

    @abstractmethod
    def snapshot(self, state: str, reason: str) -> ModelSnapshot:
        """Return the state of this version now."""

    def _snapshot(
        self,
        state: str,
        reason: str,
        platform: str,
        queued: int,
        executing: int,
        instances: tuple[InstanceSnapshot, ...] = (),
    ) -> ModelSnapshot:
        """Return a snapshot with the counts of the statistics."""
        found = self.statistics.to_dict(self.name, self.version)  # of one moment
        of = found["inference_stats"]
        return ModelSnapshot(
            self.name, self.version, state, reason, platform, self.signature.max_batch_size,
            queued, executing, instances, found["inference_count"], found["execution_count"],
            of["success"]["count"], of["fail"]["count"], of["success"]["ns"], of["queue"]["ns"],
            of["compute_input"]["ns"], of["compute_infer"]["ns"], of["compute_output"]["ns"],
            {one["batch_size"]: one["compute_infer"]["count"] for one in found["batch_stats"]},
        )  # fmt: skip


def summary_of(config: ModelConfig) -> str:
    """Return a short summary of a configuration's scheduling."""
    if config.HasField("ensemble_scheduling"):
        return f"an ensemble of {len(config.ensemble_scheduling.step)} steps"
    groups = [group for group in config.instance_group if not group.passive]
    instances = sum(max(1, group.count) * max(1, len(group.gpus)) for group in groups)
    parts = [f"{instances} instance{'s' * (instances != 1)}"]
    parts.append(f"max_batch_size {config.max_batch_size}")
    if config.HasField("dynamic_batching"):
        batching = config.dynamic_batching
        parts.append("dynamic batching")
        if batching.preferred_batch_size:
            parts.append(f"preferred {', '.join(map(str, batching.preferred_batch_size))}")
        parts.append(f"delay {batching.max_queue_delay_microseconds} µs")
    elif config.HasField("sequence_batching"):
        parts.append("sequence batching")
    return ", ".join(parts)
