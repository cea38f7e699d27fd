"""One instance of an ONNX model: gather, run, scatter."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nbtriton.backends.base import BackendRequest, BatchTimer, Response
from nbtriton.backends.core.batching import BatchInstance, gather_inputs, wanted_outputs
from nbtriton.backends.described import Model, model_dims
from nbtriton.backends.ragged import batch_input_names
from nbtriton.common.errors import InternalError
from nbtriton.extensions.onnxruntime.runtime import import_onnxruntime, runtime_error
from nbtriton.model.config import ModelConfig, output_specs
from nbtriton.model.tensors import Array, as_bytes_array, bits_of, of_bits, to_numpy

_BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16


class OnnxInstance(BatchInstance):
    """Runs a session, which other instances may share.

    Parameters
    ----------
    config : ModelConfig
    session : onnxruntime.InferenceSession
    model : Model
        The session's description.
    run_options : onnxruntime.RunOptions or None
    """

    def __init__(self, config: ModelConfig, session: Any, model: Model, run_options: Any) -> None:
        super().__init__(config)
        self._session = session
        self._options = run_options
        self._infos = {**model.inputs, **model.initializers}
        added = batch_input_names(config)
        self._inputs = [name for name in self._infos if name not in added]
        self._outputs = model.outputs
        # Outputs without dimensions in the model get those of the configuration.
        self._scalars = {
            name: model_dims(spec)
            for name, spec in output_specs(config).items()
            if not model.outputs[name].dims
        }
        self._wanted: dict[frozenset[str], list[str]] = {}
        self._values = import_onnxruntime().OrtValue

    def finalize(self) -> None:
        """Release the session."""
        self._session = None

    def run(self, requests: Sequence[BackendRequest], timer: BatchTimer) -> Sequence[Response]:
        """Run one batch; without batching it has one request."""
        # ONNX Runtime never writes into its inputs.
        gathered = gather_inputs(requests, self._inputs, self._layout, copy=False)
        feeds = {name: self._feed(name, array) for name, array in gathered.items()}
        timer.inputs_ready()
        names = self._names(requests)
        try:
            found = self._call(names, feeds)
        except UnicodeDecodeError as error:
            raise InternalError(
                f"model '{self._name}' gave strings that are not UTF-8, which ONNX Runtime's Python "
                f"interface cannot return: {error}"
            ) from None
        except Exception as error:
            raise runtime_error(error) from error
        timer.infer_done()
        outputs = {
            name: self._output(name, value) for name, value in zip(names, found, strict=True)
        }
        return self.scatter(requests, outputs)

    def _names(self, requests: Sequence[BackendRequest]) -> list[str]:
        """Return the outputs that any of the requests requested, in the model's order."""
        requested = wanted_outputs(requests)
        names = self._wanted.get(requested)
        if names is None:
            names = self._wanted[requested] = [name for name in self._outputs if name in requested]
        return names

    def _call(self, names: list[str], feeds: Mapping[str, Any]) -> list[Any]:
        if not any(self._outputs[name].datatype == "BF16" for name in names):
            return list(self._session.run(names, feeds, self._options))
        values = {
            name: self._values.ortvalue_from_numpy(feed) if isinstance(feed, np.ndarray) else feed
            for name, feed in feeds.items()
        }
        return list(self._session.run_with_ort_values(names, values, self._options))

    def _feed(self, name: str, array: Array) -> Any:
        info = self._infos.get(name)
        if info is not None and info.datatype == "BF16":
            bits = self._values.ortvalue_from_numpy_with_onnx_type
            whole = np.ascontiguousarray(bits_of(array)).view(np.uint16)
            return bits(whole.reshape(_model_shape(array, info.dims)), _BFLOAT16)
        host = to_numpy(array)
        if host.dtype.kind in "OS":
            host = _to_text(host)
        return host if info is None or info.dims else host.reshape(_model_shape(host, ()))

    def _output(self, name: str, value: Any) -> Array:
        datatype = self._outputs[name].datatype
        array = value
        if datatype == "BYTES":
            array = as_bytes_array(np.asarray(value, dtype=object))
        elif datatype == "BF16":
            array = _copied(value)
        elif not isinstance(value, np.ndarray):
            array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
        if not array.shape and name in self._scalars:
            array = array.reshape(self._scalars[name])
        return array


def _model_shape(array: Array, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return the model's shape: none for one element where it expects a scalar."""
    shape = tuple(array.shape)
    return () if not dims and math.prod(shape) == 1 else shape


def _copied(value: Any) -> Array:
    """Return a copy of ONNX Runtime's BF16 tensor, whose memory is freed with it."""
    shape = value.shape()
    count = math.prod(shape)
    memory = bytearray(ctypes.string_at(value.data_ptr(), 2 * count)) if count else bytearray()
    return of_bits(np.frombuffer(memory, np.int16).reshape(shape))


def _to_text(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return strings in the form of ONNX Runtime's Python interface.

    Bytes that are not UTF-8 are passed in another form, which ends each string at its first zero byte, as
    Triton does for every string.
    """
    strings = as_bytes_array(array)
    text = np.empty(strings.shape, dtype=object)
    try:
        text.reshape(-1)[:] = [item.decode() for item in strings.reshape(-1).tolist()]
    except UnicodeDecodeError:
        # One byte more than the longest: ONNX Runtime reads each one up to a zero byte.
        longest = max(map(len, strings.reshape(-1).tolist()))
        return strings.astype(f"S{longest + 1}")
    return text
