"""One infer request as every protocol reads it, and templates for requests that differ in little."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nbtriton.backends import RequestOptions
from nbtriton.errors import UnsupportedError
from nbtriton.frontends.kserve.wire import DTYPES, WireInput, arrays_of
from nbtriton.scheduling import SEQUENCE_END, SEQUENCE_START

if TYPE_CHECKING:
    from nbtriton.engine import ModelSignature
    from nbtriton.frontends.kserve.shared_memory import Lease, SharedMemory, ShortReads
    from nbtriton.tensors import Array

__all__ = ["SEQUENCE_FLAGS", "InferCall", "InferTemplate", "OutputRequest"]

# The request parameters that are flags of a sequence.
SEQUENCE_FLAGS = {"sequence_start": SEQUENCE_START, "sequence_end": SEQUENCE_END}
_LONGEST_ID = 128
# BOOL is copied: any byte except 0 is true.
_VIEWED = {name: dtype for name, dtype in DTYPES.items() if name != "BOOL"}


@dataclass(slots=True)
class OutputRequest:
    """The form in which a client wants one output: JSON, bytes behind the JSON, or shared memory."""

    kind: Literal["json", "binary", "shared"] = "json"
    classes: int = 0
    lease: Lease | None = None


@dataclass(slots=True)
class InferCall:
    """One infer request as its client sent it.

    Parameters
    ----------
    arrays : mapping of str to array
        The inputs.
    outputs : mapping of str to OutputRequest
        The requested outputs; empty for all of them.
    default : OutputRequest
        For every output of a request that names none.
    options : RequestOptions
    leases : list of Lease
        Shared memory that is in use until the request is answered.
    empty_final : bool
        Whether the client wants the final response of a stream also if it is empty.
    """

    arrays: Mapping[str, Array] = field(default_factory=dict)
    outputs: Mapping[str, OutputRequest] = field(default_factory=dict)
    default: OutputRequest = field(default_factory=OutputRequest)
    options: RequestOptions = field(default_factory=RequestOptions)
    leases: list[Lease] = field(default_factory=list)
    empty_final: bool = False

    @property
    def request_id(self) -> str:
        """The client's id, empty for none."""
        return self.options.request_id

    def add_parameters(self, parameters: Mapping[str, str]) -> None:
        """Add request parameters; the options may be shared with other requests."""
        self.options = self.options.copy()
        self.options.parameters = {**(self.options.parameters or {}), **parameters}

    def wanted(self, name: str) -> OutputRequest:
        """Return how the client wants an output."""
        return self.outputs.get(name, self.default)

    def set_inputs(self, signature: ModelSignature, inputs: Sequence[WireInput]) -> None:
        """Set arrays and requested outputs; raises TritonError as `arrays_of`."""
        outputs = tuple(self.outputs)
        self.arrays = arrays_of(signature, inputs, request_id=self.request_id, outputs=outputs)
        self.options.outputs = outputs

    def set_sequence_id(self, text: str) -> None:
        """Set a correlation id that is a string; the empty one is none."""
        if len(text.encode("utf-8", "surrogateescape")) > _LONGEST_ID:
            raise UnsupportedError("string correlation ID cannot be longer than 128 characters")
        self.options.correlation_id = text or 0

    def lease(
        self, memory: SharedMemory | ShortReads, region: str, offset: int, size: int
    ) -> Lease:
        """Return a part of a region of shared memory, which is held until `release`."""
        lease = memory.lease(region, offset, size)
        self.leases.append(lease)
        return lease

    def release(self) -> None:
        """Release the shared memory."""
        while self.leases:
            self.leases.pop().release()


@dataclass(slots=True)
class InferTemplate:
    """A template: the layout of the tensors behind a text that was read before.

    Parameters
    ----------
    tensors : tuple of (name, dtype, shape, offset)
    heads : tuple of (bytes, offset)
        Bytes in front of tensors.
    size : int
        Of all tensors with their heads, in bytes.
    outputs, default, options, empty_final
        Of every `InferCall` with this text.
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
        """Return the template of a request; None if others with its text may differ in more.

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
        at = 0
        for name, datatype, shape, head, size in tensors:
            if datatype not in _VIEWED:
                return None
            if head:
                heads.append((head, at))
                at += len(head)
            described.append((name, _VIEWED[datatype], shape, at))
            at += size
        options = options.copy()
        options.request_id = ""
        return cls(
            tuple(described),
            tuple(heads),
            at,
            call.outputs,
            call.default,
            options,
            call.empty_final,
        )

    def call(self, data: bytes | memoryview, at: int, request_id: str) -> InferCall:
        """Return a request whose tensors begin at a place in the data, which its arrays view."""
        arrays: dict[str, Array] = {}
        for name, dtype, shape, offset in self.tensors:
            array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, data, at + offset)
            arrays[name] = array if array.flags.aligned else array.copy()
        options = self.options
        if request_id:
            options = options.copy()
            options.request_id = request_id
        return InferCall(arrays, self.outputs, self.default, options, [], self.empty_final)
