"""Requests of a verification, sent to nbtriton and to the real server, and the comparison of their responses."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nbtriton.backends.base import Response
from nbtriton.common.errors import RequestTimeoutError, TritonError, UnavailableError
from nbtriton.model.config import ModelConfig, enum_name
from nbtriton.model.tensors import datatype_of, shape_of, to_numpy
from nbtriton.runtime.engine import Server
from nbtriton.runtime.engine.core.request import BARE_FINAL
from nbtriton.serving.clients.base import StreamResponse
from nbtriton.serving.clients.grpc import GrpcClient
from nbtriton.serving.clients.http import HttpClient
from nbtriton.serving.repository.samples import sample_inputs

# The outputs of a request, or the text of its error.
Outcome = Mapping[str, Any] | str


class Difference:
    """Accumulated differences of one model.

    Parameters
    ----------
    rtol, atol : float
        Tolerances of floating-point outputs that are ``"close"``.

    Attributes
    ----------
    max_abs, max_rel : float or None
        Largest differences of floating-point outputs.
    first : str
        The first difference; empty without one.
    answers : int
        Responses that both have given and that are no errors.
    """

    def __init__(self, rtol: float, atol: float) -> None:
        self.max_abs: float | None = None
        self.max_rel: float | None = None
        self.first = ""
        self.answers = 0
        self._rtol = rtol
        self._atol = atol
        self._equal = True

    @property
    def verdict(self) -> str:
        """``"equal"``, ``"close"`` or ``"different"``."""
        return "different" if self.first else "equal" if self._equal else "close"

    def compare(self, what: str, ours: Outcome, theirs: Outcome) -> None:
        """Compare one response; `what` begins the text of a difference."""
        if isinstance(ours, str) or isinstance(theirs, str):
            if ours != theirs:
                self._note(f"{what}: nbtriton {_describe(ours)}, reference {_describe(theirs)}")
            return
        self.answers += 1
        if ours.keys() != theirs.keys():
            self._note(f"{what}: outputs {sorted(ours)} and {sorted(theirs)}")
            return
        for tensor, array in ours.items():
            text, far, near = _differ(array, theirs[tensor], self._rtol, self._atol)
            self._equal = self._equal and not text and not far
            if far is not None:
                self.max_abs = max(far, self.max_abs or 0.0)
                self.max_rel = max(near or 0.0, self.max_rel or 0.0)
            if text:
                self._note(f"{what}: output '{tensor}' {text}")

    def compare_streams(
        self, what: str, ours: Sequence[StreamResponse], theirs: Sequence[StreamResponse]
    ) -> None:
        """Compare the responses to one request, their number and the final flags."""
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=False), start=1):
            place = f"{what}, response {number}"
            self.compare(place, _outcome(mine), _outcome(other))
            if mine.final is not other.final:
                whose = "nbtriton's" if mine.final else "the reference's"
                self._note(f"{place}: only {whose} is final")
        if len(ours) != len(theirs):
            self._note(f"{what}: {len(ours)} responses and {len(theirs)}")

    def _note(self, text: str) -> None:
        self.first = self.first or text


def _outcome(response: StreamResponse) -> Outcome:
    return response.outputs if response.error is None else response.error.message


def _describe(outcome: Outcome) -> str:
    return f"says {outcome!r}" if isinstance(outcome, str) else "answers"


def _differ(
    ours: Any, theirs: Any, rtol: float, atol: float
) -> tuple[str, float | None, float | None]:
    """Return the difference as text, and for numbers the largest absolute and relative difference."""
    if datatype_of(ours) != datatype_of(theirs) or shape_of(ours) != shape_of(theirs):
        one = f"{datatype_of(ours)}{list(shape_of(ours))}"
        return f"is {one} and {datatype_of(theirs)}{list(shape_of(theirs))}", None, None
    if ours.dtype.kind != "f":
        same = bool(np.array_equal(ours, theirs))
        return ("" if same else "differs"), None, None
    one, other = ours.astype(np.float64), theirs.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = np.abs(one - other)
        gap[(one == other) | (np.isnan(one) & np.isnan(other))] = 0.0
        far = float(gap.max(initial=0.0))
        near = float(np.nan_to_num(gap / np.abs(other), nan=0.0, posinf=np.inf).max(initial=0.0))
    close = bool(np.allclose(one, other, rtol=rtol, atol=atol, equal_nan=True))
    return ("" if close else f"differs by up to {far:.3g}"), far, near


Inputs = Mapping[str, Any]
# Keyword arguments of `Server.infer`.
Options = Mapping[str, Any]

# Length of sequences: a start, a request between, an end.
_SEQUENCE = 3
_BATCH_SIZES = (1, 2, 3, 1, 5, 8)
# The only length of string ids that works in 2.51 (docs/differences.md, string-correlation-ids).
_STRING_ID = 128
# Timeout of the client for the real server, too.
_TIMEOUT_S = 120.0


class Traffic:
    """Requests to each model, recorded or generated.

    Parameters
    ----------
    server : Server
        Server with the models loaded.
    recorded : mapping of str to sequences of mappings
        Recorded requests by model.
    count : int
        Number of generated requests for a model.
    """

    def __init__(
        self, server: Server, recorded: Mapping[str, Sequence[Inputs]], count: int
    ) -> None:
        self._server = server
        self._recorded = recorded
        self._count = count

    def of(self, name: str) -> Iterator[tuple[Inputs, Options]]:
        """Yield a model's requests: inputs and options of `Server.infer`."""
        requests = self._recorded.get(name)
        if requests is not None:
            for inputs in requests:
                yield inputs, {}
            return
        config = self._server.config(name)
        largest = max(1, int(config.max_batch_size))
        stateful = self._stateful(config)
        for index in range(self._count):
            size = min(largest, _BATCH_SIZES[index % len(_BATCH_SIZES)])
            options: Options = {}
            if stateful is not None:
                size = 1
                options = self._place(index, strings=stateful)
            yield sample_inputs(config, size=size, seed=index), options

    def _place(self, index: int, *, strings: bool) -> Options:
        """Return the correlation id and the sequence flags of a request by its index."""
        sequence, place = 1 + index // _SEQUENCE, index % _SEQUENCE
        return {
            "sequence_id": f"{sequence:0{_STRING_ID}}" if strings else sequence,
            "sequence_start": place == 0,
            "sequence_end": place == _SEQUENCE - 1 or index == self._count - 1,
        }

    def _stateful(self, config: ModelConfig) -> bool | None:
        """Return None for a model without sequences, else True if correlation ids are strings."""
        if config.HasField("sequence_batching"):
            return any(
                enum_name(control, "kind") == "CONTROL_SEQUENCE_CORRID"
                and enum_name(control, "data_type") == "TYPE_STRING"
                for tensor in config.sequence_batching.control_input
                for control in tensor.control
            )
        for step in config.ensemble_scheduling.step:
            found = self._stateful(self._server.config(step.model_name, step.model_version))
            if found is not None:
                return found
        return None


