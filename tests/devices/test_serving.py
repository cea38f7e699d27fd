# ruff: noqa: F821, N803 - annotations of tensors, by their names
"""A server on simulated GPUs: placements, copies, memory, order."""

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import LoadError, TritonError
from nbtriton.extensions.copies import bounces
from tests.devices.virtual import VirtualClock, stop_time
from tests.devices.walk import used_bytes
from tests.until import until

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)
GPU = "max_batch_size: 8 instance_group [ { kind: KIND_GPU gpus: [ %d ] } ]"
CPU = "max_batch_size: 8 instance_group [ { kind: KIND_CPU } ]"


def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    return {"OUT": IN * 2}


def chain(name, models):
    """Return an ensemble that passes a tensor through models."""
    steps = ", ".join(
        f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "IN" value: "T{n}" }} '
        f'output_map {{ key: "OUT" value: "T{n + 1}" }} }}'
        for n, model in enumerate(models)
    )
    tensor = '[ {{ name: "T{}" data_type: TYPE_FP32 dims: [ 4 ] }} ]'
    return (
        f'name: "{name}" platform: "ensemble" max_batch_size: 8 input {tensor.format(0)} '
        f"output {tensor.format(len(models))} ensemble_scheduling {{ step [ {steps} ] }}"
    )


@pytest.fixture(scope="module")
def server():
    with nt.Server(gpus="simulated:2,launch_us=500") as found:
        stop_time(found)  # no step is done when the next one is launched
        for name, config in {"a": GPU % 0, "b": GPU % 0, "c": CPU, "d": GPU % 1}.items():
            found.load(config, double, name=name)
        found.load(chain("all_gpu", "abab"))
        found.load(chain("mixed", "acb"))
        found.load(chain("two_gpus", "ad"))
        yield found


@pytest.fixture(autouse=True)
def _clean(server):
    server.devices.ledger.clear()
    yield
    for device in server.devices.values():
        assert device.faults == []
        assert until(lambda device=device: used_bytes(device) == 0)  # nothing leaks


def edges(server):
    return [
        (one.writer, one.reader, one.source, one.target) for one in server.devices.ledger.copies()
    ]


