"""ONNX models: completion, checks against the model, datatypes, batches, options, sequences."""

from __future__ import annotations

import builtins
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import tritonclient.http as httpclient

import nbtriton as nt
from nbtriton.common.errors import LoadError
from nbtriton.extensions.doctor.validation import validate_repository
from nbtriton.model.config import as_config, to_dict
from nbtriton.runtime.engine.lifecycle.loading import complete_model
from nbtriton.serving.frontends import serve
from tests.backends.fakes import Request, Timer
from tests.backends.onnx_models import helper, model, same, sum_and_difference, tensor

IO = """
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: 4 }, { name: "INPUT1" data_type: TYPE_FP32 dims: 4 } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 }, { name: "OUTPUT1" data_type: TYPE_FP32 dims: 4 } ]
"""
PREFIX = "load failed for model 'm': version 1 is at UNAVAILABLE state: "


@pytest.fixture
def server():
    with nt.Server(gpus=()) as running:
        yield running


@pytest.fixture
def onnx_model(make):
    return lambda proto, text="", **options: make(proto, text, backend="onnxruntime", **options)


def completed(proto, text=""):
    _, config = complete_model(as_config(f'name: "m" {text}'), proto, 1, gpus=())
    return config


def refused(proto, text):
    with pytest.raises(LoadError) as caught, nt.Server(gpus=()) as running:
        running.load(text, proto, name="m")
    assert caught.value.message.startswith(PREFIX)
    return caught.value.message.removeprefix(PREFIX).removesuffix(";")


def parameter(key, value):
    return f' parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def io(dims="4", data_type="TYPE_FP32", more="", out=None):
    return (
        f'input {{ name: "IN" data_type: {data_type} dims: [ {dims} ] {more} }} '
        f'output {{ name: "OUT" data_type: {data_type} dims: [ {dims if out is None else out} ] }} '
    )


# -- completion -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("proto", "text", "size", "dynamic", "dims"),
    [
        # All first dimensions vary: batches, by default up to 4, through the dynamic batcher.
        (same(("b", 4)), "", 4, True, [4]),
        (same(("b", "n", 3)), "", 4, True, [-1, 3]),
        (same(("b", 4)), "max_batch_size: 8", 8, True, [4]),
        (same(("b", 4)), "max_batch_size: 1", 1, False, [4]),
        (same(("b", 4)), "sequence_batching { }", 4, False, [4]),
        # One does not: no batching, whole shapes.
        (same((2, 4)), "", 0, False, [2, 4]),
        (same(("b", 4), out=(1, 4)), "", 0, False, None),
        (same(()), "", 0, False, [1]),
    ],
)
def test_inputs_outputs_and_batching_are_completed(proto, text, size, dynamic, dims):
    config = completed(proto, text)
    assert config.max_batch_size == size
    assert config.HasField("dynamic_batching") is dynamic
    if dynamic:
        assert list(config.dynamic_batching.preferred_batch_size) == [size]
    if dims is not None:
        expected = [("IN", "TYPE_FP32", dims), ("OUT", "TYPE_FP32", dims)]
        found = to_dict(config)
        tensors = [*found["input"], *found["output"]]
        assert [(t["name"], t["data_type"], [*map(int, t["dims"])]) for t in tensors] == expected


def test_a_batch_of_scalars_is_reshaped():
    config = completed(same(("b",)))
    assert list(config.input[0].dims) == [1]
    assert config.input[0].HasField("reshape")
    assert list(config.input[0].reshape.shape) == []


def test_half_a_configuration_is_completed_and_a_whole_one_is_not_touched():
    half = 'input { name: "IN" data_type: TYPE_FP32 dims: 4 }'
    assert [t.name for t in completed(same(), half).output] == ["OUT"]
    whole = completed(same(), io(dims="-1, 4"))
    assert (whole.max_batch_size, whole.HasField("dynamic_batching")) == (0, False)


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"onnxruntime": {"default-max-batch-size": "16"}}, 16),
        ({"": {"default-max-batch-size": "2"}}, 2),
        ({"": {"default-max-batch-size": "2"}, "onnxruntime": {"default-max-batch-size": "0"}}, 0),
        ({"python": {"default-max-batch-size": "16"}}, 4),
    ],
)
def test_the_server_says_the_default_max_batch_size(settings, size):
    with nt.Server(gpus=(), backend_config=settings) as running:
        running.load(None, same(), name="m")
        config = running.config("m")
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (size, size > 1)
    assert list(config.input[0].dims) == ([4] if size else [-1, 4])


