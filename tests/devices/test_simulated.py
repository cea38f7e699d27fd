"""The simulated GPU alone: arrays, order, memory, time."""

import gc
import time

import numpy as np
import pytest

from nbtriton.backends.core.place import Place, copies_of
from nbtriton.backends.devices.base import OutOfMemoryError
from nbtriton.backends.devices.ledger import CopyLedger
from nbtriton.backends.devices.settings import SimulatedGPUs
from nbtriton.extensions.simulated_gpus import SimulatedDevice
from nbtriton.extensions.simulated_gpus.streams import SimulatedEvent, UnorderedError
from tests.devices.virtual import VirtualClock

ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def device():
    return SimulatedDevice(0, SimulatedGPUs(memory_mib=1), CopyLedger())


def put(device, array, reader="test"):
    return device.put(array, reader)


class TestArrays:
    def test_numpy_functions_and_operators_run_on_the_device(self, device):
        x = put(device, ROWS)
        for found, expected in (
            (x * 2 + 1, ROWS * 2 + 1),
            (np.exp(x), np.exp(ROWS)),
            (x @ x.T, ROWS @ ROWS.T),
            (np.concatenate([x, x]), np.concatenate([ROWS, ROWS])),
            (np.where(x > 3, x, 0), np.where(ROWS > 3, ROWS, 0)),
            (x.sum(axis=1, keepdims=True), ROWS.sum(axis=1, keepdims=True)),
            (x[1:, ::2], ROWS[1:, ::2]),
            (x[x > 3], ROWS[ROWS > 3]),
            (x.reshape(2, -1), ROWS.reshape(2, -1)),
            (x.T.reshape(-1), ROWS.T.reshape(-1)),
            (x.astype(np.int64), ROWS.astype(np.int64)),
            (np.stack([x, x], axis=1), np.stack([ROWS, ROWS], axis=1)),
            (1 - x, 1 - ROWS),
        ):
            assert type(found).__name__ == "SimulatedArray"
            np.testing.assert_array_equal(found.get(), expected)
            assert found.dtype == expected.dtype
        operations = {one.operation for one in device.ledger.computations()}
        assert operations == {"elementwise", "reduction", "matmul"}
        assert device.faults == []

    def test_writing_in_place(self, device):
        x = put(device, ROWS)
        x += 1
        x[0] = 7
        np.add(x, 1, out=x)
        expected = ROWS + 1
        expected[0] = 7
        np.testing.assert_array_equal(x.get(), expected + 1)

    def test_nothing_brings_an_array_to_the_host_but_get(self, device):
        x = put(device, ROWS)
        with pytest.raises(TypeError, match=r"use `\.get\(\)`"):
            np.asarray(x)
        with pytest.raises(TypeError, match=r"Unsupported type <class 'numpy.ndarray'>"):
            x + ROWS
        with pytest.raises(BufferError, match=r"use \.get\(\)"):
            np.from_dlpack(x)
        assert [type(fault) for fault in device.faults] == [TypeError, BufferError]
        assert float(x.max()) == 11.0

    def test_like_puts_an_array_beside_another(self, device):
        x = put(device, ROWS)
        weights = np.asarray(ROWS.T, like=x)
        np.testing.assert_array_equal((x @ weights).get(), ROWS @ ROWS.T)
        assert {one.source for one in device.ledger.copies() if one.target == "GPU 0"} == {"CPU"}


