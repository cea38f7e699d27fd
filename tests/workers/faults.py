"""Faults of workers at random under load: ``python -m tests.workers.faults --faults 10000``.

Threads send requests to models whose instances live in processes, through an ensemble and calls between
models too, while processes are killed from outside and end by their own code. Each request is answered
exactly once: rightly, or with Triton's text if it was inside a process that ended. What has no part in
a fault notices none. In the end no process, thread, descriptor or shared memory is left.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from nbtriton.backends.python import install_pb_utils
from nbtriton.common.errors import TritonError
from nbtriton.runtime.engine import InferenceFuture, Server
from nbtriton.runtime.workers import supervisor
from nbtriton.runtime.workers.launching import end_idle_servers
from nbtriton.runtime.workers.supervisor import RestartPolicy
from tests.engine.support import WAIT_S, ensemble_text
from tests.until import until
from tests.workers.support import children, descriptors, is_alive, workers

__all__ = ["Left", "run_faults"]

MODEL = Path(__file__).parent / "models" / "walked" / "1" / "model.py"
CONFIG = """
name: "{name}" backend: "python" max_batch_size: 8 {more}
input {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }}
instance_group {{ kind: KIND_CPU count: {count} }}
parameters {{ key: "INSTANCE_ISOLATION" value {{ string_value: "{isolation}" }} }}
parameters {{ key: "calls" value {{ string_value: "{calls}" }} }}
"""
# Model, what it adds, and whether its processes are killed or one that it needs.
MODELS = {"batched": 1, "calling": 2, "whole": 2, "steady": 1, "thread": 1}
SAFE = ("steady", "thread")
ENDS = ("leave", "fault", "killed")
SENDERS = 3
IN_FLIGHT = 16
_UNHEALTHY = "is not healthy"


def _load(server: Server) -> None:
    def add(name: str, isolation: str, count: int = 1, more: str = "", calls: str = "") -> None:
        text = CONFIG.format(name=name, isolation=isolation, count=count, more=more, calls=calls)
        server.load(text, model=MODEL)

    add("batched", "process", 2, "dynamic_batching {}")
    add("calling", "process", 2, calls="batched")
    add("streamed", "process", 1, "model_transaction_policy { decoupled: true }")
    add("steady", "process")
    add("thread", "thread")
    add("sequential", "process", 2, "sequence_batching { oldest { max_candidate_sequences: 4 } }")
    server.load(
        ensemble_text(
            ("batched", {"IN": "IN"}, {"OUT": "m"}),
            ("batched", {"IN": "m"}, {"OUT": "OUT"}),
            inputs={"IN": "FP32[-1]"},
            outputs={"OUT": "FP32[-1]"},
        ),
        name="whole",
    )


class Sender(threading.Thread):
    """Sends requests of every kind; `wrong` has what no fault explains."""

    def __init__(self, server: Server, seed: int, stop: threading.Event) -> None:
        super().__init__(name=f"sender-{seed}")
        self._server = server
        self._chance = random.Random(seed)
        self._stop_sending = stop
        self._pending: list[tuple[str, np.ndarray, InferenceFuture]] = []
        self._answers = 0
        self._sent = 0
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.wrong: list[Any] = []

    def run(self) -> None:
        try:
            while not self._stop_sending.is_set():
                self._chance.choice((self._submit, self._submit, self._stream, self._sequence))()
            while self._pending:
                self._settle()
            # A future has its answer before its callbacks have been called.
            if not until(lambda: self._answers >= self._sent):
                self.wrong.append("a callback was not called")
            if self._answers != self._sent:
                self.wrong.append(f"{self._answers} answers to {self._sent} requests")
        except BaseException as error:
            self.wrong.append(error)

    def _submit(self) -> None:
        model = self._chance.choice([*MODELS])
        size = 20_000 if self._chance.random() < 0.05 else 16
        value = np.full((1, size), self._chance.randrange(1000), np.float32)
        parameters = {}
        if model not in SAFE and self._chance.random() < 0.02:
            parameters["how"] = self._chance.choice(ENDS)
        future = self._server.submit(model, {"IN": value}, parameters=parameters)
        self._sent += 1
        future.add_done_callback(self._answered)
        self._pending.append((model, value, future))
        if len(self._pending) >= IN_FLIGHT:
            self._settle()

    def _answered(self, _: object) -> None:
        with self._lock:
            self._answers += 1

    def _settle(self) -> None:
        model, value, future = self._pending.pop(0)
        error = future.exception(WAIT_S)
        if error is not None:
            self._failed(model, error)
        elif not np.array_equal(future.result()["OUT"], value + MODELS[model]):
            self.wrong.append((model, value, future.result()["OUT"]))
        else:
            self.counts["right"] += 1

    def _stream(self) -> None:
        """A decoupled model answers five times, from a thread of its own."""
        parameters = {"how": "leave"} if self._chance.random() < 0.05 else {}
        found = []
        try:
            for answer in self._server.stream(
                "streamed", {"IN": np.zeros((1, 1), np.float32)}, parameters=parameters
            ):
                found.append(float(answer["OUT"][0, 0]))
        except TritonError as error:
            self._failed("streamed", error)
            complete = True  # the final flag was still to come
        else:
            self.counts["right"] += 1
            complete = len(found) == 5
        if not complete or found != [*range(len(found))]:
            self.wrong.append(("streamed", found))

    def _sequence(self) -> None:
        """The model adds up what it gets of a sequence: a restart must not go unnoticed."""
        name = self._chance.randrange(1, 1 << 60)
        total = 0.0
        try:
            for at in range(4):
                value = float(self._chance.randrange(100))
                total += value
                answer = self._server.infer(
                    "sequential",
                    {"IN": np.full((1, 1), value, np.float32)},
                    sequence_id=name,
                    sequence_start=at == 0,
                    sequence_end=at == 3,
                    parameters={"how": "leave"} if self._chance.random() < 0.02 else {},
                )
                if answer["OUT"][0, 0] != total:
                    self.wrong.append(("sequential", at, total, answer["OUT"]))
                self.counts["right"] += 1
        except TritonError as error:
            self._failed("sequential", error)

    def _failed(self, model: str, error: BaseException) -> None:
        expected = _UNHEALTHY in str(error) or (
            model == "sequential" and "must specify the START flag" in str(error)
        )
        if not expected or model in SAFE:
            self.wrong.append((model, error, getattr(error, "hint", "")))
        self.counts["failed"] += 1


class Left:
    """What a process has open; two of them are compared."""

    def __init__(self) -> None:
        gc.collect()
        self.threads = {thread.name for thread in threading.enumerate()}
        self.descriptors = descriptors()
        self.processes = len(children(os.getpid()))
        self.mapped = Path("/proc/self/maps").read_text().count("memfd:nbtriton")

    def __repr__(self) -> str:
        return f"{vars(self)}"


def run_faults(
    faults: int, seed: int = 0, report: Callable[[str], object] | None = None
) -> Counter[str]:
    """Count faults, right answers and failures.

    Raises
    ------
    AssertionError
        A wrong answer, a request without one, one that was answered twice, or something left behind.
    """
    install_pb_utils()
    chance = random.Random(seed)
    end_idle_servers(WAIT_S)
    before = Left()
    others = {*workers()}
    patience, supervisor.DEFAULT = supervisor.DEFAULT, RestartPolicy(limit=1 << 60, first_ns=0)
    stop = threading.Event()
    counts: Counter[str] = Counter()
    try:
        with Server(gpus=()) as server:
            _load(server)
            safe = _processes(server, "steady")
            senders = [Sender(server, seed * SENDERS + n, stop) for n in range(SENDERS)]
            for sender in senders:
                sender.start()
            began = monotonic()
            try:
                while counts["kills"] < faults and not any(one.wrong for one in senders):
                    stop.wait(chance.expovariate(60))
                    targets = [
                        one for one in workers() if is_alive(one) and one not in safe | others
                    ]
                    if targets:
                        _kill(chance.choice(targets), counts)
                        if report is not None and counts["kills"] % 500 == 0:
                            done = sum((one.counts for one in senders), Counter())
                            report(
                                f"{counts['kills']} kills in {monotonic() - began:.0f} s: {done}"
                            )
            finally:
                stop.set()
                for sender in senders:
                    sender.join(3 * WAIT_S)
            wrong = [one for sender in senders for one in sender.wrong]
            assert not wrong, wrong[:5]
            assert not any(sender.is_alive() for sender in senders)
            counts += sum((sender.counts for sender in senders), Counter())
            counts["restarts"] = sum(
                one.restart.restarts for model in server.models() for one in model.instances
            )
            assert _processes(server, "steady") == safe, (
                "a process that nobody killed was restarted"
            )
            server.close(timeout_s=WAIT_S)
    finally:
        supervisor.DEFAULT = patience
    end_idle_servers(WAIT_S)
    after = Left()
    assert after.processes == before.processes, (before, after)
    assert after.descriptors <= before.descriptors, (before, after)
    assert after.threads <= before.threads | {"nbtriton-abandoned-requests"}, (before, after)
    assert after.mapped == before.mapped, (before, after)
    return counts


def _processes(server: Server, model: str) -> set[int]:
    answer = server.infer(model, {"IN": np.zeros((1, 1), np.float32)}, parameters={"how": "pid"})
    return {int(answer["OUT"][0, 0])}


def _kill(pid: int, counts: Counter[str]) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        counts["kills"] += 1
    except ProcessLookupError:  # it was faster
        counts["late"] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # Each restart is a line of the log otherwise.
    logging.getLogger("nbtriton").setLevel(logging.ERROR)
    print(dict(run_faults(options.faults, options.seed, print)))


if __name__ == "__main__":
    main()