def test_a_model_that_does_not_batch_refuses_a_batch_size():
    assert refused(same((2, 4)), "max_batch_size: 8") == (
        "Invalid argument: autofill failed for model 'm': model does not support batching while "
        "non-zero max_batch_size is specified"
    )


def test_without_completion_the_configuration_must_be_whole(server, tmp_path):
    folder = tmp_path / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(same().SerializeToString())
    (tmp_path / "m" / "config.pbtxt").write_text("max_batch_size: 8 " + io())
    server.load_repository(tmp_path, auto_complete=False)
    assert not server.config("m").HasField("dynamic_batching")
    assert server.infer("m", {"IN": np.ones((2, 4), np.float32)})["OUT"].sum() == 8


@pytest.mark.parametrize(("switch", "shared"), [("1", True), ("0", False), (None, False)])
def test_sessions_share_a_pool_of_threads_if_the_server_says_so(monkeypatch, switch, shared):
    import onnxruntime

    sizes, per_session = [], []
    make = onnxruntime.InferenceSession

    def session(model, options, **others):
        per_session.append(options.use_per_session_threads)
        return make(model, onnxruntime.SessionOptions(), **others)

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    monkeypatch.setattr(onnxruntime, "set_global_thread_pool_sizes", lambda *n: sizes.append(n))
    given = {"intra_op_thread_count": "2", "enable-global-threadpool": switch}
    given = {name: value for name, value in given.items() if value is not None}
    with nt.Server(gpus=(), backend_config={"onnxruntime": given}) as running:
        running.load(None, same(), name="m")
        assert running.infer("m", {"IN": np.ones((1, 4), np.float32)})["OUT"].sum() == 4
    assert (sizes, per_session) == ([(2, 0)] if shared else [], [not shared])


# -- checks against the model -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("proto", "text", "message"),
    [
        (
            sum_and_difference(),
            "max_batch_size: 8 " + io(),
            "unable to load model 'm', configuration expects 1 inputs, model provides 2",
        ),
        (
            same(),
            "max_batch_size: 8 " + io().replace('"IN"', '"in"'),
            "unexpected inference input 'in', allowed inputs are: IN",
        ),
        (
            same(),
            "max_batch_size: 8 " + io().replace('"OUT"', '"out"'),
            "unexpected inference output 'out', allowed outputs are: OUT",
        ),
        (
            same(datatype="BYTES"),
            "max_batch_size: 8 " + io(),
            ("unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'IN', "
            "model provides TYPE_BYTES"),
        ),
        (
            same((2, 4)),
            "max_batch_size: 8 " + io(),
            ("model 'm', tensor 'IN': for the model to support batching the shape should have at "
            "least 1 dimension and the first dimension must be -1; but shape expected by the model "
            "is [2,4]"),
        ),
        (
            same(),
            "max_batch_size: 8 " + io("3"),
            ("model 'm', tensor 'IN': the model expects 2 dimensions (shape [-1,4]) but the model "
            "configuration specifies 2 dimensions (an initial batch dimension because "
            "max_batch_size > 0 followed by the explicit tensor shape, making complete shape "
            "[-1,3])"),
        ),
        (
            same((2, 4)),
            io("2, 4, 1"),
            ("model 'm', tensor 'IN': the model expects 2 dimensions (shape [2,4]) but the model "
            "configuration specifies 3 dimensions (shape [2,4,1])"),
        ),
        (
            same(("n", 4)),
            io("2, 4"),
            ("model 'm', tensor 'OUT': the model expects 2 dimensions (shape [-1,4]) but the model "
            "configuration specifies 2 dimensions (shape [2,4])"),
        ),
        (
            same(()),
            io("2"),
            ("unable to load model 'm', scalar tensor 'IN', should only provide 1 in the model "
            "configuration when the model doesn't support batching. Model configuration provided: "
            "[2]."),
        ),
        (
            same(),
            "max_batch_size: 8 " + io(more="optional: true"),
            "unable to load model 'm', configuration expects 0 inputs, model provides 1",
        ),
        (
            same(),
            "max_batch_size: 8 " + io(more="allow_ragged_batch: true"),
            ("unable to load model 'm', configuration expects model provides input with shape [-1]  "
            "for ragged input 'IN', model provides [-1,4]"),
        ),
    ],
)  # fmt: skip
def test_a_configuration_that_does_not_fit_is_refused_with_tritons_text(proto, text, message):
    assert refused(proto, text) == f"Invalid argument: {message}"


