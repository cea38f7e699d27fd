"""Requests to models that compute: ``python computing.py COUNT MARKS SCENARIO...``.

With MARKS, a library made by `bench.computing`, callgrind counts COUNT requests of each scenario. Without (``-``)
each is timed. Prints by scenario how many requests ran and the median microseconds of one; of many in flight, of
its share. Runs with builds of other commits, too: it uses little of nbtriton.
"""

import asyncio  # noqa: F401  as in a notebook's kernel: models are then called as without its running loop
import ctypes
import gc
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

if sys.argv[2] != "-":
    # Under callgrind a second holds few requests: what happens five times a second would count for each.
    time.monotonic_ns = itertools.count(time.monotonic_ns(), 1000).__next__

import nbtriton
from bench.models import chain, load, python_model

ELEMENTS = "16"
CALL = """
            answer = pb_utils.InferenceRequest(
                model_name="compute",
                requested_output_names=["OUT"],
                inputs=[pb_utils.Tensor("IN", x)],
            ).exec()
            out = pb_utils.get_output_tensor_by_name(answer, "OUT").as_numpy()
""".strip()
COMPUTE = python_model("compute", "out = x * 2", dims=ELEMENTS, out_dims=ELEMENTS)
MODELS = (
    COMPUTE,
    python_model("calls", CALL, dims=ELEMENTS, out_dims=ELEMENTS),
    *(chain(f"steps_{steps}", COMPUTE, steps) for steps in (2, 8)),
)
IN_FLIGHT = 32
X = {"IN": np.ones((1, int(ELEMENTS)), np.float32)}
# The model, and how many requests are in flight.
SCENARIOS = {
    "one": ("compute", 1),
    "two_steps": ("steps_2", 1),
    "eight_steps": ("steps_8", 1),
    "call": ("calls", 1),
    "many": ("compute", IN_FLIGHT),
    "two_steps_many": ("steps_2", IN_FLIGHT),
}


def run(server: nbtriton.Server, scenario: str, count: int) -> list[int]:
    """Send requests; return the nanoseconds of each round."""
    model, in_flight = SCENARIOS[scenario]
    took = []
    for _ in range(count // in_flight):
        begin = time.perf_counter_ns()
        if in_flight == 1:
            server.infer(model, X)
        else:
            for future in [server.submit(model, X) for _ in range(in_flight)]:
                future.result()
        took.append(time.perf_counter_ns() - begin)
    return took


def main() -> None:
    count, marks, scenarios = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    library = None if marks == "-" else ctypes.CDLL(marks)
    found = {}
    with tempfile.TemporaryDirectory() as folder, nbtriton.Server(gpus=()) as server:
        load(server, MODELS, Path(folder))
        # Collections would fall into one side and not into the other.
        gc.collect()
        gc.freeze()
        gc.disable()
        for scenario in scenarios:
            run(server, scenario, max(count, 2 * IN_FLIGHT))
            if library is not None:
                library.begin()
            took_ns = run(server, scenario, count)
            if library is not None:
                library.end(scenario.encode())
            in_flight = SCENARIOS[scenario][1]
            median_us = float(np.median(took_ns)) / in_flight / 1000
            found[scenario] = len(took_ns) * in_flight, median_us
    print(json.dumps(found))


if __name__ == "__main__":
    main()