class BothServers:
    """nbtriton's server and the real one; each request is sent to both.

    Parameters
    ----------
    server : Server
        nbtriton's server.
    client : HttpClient
        Client of the real server.
    grpc_url : str
        Its address for streams.
    """

    def __init__(self, server: Server, client: HttpClient, grpc_url: str) -> None:
        self._server = server
        self._client = client
        self._grpc_url = grpc_url
        self._grpc: GrpcClient | None = None

    def close(self) -> None:
        """Close the connection for streams."""
        if self._grpc is not None:
            self._grpc.close()

    def infer(self, name: str, inputs: Inputs, options: Options) -> tuple[Outcome, Outcome]:
        """Return both outcomes of a request with one response."""
        ours: Outcome
        theirs: Outcome
        try:
            result = self._server.infer(name, inputs, **options)
            ours = {key: to_numpy(result.raw(key)) for key in result}
        except TritonError as error:
            ours = error.message
        try:
            theirs = self._client.infer(name, inputs, parameters=options).outputs
        except UnavailableError:
            raise
        except TritonError as error:
            theirs = error.message
        return ours, theirs

    def stream(
        self, name: str, inputs: Inputs, options: Options
    ) -> tuple[Sequence[StreamResponse], Sequence[StreamResponse]]:
        """Return the responses of both to a request of a decoupled model.

        Raises
        ------
        UnsupportedError
            The package ``grpcio`` is missing.
        RequestTimeoutError
            The real server has not answered.
        """
        if self._grpc is None:
            self._grpc = GrpcClient(self._grpc_url, decodes_streams=True)
        theirs: list[StreamResponse] = []
        ended = threading.Event()

        def on_response(response: StreamResponse, final: bool) -> None:
            theirs.append(response)
            if final:
                ended.set()

        request = self._grpc.with_parameters(self._grpc.encode(name, inputs), options)
        self._grpc.submit_streaming(request, on_response)
        ours = self._own_stream(name, inputs, options)
        if not ended.wait(_TIMEOUT_S):
            raise RequestTimeoutError(f"the real server has not answered within {_TIMEOUT_S:g} s")
        return ours, theirs

    def _own_stream(self, name: str, inputs: Inputs, options: Options) -> Sequence[StreamResponse]:
        responses: list[StreamResponse] = []

        def on_response(response: Response, final: bool) -> None:
            # Copied at once: the model may reuse its memory.
            outputs = {key: to_numpy(value).copy() for key, value in response.outputs.items()}
            if response is BARE_FINAL or response.error is not None:
                outputs = {}
            responses.append(StreamResponse(outputs, response.error, final))

        try:
            future = self._server.submit(name, inputs, on_response=on_response, **options)
        except TritonError as error:
            return [StreamResponse({}, error, final=True)]
        future.exception(_TIMEOUT_S)
        return responses