def test_an_input_may_be_fixed_where_the_model_leaves_it_open(server):
    server.load(io("2, 4", out="-1, 4"), same(("n", 4)), name="m")
    assert server.infer("m", {"IN": np.ones((2, 4), np.float32)})["OUT"].shape == (2, 4)


def test_inputs_that_are_no_tensors_are_refused():
    sequence = helper.make_tensor_sequence_value_info("OUT", 1, None)
    proto = model([("SequenceConstruct", "IN", "OUT")], [tensor("IN", ["n"])], [sequence])
    assert refused(proto, "") == (
        "Unsupported: Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'OUT', expected "
        "'ONNX_TYPE_TENSOR'."
    )


def test_strings_beside_bf16_outputs_are_refused():
    proto = model(
        [("Identity", "A", "X"), ("Identity", "B", "Y")],
        [tensor("A", ["b"], "BF16"), tensor("B", ["b"], "BYTES")],
        [tensor("X", ["b"], "BF16"), tensor("Y", ["b"], "BYTES")],
    )
    assert refused(proto, "").startswith(
        "Unsupported: model 'm' has BF16 outputs and strings ('B')"
    )


# -- sources ----------------------------------------------------------------------------------------


@pytest.mark.medium
def test_files_protos_and_bytes_are_served_and_written(server, tmp_path):
    proto = sum_and_difference()
    file = tmp_path / "any.onnx"
    file.write_bytes(proto.SerializeToString())
    sources = {"file": file, "text": str(file), "proto": proto, "bytes": proto.SerializeToString()}
    for name, source in sources.items():
        server.load("max_batch_size: 8", source, name=name)
    server.load('platform: "onnxruntime_onnx" ' + IO + "max_batch_size: 8", proto, name="platform")
    written = server.export(tmp_path / "out")
    assert {m.name: m.kind for m in written.models} == {
        "file": "files", "text": "files", "proto": "ONNX", "bytes": "ONNX", "platform": "ONNX",
    }  # fmt: skip
    assert (tmp_path / "out" / "proto" / "1" / "model.onnx").read_bytes() == sources["bytes"]
    a, b = np.arange(8, dtype=np.float32).reshape(2, 4), np.ones((2, 4), np.float32)
    with nt.Server(gpus=()) as again:
        again.load_repository(tmp_path / "out")
        for name in (*sources, "platform"):
            for one in (server, again):
                found = one.infer(name, {"INPUT0": a, "INPUT1": b})
                np.testing.assert_array_equal(found["OUTPUT0"], a + b)
                np.testing.assert_array_equal(found["OUTPUT1"], a - b)
            before, after = server.config(name), again.config(name)
            after.default_model_filename = before.default_model_filename
            assert before == after


def test_weights_in_files_of_their_own_are_found_and_written_along(server, tmp_path):
    import onnx

    weights = np.arange(4, dtype=np.float32)
    proto = model(
        [("Add", "IN W", "OUT")],
        [tensor("IN", ["b", 4])],
        [tensor("OUT", ["b", 4])],
        [onnx.numpy_helper.from_array(weights, "W")],
    )
    file = tmp_path / "net.onnx"
    (tmp_path / "weights").mkdir()
    onnx.save(
        proto, file, save_as_external_data=True, location="weights/net.data", size_threshold=0
    )
    (tmp_path / "other.data").write_bytes(b"not its own")
    server.load(None, file, name="m")
    server.export(tmp_path / "out")
    with nt.Server(gpus=()) as again:
        again.load_repository(tmp_path / "out")
        found = again.infer("m", {"IN": np.ones((1, 4), np.float32)})["OUT"]
    assert found.tolist() == [[1, 2, 3, 4]]
    written = {p.name for p in (tmp_path / "out" / "m" / "1").rglob("*") if p.is_file()}
    assert written == {"net.onnx", "net.data"}


