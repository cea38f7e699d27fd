"""Tensors of a sequence model besides its inputs: controls, padding rows, implicit state.

The rules C1 to C6, DI1 to DI7 and I1 to I7. Two deliberate differences: padding rows hold zeros and a
state without initial data starts as zeros, where the reference leaves memory as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from nbtriton.backends.base import Response
from nbtriton.backends.core.place import copies_of
from nbtriton.common.errors import InternalError, InvalidArgumentError
from nbtriton.model.config import ModelConfig, enum_name
from nbtriton.model.tensors import Array, deserialize_bytes, kind_of, numpy_dtype, to_protocol
from nbtriton.runtime.engine.core.request import InferenceRequest, as_triton_error
from nbtriton.scheduling import SEQUENCE_END, SEQUENCE_START, RunBatch

_MOST_DIGITS = 20  # of 64 bits
_FLAGS = {"CONTROL_SEQUENCE_START": SEQUENCE_START, "CONTROL_SEQUENCE_END": SEQUENCE_END}
_CORRELATION = "CONTROL_SEQUENCE_CORRID"
_READY = "CONTROL_SEQUENCE_READY"
_log = logging.getLogger("nbtriton.runtime.engine")


class _State:
    """The implicit state of one sequence, by input name; nothing else refers to its arrays."""

    __slots__ = ("__weakref__", "hidden", "values")

    def __init__(self, values: dict[str, Array]) -> None:
        self.values = values
        # State outputs that the client did not ask for; a sequence has one request at a time.
        self.hidden: frozenset[str] = frozenset()


class _Padding(InferenceRequest):
    """A padding row: its responses are dropped (DI4)."""

    __slots__ = ()

    def send(self, response: Response | None, *, final: bool) -> None:  # noqa: ARG002
        self.start_response(final=final)


class SequenceTensors:
    """The extra tensors of one sequence model.

    Parameters
    ----------
    config : ModelConfig
        With ``sequence_batching``.
    model_directory : Path or None
        Where ``initial_state`` files are.
    """

    def __init__(self, config: ModelConfig, model_directory: Path | None) -> None:
        batching = config.sequence_batching
        self._shape = (1, 1) if config.max_batch_size > 0 else (1,)  # C1
        self._controls: list[tuple[str, Callable[[int | str, int, bool], Array]]] = []
        self._correlation = ("", "")  # name and datatype of the control, if any
        self._warned = False  # that a text was given for a numeric control
        self._warned_of_end = False
        for control_input in batching.control_input:
            for control in control_input.control:
                kind = enum_name(control, "kind")
                self._controls.append((control_input.name, self._control(kind, control)))
                if kind == _CORRELATION:
                    datatype = to_protocol(enum_name(control, "data_type"))
                    self._correlation = (control_input.name, datatype)
        self._initial = {
            state.input_name: _initial_state(state, config.max_batch_size > 0, model_directory)
            for state in batching.state
        }
        self._iterative: bool = batching.iterative_sequence
        self._state_outputs = {state.output_name: state.input_name for state in batching.state}
        self._states: WeakKeyDictionary[object, _State] = WeakKeyDictionary()
        self._under_way: dict[InferenceRequest, _State] = {}  # until their final response

    def check(self, model: str, correlation_id: int | str, prefix: str) -> None:
        """Refuse a number for a text control (A18); log the opposite case once."""
        name, expected = self._correlation
        if not name or not correlation_id:
            return
        if isinstance(correlation_id, str):
            if expected != "BYTES" and not self._warned:
                self._warned = True
                _log.warning(
                    "model '%s': correlation ids such as '%s' are text, but the control '%s' is %s: "
                    "it gets the number that the text says, or a hash where it says none",
                    model, correlation_id, name, expected,
                )  # fmt: skip
        elif expected == "BYTES":
            raise InvalidArgumentError(
                f"{prefix}sequence batching control '{name}' data-type is 'UINT64', "
                f"but model '{model}' expects '{expected}'",
                hint="give a sequence_id that is a string",
            )

    def rescheduled(self, model: str, requests: Sequence[InferenceRequest]) -> None:
        """Log once that Triton never answers a request that ends its sequence and is rescheduled (IT8)."""
        if self._warned_of_end or not any(one.flags & SEQUENCE_END for one in requests):
            return
        self._warned_of_end = True
        _log.warning(
            "model '%s': a request that ends its sequence is rescheduled, which tritonserver 2.51 would never "
            "answer (docs/differences.md, iterative-end): send it with sequence_start alone, or without an id",
            model,
        )

    def batch(self, run: RunBatch, requests: Sequence[InferenceRequest]) -> list[InferenceRequest]:
        """Return the batch for the model: real requests at their rows, padding between."""
        for request, sequence in zip(requests, run.sequences, strict=True):
            inputs = dict(request.inputs)
            for name, value_of in self._controls:
                inputs[name] = value_of(request.correlation_id, request.flags, True)
            if self._initial:
                state = self._states.get(sequence)
                if state is None or request.flags & SEQUENCE_START:  # SQ7, I2
                    state = self._states[sequence] = _State(self._initial)
                inputs |= state.values
                if request not in self._under_way:  # otherwise it is another pass (IT2)
                    state.hidden = frozenset(self._state_outputs) - request.requested_outputs
                    request.requested_outputs |= state.hidden
                self._under_way[request] = state
            request.inputs = inputs
            if self._iterative:  # the next pass must see the original inputs
                request.owned_inputs = frozenset()
        if not run.rows:
            return list(requests)
        rows = dict(zip(run.rows, requests, strict=True))
        first = requests[0]
        return [rows.get(row) or self._padding(first) for row in range(run.size)]

    def responses(
        self, run: RunBatch, responses: Sequence[Response | None] | None
    ) -> Sequence[Response | None] | None:
        """Return the responses of the real requests; None for a decoupled model."""
        if responses is None or not run.rows:
            return responses
        return [responses[row] for row in run.rows]

    def keep(
        self, request: InferenceRequest, response: Response | None, *, final: bool
    ) -> Response | None:
        """Store the states in a response (I5); return the rest for the client."""
        state = self._under_way.pop(request, None) if final else self._under_way.get(request)
        if state is None:
            return response
        ended = final and bool(request.flags & SEQUENCE_END)
        if ended:  # it is not read again, and may be large
            state.values = {}
        if response is None or response.error is not None:
            return response
        written = response.outputs.keys() & self._state_outputs.keys()
        if not written:
            return response
        if not ended:
            # Copies: a view of one row would keep the whole batch alive.
            made = {self._state_outputs[name]: response.outputs[name] for name in written}
            try:
                state.values = state.values | copies_of(made)
            except Exception as error:  # for example, no memory left on a device
                return Response(error=as_triton_error(error, request.model_name))
        outputs = {
            name: value for name, value in response.outputs.items() if name not in state.hidden
        }
        return Response(outputs, parameters=response.parameters)

    def _padding(self, first: InferenceRequest) -> InferenceRequest:
        """Make a padding row: same names and shapes, READY false, never answered (DI3)."""
        inputs = {name: _zeros(value) for name, value in first.inputs.items()}
        for name, value_of in self._controls:
            inputs[name] = value_of(0, 0, False)
        return _Padding(first.runtime, inputs, first.requested_outputs, 1, first.kind)

    def _control(self, kind: str, control: Any) -> Callable[[int | str, int, bool], Array]:
        if kind == _CORRELATION:
            return self._correlation_control(control)
        for field, dtype in (
            ("int32_false_true", np.int32), ("fp32_false_true", np.float32), ("bool_false_true", bool),
        ):  # fmt: skip
            values = getattr(control, field)
            if values:
                off, on = (np.full(self._shape, value, dtype) for value in values)
        if kind == _READY:
            return lambda _id, _flags, ready: (on if ready else off).copy()
        flag = _FLAGS[kind]
        return lambda _id, flags, _ready: (on if flags & flag else off).copy()

    def _correlation_control(self, control: Any) -> Callable[[int | str, int, bool], Array]:
        datatype = to_protocol(enum_name(control, "data_type"))
        if datatype == "BYTES":  # C4, as it was meant to be
            return lambda cid, _flags, _ready: np.full(self._shape, _text(cid), dtype=object)
        dtype = numpy_dtype(datatype)
        bits = 8 * dtype.itemsize

        def value(cid: int | str, _flags: int, _ready: bool) -> Array:
            number = _number_of(cid, bits) if isinstance(cid, str) else cid
            low = number & ((1 << bits) - 1)  # C3: the low bits, wrapping
            unsigned = np.full(self._shape, low, f"uint{bits}")
            return unsigned.view(dtype)

        return value


def _number_of(text: str, bits: int) -> int:
    """Return a text as a number of ``bits`` bits: its value if it is a number, else its hash."""
    # Only canonical numbers: "7" and "07" are two sequences.
    if text.isdecimal() and text.isascii() and text[0] != "0" and len(text) <= _MOST_DIGITS:
        number = int(text)
        if number < 1 << bits:
            return number
    from hashlib import blake2b  # loads OpenSSL

    return int.from_bytes(blake2b(_text(text), digest_size=bits // 8).digest(), "little")


def _text(correlation_id: int | str) -> bytes:
    if not correlation_id:
        return b""
    text = str(correlation_id)
    try:
        return text.encode("utf-8", "surrogateescape")  # the bytes that the client sent
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _zeros(value: Array) -> Array:
    if kind_of(value) == "torch":
        return value.new_zeros(value.shape)
    return np.full_like(value, b"") if value.dtype == object else np.zeros_like(value)


def check_file(directory: Path | None, name: str) -> Path:
    """Return the path of a file of a model's directory.

    Raises
    ------
    InternalError
        It does not exist, with Triton's text.
    """
    path = Path(directory or "") / name
    if directory is None or not path.is_file():
        raise InternalError(f"failed to open text file for read {path}: No such file or directory")
    return path


def _initial_state(state: Any, batching: bool, directory: Path | None) -> Array:
    """Return a sequence's first state (I2 to I4).

    As in Triton, ``initial_state.dims`` determine how much data the file must hold. Variable
    dimensions of the state's own ``dims`` have size 1, and the state uses the first part of the
    data.
    """
    datatype = to_protocol(enum_name(state, "data_type"))
    initial = state.initial_state[0] if state.initial_state else None
    dims = [1 if dim == -1 else dim for dim in state.dims]
    shape = (1, *dims) if batching else tuple(dims)
    if initial is None or initial.WhichOneof("state_data") == "zero_data":
        if datatype == "BYTES":
            return np.full(shape, b"", dtype=object)
        return np.zeros(shape, numpy_dtype(datatype))
    content = check_file(directory, f"initial_state/{initial.data_file}").read_bytes()
    count = int(np.prod(shape))
    if datatype == "BYTES":
        return deserialize_bytes(content)[:count].reshape(shape)
    dtype = numpy_dtype(datatype)
    expected = int(np.prod(initial.dims)) * dtype.itemsize
    if len(content) < expected:
        raise InvalidArgumentError(
            f"initial_state setting expects {expected} bytes, "
            f"but the data provided from {initial.data_file}only has {len(content)} bytes."
        )
    return np.frombuffer(content, dtype, count).reshape(shape)
