"""Requests of a batch as requests to a remote server: joined, sent, sent again, given up, cut into responses.

Rows of requests that agree in all else go as one request. Each is on its way by itself, so what cannot be joined, such as
requests of several sequences, is there at the same time all the same, and batched there.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from time import monotonic
from typing import Any

import numpy as np

from nbtriton.backends.base import BackendInstance, BackendRequest, BatchTimer, Response
from nbtriton.common.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    RequestTimeoutError,
    TritonError,
    UnavailableError,
)
from nbtriton.extensions.remote.model import RemoteModel
from nbtriton.model.config import ModelConfig, input_specs
from nbtriton.model.tensors import datatype_of, scatter, shape_of, to_numpy
from nbtriton.scheduling import SEQUENCE_END, SEQUENCE_START
from nbtriton.serving.clients.base import Client, PendingRequest, StreamResponse
from nbtriton.serving.clients.shared_memory import SharedBlock, SharedMemoryPool

# Before a request is sent again the first time; each further pause is twice as long.
_PAUSE_S = 0.1
# What a server says of a request in shared memory that it does not know.
_FORGOTTEN = "Unable to find shared memory region"


class Calls:
    """The requests to one remote model, from all its instances here.

    Parameters
    ----------
    client : Client
    far : RemoteModel
    model : str
        Its name there.
    config : ModelConfig
        Completed.
    """

    def __init__(
        self, client: Client[Any], far: RemoteModel, model: str, config: ModelConfig
    ) -> None:
        self.client = client
        self.far = far
        self.model = model
        self._pool: SharedMemoryPool | None = None
        if far.shared_memory_bytes:
            try:
                self._pool = SharedMemoryPool("remote", bytes=far.shared_memory_bytes)
                self._pool.register(client)
            except BaseException:  # such as that of a server on another machine
                self.close()
                raise
        self._joins = config.max_batch_size > 0
        self._shape_tensors = any(spec.is_shape_tensor for spec in input_specs(config).values())
        # By the identity of the request, which is alive while it is here.
        self._under_way: dict[int, _Call | _Stream] = {}

    def groups(self, requests: Sequence[BackendRequest]) -> list[list[int]]:
        """Return the places of requests that may be sent as one."""
        found: dict[Hashable, list[int]] = {}
        for place, request in enumerate(requests):
            alone = not self._joins or self._shape_tensors or bool(request.correlation_id)
            key: Hashable = place
            if not alone:
                shapes = sorted((name, shape_of(one)[1:]) for name, one in request.inputs.items())
                key = (tuple(shapes), request.requested_outputs, *sorted(parameters_of(request).items()))  # fmt: skip
            found.setdefault(key, []).append(place)
        return list(found.values())

    def close(self) -> None:
        """Close the connections, and free the shared memory."""
        if self._pool is not None:
            self._pool.close()
        self.client.close()

    def register_again(self) -> None:
        """Tell a server of the shared memory that has forgotten it: one that was started again."""
        pool = self._pool
        assert pool is not None
        with contextlib.suppress(TritonError):  # another request has done so
            self.client.register_memory(pool.region, pool.key, pool.byte_size)

    def encode(
        self, requests: Sequence[BackendRequest], blocks: list[SharedBlock] | None = None
    ) -> Any:
        """Return one request with the rows of several; of its inputs the numbers are in shared memory, if blocks may be taken."""
        first = requests[0]
        inputs = {
            name: self._joined([one.inputs[name] for one in requests], blocks)
            for name in first.inputs
        }
        outputs = sorted(first.requested_outputs)
        encoded = self.client.encode(self.model, inputs, self.far.version, outputs)
        request_id = first.request_id if len(requests) == 1 else ""
        return self.client.with_parameters(encoded, parameters_of(first), request_id)

    def _joined(self, values: Sequence[Any], blocks: list[SharedBlock] | None) -> Any:
        arrays = [to_numpy(value) for value in values]
        datatype, size = datatype_of(values[0]), sum(array.nbytes for array in arrays)
        if self._pool is not None and blocks is not None and size and datatype != "BYTES":
            with contextlib.suppress(InvalidArgumentError):  # no room: in the body
                blocks.append(self._pool.allocate(size))
                rows = sum(len(array) for array in arrays) if len(arrays) > 1 else 0
                shape = (rows, *arrays[0].shape[1:]) if rows else arrays[0].shape
                view = blocks[-1].as_numpy(datatype, shape)
                if rows:
                    np.concatenate(arrays, out=view)
                else:
                    np.copyto(view, arrays[0])
                return blocks[-1].tensor
        return np.concatenate(arrays) if len(arrays) > 1 else values[0]

    def begin(self, call: _Call | _Stream) -> None:
        """Send the requests of a call, which `cancel` may find from now on."""
        for request in call.requests:
            self._under_way[id(request)] = call
        call.send()
        if all(one.is_cancelled() for one in call.requests):  # before it could be found
            call.cancel()

    def cancel(self, request: BackendRequest) -> None:
        """Give up the call with a request, once all its requests are cancelled."""
        call = self._under_way.get(id(request))
        if call is not None and all(one.is_cancelled() for one in call.requests):
            call.cancel()

    def end(self, requests: Sequence[BackendRequest]) -> None:
        """Forget the requests of a call."""
        for request in requests:
            self._under_way.pop(id(request), None)


def parameters_of(request: BackendRequest) -> Mapping[str, bool | int | str]:
    """Return the options of a request as the protocols have them."""
    found = dict(request.parameters)
    if request.priority:
        found["priority"] = request.priority
    if request.timeout_us:
        found["timeout"] = request.timeout_us
    if request.correlation_id:
        found |= {
            "sequence_id": request.correlation_id,
            "sequence_start": bool(request.flags & SEQUENCE_START),
            "sequence_end": bool(request.flags & SEQUENCE_END),
        }
    return found


class _Call:
    """One request to the server, with the rows of several."""

    def __init__(self, calls: Calls, requests: Sequence[BackendRequest]) -> None:
        self.requests = requests
        self._calls = calls
        self._blocks: list[SharedBlock] = []
        self._encoded: Any = None
        self._pending: PendingRequest | None = None
        self._cancelled = threading.Event()
        self._deadline = monotonic() + calls.far.timeout_s
        # One of a sequence may have been executed although its answer is lost.
        self._left = 0 if requests[0].correlation_id else calls.far.retries

    def encode(self) -> None:
        """Encode the request; `release` gives back what it takes."""
        # One of a sequence that was given up may still be executed, and has a state to spoil: nothing of it is reused.
        blocks = None if self.requests[0].correlation_id else self._blocks
        self._encoded = self._calls.encode(self.requests, blocks)

    def send(self) -> None:
        """Send the request, for the first time or again."""
        self._pending = self._calls.client.submit(self._encoded)
        if self._cancelled.is_set():
            self._pending.cancel()

    def cancel(self) -> None:
        """Give the request up; any thread."""
        self._cancelled.set()
        if self._pending is not None:
            self._pending.cancel()

    def release(self) -> None:
        """Forget its requests, and give its shared memory back."""
        self._calls.end(self.requests)
        for block in self._blocks:
            block.release()

    def wait(self) -> Sequence[Response]:
        """Wait for the answer, and return the responses of the requests, or the error of each."""
        pause_s = _PAUSE_S
        try:
            while True:
                try:
                    return self._answer()
                except NotFoundError as error:
                    if not self._blocks or _FORGOTTEN not in error.message or not self._left:
                        raise
                    self._calls.register_again()
                except UnavailableError:
                    late = monotonic() + pause_s >= self._deadline
                    if not self._left or late or self._cancelled.wait(pause_s):
                        raise
                self._left -= 1
                pause_s *= 2
                self.send()
        except TritonError as error:
            return [Response(error=error.again()) for _ in self.requests]

    def _answer(self) -> Sequence[Response]:
        assert self._pending is not None
        try:
            answer = self._pending.result(max(0.0, self._deadline - monotonic()))
        except CancelledError:
            raise CancelledError("the request was cancelled by the caller") from None
        except FutureTimeoutError:
            self._pending.cancel()
            far = self._calls.far
            raise RequestTimeoutError(
                f"{far.url} has not answered within {far.timeout_s:g} s"
            ) from None
        found = self._calls.client.decode(answer)
        # The arrays are views of what was received, which may not be written to.
        outputs = {name: one.copy() for name, one in found.outputs.items()}
        if len(self.requests) == 1:
            return [Response(outputs, parameters=_own(found.parameters))]
        sizes = [one.batch_size for one in self.requests]
        pieces = {name: scatter(array, sizes) for name, array in outputs.items()}
        return [
            Response({name: several[place] for name, several in pieces.items()})
            for place in range(len(sizes))
        ]


def _own(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of a response without those that its server made of the request's sequence."""
    return {name: one for name, one in parameters.items() if not name.startswith("sequence_")}