def test_a_repository_without_a_configuration_is_read(server, tmp_path):
    for name, file in (("plain", "model.onnx"), ("folder", "model.onnx/model.onnx")):
        path = tmp_path / name / "1" / file
        path.parent.mkdir(parents=True)
        path.write_bytes(same().SerializeToString())
    named = tmp_path / "named" / "2" / "other.onnx"
    named.parent.mkdir(parents=True)
    named.write_bytes(same().SerializeToString())
    text = 'platform: "onnxruntime_onnx" default_model_filename: "other.onnx"'
    (tmp_path / "named" / "config.pbtxt").write_text(text)
    server.load_repository(tmp_path)
    for name in ("plain", "folder", "named"):
        assert server.infer(name, {"IN": np.ones((1, 4), np.float32)})["OUT"].tolist() == [[1] * 4]
        config = server.config(name)
        assert (config.backend, config.platform) == ("onnxruntime", "onnxruntime_onnx")
        assert [(g.name, g.count) for g in config.instance_group] == [(name, 2)]


def test_a_missing_file_and_one_that_is_no_model(tmp_path):
    missing = tmp_path / "model.onnx"
    assert refused(missing, "") == f"Unavailable: unable to find '{missing}' for model instance 'm'"
    missing.write_bytes(b"no model")
    assert refused(missing, "").startswith("Internal: onnx runtime error 7: Load model from ")


def test_a_repository_is_validated_without_being_served(tmp_path):
    for name, text in (("good", ""), ("bad", 'input { name: "in" data_type: TYPE_FP32 dims: 4 }')):
        folder = tmp_path / name / "1"
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(same().SerializeToString())
        (tmp_path / name / "config.pbtxt").write_text("max_batch_size: 8 " + text)
    bad, good = validate_repository(tmp_path)
    assert str(good) == "good: OK"
    assert str(bad).endswith("unexpected inference input 'in', allowed inputs are: IN;")


def test_over_http(server):
    server.load("max_batch_size: 8", sum_and_difference(("b", 2), "INT32"), name="m")
    server.load("max_batch_size: 8", same(("b", 2), "BYTES"), name="s")
    with serve(server, http_port=0, metrics_port=0) as endpoints:
        client = httpclient.InferenceServerClient(f"127.0.0.1:{endpoints.http_port}")
        metadata = client.get_model_metadata("m")
        assert metadata["platform"] == "onnxruntime_onnx"
        assert metadata["inputs"][0] == {"name": "INPUT0", "datatype": "INT32", "shape": [-1, 2]}
        inputs = [httpclient.InferInput(f"INPUT{n}", [1, 2], "INT32") for n in (0, 1)]
        for one in inputs:
            one.set_data_from_numpy(np.array([[3, 4]], np.int32))
        assert client.infer("m", inputs).as_numpy("OUTPUT0").tolist() == [[6, 8]]
        text = httpclient.InferInput("IN", [1, 2], "BYTES")
        text.set_data_from_numpy(np.array([["ä", "b\0c"]], object))
        found = client.infer("s", [text]).as_numpy("OUT")
        assert found.tolist() == [["ä".encode(), b"b\0c"]]
        client.close()


def test_requests_from_many_threads_get_their_own_answers(server):
    server.load("max_batch_size: 8 instance_group { count: 2 }", sum_and_difference(), name="m")

    def ask(number):
        given = np.full((1 + number % 3, 4), number, np.float32)
        found = server.infer("m", {"INPUT0": given, "INPUT1": given})
        return (found["OUTPUT0"] == 2 * number).all() and not found["OUTPUT1"].any()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(400)))
    assert server.models()[0].inference_count == sum(1 + n % 3 for n in range(400))


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    found = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == "onnxruntime":
            raise ModuleNotFoundError("No module named 'onnxruntime'")
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(LoadError) as caught, nt.Server(gpus=()) as running:
        running.load(None, b"", name="m")
    assert caught.value.message == (
        PREFIX + "Unsupported: backend 'onnxruntime' needs the package 'onnxruntime';"
    )
    assert "nbtriton[onnx]" in caught.value.hint


# -- tensors ----------------------------------------------------------------------------------------

NUMBERS = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32,
    "UINT64": np.uint64, "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip


@pytest.mark.parametrize("datatype", NUMBERS)
def test_numbers_of_every_type(server, datatype):
    server.load("max_batch_size: 8", same(datatype=datatype), name="m")
    dtype = NUMBERS[datatype]
    given = np.array([[0, 1, 1, 0], [1, 0, 7, 3]]).astype(dtype)
    found = server.infer("m", {"IN": given})["OUT"]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, given)
    assert not np.shares_memory(found, given)


