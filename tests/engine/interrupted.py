"""Run by test_interrupts.py in a process of its own: Ctrl-C at random moments, then a summary.

A timer fires after random, seeded intervals and raises SIGINT wherever the main thread then is:
in the scheduler, in a model, waiting, or on its way in or out. One interrupt at a time: the next is
armed when this one came up as KeyboardInterrupt, as a person would wait for the prompt.
"""

# ruff: noqa: N803 - a model function names its tensors
from __future__ import annotations

import json
import random
import signal
import sys
import threading

import numpy as np

from nbtriton.common.errors import CancelledError, InternalError
from nbtriton.runtime.engine import Server

X = np.ones((1, 4), np.float32)
ECHO = """
backend: "python" max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""
ENSEMBLE = """
platform: "ensemble" max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: 4 }
output [ { name: "L" data_type: TYPE_FP32 dims: 4 }, { name: "R" data_type: TYPE_FP32 dims: 4 } ]
ensemble_scheduling {
  step { model_name: "plain" model_version: -1
         input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "m" } }
  step { model_name: "busy" model_version: -1
         input_map { key: "IN" value: "m" } output_map { key: "OUT" value: "L" } }
  step { model_name: "busy" model_version: -1
         input_map { key: "IN" value: "m" } output_map { key: "OUT" value: "R" } }
}
"""


def main(seed: int, interrupts: int) -> None:
    chance = random.Random(seed)
    server = Server(gpus=())
    loops = [0]

    def busy(IN):
        for _ in range(chance_of_work):  # user code that an interrupt may hit
            loops[0] += 1
        return {"OUT": IN + 1}

    chance_of_work = 200
    server.load(ECHO, lambda IN: {"OUT": IN + 1}, name="plain")
    server.load(ECHO, busy, name="busy")
    server.load(
        ECHO + "dynamic_batching { max_queue_delay_microseconds: 300 }",
        lambda IN: {"OUT": IN + 1},
        name="delayed",
    )
    server.load(ECHO, lambda IN: server.infer("busy", {"IN": IN}), name="nested")
    server.load(ENSEMBLE, name="ensemble")

    def by_submit() -> None:
        server.submit("plain", {"IN": X}).result()

    def by_stream() -> None:
        for _ in server.stream("busy", {"IN": X}):
            pass

    ways = [
        lambda: server.infer("plain", {"IN": X}),
        lambda: server.infer("busy", {"IN": X}),
        lambda: server.infer("delayed", {"IN": X}),
        lambda: server.infer("nested", {"IN": X}),
        lambda: server.infer("ensemble", {"X": X}),
        by_submit,
        by_stream,
    ]

    # Other threads use the same models meanwhile, without interrupts.
    stop = threading.Event()
    answered = [0, 0]
    surprises: list[str] = []

    def bystander(index: int) -> None:
        while not stop.is_set():
            for name in ("plain", "busy", "delayed"):
                try:
                    if server.submit(name, {"IN": X}).result(60)["OUT"][0, 0] != 2:
                        surprises.append("a wrong answer")
                except Exception as error:
                    surprises.append(repr(error))
                answered[index] += 1

    armed = [False]
    sent = [0]

    def ring(number: int, frame: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00002, 0.003))
        if armed[0]:
            armed[0] = False
            sent[0] += 1
            signal.raise_signal(signal.SIGINT)

    bystanders = [threading.Thread(target=bystander, args=(n,), daemon=True) for n in range(2)]
    for thread in bystanders:
        thread.start()
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    raised = completed = 0
    while raised < interrupts:
        try:
            armed[0] = True
            while True:
                chance.choice(ways)()
                completed += 1
        except KeyboardInterrupt:
            armed[0] = False
            raised += 1
        except (CancelledError, InternalError) as error:
            surprises.append(repr(error))
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)
    stop.set()
    for thread in bystanders:
        thread.join(60)

    # The server still serves, and no request is stuck in it.
    for way in ways:
        way()
    counts = {
        entry["name"]: (
            entry["inference_stats"]["success"]["count"],
            entry["inference_stats"]["fail"]["count"],
            entry["execution_count"],
        )
        for entry in server.statistics()["model_stats"]
    }
    # The ensemble first: a version leaves only when all requests that it accepted are answered.
    left = [
        name
        for name in ("ensemble", "nested", "delayed", "busy", "plain")
        if not server.unload(name, timeout_s=60)
    ]
    server.close()
    print(
        json.dumps(
            {
                "sent": sent[0],
                "raised": raised,
                "completed": completed,
                "answered": sum(answered),
                "surprises": surprises[:3],
                "alive": sum(thread.is_alive() for thread in bystanders),
                "counts": counts,
                "left": left,
                "threads": [t.name for t in threading.enumerate() if t.name.startswith("nbtriton")],
                "handler": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
