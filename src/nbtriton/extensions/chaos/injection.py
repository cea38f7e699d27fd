"""Fault injection: the layer between the engine and a model's instances."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import Any

from nbtriton.backends.base import (
    BackendInstance,
    BackendRequest,
    BatchTimer,
    RequestOptions,
    Response,
)
from nbtriton.backends.on_device import WrappedInstance
from nbtriton.common.errors import InternalError, TritonError, UnavailableError
from nbtriton.model.tensors import datatype_of
from nbtriton.runtime.engine import InferenceRequest
from nbtriton.runtime.engine.core.instance import Instance, lost_text

# The faults and their effects; all but the last concern an execution.
FAULTS: Mapping[str, str] = {
    "slow": "the execution takes longer",
    "raise": "the model raises: each request of the batch gets an error",
    "nan": "each number of the outputs that can be NaN is",
    "lost": "the instance is lost with its batch, and restarted; in a process, that is killed",
    "queue_full": "the request is refused, as by a full queue",
}
# Restarts wait longer each time, and after ten within a minute an instance stays unavailable
# (`workers.supervisor`). An experiment stays far below that.
_MOST_LOSSES = 4
# Longest time until a killed process is noticed, and the interval of checks.
_KILL_S = 10.0
_LOOK_S = 0.001
_FLOATS = ("FP16", "FP32", "FP64", "BF16")


class Injected:
    """The injected faults and the requests that they hit; threads may write concurrently.

    Attributes
    ----------
    executions : dict of str to int
        Number of executions with each fault, and of refusals.
    requests : dict of int to list of str
        The faults of each client request, by its number.
    """

    def __init__(self) -> None:
        self.executions: dict[str, int] = {}
        self.requests: dict[int, list[str]] = {}
        self._lock = threading.Lock()

    def note(self, fault: str, numbers: Sequence[int]) -> None:
        """Record one fault and the requests that it hit."""
        with self._lock:
            self.executions[fault] = self.executions.get(fault, 0) + 1
            for number in numbers:
                self.requests.setdefault(number, []).append(fault)


class FaultyInstance(WrappedInstance):
    """A model's instance with faults in some of its executions.

    Parameters
    ----------
    inner : BackendInstance
        The model's own instance.
    instance : Instance
        The engine's instance.
    shares : mapping of str to float
        Share of its executions, by fault.
    seed : int
        Determines, with the instance's name, the sequence of faults in its executions.
    slow_s : float
    injected : Injected
    in_process : bool
        Whether it has a process to kill.
    """

    def __init__(
        self,
        inner: BackendInstance,
        instance: Instance,
        shares: Mapping[str, float],
        *,
        seed: int,
        slow_s: float,
        injected: Injected,
        in_process: bool,
    ) -> None:
        super().__init__(inner)
        self._instance = instance
        self._shares = shares
        self._random = random.Random(f"{seed}:{instance.name}")  # noqa: S311 - faults, not secrets
        self._slow_s = slow_s
        self._injected = injected
        self._in_process = in_process
        self._losses = 0
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Inject no more faults; end the waits of running ones."""
        self._stopped.set()

    def execute(
        self, requests: Sequence[BackendRequest], timer: BatchTimer
    ) -> Sequence[Response | None] | None:
        """Execute one batch, possibly with a fault."""
        # Warmup requests and padding rows of sequences belong to no client.
        real = [
            request
            for request in requests
            if isinstance(request, InferenceRequest) and request.execution is timer
        ]
        fault = self._draw() if real else ""
        if not fault:
            return self.inner.execute(requests, timer)
        self._injected.note(fault, [request.root.number for request in real])
        if fault == "slow":
            self._stopped.wait(self._slow_s)
        elif fault == "raise":
            raise InternalError(f"a planned fault of '{self._instance.name}': the model raised")
        elif fault == "lost":
            self._losses += 1
            return self._lose(requests, timer)
        responses = self.inner.execute(requests, timer)
        return _with_nan(responses) if fault == "nan" else responses

    def _draw(self) -> str:
        """Return the fault of the next execution, empty for none."""
        if self._stopped.is_set():
            return ""
        drawn = self._random.random()
        for fault, share in self._shares.items():
            drawn -= share
            if drawn < 0:
                return "" if fault == "lost" and self._losses >= _MOST_LOSSES else fault
        return ""

    def _lose(
        self, requests: Sequence[BackendRequest], timer: BatchTimer
    ) -> Sequence[Response | None] | None:
        if self._in_process:
            self.inner.abandon()
            # The kill goes through the fork server: until it is noticed the batch could be answered.
            deadline_s = monotonic() + _KILL_S
            while not self._instance.recovery.wanted and monotonic() < deadline_s:
                sleep(_LOOK_S)
            return self.inner.execute(requests, timer)  # finds its process dead
        self._instance.lost("a planned fault")
        raise InternalError(lost_text(self._instance.name))

    def abandon(self) -> None:
        self.stop()
        super().abandon()

    def finalize(self) -> None:
        self.stop()
        super().finalize()


class Arrivals:
    """Records each client request for a model, and refuses some; a listener of the dispatcher.

    Parameters
    ----------
    model : str
    share : float
        Share of the requests that are refused.
    seed : int
    injected : Injected

    Attributes
    ----------
    model : str
    requests : list of InferenceRequest
        Requests since the last `pop_answered`, and earlier unanswered ones.
    """

    def __init__(self, model: str, share: float, seed: int, injected: Injected) -> None:
        self.requests: list[InferenceRequest] = []
        self.model = model
        self._share = share
        self._random = random.Random(f"{seed}:arrivals")  # noqa: S311 - faults, not secrets
        self._injected = injected
        self._lock = threading.Lock()

    def __call__(
        self,
        request: InferenceRequest,
        version: int,  # noqa: ARG002 - of every listener
        options: RequestOptions,  # noqa: ARG002
    ) -> TritonError | None:
        """Record a request; refuse it by chance."""
        if request.model_name != self.model:
            return None
        with self._lock:
            self.requests.append(request)
            refuses = self._random.random() < self._share
        if not refuses:
            return None
        self._injected.note("queue_full", [request.number])
        return UnavailableError(f"{request.log_prefix}Exceeds maximum queue size")

    def close(self) -> None:
        """Do nothing at the end of the server: its requests are answered by then."""

    def pop_answered(self) -> list[tuple[int, int, str, str]]:
        """Return number, latency in nanoseconds, status and error of the requests answered so far."""
        answered = []
        with self._lock:
            waiting = []
            for request in self.requests:
                if not request.answered_ns:
                    waiting.append(request)
                    continue
                status, text = request.failure or ("OK", "")
                latency_ns = request.answered_ns - request.start_ns
                answered.append((request.number, latency_ns, status, text))
            self.requests = waiting
        return answered


def _with_nan(responses: Sequence[Response | None] | None) -> Sequence[Response | None] | None:
    """Return responses whose floating-point outputs are all NaN."""
    if responses is None:
        return None
    return [
        response
        if response is None or response.error is not None
        else Response(
            {name: _nan(value) for name, value in response.outputs.items()},
            parameters=response.parameters,
        )
        for response in responses
    ]


def _nan(value: Any) -> Any:
    return value * float("nan") if datatype_of(value) in _FLOATS else value