@pytest.mark.medium
def test_a_function_gets_arrays_of_its_device(server):
    seen = []

    def watch(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        seen.append((type(IN).__name__, IN.device.name))
        return {"OUT": IN}

    server.load(GPU % 1, watch, name="watch")
    result = server.infer("watch", {"IN": ROWS})
    assert type(result.raw("OUT")).__name__ == "SimulatedArray"
    np.testing.assert_array_equal(result["OUT"], ROWS)
    assert seen == [("SimulatedArray", "simulated GPU 1")]
    server.unload("watch", timeout_s=None)


@pytest.mark.medium
def test_steps_on_one_device_neither_copy_nor_wait(server):
    result = server.infer("all_gpu", {"T0": ROWS})
    assert edges(server) == [("host", "a.IN", "CPU", "GPU 0")]
    # The boundary to the caller alone.
    assert server.devices.ledger.waits() == {("b", "simulated GPU 0"): 1}
    np.testing.assert_array_equal(result["T4"], ROWS * 16)


@pytest.mark.medium
def test_an_ensemble_within_one_hands_its_tensors_on_without_waiting(server):
    tensor = "data_type: TYPE_FP32 dims: [ 4 ]"
    server.load(chain("pair", "ab"))
    server.load(f"""name: "outer" platform: "ensemble" max_batch_size: 8
        input {{ name: "X" {tensor} }} output {{ name: "Z" {tensor} }} ensemble_scheduling {{
          step {{ model_name: "pair" model_version: -1
                  input_map {{ key: "T0" value: "X" }} output_map {{ key: "T2" value: "Y" }} }}
          step {{ model_name: "a" model_version: -1
                  input_map {{ key: "IN" value: "Y" }} output_map {{ key: "OUT" value: "Z" }} }} }}""")
    server.submit("outer", {"X": ROWS}).result(60)
    assert server.devices.ledger.waits() == {("a", "simulated GPU 0"): 1}  # at the end
    np.testing.assert_array_equal(server.infer("outer", {"X": ROWS})["Z"], ROWS * 8)


@pytest.mark.medium
def test_a_step_on_the_cpu_bounces(server):
    result = server.infer("mixed", {"T0": ROWS})
    np.testing.assert_array_equal(result["T3"], ROWS * 8)
    assert edges(server) == [
        ("host", "a.IN", "CPU", "GPU 0"),
        ("a.OUT", "c.IN", "GPU 0", "CPU"),
        ("host", "b.IN", "CPU", "GPU 0"),
        ("b.OUT", "host", "GPU 0", "CPU"),
    ]


@pytest.mark.medium
def test_the_ledger_names_the_step_that_causes_a_bounce(server):
    for _ in range(2):
        server.infer("mixed", {"T0": ROWS})["T3"]
    frame = nt.copies(server).set_index("reader")
    assert frame.loc["c.IN", ["source", "target", "copies", "requests", "bytes_per_request"]].tolist() == [
        "GPU 0", "CPU", 2, 2, ROWS.nbytes,
    ]  # fmt: skip
    assert frame.loc["c.IN", "ensemble"] == "mixed"
    assert frame.loc["c.IN", "bounce"] == frame.loc["b.IN", "bounce"] == "c"
    assert frame.loc["c.IN", "cause"] == "'c' runs on the CPU: instance_group { kind: KIND_CPU }"
    assert frame.loc["a.IN", "bounce"] == ""
    assert frame.loc["host", "cause"] == "the caller reads it"
    assert set(frame["clock"]) == {"simulated"}
    assert (frame["us_per_copy"] >= 10).all()  # the latency
    (sentence,) = bounces(nt.copies(server))
    assert sentence.startswith("'c' takes a.OUT to the host and b.IN back to a GPU: 64 bytes and ")
    assert sentence.endswith("'c' runs on the CPU: instance_group { kind: KIND_CPU }")
    assert len(nt.copies(server, clear=True)) == 4
    assert len(nt.copies(server)) == 0


@pytest.mark.medium
def test_a_model_that_is_a_step_twice_gets_the_callers_input_from_the_caller(server):
    server.infer("all_gpu", {"T0": ROWS})["T4"]
    frame = nt.copies(server).set_index("reader")
    assert frame.loc["a.IN", "cause"] == "the caller's input is on the host"


@pytest.mark.medium
def test_the_ledger_names_the_line_of_code_that_causes_a_bounce(server):
    def clip(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        on_host = IN.get()
        return {"OUT": np.asarray(on_host.clip(0, 3), like=IN)}

    server.load(GPU % 0, clip, name="clip")
    np.testing.assert_array_equal(server.infer("clip", {"IN": ROWS})["OUT"], ROWS.clip(0, 3))
    frame = nt.copies(server)
    moved = frame[frame["bounce"] == "clip"]
    there, back = moved["reader"]
    assert there.startswith("clip: line ")
    assert there.endswith(": on_host = IN.get()")
    assert "np.asarray(on_host" in back
    assert (
        moved["cause"].iloc[0]
        == f"the code of 'clip' takes it to the host in line {there.removeprefix('clip: line ')}"
    )
    (sentence,) = bounces(frame)
    assert sentence.startswith(
        "'clip' takes what it reads to the host and its result back to a GPU: 64 "
    )
    assert "(simulated) a request, as the code of 'clip' takes it" in sentence
    assert set(frame["bounce"]) == {"", "clip"}  # not what the caller sends and reads
    server.unload("clip", timeout_s=None)


@pytest.mark.medium
def test_a_step_on_another_gpu_copies_once(server):
    server.infer("two_gpus", {"T0": ROWS})
    assert edges(server)[1:] == [("a.OUT", "d.IN", "GPU 0", "GPU 1")]


@pytest.mark.medium
def test_an_empty_output_is_reshaped(server):
    """NumPy says of no two empty arrays that they share memory."""
    tensors = "data_type: TYPE_FP32 dims: [ -1, 2 ] reshape { shape: [ -1, 1, 2 ] }"
    server.load(
        f'{GPU % 0} input {{ name: "IN" {tensors} }} output {{ name: "OUT" {tensors} }}',
        lambda IN: {"OUT": IN},
        name="empty",
    )
    empty = np.ones((2, 0, 2), np.float32)
    assert server.submit("empty", {"IN": empty}).result(60)["OUT"].shape == (2, 0, 2)
    server.unload("empty", timeout_s=60)


@pytest.mark.medium
def test_a_batch_goes_to_the_device_in_one_copy(server):
    server.load(
        GPU % 0
        + " dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 60000000 }",
        double,
        name="batched",
    )
    futures = [server.submit("batched", {"IN": ROWS + n}) for n in range(4)]
    for n, future in enumerate(futures):
        np.testing.assert_array_equal(future.result(30)["OUT"], (ROWS + n) * 2)
    copies = [one for one in server.devices.ledger.copies() if one.reader == "batched.IN"]
    assert [(one.copies, one.requests, one.nbytes) for one in copies] == [(1, 4, 4 * ROWS.nbytes)]
    server.unload("batched", timeout_s=None)


@pytest.mark.medium
def test_python_models_get_host_inputs_unless_they_say_no(server):
    import triton_python_backend_utils as pb_utils

    seen = []

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4]})
            config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]})
            return config

        def execute(self, requests):
            found = []
            for request in requests:
                x = pb_utils.get_input_tensor_by_name(request, "IN")
                seen.append(x.is_cpu())
                found.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x.as_numpy() * 2)]))
            return found

    server.load(GPU % 0, TritonPythonModel, name="py")
    server.load(chain("with_python", ["a", "py", "b"]))
    np.testing.assert_array_equal(server.infer("with_python", {"T0": ROWS})["T3"], ROWS * 8)
    frame = nt.copies(server).set_index("reader")
    assert frame.loc["py.IN", ["writer", "source", "target", "bounce"]].tolist() == [
        "a.OUT", "GPU 0", "CPU", "py",
    ]  # fmt: skip
    assert "FORCE_CPU_ONLY_INPUT_TENSORS is yes by default" in frame.loc["py.IN", "cause"]
    assert seen == [True]
    server.unload("with_python", unload_dependents=False, timeout_s=None)
    server.unload("py", timeout_s=None)


