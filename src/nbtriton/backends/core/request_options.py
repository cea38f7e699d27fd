"""The options of a request: everything but its model and its inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import SupportsIndex

from nbtriton.common.errors import InvalidArgumentError

__all__ = ["RequestOptions"]


class RequestOptions:
    """The options of a request, with the meanings of Triton's inference request.

    A plain class, as most requests make one: compiled, it costs as much as a tuple. Requests with equal
    options may share one.

    Parameters
    ----------
    outputs : collection of str
        The requested outputs; by default all.
    request_id : str
    priority, timeout_us, correlation_id
        Integers may be numpy's.
    flags : int
        1 for the start of a sequence, 2 for its end.
    parameters : mapping, optional
        Custom request parameters.

    Raises
    ------
    InvalidArgumentError
        The request id is no text.

    Examples
    --------
    >>> RequestOptions(priority=1, request_id="a").priority
    1
    """

    __slots__ = (
        "correlation_id", "flags", "outputs", "parameters", "priority", "request_id", "timeout_us",
    )  # fmt: skip

    def __init__(
        self,
        outputs: Collection[str] = (),
        request_id: object = "",
        priority: SupportsIndex = 0,
        timeout_us: SupportsIndex = 0,
        correlation_id: SupportsIndex | str = 0,
        flags: int = 0,
        parameters: Mapping[str, bool | int | str] | None = None,
    ) -> None:
        # Where compiled code checks an argument by its annotation, it raises a bare TypeError.
        if not isinstance(request_id, str):
            raise InvalidArgumentError(f"request_id must be a text, found {request_id!r}")
        self.outputs = outputs
        self.request_id = request_id
        self.priority = priority
        self.timeout_us = timeout_us
        self.correlation_id = correlation_id
        self.flags = flags
        self.parameters = parameters

    def copy(self) -> RequestOptions:
        """Return a copy that may be changed."""
        return RequestOptions(
            self.outputs, self.request_id, self.priority, self.timeout_us, self.correlation_id,
            self.flags, self.parameters,
        )  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"RequestOptions({self.outputs!r}, {self.request_id!r}, {self.priority!r}, "
            f"{self.timeout_us!r}, {self.correlation_id!r}, {self.flags!r}, {self.parameters!r})"
        )
