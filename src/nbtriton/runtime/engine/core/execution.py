"""The times of one execution of a batch, for the statistics and for each of its requests."""

from __future__ import annotations

from time import monotonic_ns
from typing import Final

from nbtriton.backends.base import BatchTimer
from nbtriton.backends.compiling import mypyc_attr
from nbtriton.runtime.engine.core.snapshot import BatchRecord

__all__ = ["Execution", "RequestDetail", "StepTimes", "now_ns"]

# The engine's clock. Final, for the compiled core: it looks a name of a module that is not compiled
# up in a dictionary at each use (8 times in a step of an ensemble), but keeps a final one in a C
# variable.
now_ns: Final = monotonic_ns


@mypyc_attr(acyclic=True)
class RequestDetail:
    """Details that few requests have: a refusal, an error, responses before the final one, a sequence.

    Attributes
    ----------
    outcome : str
        Why it never ran, a key of `REASONS`, or ``"cache_hit"``; empty otherwise.
    status, error : str
        Triton's status and message if it failed, else empty.
    first_ns, responses : int
        The time of its first response before the final one, and how many of these it had.
    sequence : int or str
        Its correlation id, or 0.
    begins : bool
        Whether it is the first one of its sequence (START).
    """

    __slots__ = ("begins", "error", "first_ns", "outcome", "responses", "sequence", "status")

    def __init__(
        self,
        outcome: str,
        status: str,
        error: str,
        first_ns: int,
        responses: int,
        sequence: int | str,
        begins: bool,
    ) -> None:
        self.outcome = outcome
        self.status = status
        self.error = error
        self.first_ns = first_ns
        self.responses = responses
        self.sequence = sequence
        self.begins = begins


@mypyc_attr(acyclic=True)
class Execution(BatchTimer):
    """Times of one execution, on the clock of `time.monotonic_ns`; 0 until they are reached.

    All requests of the batch refer to it: what is the same for all of them is stored once. It outlives them in the statistics and in the recorder, so it keeps
    only numbers (and the compiled core's garbage collector need not walk it).

    What the recorder keeps of the only request of a batch stands here, too: with the sums it is all
    that a `RequestEntry` has, and a second object in a ring costs a thirtieth of a step of an ensemble.

    Attributes
    ----------
    batch_size : int
    instance : str
        Its name.
    number, count : int
        The number of its first request, and how many it has.
    reason : str
        Why the batch was closed at this size, in the scheduler's word.
    formed_ns, waiting : int
        When the scheduler handed it over, and how many requests it left waiting.
    start_ns, infer_start_ns, infer_end_ns, end_ns : int
        compute_input is between the first two, compute_infer between those in the middle, and
        compute_output between the last two (T9).
    longest_ns : int
        The longest wait among the requests.
    failed : bool
        It answered none of its requests well.
    reached : bool
        The model saw it: what it did counts as an execution.
    first : bool
        No other has ended since the load, warmup included.
    inferences, queue_ns, total_ns : int
        Sums over the requests: their batch sizes, how long they waited, and how long each took
        until the end.
    answered_ns, caller, step, request_id, detail
        Of the only request, as `RequestEntry` has them; 0 until its final response.
    """

    __slots__ = (
        "answered_ns", "batch_size", "caller", "count", "detail", "end_ns", "failed", "first", "formed_ns",
        "infer_end_ns", "infer_start_ns", "inferences", "instance", "longest_ns", "number",
        "queue_ns", "reached", "reason", "request_id", "start_ns", "step", "total_ns", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        batch_size: int,
        instance: str = "",
        number: int = 0,
        count: int = 0,
        reason: str = "",
        formed_ns: int = 0,
        waiting: int = 0,
    ) -> None:
        self.batch_size = batch_size
        self.instance = instance
        self.number = number
        self.count = count
        self.reason = reason
        self.formed_ns = formed_ns
        self.waiting = waiting
        self.longest_ns = 0
        self.failed = False
        self.reached = True
        self.first = False
        self.inferences = 0
        self.queue_ns = 0
        self.total_ns = 0
        self.start_ns = now_ns()
        self.infer_start_ns = 0
        self.infer_end_ns = 0
        self.end_ns = 0
        self.answered_ns = 0
        self.caller = 0
        self.step = 0
        self.request_id = ""
        self.detail: RequestDetail | None = None

    def inputs_ready(self) -> None:
        """compute_input ends, compute_infer begins."""
        self.infer_start_ns = now_ns()

    def infer_done(self) -> None:
        """compute_infer ends, compute_output begins."""
        self.infer_end_ns = now_ns()

    def marked(self, inputs_ready_ns: int, infer_done_ns: int) -> None:
        """Set both marks, which the process that the model ran in has taken."""
        self.infer_start_ns = inputs_ready_ns
        self.infer_end_ns = infer_done_ns

    def end(self) -> None:
        """compute_output ends; a mark that the backend did not set was at the end."""
        self.end_ns = end_ns = now_ns()
        if not self.infer_start_ns:
            self.infer_start_ns = end_ns
        if not self.infer_end_ns:
            self.infer_end_ns = end_ns

    def times(self) -> tuple[int, int, int]:
        """Return compute_input, compute_infer and compute_output, of what has happened so far."""
        end = self.end_ns or now_ns()
        infer_start = self.infer_start_ns or end
        infer_end = self.infer_end_ns or end
        return infer_start - self.start_ns, infer_end - infer_start, end - infer_end

    def record(self, model: str, version: int, requests: tuple[int, ...]) -> BatchRecord:
        """Return it as a record, once it has ended, with the numbers of its requests."""
        return BatchRecord(
            model, version, self.instance, requests, self.batch_size, self.reason,
            self.longest_ns, self.start_ns, self.end_ns, self.failed, self.formed_ns, self.waiting,
            self.infer_start_ns, self.infer_end_ns,
        )  # fmt: skip


@mypyc_attr(acyclic=True)
class StepTimes:
    """Times of the steps of an ensemble's request: sums in nanoseconds (T4).

    It outlives the request in the statistics until they add it up.

    Attributes
    ----------
    first : bool
        No other request has been answered since the load.
    size, total_ns, end_ns : int
        The rows of the request, how long it took, and when it was answered; 0 until then.
    """

    __slots__ = (
        "end_ns", "first", "infer_ns", "input_ns", "output_ns", "queue_ns", "size", "total_ns",
    )  # fmt: skip

    def __init__(self) -> None:
        self.first = False
        self.size = 0
        self.total_ns = 0
        self.end_ns = 0
        self.queue_ns = 0
        self.input_ns = 0
        self.infer_ns = 0
        self.output_ns = 0

    def add(self, queue_ns: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """Add those of one more step."""
        self.queue_ns += queue_ns
        self.input_ns += input_ns
        self.infer_ns += infer_ns
        self.output_ns += output_ns
