"""Values passed between a caller and a backend: the options of a request, and responses to one or to a batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, SupportsIndex

from nbtriton.backends.compiling import mypyc_attr, own_caches
from nbtriton.common.errors import InvalidArgumentError, TritonError
from nbtriton.model.tensors import Array, scatter


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
        The request id is not a string.

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


@mypyc_attr(allow_interpreted_subclasses=True, acyclic=True)
class BatchTimer:
    """Two marks inside one execution; the engine records the others (T9)."""

    __slots__ = ()

    def inputs_ready(self) -> None:
        """Mark that inputs are gathered and on the device: compute_input ends, compute_infer starts."""
        raise NotImplementedError

    def infer_done(self) -> None:
        """Mark that the model's own code returned: compute_infer ends, compute_output starts."""
        raise NotImplementedError

    def marked(self, inputs_ready_ns: int, infer_done_ns: int) -> None:
        """Set both marks from another process, on the clock of `time.monotonic_ns`; 0 for none."""
        raise NotImplementedError


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
    """The responses of a batch; outputs are cut, and each response made, on access.

    Cutting costs 2 us per request, but not on the instance: it computes the next batch while
    another thread delivers this one.

    Parameters
    ----------
    outputs : mapping of str to Array or list of Array
        Whole outputs, to be cut along axis 0, or lists of pieces, one per request.
    sizes : sequence of int
        Rows of each request; their sum is the first dimension of every whole output.
    wanted : sequence of set of str
        Names of the requested outputs of each request.
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
        """Return the constructor's arguments."""
        return self._outputs, self._sizes, self._wanted

    def __len__(self) -> int:
        return len(self._wanted)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._of(one) for one in range(*index.indices(len(self)))]
        return self._of(range(len(self))[index])

    def _of(self, index: int) -> Response:
        """Return the response of the request at this index, a new object each time."""
        if self._pieces is None:
            self._pieces = {
                name: output if isinstance(output, list) else scatter(output, self._sizes)
                for name, output in self._outputs.items()
            }
        names = self._wanted[index]
        return Response({n: pieces[index] for n, pieces in self._pieces.items() if n in names})


own_caches(ScatteredResponses)