class TestOrder:
    def test_a_read_before_its_event_is_an_error_on_every_run(self, device):
        first, second = device.stream("first"), device.stream("second")
        with first:
            x = put(device, ROWS) * 2
        with second, pytest.raises(UnorderedError, match=r"'second' reads memory .* of 'first'"):
            x + 1
        second.wait(first.record())
        with second:
            np.testing.assert_array_equal((x + 1).get(), ROWS * 2 + 1)
        assert len(device.faults) == 1

    def test_a_write_waits_for_the_readers(self, device):
        first, second = device.stream("first"), device.stream("second")
        with first:
            x = put(device, ROWS)
        second.wait(first.record())
        with second:
            x + 1
        with first, pytest.raises(UnorderedError, match="'first' writes to memory"):
            x += 1

    def test_order_is_passed_on(self, device):
        streams = [device.stream(str(n)) for n in range(3)]
        with streams[0]:
            x = put(device, ROWS)
        streams[1].wait(streams[0].record())
        streams[2].wait(streams[1].record())
        with streams[2]:
            x + 1
        assert device.faults == []

    def test_the_default_stream_waits_for_no_other_one(self, device):
        with device.stream("first"):
            x = put(device, ROWS)
        with pytest.raises(UnorderedError, match="'the default stream' reads memory"):
            x + 1

    def test_a_callers_array_is_written_before_a_model_gets_it_on_the_host(self, device):
        place = Place(device, "model", frozenset({"X"}))
        x = put(device, ROWS)
        with place.stream:
            np.testing.assert_array_equal(place.join([x], "X")[0], ROWS)
        assert device.faults == []

    def test_a_copy_is_ordered_behind_the_writer_of_its_source(self, device):
        with device.stream("first"):
            x = put(device, ROWS)
            device.hand_over([x], ["first.OUT"])
        np.testing.assert_array_equal(copies_of({"x": x})["x"].get(), ROWS)
        assert device.faults == []

    def test_what_the_host_waited_for_is_ordered(self, device):
        first, second = device.stream("first"), device.stream("second")
        with first:
            x = put(device, ROWS)
        first.synchronize()
        with second:
            x + 1
        assert device.ledger.waits() == {("first", "simulated GPU 0"): 1}

    def test_take_waits_for_a_hand_over_and_for_nothing_else(self, device):
        first, second = device.stream("first"), device.stream("second")
        with first:
            x = put(device, ROWS)
            device.hand_over([x], ["first.OUT"])
            x += 1  # behind its event
        with second, pytest.raises(UnorderedError, match=r"reads first\.OUT"):
            device.to_device(x, "second.IN") + 1


class TestMemory:
    @pytest.mark.medium
    def test_a_stream_of_responses_leaves_nothing_behind(self, device):
        class Asked:
            orders_events = False

        def events():
            gc.collect()
            return sum(type(one) is SimulatedEvent for one in gc.get_objects())

        place = Place(device, "model")
        before = events()
        with place.stream:
            for _ in range(50):
                place.leave([("OUT", put(device, ROWS))], [Asked()])
        assert events() - before < 10
        place.close()
        assert device.memory().used_bytes == 0

    @pytest.mark.medium
    def test_arrays_give_their_memory_back(self, device):
        x = put(device, ROWS)
        view = x[1:]
        assert device.memory().used_bytes == ROWS.nbytes
        del x
        gc.collect()
        assert device.memory().used_bytes == ROWS.nbytes
        del view
        gc.collect()
        assert device.memory().used_bytes == 0

    @pytest.mark.medium
    def test_what_does_not_fit_is_refused_and_harms_nothing(self, device):
        half = put(device, np.zeros(2**19, np.uint8))
        with pytest.raises(OutOfMemoryError) as error:
            np.concatenate([half, half, half])
        assert error.value.message == (
            "CUDA out of memory. Tried to allocate 1.50 MiB on simulated GPU 0, which has a total "
            "capacity of 1.00 MiB of which 512.00 KiB is free."
        )
        assert "the default stream 512.00 KiB" in error.value.hint
        gc.collect()
        assert device.memory().used_bytes == 2**19

    def test_weights_are_accounted_once_for_all_instances(self, device):
        version = object()
        shares = [device.reserve("bert", 1000, version) for _ in range(2)]
        assert device.memory().by_owner == {"bert": 1000}
        shares[0].release()
        shares[0].release()
        assert device.memory().used_bytes == 1000
        shares[1].release()
        assert device.memory().used_bytes == 0


COPY_NS, COMPUTE_NS = 3_000_000, 10_000_000


@pytest.fixture
def timed():
    """A device in virtual time: copies of 3 ms, operations of 10."""
    settings = SimulatedGPUs(
        copy_latency_us=COPY_NS / 1000, copy_gb_per_s=1e9, launch_us=COMPUTE_NS / 1000
    )
    return SimulatedDevice(0, settings, CopyLedger(), VirtualClock())


def compute(device):
    with device.computing("module", "model"):
        pass


