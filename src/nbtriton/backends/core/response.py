"""What a backend answers a request with, and a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from nbtriton.errors import TritonError

if TYPE_CHECKING:
    from nbtriton.tensors import Array

__all__ = ["Response", "Shares"]


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


class Shares(Sequence[Response]):
    """The responses of a batch, each of them made when it is taken.

    That costs 2 us a request, which the instance need not wait for: it computes the next batch while
    another thread answers this one.

    Parameters
    ----------
    outputs : mapping of str to Array or list of Array
        Whole outputs, to be cut along axis 0, or those that are in pieces already, one a request.
    sizes : sequence of int
        Rows of each request; they add up to the first dimension of every whole output.
    wanted : sequence of set of str
        Names of the outputs that each request asked for.
    """

    __slots__ = ("_ends", "_outputs", "_wanted")

    def __init__(
        self,
        outputs: Mapping[str, Array | list[Array]],
        sizes: Sequence[int],
        wanted: Sequence[frozenset[str]],
    ) -> None:
        self._outputs = dict(outputs)
        self._ends = list(accumulate(sizes, initial=0))
        self._wanted = wanted

    def __len__(self) -> int:
        return len(self._wanted)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self._of(one) for one in range(*at.indices(len(self)))]
        return self._of(range(len(self))[at])

    def _of(self, at: int) -> Response:
        """Return the response of the request at this place, made anew each time."""
        start, end = self._ends[at], self._ends[at + 1]
        wanted = self._wanted[at]
        share = {}
        for name, output in self._outputs.items():
            if name in wanted:
                share[name] = output[at] if isinstance(output, list) else output[start:end]
        return Response(share)
