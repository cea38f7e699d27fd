"""The stop watch of one execution."""

from __future__ import annotations

from time import monotonic_ns

__all__ = ["Timer"]


class Timer:
    """The two marks that a backend sets while it executes."""

    __slots__ = ("infer_end_ns", "infer_start_ns")

    def __init__(self) -> None:
        self.infer_start_ns = 0
        self.infer_end_ns = 0

    def inputs_ready(self) -> None:
        self.infer_start_ns = monotonic_ns()

    def infer_done(self) -> None:
        self.infer_end_ns = monotonic_ns()