class TestTime:
    def test_units_work_side_by_side_and_each_does_one_thing_at_a_time(self, timed):
        first, second = timed.stream("first"), timed.stream("second")
        with first:
            put(timed, ROWS)
        with second:
            put(timed, ROWS)
            compute(timed)
        assert second.ready_ns == 2 * COPY_NS + COMPUTE_NS  # behind the other copy
        with first:
            put(timed, ROWS)
            compute(timed)
        assert first.ready_ns == second.ready_ns + COMPUTE_NS  # the copy was there meanwhile

    def test_work_that_waits_keeps_nobody_from_the_device(self, timed):
        first, second = timed.stream("first"), timed.stream("second")
        with first:
            for _ in range(5):
                put(timed, ROWS)
            compute(timed)
        with second:
            compute(timed)
        assert second.ready_ns == COMPUTE_NS
        assert first.ready_ns == 5 * COPY_NS + COMPUTE_NS

    def test_what_the_processor_computes_side_by_side_the_device_does_one_after_the_other(
        self, timed
    ):
        first, second = timed.stream("first"), timed.stream("second")
        with first, timed.computing("module", "model"):  # noqa: SIM117 - one in the other
            with second, timed.computing("module", "model"):
                timed.timeline.clock.now += COMPUTE_NS
        assert second.ready_ns == 2 * COMPUTE_NS  # computed as long as here, and launched
        assert first.ready_ns == 4 * COMPUTE_NS

    def test_a_copy_to_the_host_waits_for_who_wrote_it_and_for_nobody_else(self, timed):
        with timed.stream("first"):
            x = put(timed, ROWS)
            timed.hand_over([x], ["first.OUT"])
        with timed.stream("second"):
            compute(timed)
            compute(timed)
        x.get()
        assert timed.timeline.clock.now == 2 * COPY_NS

    def test_the_next_batch_is_copied_while_one_is_computed(self, timed):
        place = Place(timed, "model")
        for _ in range(2):
            place.begin()
            with place.stream:
                rows, _ = place.join([ROWS], "X")
                with place.computing([rows]):
                    pass
        assert place.stream.ready_ns == COPY_NS + 2 * COMPUTE_NS
        assert timed.faults == []

    def test_the_device_begins_with_the_processor_and_not_after_it(self):
        device = SimulatedDevice(0, SimulatedGPUs(launch_us=0), CopyLedger())
        stream = device.stream("model")
        until = time.monotonic_ns() + 2_000_000
        with stream, device.computing("module", "model"):
            while time.monotonic_ns() < until:
                pass
        assert stream.ready_ns <= time.monotonic_ns()  # at the same speed both are done

    def test_an_event_is_reached_when_the_stream_has_come_so_far(self):
        device = SimulatedDevice(0, SimulatedGPUs(copy_latency_us=1e12), CopyLedger())
        stream = device.stream("model")
        before = stream.record()
        with stream:
            put(device, ROWS)
        assert before.is_reached()
        assert not stream.record().is_reached()


def test_copies_between_devices_leave_nothing_behind():
    """Each has a stream of its own for as long as it lasts."""
    first, second = (SimulatedDevice(at, SimulatedGPUs(2), CopyLedger()) for at in range(2))
    with first.stream("model"):
        x = put(first, ROWS)
        first.hand_over([x], ["X"])
    before = len(first.timeline.known)
    for _ in range(50):
        second.to_device(x, "model")
    assert len(first.timeline.known) == before


def test_copies_between_devices_are_counted():
    ledger = CopyLedger()
    devices = [SimulatedDevice(n, SimulatedGPUs(2), ledger) for n in range(2)]
    x = put(devices[0], ROWS)
    moved = devices[1].to_device(x, "b.IN")
    np.testing.assert_array_equal(moved.get(), ROWS)
    with pytest.raises(ValueError, match="simulated GPU 0 and simulated GPU 1"):
        x + moved
    edges = [(one.source, one.target, one.nbytes) for one in ledger.copies()]
    assert edges == [("CPU", "GPU 0", 48), ("GPU 0", "GPU 1", 48), ("GPU 1", "CPU", 48)]
    assert all(one.simulated for one in ledger.copies())
