"""Devices that fail: every request is answered, whichever wait it is that learns of it."""

# ruff: noqa: F821, N803 - annotations of tensors, by their names
import logging

import pytest

import nbtriton as nt
from nbtriton.common.errors import TritonError
from nbtriton.extensions.simulated_gpus.streams import Clock
from tests.devices.test_serving import CPU, GPU, ROWS, chain, double

TENSOR = 'name: "%s" data_type: TYPE_FP32 dims: [ 4 ]'
STATEFUL = f"""{GPU % 0} input {{ {TENSOR % "IN"} }} output {{ {TENSOR % "OUT"} }} sequence_batching {{ state [ {{
    input_name: "STATE" output_name: "NEXT" data_type: TYPE_FP32 dims: [ 4 ]
    initial_state {{ name: "zeros" data_type: TYPE_FP32 dims: [ 4 ] zero_data: true }} }} ] }}"""


class Failing(Clock):
    """Some wait for the device learns that it has failed, as an asynchronous error of CUDA's shows."""

    def __init__(self, wait):
        self.left = wait

    def sleep_until(self, when_ns):
        self.left -= 1
        if not self.left:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        super().sleep_until(when_ns)


def total(IN: "FP32[4]", STATE: "FP32[4]") -> {"OUT": "FP32[4]", "NEXT": "FP32[4]"}:
    return {"OUT": IN + STATE, "NEXT": IN + STATE}


def twice(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    for times in (1, 2):
        yield {"OUT": IN * times}


@pytest.fixture(scope="module")
def server():
    with nt.Server(gpus="simulated:2,launch_us=200", cache_bytes=1 << 20) as found:
        for name, config in {"a": GPU % 0, "b": GPU % 0, "c": CPU, "d": GPU % 1}.items():
            found.load(config, double, name=name)
        found.load(GPU % 0 + " response_cache { enable: true }", double, name="cached")
        found.load(STATEFUL, total, name="stateful")
        found.load(GPU % 0 + " model_transaction_policy { decoupled: true }", twice, name="twice")
        for name, models in {"gpu": "ab", "bounce": "acb", "peers": "ad"}.items():
            found.load(chain(name, models))
        found.load(chain("many", ["twice", "a"]))
        yield found


def ask(server, model, rows):
    """Send a request, and wait for its answer; not for the copy of that to the host."""
    inputs = {("IN" if model in ("a", "cached", "stateful") else "T0"): rows}
    if model == "many":
        return list(server.stream(model, inputs))
    sequence = {"sequence_id": 7, "sequence_start": True} if model == "stateful" else {}
    return [server.submit(model, inputs, **sequence).result(60)]


@pytest.mark.parametrize("model", ["a", "gpu", "bounce", "peers", "cached", "stateful", "many"])
def test_each_wait_may_fail(server, model, caplog):
    caplog.set_level(logging.CRITICAL, logger="nbtriton.runtime.engine")
    devices = list(server.devices.values())
    failed = 0
    for wait in range(1, 30):
        clock = Failing(wait)
        for device in devices:
            device.timeline.clock = clock
        try:
            ask(server, model, ROWS[:1] + wait)
        except TritonError as error:
            failed += "an illegal memory access" in error.message
        finally:
            for device in devices:
                device.timeline.clock = Clock()
        if clock.left > 0:  # there were fewer waits
            break
    assert failed > 0
    assert wait < 29
    (first, *_) = ask(server, model, ROWS[:1])
    assert len(first) == 1
