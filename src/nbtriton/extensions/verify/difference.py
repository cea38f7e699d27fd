"""Comparison of two responses to one request, tensor by tensor, and of two streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nbtriton.model.tensors import datatype_of, shape_of
from nbtriton.serving.clients.base import StreamResponse

# The outputs of a request, or the text of its error.
Outcome = Mapping[str, Any] | str


class Difference:
    """Accumulated differences of one model.

    Parameters
    ----------
    rtol, atol : float
        Tolerances of floating-point outputs that are ``"close"``.

    Attributes
    ----------
    max_abs, max_rel : float or None
        Largest differences of floating-point outputs.
    first : str
        The first difference; empty without one.
    """

    def __init__(self, rtol: float, atol: float) -> None:
        self.max_abs: float | None = None
        self.max_rel: float | None = None
        self.first = ""
        self._rtol = rtol
        self._atol = atol
        self._equal = True

    @property
    def verdict(self) -> str:
        """``"equal"``, ``"close"`` or ``"different"``."""
        return "different" if self.first else "equal" if self._equal else "close"

    def compare(self, what: str, ours: Outcome, theirs: Outcome) -> None:
        """Compare one response; `what` begins the text of a difference."""
        if isinstance(ours, str) or isinstance(theirs, str):
            if ours != theirs:
                self._note(f"{what}: nbtriton {_describe(ours)}, reference {_describe(theirs)}")
            return
        if ours.keys() != theirs.keys():
            self._note(f"{what}: outputs {sorted(ours)} and {sorted(theirs)}")
            return
        for tensor, array in ours.items():
            text, far, near = _differ(array, theirs[tensor], self._rtol, self._atol)
            self._equal = self._equal and not text and not far
            if far is not None:
                self.max_abs = max(far, self.max_abs or 0.0)
                self.max_rel = max(near or 0.0, self.max_rel or 0.0)
            if text:
                self._note(f"{what}: output '{tensor}' {text}")

    def compare_streams(
        self, what: str, ours: Sequence[StreamResponse], theirs: Sequence[StreamResponse]
    ) -> None:
        """Compare the responses to one request, their number and the final flags."""
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=False), start=1):
            place = f"{what}, response {number}"
            self.compare(place, _outcome(mine), _outcome(other))
            if mine.final is not other.final:
                whose = "nbtriton's" if mine.final else "the reference's"
                self._note(f"{place}: only {whose} is final")
        if len(ours) != len(theirs):
            self._note(f"{what}: {len(ours)} responses and {len(theirs)}")

    def _note(self, text: str) -> None:
        self.first = self.first or text


def _outcome(response: StreamResponse) -> Outcome:
    return response.outputs if response.error is None else response.error.message


def _describe(outcome: Outcome) -> str:
    return f"says {outcome!r}" if isinstance(outcome, str) else "answers"


def _differ(
    ours: Any, theirs: Any, rtol: float, atol: float
) -> tuple[str, float | None, float | None]:
    """Return the difference as text, and for numbers the largest absolute and relative difference."""
    if datatype_of(ours) != datatype_of(theirs) or shape_of(ours) != shape_of(theirs):
        one = f"{datatype_of(ours)}{list(shape_of(ours))}"
        return f"is {one} and {datatype_of(theirs)}{list(shape_of(theirs))}", None, None
    if ours.dtype.kind != "f":
        same = bool(np.array_equal(ours, theirs))
        return ("" if same else "differs"), None, None
    one, other = ours.astype(np.float64), theirs.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = np.abs(one - other)
        gap[(one == other) | (np.isnan(one) & np.isnan(other))] = 0.0
        far = float(gap.max(initial=0.0))
        near = float(np.nan_to_num(gap / np.abs(other), nan=0.0).max(initial=0.0))
    close = bool(np.allclose(one, other, rtol=rtol, atol=atol, equal_nan=True))
    return ("" if close else f"differs by up to {far:.3g}"), far, near