def test_bf16_as_torch_tensors(server):
    proto = model(
        [("Identity", "IN", "OUT"), ("Cast", "IN", "WIDE", {"to": 1})],
        [tensor("IN", ["b", 2], "BF16")],
        [tensor("OUT", ["b", 2], "BF16"), tensor("WIDE", ["b", 2])],
    )
    server.load("max_batch_size: 8", proto, name="m")
    given = torch.tensor([[1.5, -2.0], [3.0, 0.25]], dtype=torch.bfloat16)
    found = server.infer("m", {"IN": given})
    assert torch.equal(found["OUT"], given)
    assert torch.equal(found["WIDE"], given.float())
    assert torch.equal(server.infer("m", {"IN": given}, outputs=["WIDE"])["WIDE"], given.float())


def test_strings(server):
    server.load("max_batch_size: 8", same(datatype="BYTES"), name="m")
    text = ["", "é", "zero\0inside", "x" * 300]
    given = np.array([[t.encode() for t in text]], dtype=object)
    found = server.infer("m", {"IN": given})["OUT"]
    assert found.dtype == object
    assert found.tolist() == given.tolist()
    assert server.infer("m", {"IN": np.array([text], object)})["OUT"].tolist() == given.tolist()


def test_bytes_that_are_no_text_reach_the_model(server):
    proto = model(
        [("Equal", "A B", "SAME")],
        [tensor("A", ["b", 2], "BYTES"), tensor("B", ["b", 2], "BYTES")],
        [tensor("SAME", ["b", 2], "BOOL")],
    )
    proto.opset_import[0].version = 19  # Equal takes strings since 19
    server.load("max_batch_size: 8", proto, name="m")
    a = np.array([[b"\xff\xfe", b"a"]], dtype=object)
    b = np.array([[b"\xff\xfe", b"\xff"]], dtype=object)
    assert server.infer("m", {"A": a, "B": b})["SAME"].tolist() == [[True, False]]
    server.load("max_batch_size: 8", same(("b", 2), "BYTES"), name="echo")
    with pytest.raises(nt.TritonError, match="strings that are not UTF-8"):
        server.infer("echo", {"IN": a})


def test_scalars_and_reshape(server):
    server.load(None, same(()), name="scalar")
    assert server.infer("scalar", {"IN": np.array([3], np.float32)})["OUT"].tolist() == [3]
    server.load(None, same(("b",)), name="column")
    found = server.infer("column", {"IN": np.array([[1], [2]], np.float32)})["OUT"]
    assert found.tolist() == [[1], [2]]
    reshaped = (
        'input { name: "IN" data_type: TYPE_FP32 dims: 4 reshape { shape: [ 1, 4 ] } } '
        'output { name: "OUT" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: [ 1, 4 ] } }'
    )
    server.load(reshaped, same((1, 4)), name="reshaped")
    found = server.infer("reshaped", {"IN": np.arange(4, dtype=np.float32)})["OUT"]
    assert found.tolist() == [[0, 1], [2, 3]]


def test_an_input_that_is_a_weight_too_is_optional(server):
    proto = model(
        [("Add", "IN W", "OUT")],
        [tensor("IN", [4]), tensor("W", [4])],
        [tensor("OUT", [4])],
        [helper.make_tensor("W", 1, [4], [5] * 4)],
    )
    optional = '{ name: "W" data_type: TYPE_FP32 dims: 4 optional: true }'
    server.load(io() + f"input {optional}", proto, name="m")
    ones = np.ones(4, np.float32)
    assert server.infer("m", {"IN": ones})["OUT"].tolist() == [6] * 4
    assert server.infer("m", {"IN": ones, "W": ones})["OUT"].tolist() == [2] * 4
    assert refused(
        proto, "max_batch_size: 0 " + io("4") + f"input {optional.replace('W', 'V')}"
    ) == ("Invalid argument: unexpected inference input 'V', allowed inputs are: IN, W")


def test_arrays_of_any_layout(server):
    server.load("max_batch_size: 8", same(), name="m")
    given = np.arange(32, dtype=np.float32).reshape(4, 8)[::2, ::2]
    np.testing.assert_array_equal(server.infer("m", {"IN": given})["OUT"], given)
    # torch in, torch out
    found = server.infer("m", {"IN": torch.from_numpy(given.copy())})["OUT"]
    assert torch.equal(found, torch.from_numpy(given.copy()))


