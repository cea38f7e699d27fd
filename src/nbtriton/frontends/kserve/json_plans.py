"""Requests that look alike are read once: most clients send the same JSON again and again.

What a JSON header without data says depends on its text alone. `Plans` keeps what was read from the
last few texts, apart from the request id at their beginning, so that only the bytes behind them are
new.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nbtriton.frontends.kserve.json_codec import Call

if TYPE_CHECKING:
    from nbtriton.backends import RequestOptions
    from nbtriton.frontends.http1.response import Data
    from nbtriton.frontends.kserve.json_codec import OutputRequest
    from nbtriton.frontends.kserve.wire import WireInput

__all__ = ["Plan", "Plans"]

# Longer texts are rare, and would be kept at the price of all the others.
_LONGEST = 4096
_MOST = 256
# An id that stands first and needs no unescaping.
_ID = re.compile(rb'\{"id": ?"([^"\\\x00-\x1f\x80-\xff]*)"')
# Bytes that numpy can view as they are.
_VIEWED = {
    name: np.dtype(kind)
    for name, kind in (
        ("UINT8", "u1"), ("UINT16", "<u2"), ("UINT32", "<u4"), ("UINT64", "<u8"), ("INT8", "i1"),
        ("INT16", "<i2"), ("INT32", "<i4"), ("INT64", "<i8"), ("FP16", "<f2"), ("FP32", "<f4"),
        ("FP64", "<f8"),
    )
}  # fmt: skip


@dataclass(slots=True)
class Plan:
    """How to read the bytes behind one JSON text.

    Parameters
    ----------
    inputs : tuple of (name, dtype, shape, offset)
    size : int
        How many bytes there are.
    outputs, default, options
        Of every `Call` with this text.
    """

    inputs: tuple[tuple[str, np.dtype[Any], tuple[int, ...], int], ...]
    size: int
    outputs: Mapping[str, OutputRequest]
    default: OutputRequest
    options: RequestOptions

    def call(self, data: Data, offset: int, request_id: str | None) -> Call:
        """Return a request whose tensors begin at `offset`; its arrays view `data`.

        Parameters
        ----------
        request_id : str, optional
            If the text is known without it.
        """
        arrays = {}
        for name, dtype, shape, at in self.inputs:
            array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, data, offset + at)
            arrays[name] = array if array.flags.aligned else array.copy()
        options = self.options
        if request_id is not None:
            options = options.copy()
            options.request_id = request_id
        return Call(arrays, self.outputs, self.default, options, [])


class Plans:
    """The plans of the texts that were seen last."""

    def __init__(self) -> None:
        self._plans: dict[bytes, Plan] = {}

    def find(self, text: bytes, size: int) -> tuple[Plan | None, str | None]:
        """Return the plan for a text followed by so many bytes, and the id if it is not in it."""
        request_id = None
        plan = self._plans.get(text)
        if plan is None:
            rest, request_id = _split(text)
            plan = self._plans.get(rest)
        return (plan if plan is not None and plan.size == size else None), request_id

    def learn(self, text: bytes, inputs: Sequence[WireInput], size: int, call: Call) -> None:
        """Remember what was read from a text, if it can be read the same way again."""
        rest, request_id = _split(text)
        if (
            len(rest) > _LONGEST
            or call.leases
            or call.options.correlation_id
            or call.options.flags
            or call.options.parameters
            # A second id counts, not the first.
            or call.request_id != (request_id or "")
            or not all(
                tensor.datatype in _VIEWED and isinstance(tensor.data, memoryview)
                for tensor in inputs
            )
        ):
            return
        described = []
        offset = 0
        for tensor in inputs:
            dtype = _VIEWED[tensor.datatype]
            described.append((tensor.name, dtype, tensor.shape, offset))
            offset += math.prod(tensor.shape) * dtype.itemsize
        if offset != size:
            return
        if len(self._plans) >= _MOST:
            self._plans.clear()
        plan = Plan(tuple(described), size, call.outputs, call.default, call.options)
        self._plans[rest] = plan
        if not request_id:  # most clients name none; then the whole text is found with one look
            self._plans[text] = plan


def _split(text: bytes) -> tuple[bytes, str | None]:
    """Return a text without the request id at its beginning, and the id if there is one."""
    found = _ID.match(text)
    if found is None:
        return text, None
    return text[found.end() :], found[1].decode("ascii")