class _Instance(BackendInstance):
    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        far = calls.far
        self.readiness = lambda: calls.client.is_model_ready(calls.model, far.version)


class RemoteInstance(_Instance):
    """Sends a batch, and waits for the answers."""

    def execute(
        self, requests: Sequence[BackendRequest], timer: BatchTimer
    ) -> Sequence[Response | None]:
        """Run one batch; see `BackendInstance.execute`."""
        responses: list[Response | None] = [None] * len(requests)
        groups = self._calls.groups(requests)
        under_way = [_Call(self._calls, [requests[place] for place in group]) for group in groups]
        try:
            for call in under_way:
                call.encode()
            timer.inputs_ready()
            for call in under_way:
                self._calls.begin(call)
            for group, call in zip(groups, under_way, strict=True):
                for place, response in zip(group, call.wait(), strict=True):
                    responses[place] = response
            timer.infer_done()
        except BaseException:
            for call in under_way:
                call.cancel()
            raise
        finally:
            for call in under_way:
                call.release()
        return responses


class StreamingInstance(_Instance):
    """Sends the requests of a decoupled model; their responses go on as they come."""

    # The caller's thread must stay free to read them.
    any_thread = False

    def execute(self, requests: Sequence[BackendRequest], timer: BatchTimer) -> None:
        """Run one batch; see `BackendInstance.execute`."""
        streams = [_Stream(self._calls, request) for request in requests]
        timer.inputs_ready()
        for stream in streams:
            self._calls.begin(stream)


class _Stream:
    """A request over a stream of its own."""

    def __init__(self, calls: Calls, request: BackendRequest) -> None:
        self.requests = [request]
        self._calls = calls
        self._encoded = calls.encode(self.requests)
        self._pending: PendingRequest | None = None

    def send(self) -> None:
        """Send the request."""
        self._pending = self._calls.client.submit_streaming(self._encoded, self._receive)

    def cancel(self) -> None:
        """Give the request up; any thread."""
        if self._pending is not None:
            self._pending.cancel()

    def _receive(self, response: StreamResponse, final: bool) -> None:
        """Pass a response on, on a thread of the client."""
        request = self.requests[0]
        if final:
            self._calls.end(self.requests)
        if request.is_answered():
            return
        outputs = {name: one.copy() for name, one in response.outputs.items()}
        bare = final and not outputs and response.error is None
        try:
            request.send(None if bare else Response(outputs, response.error), final=final)
        except InternalError:  # answered meanwhile, by the end of the server
            return
