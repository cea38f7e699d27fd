"""Shared memory of a measurement: the tensors of its requests and responses.

A pool has the inputs of all requests, written once, and room for the outputs of one request, shared by all
responses, as in perf_analyzer (A.5).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from nbtriton.common.closing import Closing
from nbtriton.lab.perf.data import Request
from nbtriton.lab.perf.traffic import OUTPUT_BYTES
from nbtriton.model.config import ModelConfig, TensorSpec, output_specs
from nbtriton.model.tensors import numpy_dtype
from nbtriton.serving.clients.base import Client, SharedTensor
from nbtriton.serving.clients.shared_memory import ALIGNED, SharedMemoryPool, byte_size_of


class SharedMemory(Closing):
    """The memory of one measurement; `close` unregisters it.

    Parameters
    ----------
    client : Client
        Of a server on this machine.
    config : ModelConfig
    requests : iterable of mapping
        All requests of the measurement.
    rows : int
        Rows of the largest request.
    output_bytes : int
        Bytes per row for an output of unknown size.

    Raises
    ------
    UnsupportedError
        This machine has no shared memory in files.
    TritonError
        The server refuses it, as one on another machine does.
    """

    def __init__(
        self,
        client: Client[Any],
        config: ModelConfig,
        requests: Iterable[Request],
        *,
        rows: int,
        output_bytes: int = OUTPUT_BYTES,
    ) -> None:
        # By its identity, which is kept alive with it.
        distinct = {id(request): request for request in requests}
        rooms = {
            name: _output_size(spec, max(1, rows), output_bytes)
            for name, spec in output_specs(config).items()
        }
        sizes = [byte_size_of(value) for request in distinct.values() for value in request.values()]
        total = sum(size + ALIGNED for size in (*sizes, *rooms.values()))
        self._pool = SharedMemoryPool("perf", bytes=max(1, total))
        try:
            self._inputs = {
                key: (
                    request,
                    {name: self._pool.put(value).tensor for name, value in request.items()},
                )
                for key, request in distinct.items()
            }
            self.outputs: dict[str, SharedTensor] = {
                name: self._pool.allocate(size).tensor for name, size in rooms.items()
            }
            self._pool.register(client)
        except BaseException:
            self.close()
            raise

    def inputs(self, request: Request) -> Mapping[str, SharedTensor]:
        """Return the shared tensors of a request."""
        return self._inputs[id(request)][1]

    def close(self) -> None:
        """Unregister and free the memory; may be called twice."""
        self._pool.close()


def _output_size(spec: TensorSpec, rows: int, output_bytes: int) -> int:
    if spec.datatype == "BYTES" or min(spec.dims, default=0) < 0:
        return output_bytes * rows
    width = 2 if spec.datatype == "BF16" else numpy_dtype(spec.datatype).itemsize
    return math.prod(spec.dims) * width * rows