# -- batches ----------------------------------------------------------------------------------------


def batch(*values):
    return [
        Request(
            {name: np.full((1, 4), value, np.float32) for name in ("INPUT0", "INPUT1")},
            frozenset({"OUTPUT0", "OUTPUT1"}),
        )
        for value in values
    ]


def test_requests_share_one_run_and_get_views_of_its_outputs(onnx_model):
    instance = onnx_model(sum_and_difference(), "max_batch_size: 8")
    assert instance.any_thread
    timer = Timer()
    found = instance.execute(batch(1, 2, 3), timer)
    assert [r.outputs["OUTPUT0"].tolist() for r in found] == [[[2] * 4], [[4] * 4], [[6] * 4]]
    bases = {id(r.outputs["OUTPUT0"].base) for r in found}
    assert len(bases) == 1
    assert timer.marks == ["inputs_ready", "infer_done"]


def test_only_requested_outputs_are_computed(onnx_model, monkeypatch):
    instance = onnx_model(sum_and_difference(), "max_batch_size: 8")
    asked = []
    run = instance._session.run
    monkeypatch.setattr(
        instance._session, "run", lambda names, *rest: asked.append(names) or run(names, *rest)
    )
    requests = batch(1, 2)
    requests[0].requested_outputs = frozenset({"OUTPUT1"})
    first, second = instance.execute(requests, Timer())
    assert (set(first.outputs), set(second.outputs)) == ({"OUTPUT1"}, {"OUTPUT0", "OUTPUT1"})
    requests[1].requested_outputs = frozenset({"OUTPUT1"})
    instance.execute(requests, Timer())
    assert asked == [["OUTPUT0", "OUTPUT1"], ["OUTPUT1"]]


def test_a_model_without_batching_runs_requests_one_by_one(onnx_model):
    instance = onnx_model(same((4,)))
    requests = [Request({"IN": np.full(4, value, np.float32)}) for value in (1, 2)]
    found = instance.execute(requests, Timer())
    assert [r.outputs["OUT"].tolist() for r in found] == [[1] * 4, [2] * 4]


def test_an_error_of_the_runtime_is_tritons(server):
    proto = model(
        [("Reshape", "IN S", "OUT")],
        [tensor("IN", ["n"])],
        [tensor("OUT", ["m", "k"])],
        [helper.make_tensor("S", 7, [2], [-1, 3])],
    )
    server.load(io("-1", out="-1, 3"), proto, name="m")
    with pytest.raises(nt.TritonError, match=r"onnx runtime error \d+: Non-zero status") as caught:
        server.infer("m", {"IN": np.ones(4, np.float32)})
    assert caught.value.status == "INTERNAL"
    assert server.infer("m", {"IN": np.ones(6, np.float32)})["OUT"].shape == (2, 3)


def test_warmup_runs(server):
    server.load(
        "max_batch_size: 8 model_warmup { name: 'w' batch_size: 2 inputs { key: 'IN' value "
        "{ data_type: TYPE_FP32 dims: 4 zero_data: true } } }",
        same(),
        name="m",
    )
    assert server.infer("m", {"IN": np.ones((1, 4), np.float32)})["OUT"].sum() == 4


# -- options ----------------------------------------------------------------------------------------


def test_options_of_the_session(onnx_model):
    text = (
        "optimization { graph { level: 2 } }"
        + parameter("intra_op_thread_count", 1)
        + parameter("inter_op_thread_count", "2 threads")
        + parameter("execution_mode", 1)
        + parameter("enable_mem_arena", "off")
        + parameter("enable_mem_pattern", "FALSE")
        + parameter("session.use_device_allocator_for_initializers", 1)
        + parameter("memory.enable_memory_arena_shrinkage", "cpu:0")
    )
    instance = onnx_model(same(), text)
    options = instance._session.get_session_options()
    assert options.intra_op_num_threads == 1
    assert options.inter_op_num_threads == 2
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern
    assert options.execution_mode.name == "ORT_PARALLEL"
    assert options.graph_optimization_level.name == "ORT_DISABLE_ALL"
    key = "session.use_device_allocator_for_initializers"
    assert options.get_session_config_entry(key) == "1"
    assert instance._options.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            parameter("execution_mode", 2),
            (
                "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 "
                "but got 2 ."
            ),
        ),
        (parameter("intra_op_thread_count", "x"), "failed to convert 'x' to integral number"),
        (parameter("enable_mem_arena", "maybe"), "failed to convert 'maybe' to boolean"),
    ],
)
def test_options_that_mean_nothing(text, message):
    assert refused(same(), text) == f"Invalid argument: {message}"


