"""Load of every kind while models change under it: ``python -m tests.engine.soak --seconds 600``.

A dynamic batcher, an ensemble and a model that calls another are called by several threads, which wait
or go on, while instances come and go, and models are replaced, unloaded and loaded again. A request is
refused at once, with Triton's status, or has its own answer exactly once.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import threading
from collections import Counter
from time import monotonic

import numpy as np

from nbtriton.backends.python import install_pb_utils
from nbtriton.common.errors import TritonError
from nbtriton.runtime.engine import InferenceFuture, Server
from tests.engine.support import WAIT_S, echo, ensemble_text, row

CLIENTS = 4
# A future is checked when its thread has this many in flight.
IN_FLIGHT = 32
# Of a model that has just been unloaded; to a model that calls it Triton says it in words.
REFUSED = ("NOT_FOUND", "UNAVAILABLE")
TO_CALLERS = "Model batched - Error when running inference: "


def calling() -> type:
    """A model that adds one to the response of `batched`."""
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                value = pb_utils.get_input_tensor_by_name(request, "IN")
                answer = pb_utils.InferenceRequest(
                    model_name="batched", inputs=[value], requested_output_names=["OUT"]
                ).exec()
                if answer.has_error():
                    responses.append(pb_utils.InferenceResponse(error=answer.error()))
                    continue
                out = pb_utils.get_output_tensor_by_name(answer, "OUT").as_numpy()
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out + 1)]))
            return responses

    return TritonPythonModel


def instances(count: int) -> str:
    return echo(f"dynamic_batching {{}} instance_group {{ count: {count} kind: KIND_CPU }}")


WHOLE = ensemble_text(
    ("batched", {"IN": "X"}, {"OUT": "m"}),
    ("batched", {"IN": "m"}, {"OUT": "Y"}),
    inputs={"X": "FP32[4]"},
    outputs={"Y": "FP32[4]"},
)
# Model, input, output, and what it adds to a number.
MODELS = (("batched", "IN", "OUT", 1), ("whole", "X", "Y", 2), ("calling", "IN", "OUT", 2))


class SendingThread(threading.Thread):
    """Sends until stopped and answered; `outcomes` counts answers, `wrong` has the unexpected ones."""

    def __init__(self, server: Server, seed: int, stop: threading.Event) -> None:
        super().__init__(name=f"sending-{seed}")
        self._server, self._stop_sending = server, stop
        self._chance = random.Random(seed)
        self._pending: list[tuple[InferenceFuture, str, float]] = []
        self._called_back = threading.Semaphore(0)
        self._sent = 0
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[object] = []

    def run(self) -> None:
        try:
            for number in itertools.count():
                if self._stop_sending.is_set() and self.outcomes["answered"]:
                    break
                self._send(float(number % 1000))
            while self._pending:
                self._settle()
            # A future has its result before its callbacks are called.
            if not all(self._called_back.acquire(timeout=WAIT_S) for _ in range(self._sent)):
                self.wrong.append("a callback was not called")
            if self._called_back.acquire(blocking=False):
                self.wrong.append("a callback was called twice")
        except BaseException as error:  # reported by the starting thread
            self.wrong.append(error)

    def _send(self, number: float) -> None:
        model, into, out, more = self._chance.choice(MODELS)
        inputs = {into: row(*[number] * self._chance.choice((1, 1, 2, 5)))}
        try:
            if self._chance.random() < 0.3:
                self._check(self._server.infer(model, inputs)[out], number + more)
                return
            future = self._server.submit(model, inputs)
        except TritonError as error:
            self._refused(error)
            return
        self._sent += 1
        future.add_done_callback(lambda _: self._called_back.release())
        self._pending.append((future, out, number + more))
        if len(self._pending) == IN_FLIGHT:
            self._settle()

    def _settle(self) -> None:
        future, out, expected = self._pending.pop(0)
        error = future.exception(WAIT_S)
        if error is not None:
            self._refused(error)
        else:
            self._check(future.result()[out], expected)

    def _check(self, found: np.ndarray, expected: float) -> None:
        self.outcomes["answered"] += 1
        if (found != expected).any():
            self.wrong.append((found, expected))

    def _refused(self, error: TritonError) -> None:
        self.outcomes["refused"] += 1
        if error.status not in REFUSED and not error.message.startswith(TO_CALLERS):
            self.wrong.append(error)


def soak(seconds: float, seed: int = 0) -> Counter[str]:
    """Count the answered requests, the refused ones, and the changes of models.

    Raises
    ------
    AssertionError
        A wrong answer, a request without one, or one that was answered twice.
    """
    install_pb_utils()
    chance = random.Random(seed)
    stop = threading.Event()
    plus_one = lambda IN: {"OUT": IN + 1}  # noqa: N803
    with Server(gpus=()) as server:
        server.load(instances(1), plus_one, name="batched")
        server.load(WHOLE, name="whole")
        server.load(echo("instance_group { count: 2 kind: KIND_CPU }"), calling(), name="calling")
        threads = [SendingThread(server, seed * CLIENTS + n, stop) for n in range(CLIENTS)]
        for thread in threads:
            thread.start()
        changes: Counter[str] = Counter()
        end = monotonic() + seconds
        while not changes or (monotonic() < end and not any(thread.wrong for thread in threads)):
            what = chance.choices(("instances", "replaced", "unloaded"), (10, 9, 1))[0]
            changes[what] += 1
            if what == "unloaded":
                server.unload("batched", timeout_s=WAIT_S)
            if what == "replaced":
                server.load(WHOLE, name="whole")
            server.load(instances(chance.choice((1, 2, 3))), plus_one, name="batched")
        stop.set()
        for thread in threads:
            thread.join(2 * WAIT_S)
        assert not any(thread.is_alive() for thread in threads), "a request has no answer"
        wrong = [found for thread in threads for found in thread.wrong]
        assert not wrong, f"{len(wrong)} times, such as {wrong[0]!r}"
    return sum((thread.outcomes for thread in threads), changes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    found = soak(arguments.seconds, arguments.seed)
    gil = "with" if getattr(sys, "_is_gil_enabled", lambda: True)() else "without"
    print(
        f"Python {sys.version.split()[0]} {gil} the GIL: {dict(found)}; nothing lost, nothing wrong"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
