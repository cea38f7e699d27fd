"""OpenVINO models: files, completion, checks, batches, parameters, compared with OpenVINO itself."""

from __future__ import annotations

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import InternalError, InvalidArgumentError, LoadError
from nbtriton.extensions.openvino import properties
from nbtriton.model.config import as_config
from tests.backends.onnx_models import same, sum_and_difference

ov = pytest.importorskip("openvino", reason="openvino is not installed (extra openvino)")

PREFIX = "load failed for model 'm': version 1 is at UNAVAILABLE state: "
PADDED = ' parameters { key: "ENABLE_BATCH_PADDING" value { string_value: "YES" } }'
RESHAPED = ' parameters { key: "RESHAPE_IO_LAYERS" value { string_value: "yes" } }'


@pytest.fixture
def server():
    with nt.Server(gpus=()) as running:
        yield running


@pytest.fixture
def model(tmp_path):
    """Return a model of ONNX as OpenVINO reads it; with a layout it says that it batches."""

    def read(proto, layout=""):
        path = tmp_path / "read.onnx"
        path.write_bytes(proto.SerializeToString())
        found = ov.Core().read_model(path)
        if layout:
            for port in (*found.inputs, *found.outputs):
                ov.layout_helpers.set_layout(port, ov.Layout(layout))
        return found

    return read


def refused(text, source, **options):
    with nt.Server(**{"gpus": (), **options}) as running, pytest.raises(LoadError) as caught:
        running.load(f'backend: "openvino" {text}', source, name="m")
    assert caught.value.message.startswith(PREFIX)
    return caught.value.message.removeprefix(PREFIX).removesuffix(";")


def io(dims="4", data_type="TYPE_FP32", out=None):
    return f""" input {{ name: "IN" data_type: {data_type} dims: [ {dims} ] }}
    output {{ name: "OUT" data_type: {data_type} dims: [ {dims if out is None else out} ] }} """


def test_OV1_files_of_a_repository(server, tmp_path, model):
    """model.xml with model.bin by itself, ONNX by default_model_filename."""
    proto = sum_and_difference((2, 4))
    for name in ("ir", "onnx"):
        (tmp_path / name / "1").mkdir(parents=True)
    ov.save_model(model(proto), tmp_path / "ir" / "1" / "model.xml")
    (tmp_path / "onnx" / "1" / "model.onnx").write_bytes(proto.SerializeToString())
    text = 'backend: "openvino" default_model_filename: "model.onnx"'
    (tmp_path / "onnx" / "config.pbtxt").write_text(text)
    server.load_repository(tmp_path)
    given = {"INPUT0": np.full((2, 4), 5, np.float32), "INPUT1": np.ones((2, 4), np.float32)}
    for name in ("ir", "onnx"):
        assert server.config(name).backend == "openvino"
        result = server.infer(name, given)
        assert (result["OUTPUT0"].tolist(), result["OUTPUT1"].tolist()) == ([[6.0] * 4] * 2, [[4.0] * 4] * 2)  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "text", "size", "dynamic", "dims"),
    [
        ("N...", "", 4, True, [4]),
        ("N...", "max_batch_size: 8", 8, True, [4]),
        ("N...", "sequence_batching { }", 4, False, [4]),
        ("", "", 0, False, [-1, 4]),
        ("", "max_batch_size: 2", 2, False, [4]),
    ],
)
def test_OV2_inputs_outputs_and_batching_are_completed(
    server, model, layout, text, size, dynamic, dims
):
    server.load(f'backend: "openvino" {text}', model(same(), layout), name="m")
    config = server.config("m")
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (size, dynamic)
    assert [list(tensor.dims) for tensor in (*config.input, *config.output)] == [dims, dims]


def test_OV2_the_server_says_the_default_max_batch_size(model):
    for given, size in (("16", 16), ("0", 1)):
        settings = {"openvino": {"default-max-batch-size": given}}
        with nt.Server(gpus=(), backend_config=settings) as running:
            running.load('backend: "openvino"', model(same(), "N..."), name="m")
            assert running.config("m").max_batch_size == size


