"""Encoding of the requests and responses of a batch as plain values with packed tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from nbtriton.backends.base import BackendRequest, Response
from nbtriton.backends.compiling import mypyc_attr
from nbtriton.backends.core.messages import ScatteredResponses
from nbtriton.common.errors import InternalError
from nbtriton.model.tensors import Array
from nbtriton.runtime.workers.core.packing import Packer, joined_rows, read_column, read_tensor
from nbtriton.runtime.workers.protocol import RequestBatch, decode_error, encode_error, plain

# The encodings of a batch's responses.
_JOINED: Final = 0  # each has the same outputs, whose rows are joined
_LISTED: Final = 1
_SCATTERED: Final = 2  # outputs of the whole batch, which are cut on access
# The encoding of one response in a list.
_PLAIN: Final = 0
_ERROR: Final = 1


def encode_requests(
    requests: Sequence[BackendRequest], all_outputs: frozenset[str], packer: Packer
) -> tuple[Any, ...]:
    """Encode the requests of a batch; their tensors are added to the packer.

    Parameters
    ----------
    requests : sequence of BackendRequest
    all_outputs : frozenset of str
        The outputs of a request that names none; both processes know them.
    packer : Packer
    """
    sizes: list[int] = []
    extras: list[Any] | None = None
    outputs: list[Any] | None = None
    names: list[str] = list(requests[0].inputs)
    for index, request in enumerate(requests):
        sizes.append(request.batch_size)
        if index and len(request.inputs) != len(names):
            names += [name for name in request.inputs if name not in names]
        requested = request.requested_outputs
        if requested is not all_outputs and requested != all_outputs:
            if outputs is None:
                outputs = [None] * len(requests)
            outputs[index] = plain(list(requested))
        if (
            request.request_id
            or request.correlation_id
            or request.flags
            or request.timeout_us
            or request.priority
            or request.parameters
            or request.trace is not None
            or request.is_cancelled()
        ):
            if extras is None:
                extras = [None] * len(requests)
            extras[index] = plain((
                request.request_id, request.correlation_id, request.flags, request.timeout_us,
                request.priority, dict(request.parameters) if request.parameters else None,
                _encode_trace(request.trace), request.is_cancelled(),
            ))  # fmt: skip
    columns: list[Any] = []
    for name in names:
        arrays: list[Any] = [request.inputs.get(name) for request in requests]
        columns.append((_text(name), packer.column(arrays, sizes)))
    return sizes, columns, outputs, extras


def _encode_trace(trace: Any) -> Any:
    return None if trace is None else (trace.context,)


def decode_requests(
    body: Sequence[Any],
    memory: Any,
    link: Any,
    batch: int,
    all_outputs: frozenset[str],
    traced: Any,
) -> RequestBatch:
    """Decode the requests of a batch.

    Parameters
    ----------
    body : tuple
        Of `encode_requests`.
    memory : buffer
        The packer's memory.
    link, batch
        As in `RemoteRequest`.
    all_outputs : frozenset of str
    traced : callable
        ``traced(batch, index, context)`` returns the trace of a traced request.
    """
    sizes, columns, outputs, extras = body
    inputs: list[dict[str, Array]] = [{} for _ in sizes]
    names: list[str] = []
    requests = RequestBatch()
    for name, column in columns:
        names.append(name)
        whole = joined_rows(column, memory)
        if whole is not None:
            requests.joined[name] = whole
        for index, array in enumerate(read_column(column, sizes, memory)):
            if array is not None:
                inputs[index][name] = array
    owned = frozenset(names)
    for index in range(len(sizes)):
        requested = all_outputs
        if outputs is not None and outputs[index] is not None:
            requested = frozenset(outputs[index])
        request = RemoteRequest(link, batch, index, inputs[index], owned, requested, sizes[index])
        if extras is not None and extras[index] is not None:
            extra = extras[index]
            request.request_id = extra[0]
            request.correlation_id = extra[1]
            request.flags = extra[2]
            request.timeout_us = extra[3]
            request.priority = extra[4]
            if extra[5]:
                request.parameters = extra[5]
            if extra[6]:
                request.trace = traced(batch, index, extra[6][0])
            request.cancelled = extra[7]
        requests.append(request)
    return requests


def encode_responses(
    responses: Sequence[Response | None] | None, packer: Packer
) -> tuple[Any, ...] | None:
    """Encode the responses of a batch; their tensors are added to the packer."""
    if responses is None:
        return None
    if isinstance(responses, ScatteredResponses):
        return _encode_scattered(responses, packer)
    first = responses[0] if responses else None
    if first is not None and first.error is None and len(responses) > 1:
        joined = _encode_joined(responses, first, packer)
        if joined is not None:
            return joined
    return _LISTED, [None if one is None else encode_response(one, packer) for one in responses]


def _encode_scattered(responses: ScatteredResponses, packer: Packer) -> tuple[Any, ...]:
    outputs, given, wanted = responses.parts()
    sizes = list(given)
    columns: list[Any] = []
    for name, output in outputs.items():
        if isinstance(output, list):
            columns.append((_text(name), False, packer.column(output, sizes)))
        else:
            # One array for all of them: its rows are cut on access.
            columns.append((_text(name), True, packer.column([output], [sum(sizes)])))
    first = wanted[0]
    requested: list[list[str]] | None = None
    for one in wanted:
        if one is not first and one != first:
            requested = [plain(list(names)) for names in wanted]
            break
    return _SCATTERED, sizes, columns, plain(list(first)), requested


def _encode_joined(
    responses: Sequence[Response | None], first: Response, packer: Packer
) -> tuple[Any, ...] | None:
    """Encode responses with equal outputs and nothing else; return None for others."""
    names = list(first.outputs)
    for response in responses:
        if response is None or response.error is not None or response.parameters:
            return None
        if list(response.outputs) != names:
            return None
    if not names:
        return None
    sizes: list[int] = [1] * len(responses)
    columns: list[Any] = []
    for name in names:
        arrays: list[Any] = []
        for response in responses:
            assert response is not None
            arrays.append(response.outputs[name])
        columns.append((_text(name), packer.column(arrays, sizes)))
    return _JOINED, sizes, columns


def decode_responses(body: Sequence[Any] | None, memory: Any) -> Sequence[Response | None] | None:
    """Decode the responses of a batch."""
    if body is None:
        return None
    if body[0] == _LISTED:
        return [None if one is None else decode_response(one, memory) for one in body[1]]
    if body[0] == _JOINED:
        return _decode_joined(body[1], body[2], memory)
    _, sizes, columns, names, requested = body
    outputs: dict[str, Any] = {}
    for name, whole, column in columns:
        if whole:
            outputs[name] = read_column(column, [sum(sizes)], memory)[0]
        else:
            outputs[name] = read_column(column, sizes, memory)
    wanted = (
        [frozenset(names)] * len(sizes) if requested is None else [frozenset(a) for a in requested]
    )
    return ScatteredResponses(outputs, sizes, wanted)


def _decode_joined(
    sizes: Sequence[int], columns: Sequence[Any], memory: Any
) -> list[Response | None]:
    if len(columns) == 1:  # takes two thirds of the time
        only, column = columns[0]
        return [Response({only: array}) for array in read_column(column, sizes, memory)]
    outputs: list[dict[str, Array]] = [{} for _ in sizes]
    for name, column in columns:
        for index, array in enumerate(read_column(column, sizes, memory)):
            outputs[index][name] = array
    return [Response(output) for output in outputs]


def encode_response(response: Response, packer: Packer) -> tuple[Any, ...]:
    """Encode one response."""
    parameters = plain(dict(response.parameters)) if response.parameters else None
    if response.error is not None:
        return _ERROR, encode_error(response.error), parameters
    return _PLAIN, encode_tensors(response.outputs, packer), parameters


def decode_response(body: Sequence[Any], memory: Any) -> Response:
    """Decode one response."""
    if body[0] == _ERROR:
        return Response(None, decode_error(body[1]), body[2])
    return Response(decode_tensors(body[1], memory), None, body[2])


def encode_tensors(tensors: Mapping[str, Array], packer: Packer) -> list[Any]:
    """Encode tensors by name."""
    return [(_text(name), packer.tensor(array)) for name, array in tensors.items()]


def _text(name: str) -> str:
    """Return a name as allowed in a control message."""
    return name if type(name) is str else str(name)


def decode_tensors(body: Sequence[Any], memory: Any) -> dict[str, Array]:
    """Decode tensors by name."""
    return {name: read_tensor(column, memory) for name, column in body}


NO_PARAMETERS: Final[Mapping[str, bool | int | str]] = MappingProxyType({})


@mypyc_attr(allow_interpreted_subclasses=True)
class RemoteRequest:
    """One request of a batch; implements `nbtriton.backends.base.BackendRequest`.

    Attributes
    ----------
    batch, index : int
        Its execution, and its index there, by which the engine identifies it.
    link : object
        The worker: ``link.send(request, response, final)``, ``link.iterative``.
    cancelled : bool
        Set by the thread that receives the cancellation.
    rescheduled : bool
        The model wants to execute it again.
    """

    __slots__ = (
        "_unanswered", "batch", "batch_size", "cancelled", "copies_outputs", "correlation_id", "flags",
        "index", "inputs", "link", "orders_events", "owned_inputs", "parameters", "priority", "request_id", "requested_outputs",
        "rescheduled", "timeout_us", "trace",
    )  # fmt: skip

    def __init__(
        self,
        link: Any,
        batch: int,
        index: int,
        inputs: dict[str, Array],
        owned_inputs: frozenset[str],
        requested_outputs: frozenset[str],
        batch_size: int,
    ) -> None:
        self.link = link
        self.batch = batch
        self.index = index
        self.inputs = inputs
        # The memory belongs to this process alone.
        self.owned_inputs = owned_inputs
        self.requested_outputs = requested_outputs
        self.batch_size = batch_size
        # They are written to a message, or to shared memory, before `send` or `execute` returns.
        self.copies_outputs = True
        self.orders_events = False
        self.request_id = ""
        self.correlation_id: int | str = 0
        self.flags = 0
        self.timeout_us = 0
        self.priority = 0
        self.parameters: Mapping[str, bool | int | str] = NO_PARAMETERS
        self.trace: Any = None
        self.cancelled = False
        self.rescheduled = False
        # Popping is atomic with and without a GIL, as in the engine's own request.
        self._unanswered = [None]

    def is_cancelled(self) -> bool:
        """Return True if the request was cancelled."""
        return self.cancelled

    def is_answered(self) -> bool:
        """Return True if the final response was sent."""
        return not self._unanswered

    def try_finish(self) -> bool:
        """Acquire the right to send the final response; True for one caller only."""
        try:
            self._unanswered.pop()
        except IndexError:
            return False
        return True

    def reschedule(self) -> None:
        """Execute the request again after this batch; see `BackendRequest`."""
        if not self.link.iterative:
            raise InternalError(
                "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model "
                "is not configured to handle such a flag."
            )
        self.rescheduled = True

    def send(self, response: Response | None, *, final: bool) -> None:
        """Send one response before the end of the execution, from any thread."""
        if self.is_answered() or (final and not self.try_finish()):
            raise InternalError("Unable to send response. Response sender has been closed.")
        self.link.send(self, response, final)
