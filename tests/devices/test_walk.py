"""A short random walk; `tests.devices.walk` is the command for long ones."""

# ruff: noqa: F821, N803 - annotations of tensors, by their names
import numpy as np
import pytest

import nbtriton as nt
from tests.devices.virtual import stop_time
from tests.devices.walk import Walk
from tests.until import until


@pytest.mark.medium
def test_random_ensembles_failures_and_cancellations_keep_the_books():
    walk = Walk(7)
    try:
        for _ in range(15):
            walk.round()
        assert walk.answered > 10
        assert walk.failed > 0
        # An answer may be faster than its cancellation.
        assert until(lambda: walk.cancelled > 0 or walk.round())
    finally:
        walk.close()


def test_a_model_that_waits_between_two_steps_is_named():
    def first(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        return {"OUT": IN * 2}

    def second(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        return {"OUT": IN / float(IN.max())}  # to the host and back, in the middle

    tensor = '{ name: "%s" data_type: TYPE_FP32 dims: [ 4 ] }'
    step = '{ model_name: "%s" model_version: -1 input_map { key: "IN" value: "%s" } output_map { key: "OUT" value: "%s" } }'
    with nt.Server(gpus="simulated:1,launch_us=500") as server:
        stop_time(server)
        for name, model in {"first": first, "second": second}.items():
            config = "max_batch_size: 4 instance_group [ { kind: KIND_GPU } ]"
            server.load(config, model, name=name)
        server.load(
            f'name: "pair" platform: "ensemble" max_batch_size: 4 input [ {tensor % "X"} ] '
            f"output [ {tensor % 'Z'} ] ensemble_scheduling {{ step [ "
            f"{step % ('first', 'X', 'Y')}, {step % ('second', 'Y', 'Z')} ] }}"
        )
        rows = np.arange(1, 5, dtype=np.float32)[None]
        np.testing.assert_array_equal(server.infer("pair", {"X": rows})["Z"], rows / 4)
        waits = server.devices.ledger.waits()
        assert waits["second", "simulated GPU 0"] == 2  # in its code, and at the end
        assert ("first", "simulated GPU 0") not in waits
        frame = nt.copies(server)
        assert len(frame[(frame["writer"] == "host") & (frame["reader"] == "first.IN")]) == 1
        assert server.devices[0].faults == []