def test_instances_share_a_session(onnx_model, monkeypatch):
    import onnxruntime

    made = []
    session = onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime, "InferenceSession", lambda *a, **k: made.append(1) or session(*a, **k)
    )
    with nt.Server(gpus=()) as running:
        running.load("instance_group { count: 3 }", same(), name="m")
        assert len(running.models()[0].instances) == 3
    assert made == [1]


def test_an_instance_on_a_gpu_needs_cuda(make):
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    with pytest.raises(nt.TritonError, match="has no CUDA execution provider") as caught:
        make(same(), "", backend="onnxruntime", kind="KIND_GPU")
    assert caught.value.status == "UNSUPPORTED"


def test_without_cuda_a_model_that_says_nothing_runs_on_the_host():
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    _, config = complete_model(as_config('name: "m"'), same(), 1, gpus=(0,))
    assert to_dict(config)["instance_group"] == [{"name": "m", "count": 2, "kind": "KIND_CPU"}]


# -- sequences --------------------------------------------------------------------------------------


def test_controls_and_implicit_state(server):
    # OUTPUT = INPUT + START + what came before, kept in a state that clients never see.
    proto = model(
        [
            ("Cast", "START", "begins", {"to": 6}),
            ("Add", "INPUT begins", "fresh"),
            ("Add", "fresh OLD", "OUTPUT"),
            ("Identity", "OUTPUT", "NEW"),
        ],
        [
            tensor("INPUT", ["b", 1], "INT32"),
            tensor("START", ["b", 1]),
            tensor("OLD", ["b", 1], "INT32"),
        ],
        [tensor("OUTPUT", ["b", 1], "INT32"), tensor("NEW", ["b", 1], "INT32")],
    )
    text = """
    max_batch_size: 4
    input { name: "INPUT" data_type: TYPE_INT32 dims: 1 }
    output { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 }
    sequence_batching {
      max_sequence_idle_microseconds: 60000000
      control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
      state { input_name: "OLD" output_name: "NEW" data_type: TYPE_INT32 dims: 1
              initial_state { name: "zero" data_type: TYPE_INT32 dims: 1 zero_data: true } }
    }
    """
    server.load(text, proto, name="m")
    seen = {7: [], 8: []}
    for step in range(3):
        for sequence, add in ((7, 1), (8, 10)):
            found = server.infer(
                "m", {"INPUT": np.array([[add]], np.int32)}, sequence_id=sequence,
                sequence_start=step == 0, sequence_end=step == 2,
            )  # fmt: skip
            assert list(found) == ["OUTPUT"]
            seen[sequence].append(int(found["OUTPUT"][0, 0]))
    assert seen == {7: [2, 3, 4], 8: [11, 21, 31]}
    wrong = text.replace('name: "START"', 'name: "BEGIN"')
    assert refused(proto, wrong) == (
        "Internal: configuration specified sequence control 'BEGIN', but model does not provide "
        "that input"
    )
    assert refused(proto, text.replace("fp32_false_true", "int32_false_true")) == (
        "Invalid argument: unable to load model 'm', sequence control 'START', the model expects "
        "data-type FLOAT but the model configuration specifies data-type TYPE_INT32"
    )
    assert refused(proto, text.replace('output_name: "NEW"', 'output_name: "NOW"')) == (
        "Invalid argument: unexpected inference output 'NOW', allowed outputs are: NEW, OUTPUT"
    )


def test_outputs_are_neither_the_input_nor_a_weight_nor_each_other(server):
    weight = helper.make_tensor("W", 1, [1, 4], [1.0] * 4)
    names = ("A", "B", "C")
    nodes = [("Identity", "IN", "A"), ("Identity", "IN", "B"), ("Identity", "W", "C")]
    outputs = [tensor(name, (1, 4)) for name in names]
    server.load("", model(nodes, [tensor("IN", (1, 4))], outputs, [weight]), name="m")
    mine = np.ones((1, 4), np.float32)
    for _ in range(2):
        found = server.infer("m", {"IN": mine})
        for name in names:
            assert found[name].tolist() == [[1] * 4]
            found[name][:] = 7
    assert mine.tolist() == [[1] * 4]
