"""Requests to inference functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np

__all__ = ["Array", "Request"]

Array = np.ndarray[Any, Any]


class Request(MutableMapping[str, Array]):
    """The inputs of one request by name.

    Attributes
    ----------
    data : dict of str to numpy.ndarray
        The inputs; the function may write to them.
    parameters : mapping
        The request's parameters.
    requested_output_names : list of str
    """

    __slots__ = ("data", "parameters", "requested_output_names")

    def __init__(
        self,
        data: dict[str, Array],
        parameters: Mapping[str, bool | int | str] | None = None,
        requested_output_names: Collection[str] = (),
    ) -> None:
        self.data = data
        self.parameters = dict(parameters or {})
        self.requested_output_names = list(requested_output_names)

    def __getitem__(self, name: str) -> Array:
        return self.data[name]

    def __setitem__(self, name: str, value: Array) -> None:
        self.data[name] = value

    def __delitem__(self, name: str) -> None:
        del self.data[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def __repr__(self) -> str:
        return f"Request({self.data!r}, parameters={self.parameters!r})"
