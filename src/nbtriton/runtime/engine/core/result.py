"""The result of a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from nbtriton.common.errors import nearest
from nbtriton.model.tensors import Array, datatype_of, format_shape, shape_of, to_kind

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["InferenceResult", "RequestTiming"]


class RequestTiming(NamedTuple):
    """The durations of one request's phases, in nanoseconds (T9).

    ``batch_size`` is the size of its batch, and ``first`` says that no execution of this version
    ended before: the times include what the model does once. For an ensemble the compute times are
    the sums over its steps, which may run side by side.
    """

    total_ns: int = 0
    queue_ns: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0
    batch_size: int = 0
    first: bool = False


class InferenceResult(Mapping[str, Array]):
    """The output tensors of one response by name, and its model, id, parameters and times.

    Tensors are of the caller's kind (numpy in, numpy out; torch or CuPy in, same kind out); one
    that lives on a device comes to the host when it is looked at, not before.

    Attributes
    ----------
    model_name : str
    model_version : int
    request_id : str
    parameters : mapping
        Response parameters.

    Examples
    --------
    >>> result = server.infer("double", {"IN": ones})
    >>> list(result), result["OUT"].shape, result.timing.batch_size
    (['OUT'], (1, 4), 1)
    """

    __slots__ = (
        "_kind",
        "_outputs",
        "_timing",
        "model_name",
        "model_version",
        "parameters",
        "request_id",
    )

    def __init__(
        self,
        outputs: Mapping[str, Array],
        kind: str,
        model_name: str,
        model_version: int,
        request_id: str,
        parameters: Mapping[str, bool | int | str],
        timing: tuple[int, int, int, int, int, int, bool],
    ) -> None:
        self._outputs = dict(outputs)
        self._kind = kind
        self.model_name = model_name
        self.model_version = model_version
        self.request_id = request_id
        self.parameters = parameters
        self._timing = timing

    @property
    def timing(self) -> RequestTiming:
        """Where the time of the request went."""
        return RequestTiming(*self._timing)

    def __reduce__(self) -> tuple[object, ...]:
        return InferenceResult, (
            dict(self), self._kind, self.model_name, self.model_version, self.request_id,
            dict(self.parameters), self._timing,
        )  # fmt: skip

    def __getitem__(self, name: str) -> Array:
        value = self.raw(name)
        converted = to_kind(value, "numpy" if datatype_of(value) == "BYTES" else self._kind)
        self._outputs[name] = converted
        return converted

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)

    def raw(self, name: str) -> Array:
        """Return a tensor as the model made it, on the device where it is.

        Examples
        --------
        >>> server.infer("double", {"IN": ones}).raw("OUT").shape
        (1, 4)
        """
        try:
            return self._outputs[name]
        except KeyError:
            raise KeyError(self._unknown(name)) from None

    def __contains__(self, name: object) -> bool:
        return name in self._outputs

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._outputs)

    def _unknown(self, name: object) -> str:
        present = ", ".join(self._outputs) or "none"
        close = nearest(str(name), self._outputs)
        hint = f", {close}" if close.startswith("did") else ""
        return f"the response of '{self.model_name}' has no output '{name}'; it has {present}{hint}"

    def to_frame(self) -> pd.DataFrame:
        """Return the outputs as a pandas DataFrame, one row for each row of the batch.

        A tensor with one value a row is a column of values, a wider one a column of lists; strings
        are decoded where they are UTF-8. Where the outputs have no first dimension in common, all
        of them are one row.

        Examples
        --------
        >>> server.infer("double", {"IN": ones}).to_frame()["OUT"].tolist()
        [[2.0, 2.0, 2.0, 2.0]]
        """
        from nbtriton.model.tensors.coerce import frame_of

        return frame_of(self)

    def describe(self) -> list[tuple[str, str, str, str]]:
        """Return (name, datatype, shape, where it is now) of each tensor, without moving any.

        Examples
        --------
        >>> server.infer("double", {"IN": ones}).describe()
        [('OUT', 'FP32', '[1,4]', 'cpu')]
        """
        return [
            (name, datatype_of(value), format_shape(shape_of(value)), _place(value))
            for name, value in self._outputs.items()
        ]

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        from nbtriton.runtime.engine.shown import show_result

        return show_result(
            f"{self.model_name} v{self.model_version}",
            self.timing._asdict(),
            self.describe(),
            list(self._outputs.values()),
        )

    def __repr__(self) -> str:
        tensors = ", ".join(f"{name}: {kind}{shape}" for name, kind, shape, _ in self.describe())
        return (
            f"<{self.model_name} v{self.model_version} -> {tensors}"
            f" | {self.timing.total_ns / 1000:.0f} us, batch of {self.timing.batch_size}>"
        )


def _place(array: Array) -> str:
    return str(getattr(array, "device", "cpu"))
