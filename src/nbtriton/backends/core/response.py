"""The response to one request, and those to a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nbtriton.errors import TritonError
from nbtriton.tensors import Array, scatter

__all__ = ["Response", "ScatteredResponses"]


class Response:
    """One response to one request.

    Parameters
    ----------
    outputs : mapping of str to array
        Whole tensors by name, batch dimension first if the model batches.
    error : TritonError, optional
        Set instead of outputs when this request alone failed.
    parameters : mapping
        Response parameters (bool, int or str values).

    Examples
    --------
    >>> Response({"OUT": ones}).outputs["OUT"].shape
    (1, 4)
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


class ScatteredResponses(Sequence[Response]):
    """The responses of a batch; outputs are cut, and each response made, when it is used.

    That costs 2 us a request, which the instance need not wait for: it computes the next batch while
    another thread answers this one.

    Parameters
    ----------
    outputs : mapping of str to Array or list of Array
        Whole outputs, to be cut along axis 0, or lists of pieces, one a request.
    sizes : sequence of int
        Rows of each request; they add up to the first dimension of every whole output.
    wanted : sequence of set of str
        Names of the outputs that each request asked for.
    """

    __slots__ = ("_outputs", "_pieces", "_sizes", "_wanted")

    def __init__(
        self,
        outputs: Mapping[str, Array | list[Array]],
        sizes: Sequence[int],
        wanted: Sequence[frozenset[str]],
    ) -> None:
        self._outputs = outputs
        self._sizes = sizes
        self._wanted = wanted
        self._pieces: dict[str, list[Array]] | None = None

    def parts(
        self,
    ) -> tuple[Mapping[str, Array | list[Array]], Sequence[int], Sequence[frozenset[str]]]:
        """Return what the responses are made from: the parameters of this class."""
        return self._outputs, self._sizes, self._wanted

    def __len__(self) -> int:
        return len(self._wanted)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self._of(one) for one in range(*at.indices(len(self)))]
        return self._of(range(len(self))[at])

    def _of(self, at: int) -> Response:
        """Return the response of the request at this place, made anew each time."""
        if self._pieces is None:
            self._pieces = {
                name: output if isinstance(output, list) else scatter(output, self._sizes)
                for name, output in self._outputs.items()
            }
        wanted = self._wanted[at]
        return Response({n: pieces[at] for n, pieces in self._pieces.items() if n in wanted})
