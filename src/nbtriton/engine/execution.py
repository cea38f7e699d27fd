"""One execution of a batch: when what of it happened, for the books and for each of its requests."""

from __future__ import annotations

from time import monotonic_ns

__all__ = ["Execution"]


class Execution:
    """The stop watch of one execution, on the clock of `time.monotonic_ns`; 0 for what is to come.

    It is the backend's `BatchTimer`, and all requests of the batch refer to it: what is the same
    for all of them is written down once.

    Attributes
    ----------
    batch_size : int
    start_ns, infer_start_ns, infer_end_ns, end_ns : int
        compute_input is between the first two, compute_infer between those in the middle, and
        compute_output between the last two (scheduling.md §18).
    """

    __slots__ = ("batch_size", "end_ns", "infer_end_ns", "infer_start_ns", "start_ns")

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.start_ns = monotonic_ns()
        self.infer_start_ns = 0
        self.infer_end_ns = 0
        self.end_ns = 0

    def inputs_ready(self) -> None:
        """compute_input ends, compute_infer begins."""
        self.infer_start_ns = monotonic_ns()

    def infer_done(self) -> None:
        """compute_infer ends, compute_output begins."""
        self.infer_end_ns = monotonic_ns()

    def end(self) -> None:
        """compute_output ends; a mark that the backend did not set was at the end."""
        self.end_ns = end_ns = monotonic_ns()
        if not self.infer_start_ns:
            self.infer_start_ns = end_ns
        if not self.infer_end_ns:
            self.infer_end_ns = end_ns

    def times(self) -> tuple[int, int, int]:
        """Return compute_input, compute_infer and compute_output, of what has happened so far."""
        end = self.end_ns or monotonic_ns()
        infer_start = self.infer_start_ns or end
        infer_end = self.infer_end_ns or end
        return infer_start - self.start_ns, infer_end - infer_start, end - infer_end
