"""Shared memory of a measurement: two regions with the tensors of requests and responses.

One region has the inputs of all requests, written once. The other one has room for the outputs of one
request, shared by all responses, as in perf_analyzer (A.5).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nbtriton.common.errors import InvalidArgumentError, TritonError, UnsupportedError
from nbtriton.lab.perf.data import Request
from nbtriton.lab.perf.traffic import OUTPUT_BYTES
from nbtriton.model.config import ModelConfig, output_specs
from nbtriton.model.tensors import datatype_of, numpy_dtype, shape_of
from nbtriton.serving.clients.base import Client, SharedTensor, tensor_bytes

__all__ = ["SharedMemory"]

_DIRECTORY = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory is
# Alignment of tensors, for the widest vector instructions.
_ALIGNED = 64
_numbers = itertools.count(1)


class SharedMemory:
    """The regions of one measurement; `close` unregisters them.

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
        if not _DIRECTORY.is_dir():
            raise UnsupportedError(
                f"shared memory needs '{_DIRECTORY}', which this machine does not have"
            )
        self._client = client
        self._files: list[Path] = []
        self._regions: list[str] = []
        # By the identity of the request, which is kept alive with it.
        self._inputs: dict[int, tuple[Request, dict[str, SharedTensor]]] = {}
        self.outputs: dict[str, SharedTensor] = {}
        try:
            self._place_inputs(requests)
            self._place_outputs(config, rows, output_bytes)
        except BaseException:
            self.close()
            raise

    def inputs(self, request: Request) -> Mapping[str, SharedTensor]:
        """Return the shared tensors of a request."""
        return self._inputs[id(request)][1]

    def close(self) -> None:
        """Unregister the regions and free the memory; may be called twice."""
        regions, self._regions = self._regions, []
        for region in regions:
            with contextlib.suppress(TritonError):  # the server may have ended
                self._client.unregister_memory(region)
        files, self._files = self._files, []
        for file in files:
            file.unlink(missing_ok=True)

    def _place_inputs(self, requests: Iterable[Request]) -> None:
        region = _new_name("inputs")
        content = bytearray()
        for request in requests:
            if id(request) in self._inputs:
                continue
            placed = {}
            for name, value in request.items():
                content += bytes(-len(content) % _ALIGNED)
                data = tensor_bytes(value)
                placed[name] = SharedTensor(
                    datatype_of(value), tuple(shape_of(value)), region, len(data), len(content)
                )
                content += data
            self._inputs[id(request)] = (request, placed)
        self._add(region, content, max(1, len(content)))

    def _place_outputs(self, config: ModelConfig, rows: int, output_bytes: int) -> None:
        region = _new_name("outputs")
        batch = max(1, rows)
        size = 0
        for name, spec in output_specs(config).items():
            if spec.datatype == "BYTES" or min(spec.dims, default=0) < 0:
                needed = output_bytes * batch
            else:
                width = 2 if spec.datatype == "BF16" else numpy_dtype(spec.datatype).itemsize
                needed = math.prod(spec.dims) * width * batch
            size += -size % _ALIGNED
            self.outputs[name] = SharedTensor(spec.datatype, (), region, needed, size)
            size += needed
        self._add(region, b"", max(1, size))

    def _add(self, region: str, content: bytes | bytearray, size: int) -> None:
        """Make a segment, write its initial contents, and register it."""
        path = _DIRECTORY / region
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        self._files.append(path)
        try:
            # Allocated now: a write without available memory would kill the process.
            os.posix_fallocate(file, 0, size)
            with os.fdopen(os.dup(file), "wb") as out:
                out.write(content)
        except OSError as error:
            raise InvalidArgumentError(
                f"there is no room for {size} bytes of shared memory: {error.strerror}"
            ) from None
        finally:
            os.close(file)
        self._client.register_memory(region, f"/{region}", size)
        self._regions.append(region)


def _new_name(what: str) -> str:
    return f"nbtriton-perf-{os.getpid()}-{next(_numbers)}-{what}"
