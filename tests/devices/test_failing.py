"""Devices that fail: every request is answered, whichever wait it is that learns of it."""

# ruff: noqa: F821, N803 - annotations of tensors, by their names
import itertools
import logging

import pytest

import nbtriton as nt
from nbtriton.common.errors import TritonError
from tests.devices.test_serving import CPU, GPU, ROWS, chain, double
from tests.devices.virtual import VirtualClock, stop_time

TENSOR = 'name: "%s" data_type: TYPE_FP32 dims: [ 4 ]'
STATEFUL = f"""{GPU % 0} input {{ {TENSOR % "IN"} }} output {{ {TENSOR % "OUT"} }} sequence_batching {{ state [ {{
    input_name: "STATE" output_name: "NEXT" data_type: TYPE_FP32 dims: [ 4 ]
    initial_state {{ name: "zeros" data_type: TYPE_FP32 dims: [ 4 ] zero_data: true }} }} ] }}"""


class Failing(VirtualClock):
    """Some wait for the device learns that it has failed, as an asynchronous error of CUDA's shows."""

    def fail_at(self, wait):
        """Let the wait of this number from now on fail; none with 0."""
        self.wait, self.waits, self.failed = wait, itertools.count(1), False

    def sleep_until(self, when_ns):
        if next(self.waits) == self.wait:
            self.failed = True
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
        clock = Failing()
        clock.fail_at(0)
        stop_time(found, clock)
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
    clock = server.devices[0].timeline.clock
    failed = 0
    for wait in range(1, 30):
        clock.fail_at(wait)
        try:
            ask(server, model, ROWS[:1] + wait)
        except TritonError as error:
            failed += "an illegal memory access" in error.message
        if not clock.failed:  # there were fewer waits
            break
    clock.fail_at(0)
    assert failed > 0
    assert wait < 29
    (first, *_) = ask(server, model, ROWS[:1])
    assert len(first) == 1
