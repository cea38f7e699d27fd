"""The responses of a decoupled model in order of arrival, with times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, overload

from nbtriton.common.errors import TritonError
from nbtriton.drawing import Column, counted, measure, table_html, table_text
from nbtriton.runtime.engine.shown import preview

if TYPE_CHECKING:
    import pandas as pd

    from nbtriton.runtime.engine import InferenceResult

# The part of a long stream that people read: its beginning and its end.
_SHOWN_FIRST, _SHOWN_LAST = 15, 5


class Responses(Sequence["InferenceResult"]):
    """The responses to one request; shows each with its time.

    Attributes
    ----------
    times_ms : tuple of float
        When each arrived, in milliseconds after the request was sent.
    interrupted : bool
        True if the user stopped the stream; the request was then cancelled.
    """

    def __init__(
        self,
        responses: Sequence[InferenceResult],
        times_ms: Sequence[float],
        *,
        interrupted: bool = False,
    ) -> None:
        self._responses = tuple(responses)
        self.times_ms = tuple(times_ms)
        self.interrupted = interrupted

    @classmethod
    def of(cls, stream: Iterable[InferenceResult]) -> Responses:
        """Read a stream to its end; an interrupt ends it early and keeps the responses so far.

        Raises
        ------
        TritonError
            The stream ended with an error; its hint has the number of earlier responses.
        """
        started_ns = perf_counter_ns()
        responses: list[InferenceResult] = []
        times_ms: list[float] = []
        interrupted = False
        try:
            for response in stream:
                times_ms.append((perf_counter_ns() - started_ns) / 1e6)
                responses.append(response)
        except KeyboardInterrupt:
            interrupted = True
        except TritonError as error:
            if responses and not error.hint:
                error.hint = f"{len(responses)} responses came before it; server.stream(…) has them"
            raise
        return cls(responses, times_ms, interrupted=interrupted)

    @overload
    def __getitem__(self, index: int) -> InferenceResult: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[InferenceResult]: ...
    def __getitem__(self, index: int | slice) -> InferenceResult | Sequence[InferenceResult]:
        return self._responses[index]

    def __len__(self) -> int:
        return len(self._responses)

    def to_frame(self) -> pd.DataFrame:
        """Return all responses as one DataFrame, the number of the response first in its index."""
        import pandas as pd

        frames = {number: response.to_frame() for number, response in enumerate(self)}
        return pd.concat(frames, names=["response"]) if frames else pd.DataFrame()

    def __repr__(self) -> str:
        return f"<{self._headline()}>"

    def _headline(self) -> str:
        if not self:
            words = "no response"
        else:
            first = self[0]
            words = f"{first.model_name} v{first.model_version}: {counted(len(self), 'response')}"
            words += f", the first after {measure(self.times_ms[0])} ms"
            if len(self) > 1:
                words += f", the last after {measure(self.times_ms[-1])} ms"
        return words + (", interrupted" if self.interrupted else "")

    def _repr_mimebundle_(self, **_options: object) -> dict[str, str]:
        headline = self._headline()
        if not self:
            return {"text/plain": headline}
        names = {
            name: datatype for response in self for name, datatype, _, _ in response.describe()
        }
        columns = [Column("response"), Column("after", "ms")]
        columns += [Column(name, datatype) for name, datatype in names.items()]
        shown = list(range(len(self)))
        if len(shown) > _SHOWN_FIRST + _SHOWN_LAST:
            shown = shown[:_SHOWN_FIRST] + shown[-_SHOWN_LAST:]
            headline += f"; the table leaves out {_SHOWN_FIRST} to {shown[-_SHOWN_LAST] - 1}"
        rows = [(n, self.times_ms[n], *(_cell(self[n], name) for name in names)) for n in shown]
        return {
            "text/plain": f"{headline}\n{table_text(columns, rows)}",
            "text/html": table_html(columns, rows, caption=headline),
        }


def _cell(response: InferenceResult, name: str) -> str:
    for found, _, shape, where in response.describe():
        if found == name:
            values = preview(response.raw(name), where)
            return f"{shape} {values}"
    return ""
