"""How two answers to the same request differ, tensor by tensor and response by response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nbtriton.clients.grpc import Part
from nbtriton.tensors import datatype_of, shape_of

__all__ = ["Answer", "Difference"]

# The outputs, or the text of the error.
Answer = Mapping[str, Any] | str


class Difference:
    """What was found about one model so far.

    Parameters
    ----------
    rtol, atol : float
        Within these, floating-point outputs are ``"close"``.

    Attributes
    ----------
    max_abs, max_rel : float or None
        Largest differences among floating-point outputs.
    first : str
        What was different first; empty if nothing was.
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

    def compare(self, what: str, ours: Answer, theirs: Answer) -> None:
        """Compare one response; `what` begins the text of a difference."""
        if isinstance(ours, str) or isinstance(theirs, str):
            if ours != theirs:
                self._note(f"{what}: nbtriton {_said(ours)}, reference {_said(theirs)}")
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

    def compare_streams(self, what: str, ours: Sequence[Part], theirs: Sequence[Part]) -> None:
        """Compare all responses of one request, their number and where the final flag is."""
        for number, (here, there) in enumerate(zip(ours, theirs, strict=False), start=1):
            place = f"{what}, response {number}"
            self.compare(place, here.error or here.outputs, there.error or there.outputs)
            if here.final is not there.final:
                whose = "nbtriton's" if here.final else "the reference's"
                self._note(f"{place}: only {whose} is final")
        if len(ours) != len(theirs):
            self._note(f"{what}: {len(ours)} responses and {len(theirs)}")

    def _note(self, text: str) -> None:
        self.first = self.first or text


def _said(answer: Answer) -> str:
    return f"says {answer!r}" if isinstance(answer, str) else "answers"


def _differ(
    ours: Any, theirs: Any, rtol: float, atol: float
) -> tuple[str, float | None, float | None]:
    """Return what is wrong, and for numbers the largest absolute and relative difference."""
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
