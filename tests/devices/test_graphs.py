"""Graphs of a simulated GPU: what is captured is what is computed, in one launch."""

import gc

import numpy as np
import pytest

from nbtriton.backends.devices import CaptureError, CopyLedger, SimulatedGPUs
from nbtriton.backends.devices.simulated import SimulatedDevice
from nbtriton.backends.devices.simulated.timeline import UnorderedError
from tests.devices.virtual import VirtualClock

ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def device():
    return SimulatedDevice(0, SimulatedGPUs(memory_mib=1), CopyLedger(), VirtualClock())


@pytest.fixture
def stream(device):
    stream = device.stream("m")
    with stream:
        yield stream


def compute(x):
    """Every way in which an operation has a result: new, in place, a view, a number, several."""
    y = x * 2 + 1
    y += x
    y[0] = x[1]
    rows = y.reshape(-1)[::2]
    values, vectors = np.linalg.eigh(x.T @ x)
    return {
        "sum": y.sum(),
        "rows": rows + 1,
        "split": np.split(y, 2, axis=1)[1] * 3,
        "where": np.where(y > 3, y, 0),
        "eigen": (vectors * values) @ vectors.T,
        "input": x,
        "view": y.T,
    }


@pytest.mark.usefixtures("stream")
def test_a_replay_computes_what_the_call_computes(device):
    static = device.put(ROWS, "test")
    graph, made = device.capture(lambda: compute(static))
    for seed in range(3):
        rows = np.random.default_rng(seed).normal(size=(3, 4)).astype(np.float32)
        device.write(static, rows, "test")
        graph.replay()
        expected = compute(device.put(rows, "test"))
        for name, array in made.items():
            np.testing.assert_array_equal(array.get(), expected[name].get(), err_msg=name)
    device.write(static, device.put(ROWS, "test") * 2, "test")  # from the device, too
    graph.replay()
    np.testing.assert_array_equal(made["input"].get(), ROWS * 2)
    assert device.faults == []


def test_a_replay_is_one_launch(device, stream):
    def work(x):
        for _ in range(10):
            x = x + 1
        return x

    static = device.put(ROWS, "test")
    stream.synchronize()
    began = device.timeline.clock.now
    work(static)
    stream.synchronize()
    middle = device.timeline.clock.now
    graph, _ = device.capture(lambda: work(static))
    stream.synchronize()
    assert device.timeline.clock.now == middle  # nothing is done while it is captured
    graph.replay()
    stream.synchronize()
    launch_ns = device.settings.launch_ns
    assert middle - began == 10 * launch_ns
    assert device.timeline.clock.now - middle == launch_ns
    (one,) = device.ledger.computations()
    assert (one.owner, one.count, one.time_ns) == ("m", 20, 11 * launch_ns)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.get(),
        lambda x: x / float(x.max()),
        lambda x: x * 2 if np.any(x > 3) else x,
        lambda x: x[x > 3],
        np.unique,
        lambda x: np.where(x > 3),
        lambda x: np.array_equal(x, x),
        lambda x: x + np.asarray(ROWS, like=x),
        lambda x: x.device.current().synchronize(),
        lambda x: x.device.capture(lambda: x + 1),
    ],
)
def test_what_the_host_takes_part_in_is_not_captured(device, stream, work):
    static = device.put(ROWS, "test")
    with pytest.raises(CaptureError, match="operation not permitted when stream is capturing"):
        device.capture(lambda: work(static))
    np.testing.assert_array_equal((static + 1).get(), ROWS + 1)  # the stream is as before
    assert stream.recording is None


@pytest.mark.usefixtures("stream")
def test_an_error_that_the_code_has_caught_ends_the_capture_as_well(device):
    static = device.put(ROWS, "test")

    def careful():
        try:
            return static * static.max().item()
        except CaptureError:
            return static * 2

    with pytest.raises(CaptureError, match="a copy to the host"):
        device.capture(careful)


@pytest.mark.usefixtures("stream")
def test_memory_is_the_graphs_until_it_is_closed(device):
    static = device.put(ROWS, "test")
    before = device.memory().used_bytes
    graph, made = device.capture(lambda: ((static + 1) * 2, "a word"))
    gc.collect()
    assert device.memory().used_bytes == before + 2 * ROWS.nbytes
    del made
    gc.collect()
    assert device.memory().used_bytes == before + 2 * ROWS.nbytes
    graph.close()
    graph.close()
    del graph
    gc.collect()
    assert device.memory().used_bytes == before


@pytest.mark.usefixtures("stream")
def test_memory_that_does_not_suffice_leaves_nothing(device):
    static = device.put(np.zeros(2**16, np.float32), "test")  # a quarter of it
    with pytest.raises(Exception, match="CUDA out of memory"):
        device.capture(lambda: [static + n for n in range(4)])
    gc.collect()
    assert device.memory().used_bytes == static.nbytes
    graph, _ = device.capture(lambda: static + 1)
    graph.replay()


def test_a_replay_is_ordered_like_any_other_work(device, stream):
    static = device.put(ROWS, "test")
    graph, made = device.capture(lambda: static + 1)
    other = device.stream("other")
    with other, pytest.raises(UnorderedError, match="'other' reads"):
        graph.replay()
    device.faults.clear()
    graph.replay()
    with other:
        other.wait(stream.record())
        np.testing.assert_array_equal((made * 2).get(), (ROWS + 1) * 2)
    assert device.faults == []