def test_OV3_a_tensor_has_the_datatype_of_the_configuration(server, model):
    """OpenVINO converts from and to that of the model."""
    server.load('backend: "openvino"' + io("2, 4", "TYPE_INT32"), model(same((2, 4))), name="m")
    given = np.arange(8, dtype=np.int32).reshape(2, 4)
    result = server.infer("m", {"IN": given})["OUT"]
    assert (result.dtype, result.tolist()) == (np.int32, given.tolist())


def test_OV4_a_batch_is_whole_or_padded(server, model):
    server.load('backend: "openvino" max_batch_size: 4 ' + io(), model(same()), name="m")
    whole = np.arange(16, dtype=np.float32).reshape(4, 4)
    assert server.infer("m", {"IN": whole})["OUT"].tolist() == whole.tolist()
    with pytest.raises(InternalError) as caught:
        server.infer("m", {"IN": whole[:3]})
    assert caught.value.message == (
        "expected requests with batch size '4', got '3'... this error can be avoided by setting "
        "'ENABLE_BATCH_PADDING' parameter in model configuration to 'YES' at a performance cost."
    )
    server.load('backend: "openvino" max_batch_size: 4 ' + io() + PADDED, model(same()), name="m")
    for rows in (1, 3, 4, 2):
        assert server.infer("m", {"IN": whole[:rows]})["OUT"].tolist() == whole[:rows].tolist()


def test_requests_share_a_batch(server, model):
    text = """max_batch_size: 4 dynamic_batching { preferred_batch_size: 4
    max_queue_delay_microseconds: 60000000 } instance_group { count: 2 }"""
    server.load(f'backend: "openvino" {text}' + io(), model(same()), name="m")
    rows = [np.full((n, 4), n, np.float32) for n in (1, 2, 1)]
    futures = [server.submit("m", {"IN": array}) for array in rows]
    assert [future.result(30)["OUT"].tolist() for future in futures] == [r.tolist() for r in rows]
    assert [batch.batch_size for batch in server.batches("m")] == [4]


def test_a_model_takes_the_shapes_of_its_configuration(server, model):
    text = 'backend: "openvino"' + io("3, 5") + RESHAPED
    server.load(text, model(same(("a", "b"))), name="m")
    given = np.ones((3, 5), np.float32)
    assert server.infer("m", {"IN": given})["OUT"].tolist() == given.tolist()


def test_variable_dimensions_and_several_threads_of_requests(server, model):
    server.load(
        'backend: "openvino" instance_group { count: 2 }', model(same(("a", "b"))), name="m"
    )
    futures = [server.submit("m", {"IN": np.full((n, 2 * n), n, np.float32)}) for n in range(1, 9)]
    assert [f.result(30)["OUT"].sum() for f in futures] == [2.0 * n**3 for n in range(1, 9)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (io("2, 5"), "Invalid argument: model 'm', tensor 'IN': the model expects 2 dimensions (shape [2,4]) but the model configuration specifies 2 dimensions (shape [2,5])"),
        (io("2, 4", out="2, -1"), "Invalid argument: model 'm', tensor 'OUT': the model expects 2 dimensions (shape [2,4]) but the model configuration specifies 2 dimensions (shape [2,-1])"),
        ("max_batch_size: 3" + io("5"), "Invalid argument: model 'm', tensor 'IN': the model expects 2 dimensions (shape [2,4]) but the model configuration specifies 2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete shape [3,5])"),
        (io("2, 4", "TYPE_FP64"), "Internal: unsupported datatype TYPE_FP64 for input 'IN' for model 'm'"),
        (io("2, 4").replace('"IN"', '"X"'), "Invalid argument: unexpected inference input 'X', allowed inputs are: IN"),
        (io("2, 4").replace('"OUT"', '"X"'), "Invalid argument: unexpected inference output 'X', allowed outputs are: OUT"),
        (io("2, 4") + 'input { name: "MORE" data_type: TYPE_FP32 dims: 1 }', "Invalid argument: unable to load model 'm', configuration expects 2 inputs, model provides 1"),
        ("instance_group { kind: KIND_MODEL }", "Invalid argument: unable to load model 'm', Triton openVINO backend supports only CPU device"),
        ('parameters { key: "NUM_STREAMS" value { string_value: "many" } }', "Invalid argument: expected the parameter 'NUM_STREAMS' to be either AUTO/NUMA/<int_value>, got many"),
    ],
)  # fmt: skip
def test_a_configuration_that_does_not_fit_the_model(model, text, message):
    assert refused(text, model(same((2, 4)))) == message


