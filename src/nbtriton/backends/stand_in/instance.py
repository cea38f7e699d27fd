"""One instance of a stand-in: waits for the cost of its batch, and answers with zeros."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from nbtriton.backends.base import BackendInstance, BackendRequest, BatchTimer, Response
from nbtriton.backends.checks import model_dims
from nbtriton.backends.core.batching import gather_inputs
from nbtriton.backends.ragged import layout
from nbtriton.backends.stand_in.cost import Cost
from nbtriton.model.config import ModelConfig, TensorSpec, enum_name, input_specs, output_specs
from nbtriton.model.tensors import Array, numpy_dtype, shape_of, to_protocol

__all__ = ["StandInInstance"]


class StandInInstance(BackendInstance):
    """Answers requests with zeros of the declared shapes.

    A variable dimension of an output is that of the first input with one, in order, or 1.

    Parameters
    ----------
    config : ModelConfig
    cost : Cost
    """

    def __init__(self, config: ModelConfig, cost: Cost) -> None:
        self._cost = cost
        self._batches = config.max_batch_size > 0
        self._decoupled = bool(config.model_transaction_policy.decoupled)
        self._layout = layout(config)
        self._inputs = input_specs(config)
        self._outputs = output_specs(config)
        for state in config.sequence_batching.state:
            name = str(state.output_name)
            spec = TensorSpec(name, to_protocol(enum_name(state, "data_type")), tuple(state.dims))
            self._outputs.setdefault(name, spec)

    def execute(
        self, requests: Sequence[BackendRequest], timer: BatchTimer
    ) -> Sequence[Response | None] | None:
        """Run one batch; a model that does not batch runs one request after the other."""
        if self._batches:
            # As in a real backend: inputs that cannot be joined are an error.
            gather_inputs(requests, list(self._inputs), self._layout, copy=False)
        timer.inputs_ready()
        if self._batches:
            time.sleep(self._cost.seconds(sum(request.batch_size for request in requests)))
        else:
            time.sleep(self._cost.seconds(1) * len(requests))
        timer.infer_done()
        responses = [
            Response({name: self._zeros(request, name) for name in request.requested_outputs})
            for request in requests
        ]
        if not self._decoupled:
            return responses
        for request, response in zip(requests, responses, strict=True):
            request.send(response, final=True)
        return None

    def _zeros(self, request: BackendRequest, name: str) -> Array:
        spec = self._outputs[name]
        batch = (request.batch_size,) if self._batches and not spec.is_shape_tensor else ()
        variable = iter(self._variable(request))
        shape = (*batch, *(next(variable, 1) if n == -1 else n for n in model_dims(spec)))
        if spec.datatype == "BYTES":
            return np.full(shape, b"", dtype=object)
        if spec.datatype == "BF16":
            import torch

            return torch.zeros(shape, dtype=torch.bfloat16)
        return np.zeros(shape, numpy_dtype(spec.datatype))

    def _variable(self, request: BackendRequest) -> list[int]:
        """Return the sizes of the variable dimensions of the first input with one."""
        for name, spec in self._inputs.items():
            dims = model_dims(spec)
            if -1 in dims and name in request.inputs and not spec.is_shape_tensor:
                item = shape_of(request.inputs[name])[1 if self._batches else 0 :]
                return [size for want, size in zip(dims, item, strict=False) if want == -1]
        return []