@pytest.mark.medium
def test_DM1_a_model_that_does_not_fit_is_refused_in_tritons_words():
    torch = pytest.importorskip("torch")

    class Large(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(600, 600)

        def forward(self, IN: "FP32[600]") -> {"OUT": "FP32[600]"}:
            return self.layer(IN)

    with nt.Server(gpus="simulated:1,memory_mib=1") as server:
        with pytest.raises(LoadError) as error:
            server.load(GPU % 0, Large, name="large")
        assert (
            "Unavailable: can not create model 'large': memory limit set for GPU 0 has exceeded, "
            "model loading is rejected." in error.value.message
        )
        assert "1.38 MiB" in error.value.hint
        server.load(GPU % 0, double, name="small")  # nothing is kept of the large one
        np.testing.assert_array_equal(server.infer("small", {"IN": ROWS})["OUT"], ROWS * 2)


@pytest.mark.medium
def test_DM2_DM3_torch_modules_are_accounted_and_run_out_of_memory_alone():
    torch = pytest.importorskip("torch")

    class Small(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(64, 64)

        def forward(self, IN: "FP32[64]") -> {"OUT": "FP32[64]"}:
            return self.layer(IN)

    with nt.Server(gpus="simulated:1,memory_mib=1") as server:
        server.load("max_batch_size: 4096 instance_group [ { kind: KIND_GPU } ]", Small, name="m")
        weights = (64 * 64 + 64) * 4
        device = server.devices[0]
        assert device.memory().by_owner == {"m": weights}
        one = np.ones((1, 64), np.float32)
        expected = server.infer("m", {"IN": one})["OUT"]
        with pytest.raises(TritonError, match=r"CUDA out of memory\. Tried to allocate 1\.00 MiB"):
            server.infer("m", {"IN": np.ones((4096, 64), np.float32)})
        np.testing.assert_array_equal(server.infer("m", {"IN": one})["OUT"], expected)
        assert device.faults == []
        del expected
        assert until(lambda: used_bytes(device) == weights)
        assert device.memory().by_owner == {"m": weights}
        server.unload("m", timeout_s=None)
        assert device.memory().used_bytes == 0


@pytest.mark.medium
def test_what_is_simulated_is_called_so(server):
    server.infer("all_gpu", {"T0": ROWS})
    (found,) = server.statistics("a")["model_stats"]
    assert found["simulated"] == "simulated:2,launch_us=500"
    assert {one["device"] for one in found["device_stats"]} == {"simulated GPU 0"}
    assert found["device_stats"][0]["compute"]["count"] > 0
    assert "simulated" not in server.statistics("c")["model_stats"][0]
    status = nt.status(server).set_index("model")["instances"]
    assert status["a"] == "1 \u00d7 simulated GPU"
    assert status["c"] == "1 \u00d7 CPU"
    report = nt.perf(server, "all_gpu", concurrency=1, request_count=3)
    assert "simulated GPUs (simulated:2,launch_us=500): the times are simulated" in report.notes[0]
    assert report.environment["gpus"] == "simulated:2,launch_us=500"


@pytest.mark.medium
def test_options_can_change_to_simulated_gpus():
    with nt.Server(gpus=[]) as server:
        server.load("max_batch_size: 8", double, name="m")
        assert type(server.infer("m", {"IN": ROWS}).raw("OUT")) is np.ndarray
        assert server.set_options(gpus="simulated:1") == ("m",)
        assert type(server.infer("m", {"IN": ROWS}).raw("OUT")).__name__ == "SimulatedArray"


@pytest.mark.medium
def test_a_function_that_streams_works_on_its_own_stream(server):
    def count(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
        for times in (1, 2, 3):
            yield {"OUT": IN * times}

    server.load(GPU % 0 + " model_transaction_policy { decoupled: true }", count, name="count")
    try:
        found = [one["OUT"] for one in server.stream("count", {"IN": ROWS})]
        np.testing.assert_array_equal(found, [ROWS, ROWS * 2, ROWS * 3])
        ledger = server.devices.ledger
        assert {one.owner for one in ledger.computations()} == {"count"}
    finally:
        server.unload("count", timeout_s=None)


class Broken(VirtualClock):
    """Whoever waits for the device learns that it has failed."""

    def sleep_until(self, when_ns):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.medium
@pytest.mark.parametrize("ensemble", ["all_gpu", "mixed"])
def test_what_fails_on_the_device_fails_the_request_that_waits(server, ensemble, caplog):
    timeline = server.devices[0].timeline
    clock, timeline.clock = timeline.clock, Broken()
    try:
        answer = server.submit(ensemble, {"T0": ROWS})
        with pytest.raises(TritonError, match="an illegal memory access"):
            answer.result(60)
    finally:
        timeline.clock = clock
        caplog.clear()  # the log's traceback holds tensors
    last, factor = ("T4", 16) if ensemble == "all_gpu" else ("T3", 8)
    np.testing.assert_array_equal(server.infer(ensemble, {"T0": ROWS})[last], ROWS * factor)
