"""One infer request, independent of the protocol, and templates for similar requests."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from nbtriton.backends import RequestOptions
from nbtriton.common.errors import InternalError, TritonError, UnsupportedError
from nbtriton.runtime.engine import Submission
from nbtriton.scheduling import SEQUENCE_END, SEQUENCE_START
from nbtriton.serving.frontends.kserve.wire import DTYPES, WireInput, arrays_of

if TYPE_CHECKING:
    from nbtriton.backends.base import Response
    from nbtriton.model.tensors import Array
    from nbtriton.runtime.engine import InferenceRequest, JoinBatch, ModelSignature, Server, Trace
    from nbtriton.serving.frontends.kserve.shared_memory import Lease, Leasing

T = TypeVar("T")
_log = logging.getLogger("nbtriton.serving.frontends")

# Request parameters that are flags of a sequence.
SEQUENCE_FLAGS = {"sequence_start": SEQUENCE_START, "sequence_end": SEQUENCE_END}
_LONGEST_ID = 128
# Not BOOL, which is copied: any byte except 0 is true.
_VIEWED = {name: dtype for name, dtype in DTYPES.items() if name != "BOOL"}


def shared_bytes(lease: Lease, datatype: str, signature: ModelSignature) -> Any:
    """Return the bytes of an input in shared memory: where they lie, if the model only reads them, else a copy.

    Raises
    ------
    InvalidArgumentError, LongReadError
        As `Lease.data`.
    """
    # The elements of other datatypes are read here, where the client may still change them.
    return lease.view() if signature.reads_only and datatype in _VIEWED else lease.data()


@dataclass(slots=True)
class OutputRequest:
    """Form of one requested output: JSON, bytes after the JSON, or shared memory."""

    kind: Literal["json", "binary", "shared"] = "json"
    classes: int = 0
    lease: Lease | None = None


@dataclass(slots=True)
class InferCall:
    """One infer request.

    Parameters
    ----------
    arrays : mapping of str to array
        The inputs.
    outputs : mapping of str to OutputRequest
        The requested outputs; empty for all of them.
    default : OutputRequest
        Form of all outputs if the request names none.
    options : RequestOptions
    leases : list of Lease
        Shared memory in use until the request is answered.
    empty_final : bool
        Whether the client wants an empty final response of a stream.
    """

    arrays: Mapping[str, Array] = field(default_factory=dict)
    outputs: Mapping[str, OutputRequest] = field(default_factory=dict)
    default: OutputRequest = field(default_factory=OutputRequest)
    options: RequestOptions = field(default_factory=RequestOptions)
    leases: list[Lease] = field(default_factory=list)
    empty_final: bool = False

    @property
    def request_id(self) -> str:
        """Request id of the client, empty for none."""
        return self.options.request_id

    def add_parameters(self, parameters: Mapping[str, str]) -> None:
        """Add request parameters; the options are replaced, as other requests may share them."""
        self.options = self.options.copy()
        self.options.parameters = {**(self.options.parameters or {}), **parameters}

    def wanted(self, name: str) -> OutputRequest:
        """Return the requested form of an output."""
        return self.outputs.get(name, self.default)

    def set_inputs(self, signature: ModelSignature, inputs: Sequence[WireInput]) -> None:
        """Set arrays and requested outputs; raises TritonError as `arrays_of`."""
        outputs = tuple(self.outputs)
        self.arrays = arrays_of(signature, inputs, request_id=self.request_id, outputs=outputs)
        self.options.outputs = outputs

    def set_sequence_id(self, text: str) -> None:
        """Set a string correlation id; the empty string means no id."""
        if len(text.encode("utf-8", "surrogateescape")) > _LONGEST_ID:
            raise UnsupportedError("string correlation ID cannot be longer than 128 characters")
        self.options.correlation_id = text or 0

    def lease(self, leasing: Leasing, region: str, offset: int, size: int) -> Lease:
        """Return a part of a shared-memory region, held until `release`."""
        lease = leasing(region, offset, size)
        self.leases.append(lease)
        return lease

    def check_leases(self) -> None:
        """Raise InvalidArgumentError if a client has truncated memory that the model has read."""
        for lease in self.leases:
            lease.check()

    def release(self) -> None:
        """Release the shared memory."""
        while self.leases:
            self.leases.pop().release()


@dataclass(slots=True)
class InferTemplate:
    """Layout of the tensors after a text that was read before.

    Parameters
    ----------
    tensors : tuple of (name, dtype, shape, offset)
    heads : tuple of (bytes, offset)
        Bytes before tensors.
    size : int
        Size of all tensors with their heads, in bytes.
    outputs, default, options, empty_final
        As in every `InferCall` of this text.
    """

    tensors: tuple[tuple[str, np.dtype[Any], tuple[int, ...], int], ...]
    heads: tuple[tuple[bytes, int], ...]
    size: int
    outputs: Mapping[str, OutputRequest]
    default: OutputRequest
    options: RequestOptions
    empty_final: bool

    @classmethod
    def of(
        cls, call: InferCall, tensors: Iterable[tuple[str, str, tuple[int, ...], bytes, int]]
    ) -> InferTemplate | None:
        """Return the template of a request; None if requests with its text may differ in more than tensors.

        Parameters
        ----------
        call : InferCall
        tensors : iterable of (name, datatype, shape, bytes before it, size)
        """
        options = call.options
        if call.leases or options.correlation_id or options.flags or options.parameters:
            return None
        described: list[tuple[str, np.dtype[Any], tuple[int, ...], int]] = []
        heads: list[tuple[bytes, int]] = []
        end = 0
        for name, datatype, shape, head, size in tensors:
            if datatype not in _VIEWED:
                return None
            if head:
                heads.append((head, end))
                end += len(head)
            described.append((name, _VIEWED[datatype], shape, end))
            end += size
        options = options.copy()
        options.request_id = ""
        layout = tuple(described), tuple(heads), end
        return cls(*layout, call.outputs, call.default, options, call.empty_final)

    def call(self, data: bytes | memoryview, start: int, request_id: str) -> InferCall:
        """Return a request whose arrays view `data`, from offset `start` on."""
        arrays: dict[str, Array] = {}
        for name, dtype, shape, offset in self.tensors:
            array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, data, start + offset)
            arrays[name] = array if array.flags.aligned else array.copy()
        options = self.options
        if request_id:
            options = options.copy()
            options.request_id = request_id
        return InferCall(arrays, self.outputs, self.default, options, [], self.empty_final)


class Responder(ABC):
    """A request from the end of its reading to its last response.

    Parameters
    ----------
    signature : ModelSignature
        Signature of the model.
    version : int
        Version of the model, -1 for any.
    call : InferCall
        Inputs, options and requested outputs.
    """

    __slots__ = ("call", "signature", "trace", "version")

    def __init__(self, signature: ModelSignature, version: int, call: InferCall) -> None:
        self.signature = signature
        self.version = version
        self.call = call
        self.trace: Trace | None = None

    def start_trace(
        self, trace: Trace | None, first: str, last: str, received_ns: tuple[int, int]
    ) -> None:
        """Set the request's trace, if it is traced, with the times of its arrival."""
        self.trace = trace
        if trace is not None:
            trace.received(first, last, received_ns)

    def submission(self) -> Submission:
        """Return the request for the engine."""
        call = self.call
        return Submission(
            self.signature.name,
            self.version,
            call.arrays,
            call.options,
            self.handle_response,
            self.trace,
            # What a client may still write to is not the model's own.
            not call.leases
            or all(lease.tensor is None and lease.mapping is None for lease in call.leases),
            self.signature,
        )

    def record(self, *activities: str) -> None:
        """Record activities in the request's trace, if any."""
        if self.trace is not None:
            for activity in activities:
                self.trace.answered(activity)

    def close(self) -> None:
        """Release the request's resources after the last response."""
        self.call.release()
        self.end_trace()

    def end_trace(self) -> None:
        """Complete the request's trace, if any."""
        if self.trace is not None:
            self.trace.sample.release()

    def written(self, write: Callable[..., T], *arguments: Any) -> T:
        """Return what `write` makes of a response; raises TritonError if it cannot be written."""
        try:
            return write(*arguments)
        except TritonError:
            raise
        except Exception as error:
            _log.exception("a response of %s could not be written", self.signature.name)
            raise InternalError(f"{type(error).__name__}: {error}") from error

    @abstractmethod
    def submitted(self, request: InferenceRequest | TritonError) -> None:
        """Handle the accepted request, or the error that refuses it."""

    @abstractmethod
    def handle_response(self, request: InferenceRequest, response: Response, final: bool) -> None:
        """Handle a response, on the model's thread; the model may reuse the memory afterwards."""


def submit_together(
    server: Server, responders: Sequence[Responder], join_batch: JoinBatch | None
) -> None:
    """Submit requests that are ready together; see `RequestDispatcher.submit_many`."""
    accepted: Sequence[InferenceRequest | TritonError]
    try:
        accepted = server.engine.dispatcher.submit_many(
            [responder.submission() for responder in responders], join_batch
        )
    except Exception as error:
        _log.exception("requests could not be submitted")
        accepted = [InternalError(f"{type(error).__name__}: {error}")] * len(responders)
    for responder, request in zip(responders, accepted, strict=True):
        responder.submitted(request)