def test_a_file_that_is_no_model_or_is_not_there(tmp_path):
    (tmp_path / "model.xml").write_text("<net")
    assert refused("", tmp_path / "model.xml").startswith(
        "Internal: openvino error in reading model : "
    )
    missing = tmp_path / "none.xml"
    assert refused("", missing) == f"Unavailable: unable to find '{missing}' for model 'm'"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("INFERENCE_NUM_THREADS", "2", {"INFERENCE_NUM_THREADS": "2"}),
        ("COMPILATION_NUM_THREADS", "1", {"COMPILATION_NUM_THREADS": "1"}),
        ("HINT_BF16", "Yes", {"INFERENCE_PRECISION_HINT": "bf16"}),
        ("NUM_STREAMS", "auto", {"NUM_STREAMS": "AUTO"}),
        ("NUM_STREAMS", "3", {"NUM_STREAMS": "3"}),
        ("PERFORMANCE_HINT", "latency", {"PERFORMANCE_HINT": "LATENCY"}),
        ("INFERENCE_NUM_THREADS", "-1", "to be a non-negative number, got -1"),
        ("HINT_BF16", "no", "to be YES, got no"),
        ("PERFORMANCE_HINT", "fast", "to be LATENCY/THROUGHPUT/CUMULATIVE_THROUGHPUT, got fast"),
        ("TARGET_DEVICE", "CPU", {}),
    ],
)
def test_OV5_parameters(server, model, key, value, expected):
    text = f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
    if isinstance(expected, str):
        with pytest.raises(InvalidArgumentError) as caught:
            properties(as_config(text))
        assert caught.value.message == f"expected the parameter '{key}' {expected}"
        return
    assert properties(as_config(text)) == expected
    if key != "COMPILATION_NUM_THREADS":  # which only some of OpenVINO's devices take
        server.load(f'backend: "openvino" {text}', model(same((2, 4))), name="m")


def test_a_model_of_a_notebook_is_exported_as_a_file(server, model, tmp_path):
    server.load('backend: "openvino"', model(sum_and_difference((2, 4))), name="m")
    server.export(tmp_path / "first")
    # And again, from a file that is in no repository.
    (tmp_path / "first" / "m" / "1").rename(tmp_path / "files")
    server.load('backend: "openvino"', tmp_path / "files" / "model.xml", name="m")
    server.export(tmp_path / "out")
    files = sorted(path.name for path in (tmp_path / "out" / "m" / "1").iterdir())
    assert files == ["model.bin", "model.xml"]
    given = {"INPUT0": np.full((2, 4), 0.1, np.float32), "INPUT1": np.ones((2, 4), np.float32)}
    with nt.Server(gpus=()) as other:
        assert other.load_repository(tmp_path / "out").errors == {}
        assert (
            other.infer("m", given)["OUTPUT0"].tolist()
            == server.infer("m", given)["OUTPUT0"].tolist()
        )


def test_a_model_of_a_notebook_stays_as_it_was(server, model):
    given = model(same(), "N...")
    before = [str(port.partial_shape) for port in (*given.inputs, *given.outputs)]
    server.load('backend: "openvino" max_batch_size: 3' + PADDED, given, name="m")
    assert [str(port.partial_shape) for port in (*given.inputs, *given.outputs)] == before
    server.load("max_batch_size: 3" + PADDED, given, name="found")  # the backend by its kind
    assert server.config("found").backend == "openvino"
