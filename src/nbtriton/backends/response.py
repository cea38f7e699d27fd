"""What a backend answers a request with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nbtriton.errors import TritonError

if TYPE_CHECKING:
    from nbtriton.tensors import Array

__all__ = ["Response"]


class Response:
    """One answer to one request.

    (A plain class in a module of its own: one is made for each request and each step of an ensemble,
    and so the core that is compiled can have it.)

    Parameters
    ----------
    outputs : mapping of str to array
        Whole tensors by name, batch dimension first if the model batches.
    error : TritonError, optional
        Set instead of outputs when this request alone failed.
    parameters : mapping
        Response parameters (bool, int or str values).
    """

    __slots__ = ("error", "outputs", "parameters")

    def __init__(
        self,
        outputs: Mapping[str, Array] | None = None,
        error: TritonError | None = None,
        parameters: Mapping[str, bool | int | str] | None = None,
    ) -> None:
        self.outputs: dict[str, Array] = (
            outputs if isinstance(outputs, dict) else {} if outputs is None else dict(outputs)
        )
        self.error = error
        self.parameters: Mapping[str, bool | int | str] = {} if parameters is None else parameters

    def __repr__(self) -> str:
        return f"Response({self.outputs!r}, {self.error!r}, {self.parameters!r})"
