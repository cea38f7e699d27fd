"""Export: a server's models as a repository; loading it again is the identity."""

from __future__ import annotations

import shutil
import signal
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nbtriton as nt
from nbtriton.common.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    UnsupportedError,
)
from nbtriton.model.config import ModelConfig, parse_pbtxt, to_dict
from nbtriton.model.tensors import numpy_dtype
from nbtriton.serving.repository.export.sources import free_names, split_future
from nbtriton.serving.repository.export.writer import ExportWarning
from tests.children import run_python
from tests.repository.models import MODEL, add, ensemble, times
from tests.repository.notebook import Cells

ONE = np.arange(8, dtype=np.float32).reshape(2, 4)
DOUBLE = """
def double(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    return {"OUT": IN * 2}
"""


@pytest.fixture
def server():
    with nt.Server(gpus=()) as server:
        yield server


@pytest.fixture
def cells():
    return Cells()


def text_of(directory, name: str, version: int = 1) -> str:
    return (directory / name / str(version) / "model.py").read_text()


def again(directory) -> nt.Server:
    """A server with only the exported models."""
    server = nt.Server(gpus=())
    control = server.load_repository(directory)
    assert not control.errors, control
    return server


def same(one: nt.Server, other: nt.Server, name: str, inputs) -> None:
    """Both have the same model: completed configuration, and answers bit by bit."""
    assert to_dict(one.config(name)) == to_dict(other.config(name))
    same_answer(one, other, name, inputs)


def same_answer(one: nt.Server, other: nt.Server, name: str, inputs) -> None:
    ours, theirs = one.infer(name, inputs), other.infer(name, inputs)
    assert set(ours) == set(theirs)
    for tensor in ours:
        np.testing.assert_array_equal(ours[tensor], theirs[tensor])


# -- the identity --------------------------------------------------------------------------------


def test_a_function(server, cells, tmp_path):
    server.load("max_batch_size: 8 dynamic_batching {}", cells(DOUBLE), name="double")
    exported = server.export(tmp_path / "out")
    assert [(m.name, m.kind, m.versions) for m in exported.models] == [("double", "function", (1,))]
    with again(tmp_path / "out") as other:
        same(server, other, "double", {"IN": ONE})
        assert isinstance(other.engine.inspection.source("double").read_text(), str)


@pytest.mark.parametrize(
    "returned", ['{"A": IN, "B": -IN}', "(IN, -IN)", "{'B': -IN, 'A': IN}"]
)  # fmt: skip
def test_a_function_of_two_outputs(server, cells, tmp_path, returned):
    function = cells(
        f'def f(IN: "FP32[4]") -> {{"A": "FP32[4]", "B": "FP32[4]"}}:\n    return {returned}\n'
    )
    server.load("max_batch_size: 8", function, name="f")
    server.export(tmp_path)
    with again(tmp_path) as other:
        same(server, other, "f", {"IN": ONE})
        assert list(other.infer("f", {"IN": ONE}, outputs=["B"])) == ["B"]


def test_a_class_keeps_its_text(server, cells, tmp_path):
    cells(MODEL)
    server.load(None, cells.names["TritonPythonModel"], name="m")
    # The variable is in the same cell, which linecache does not know: carry it.
    server.export(tmp_path, carry=["FACTOR"])
    assert 'config.add_input({"name": "IN"' in text_of(tmp_path, "m")
    with again(tmp_path) as other:
        same(server, other, "m", {"IN": ONE})


def test_a_whole_cell_is_a_file(server, cells, tmp_path):
    cells(MODEL)
    model = cells.names["TritonPythonModel"]
    model.__nbtriton_source__ = MODEL
    server.load(None, model, name="m")
    exported = server.export(tmp_path)
    assert (
        text_of(tmp_path, "m")
        == MODEL.strip("\n").replace("pb_utils\n\nclass", "pb_utils\n\n\nclass") + "\n"
    )
    assert exported.warnings == ()


def test_a_class_of_another_name(server, cells, tmp_path):
    cells("import numpy as np\nimport triton_python_backend_utils as pb_utils")
    model = cells(
        "class Doubler:\n"
        "    def execute(self, requests):\n"
        "        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', 2 *\n"
        "            pb_utils.get_input_tensor_by_name(r, 'IN').as_numpy())]) for r in requests]\n"
    )
    config = 'input { name: "IN" data_type: TYPE_FP32 dims: [ 2, 4 ] } output { name: "OUT" data_type: TYPE_FP32 dims: [ 2, 4 ] }'
    server.load(config, model, name="d")
    server.export(tmp_path)
    assert text_of(tmp_path, "d").endswith("\n\n\nTritonPythonModel = Doubler\n")
    assert text_of(tmp_path, "d").startswith("import triton_python_backend_utils as pb_utils\n")
    with again(tmp_path) as other:
        same(server, other, "d", {"IN": ONE})


def test_an_ensemble_brings_its_models(server, cells, tmp_path):
    for name in ("double", "other"):
        server.load("max_batch_size: 8", cells(DOUBLE), name=name)
    server.load(ensemble("double", into="X", out="Y"), name="e")
    exported = server.export(tmp_path, ["e"])
    assert [model.name for model in exported.models] == ["e", "double"]
    assert not (tmp_path / "other").exists()
    with again(tmp_path) as other:
        same(server, other, "e", {"X": ONE})


CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [4]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]})
        return config
    def execute(self, requests):
        found = []
        for request in requests:
            inputs = [pb_utils.get_input_tensor_by_name(request, "IN")]
            call = pb_utils.InferenceRequest(
                model_name="dou" + "ble", requested_output_names=["OUT"], inputs=inputs
            )
            found.append(pb_utils.InferenceResponse(call.exec().output_tensors()))
        return found
"""


@pytest.mark.medium
def test_a_model_brings_those_that_it_called(server, cells, tmp_path):
    server.load(None, cells(DOUBLE), name="double")
    server.load(None, cells(CALLER), name="caller")
    with pytest.warns(ExportWarning, match="called none here so far"):
        exported = server.export(tmp_path / "before", ["caller"])
    assert [model.name for model in exported.models] == ["caller"]
    server.infer("caller", {"IN": ONE[0]})
    with pytest.warns(match="'caller' called 'double' when it ran here: written along"):
        exported = server.export(tmp_path / "after", ["caller"])
    assert [model.name for model in exported.models] == ["caller", "double"]
    with again(tmp_path / "after") as other:
        assert other.infer("caller", {"IN": ONE[0]})["OUT"].tolist() == (ONE[0] * 2).tolist()
    server.unload("double")
    with pytest.warns(match="'caller' called 'double' when it ran here, which is not loaded now"):
        server.export(tmp_path / "absent", ["caller"])


@pytest.mark.medium
def test_models_of_files_with_all_that_belongs_to_them(server, tmp_path):
    root = tmp_path / "models"
    folder = add(root, "m", config="version_policy { all {} }", versions=("1", "2"))
    (folder / "labels.txt").write_text("cat\ndog\n")
    (folder / "2" / "helper.py").write_text("X = 1\n")
    (folder / "warmup").mkdir()
    (folder / "warmup" / "raw").write_bytes(b"1234")
    (folder / "1" / "__pycache__").mkdir()
    server.load_repository(root)
    (folder / "7").mkdir()  # came after the load
    server.export(tmp_path / "out")
    written = sorted(
        p.relative_to(tmp_path / "out" / "m").as_posix()
        for p in (tmp_path / "out" / "m").rglob("*")
        if p.is_file()
    )
    assert written == [
        "1/model.py",
        "2/helper.py",
        "2/model.py",
        "config.pbtxt",
        "labels.txt",
        "warmup/raw",
    ]
    with again(tmp_path / "out") as other:
        same(server, other, "m", {"IN": ONE})
        assert other.is_ready("m", 1)


def test_a_file_that_is_in_no_repository(server, tmp_path):
    file = tmp_path / "my_model.py"
    file.write_text(times(3))
    server.load(None, file, name="m")
    server.export(tmp_path / "out")
    assert (
        parse_pbtxt((tmp_path / "out/m/config.pbtxt").read_text()).default_model_filename
        == "my_model.py"
    )
    with again(tmp_path / "out") as other:
        assert other.infer("m", {"IN": ONE})["OUT"].tolist() == (3 * ONE).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("torch_format", ["torchscript", "export", "python"])
def test_a_torch_module_keeps_its_weights(server, tmp_path, torch_format):
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, x, y):
            return {"SUM": self.layer(x + y), "DIFFERENCE": x - y}

    example = {"x": torch.ones(2, 4), "y": torch.zeros(2, 4)}
    server.load("max_batch_size: 8", Net, name="net", example=example)
    server.export(tmp_path, torch=torch_format)
    backend = parse_pbtxt((tmp_path / "net" / "config.pbtxt").read_text()).backend
    assert backend == ("python" if torch_format == "python" else "pytorch")
    with again(tmp_path) as other:
        inputs = {"x": ONE, "y": ONE[::-1].copy()}
        ours, theirs = server.infer("net", inputs), other.infer("net", inputs)
        for tensor in ours:
            np.testing.assert_allclose(ours[tensor], theirs[tensor], rtol=1e-6)
        if torch_format == "torchscript":
            assert to_dict(server.config("net")) == to_dict(other.config("net"))


@pytest.mark.medium
@pytest.mark.parametrize("torch_format", ["torchscript", "export"])
def test_a_torch_module_with_variable_dims(server, tmp_path, torch_format):
    import torch

    class Sum(torch.nn.Module):
        def forward(self, x):
            return x.cumsum(-1)

    config = """max_batch_size: 4 backend: "pytorch"
    input { name: "x" data_type: TYPE_FP32 dims: [ -1, 2 ] }
    output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1, 2 ] }"""
    server.load(config, Sum(), name="s")
    server.export(tmp_path, torch=torch_format)
    with again(tmp_path) as other:
        for rows in (1, 2, 7):
            same_answer(server, other, "s", {"x": np.ones((3, rows, 2), np.float32)})


@pytest.mark.medium
def test_a_module_whose_path_depends_on_values_keeps_its_paths(server, tmp_path):
    import torch

    class Branch(torch.nn.Module):
        def forward(self, x):
            if bool(x.sum() > 0):
                return x * 2
            return -x

    server.load("max_batch_size: 8", Branch, name="b", example=torch.ones(2, 4))
    server.export(tmp_path)
    with again(tmp_path) as other:
        for sign in (1, -1):
            same(server, other, "b", {"x": sign * (1 + ONE)})


def test_a_module_that_cannot_be_written_is_an_error_with_a_reason(server, tmp_path):
    import torch

    class Numpy(torch.nn.Module):
        def forward(self, x: torch.Tensor):
            return torch.from_numpy(x.numpy() * int(x.sum()))

    server.load("max_batch_size: 8", Numpy, name="n", example=torch.ones(2, 4))
    with pytest.raises(UnsupportedError, match="model 'n' cannot be written as TorchScript"):
        server.export(tmp_path / "out")
    assert not (tmp_path / "out" / "n").exists()


def test_a_function_that_yields_keeps_its_stream(server, cells, tmp_path):
    function = cells(
        'def f(N: "INT32[1]") -> {"LEFT": "INT32[1]"}:\n'
        "    for left in range(N.item(), 0, -1):\n"
        '        yield {"LEFT": N * 0 + left}\n'
    )
    server.load("max_batch_size: 4", function, name="f")
    server.export(tmp_path)
    asked = {"N": np.array([[3]], np.int32)}
    with again(tmp_path) as other:
        assert to_dict(server.config("f")) == to_dict(other.config("f"))
        found = [[r["LEFT"].item() for r in one.stream("f", asked)] for one in (server, other)]
    assert found == [[3, 2, 1]] * 2


def test_a_function_that_is_annotated_for_torch_gets_torch(server, cells, tmp_path):
    function = cells(
        "import torch\nfrom typing import Annotated\n"
        'def f(IN: Annotated[torch.Tensor, "FP32[4]"]) -> {"OUT": "FP32[4]"}:\n'
        "    return torch.relu(IN - 2)\n"
    )
    server.load("max_batch_size: 4", function, name="f")
    server.export(tmp_path)
    with again(tmp_path) as other:
        same(server, other, "f", {"IN": ONE})


def test_types_of_the_notebook_are_not_needed_by_the_file(server, cells, tmp_path):
    function = cells(
        "import numpy as np\nfrom typing import Annotated, TypedDict\n"
        'Row = Annotated[np.ndarray, "FP32[4]"]\n'
        "class Outputs(TypedDict):\n    OUT: Row\n"
        "def f(IN: Row) -> Outputs:\n    return {'OUT': IN * 2}\n"
    )
    server.load("max_batch_size: 4", function, name="f")
    assert not server.export(tmp_path).warnings
    with again(tmp_path) as other:
        same(server, other, "f", {"IN": ONE})


def test_a_function_of_a_sequence_gets_its_controls(server, cells, tmp_path):
    function = cells(
        'def f(IN: "FP32[4]", START) -> {"OUT": "FP32[4]"}:\n    return IN + 100 * START\n'
    )
    text = (
        "max_batch_size: 4 sequence_batching { max_sequence_idle_microseconds: 600000000 "
        'control_input { name: "START" control { '
        "kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } } }"
    )
    server.load(text, function, name="f")
    server.export(tmp_path)
    with again(tmp_path) as other:
        for one in (server, other):
            row = {"IN": ONE[:1]}
            first = one.infer("f", row, sequence_id=1, sequence_start=True)["OUT"]
            last = one.infer("f", row, sequence_id=1, sequence_end=True)["OUT"]
            assert (first - last == 100).all()


@pytest.mark.slow
def test_an_estimator_is_pickled_beside_its_file(server, tmp_path):
    linear_model = pytest.importorskip("sklearn.linear_model", reason="extra 'demo'")
    fitted = linear_model.LogisticRegression().fit(ONE, ["low", "high"])
    server.load("max_batch_size: 4", fitted, name="e")
    exported = server.export(tmp_path)
    assert exported.models[0].kind == "estimator"
    assert "the server needs the same version of sklearn" in exported.warnings[0]
    with again(tmp_path) as other:
        same(server, other, "e", {"INPUT": ONE})


@pytest.mark.slow
def test_an_estimator_gets_the_columns_that_it_was_trained_with(server, tmp_path):
    """By their names, here and in the file: without a warning a request."""
    compose = pytest.importorskip("sklearn.compose", reason="extra 'demo'")
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    frame = pd.DataFrame(np.arange(12, dtype=np.float32).reshape(4, 3), columns=["a", "b", "c"])
    chosen = compose.ColumnTransformer([("scaled", StandardScaler(), ["c", "a"])])
    fitted = make_pipeline(chosen, LinearRegression()).fit(frame, [0.0, 1.0, 2.0, 3.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        server.load("max_batch_size: 8", fitted, name="e")
        found = server.infer("e", {"INPUT": frame.to_numpy()})["predict"]
    np.testing.assert_allclose(found[:, 0], fitted.predict(frame), rtol=1e-6)
    server.export(tmp_path)
    with again(tmp_path) as other:
        same(server, other, "e", {"INPUT": frame.to_numpy()})


def test_an_object_of_the_notebook_is_not_written(server, tmp_path):
    class Estimator:
        n_features_in_ = 4

        def predict(self, x):
            return x

    server.load("max_batch_size: 4", Estimator(), name="e")
    with pytest.raises(UnsupportedError, match="a Estimator cannot be written"):
        server.export(tmp_path)


@pytest.mark.medium
@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    datatype=st.sampled_from(["FP32", "FP64", "FP16", "INT8", "INT64", "UINT8", "BOOL", "BYTES"]),
    dims=st.lists(st.sampled_from([1, 2, 3, -1]), min_size=1, max_size=3),
    batch=st.sampled_from([0, 1, 8]),
    dynamic=st.booleans(),
    instances=st.sampled_from([None, 1, 2]),
    factor=st.one_of(st.integers(-5, 5), st.floats(-2, 2), st.text(max_size=3), st.lists(st.integers(0, 9), max_size=3)),
)  # fmt: skip
def test_simple_functions_of_all_kinds(
    tmp_path_factory, data, datatype, dims, batch, dynamic, instances, factor
):
    cells = Cells()
    cells("import numpy as np")
    cells.names["FACTOR"] = factor
    shape = f"{datatype}[{','.join(map(str, dims))}]"
    function = cells(
        f'def f(IN: "{shape}", OTHER: "INT32[1]" = None) -> {{"OUT": "{shape}", "N": "INT64[1]"}}:\n'
        '    """One output as it came, one that a variable of the notebook decides."""\n'
        f"    rows = len(IN) if {batch > 0} else 1\n"
        '    return {"OUT": IN, "N": np.full((rows, 1) if '
        + str(batch > 0)
        + " else (1,), hash(str(FACTOR)) % 97)}\n"
    )
    config = f"max_batch_size: {batch} "
    config += "dynamic_batching {} " if dynamic and batch else ""
    config += f"instance_group {{ count: {instances} kind: KIND_CPU }}" if instances else ""
    size = data.draw(st.integers(1, batch)) if batch else 1
    full = [2 if dim < 0 else dim for dim in dims]
    random = np.random.default_rng(size)
    if datatype == "BYTES":
        value = random.integers(0, 9, ([size] if batch else []) + full).astype("S").astype(object)
    else:
        value = random.integers(0, 2, ([size] if batch else []) + full).astype(
            numpy_dtype(datatype)
        )
    directory = tmp_path_factory.mktemp("out")
    with nt.Server(gpus=()) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        server.load(config, function, name="f")
        server.export(directory, carry=["FACTOR"])
        with again(directory) as other:
            same(server, other, "f", {"IN": value})


# -- variables of the notebook -------------------------------------------------------------------

WITH_NAMES = """
def f(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:
    table = np.asarray(TABLE)
    return {"OUT": helper(IN) * SCALE + table + plus.one(0) - 1}
"""


@pytest.fixture
def named(cells, server, tmp_path, monkeypatch):
    """A model that uses a number, an array, a function of the notebook and a file beside it."""
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "plus.py").write_text("def one(x):\n    return x + 1\n")
    monkeypatch.syspath_prepend(beside)
    cells(
        "import numpy as np\nimport plus\nSCALE = 3\nOFFSET = 2.5\nTABLE = np.arange(4, dtype=np.float32)"
    )
    cells("def shift(x):\n    return x + OFFSET")
    cells("def helper(x):\n    return shift(x)")
    server.load("max_batch_size: 8", cells(WITH_NAMES), name="f")
    yield server
    sys.modules.pop("plus", None)


def test_a_warning_names_every_variable_that_the_file_will_not_have(named, tmp_path):
    with pytest.warns(UserWarning, match="will not have") as caught:
        exported = named.export(tmp_path / "out")
    (model,) = exported.models
    assert set(model.missing) == {"TABLE", "helper", "SCALE", "plus"}
    (warning,) = caught
    assert str(warning.message) == exported.warnings[0]
    assert warning.filename == __file__
    for part in ("'TABLE' (ndarray (4,))", "'helper' (a function)", "'SCALE' (3)", "carry="):
        assert part in exported.warnings[0]
    assert "import numpy as np\n" in text_of(tmp_path / "out", "f")
    assert "SCALE" in repr(exported)
    assert "<table" in exported._repr_mimebundle_()["text/html"]


@pytest.mark.medium
def test_carried_along(named, tmp_path):
    exported = named.export(tmp_path / "out", carry=True)
    (model,) = exported.models
    assert not model.missing
    assert model.carried == {
        "TABLE": "TABLE.npy",
        "helper": "its source",
        "shift": "its source",
        "OFFSET": "2.5",
        "SCALE": "3",
        "plus": "plus.py",
    }
    with again(tmp_path / "out") as other:
        same(named, other, "f", {"IN": ONE})
    # In a process of its own, without this one's sys.path, as on the real server.
    program = (
        "import nbtriton as nt, numpy as np\n"
        "with nt.Server(gpus=()) as server:\n"
        f"    control = server.load_repository({str(tmp_path / 'out')!r})\n"
        "    assert not control.errors, control\n"
    )
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr


def test_some_carried_and_some_not(named, tmp_path):
    with pytest.warns(UserWarning, match="'helper'"):
        exported = named.export(tmp_path / "out", carry=["SCALE", "TABLE", "plus"])
    assert list(exported.models[0].missing) == ["helper"]


def test_a_name_that_no_model_uses(named, tmp_path):
    with pytest.raises(InvalidArgumentError, match="no model uses a variable 'SCALES'") as caught:
        named.export(tmp_path / "out", carry=["SCALES"])
    assert caught.value.hint == "did you mean 'SCALE'?"
    assert not (tmp_path / "out" / "f").exists()


@pytest.mark.medium
@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (3, None), (-2.5, None), ('text "quoted" \n', None), (b"\x00\xff", None), (True, None),
        (None, None), ([1, "a", (2, None)], None), ({"a": [1]}, None), ({1, 2}, None),
        (float("inf"), ".pkl"), (list(range(1000)), ".pkl"), (np.ones((2, 2)), ".npy"),
        (np.array([b"a", b"bc"], object), ".npy"), (np.float32(1.5), ".pkl"), (range(3), ".pkl"),
    ],
)  # fmt: skip
def test_values_that_are_carried(server, cells, tmp_path, value, stored):
    cells.names["VALUE"] = value
    function = cells(
        'def f(IN: "FP32[4]") -> {"OUT": "BYTES[1]"}:\n'
        '    return {"OUT": [[f"{type(VALUE).__name__} {VALUE!r}"] for _ in IN]}\n'
    )
    server.load("max_batch_size: 8", function, name="f")
    exported = server.export(tmp_path, carry=["VALUE"])
    assert exported.models[0].carried["VALUE"] == (f"VALUE{stored}" if stored else repr(value))
    written = [path.name for path in tmp_path.glob("f/1/*") if path.name != "model.py"]
    assert written == ([f"VALUE{stored}"] if stored else [])
    with again(tmp_path) as other:
        same(server, other, "f", {"IN": ONE})


def test_a_torch_tensor_is_carried(server, cells, tmp_path):
    import torch

    cells("import numpy as np")
    cells.names["WEIGHTS"] = torch.arange(4, dtype=torch.float32)
    function = cells(
        'def f(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:\n    return {"OUT": IN * WEIGHTS.numpy()}\n'
    )
    server.load("max_batch_size: 8", function, name="f")
    server.export(tmp_path, carry=["WEIGHTS"])
    with again(tmp_path) as other:
        same(server, other, "f", {"IN": ONE})


def test_a_network_of_torch_layers_is_carried(server, cells, tmp_path):
    import torch

    cells("import torch")
    cells.names["network"] = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    function = cells(
        'def f(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:\n'
        "    with torch.inference_mode():\n"
        '        return {"OUT": network(torch.from_numpy(IN)).numpy()}\n'
    )
    server.load("max_batch_size: 8", function, name="f")
    server.export(tmp_path, carry=["network"])
    with again(tmp_path) as other:
        same(server, other, "f", {"IN": ONE})


def test_what_cannot_be_carried(server, cells, tmp_path):
    cells("class Mine:\n    x = 1\nVALUE = Mine()")
    function = cells('def f(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:\n    return IN * VALUE.x\n')
    server.load("max_batch_size: 8", function, name="f")
    with pytest.raises(UnsupportedError, match="its class is defined in the notebook"):
        server.export(tmp_path, carry=True)
    cells.names["VALUE"] = open(__file__)  # noqa: SIM115, PTH123
    with pytest.raises(UnsupportedError, match="cannot be carried"):
        server.export(tmp_path, carry=True)
    cells.names["VALUE"].close()


def test_a_lambda_has_no_text(server, tmp_path):
    config = 'max_batch_size: 8 input { name: "IN" data_type: TYPE_FP32 dims: 4 } output { name: "OUT" data_type: TYPE_FP32 dims: 4 }'
    server.load(config, lambda IN: IN, name="f")  # noqa: N803
    with pytest.raises(UnsupportedError, match="cannot be written to a file") as caught:
        server.export(tmp_path)
    assert "def" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import a\nx = a.b + c", ["c"]),
        ("def f(x, y=d):\n    z = x\n    return [z for q in w if q] + [e]", ["d", "w", "e"]),
        ("class A(Base):\n    size = SIDE\n    def m(self):\n        return self.size + OTHER", ["Base", "SIDE", "OTHER"]),
        ("def f():\n    global G\n    G = 1\ndef g():\n    return G", []),
        ("def f(x: T) -> R:\n    def g():\n        nonlocal x\n        x = len(H)\n    return print", ["T", "R", "H"]),
        ("from __future__ import annotations\ndef f(x: 'a'):\n    return __file__, x", []),
        ("async def f():\n    async with A() as b:\n        return lambda c: b + c + D", ["A", "D"]),
    ],
)  # fmt: skip
def test_names_that_a_text_does_not_have(text, names):
    assert free_names(text) == names


@pytest.mark.medium
def test_future_imports_stay_first(server, cells, tmp_path):
    assert split_future("'''Doc.'''\nfrom __future__ import annotations\nx = 1\n")[0] == (
        "from __future__ import annotations\n"
    )
    cells("import numpy as np")
    cells(DOUBLE)
    cells.names["double"].__nbtriton_source__ = (
        "from __future__ import annotations\n" + DOUBLE + "K = np.pi\n"
    )
    server.load("max_batch_size: 8", cells.names["double"], name="double")
    server.export(tmp_path)
    assert text_of(tmp_path, "double").startswith(
        "from __future__ import annotations\n\nimport json\n"
    )
    with again(tmp_path) as other:
        same(server, other, "double", {"IN": ONE})


def test_a_cell_with_another_value_for_np(server, cells, tmp_path):
    cells("np = 3\njson = 4")
    function = cells('def f(IN: "FP32[4]") -> {"OUT": "FP32[4]"}:\n    return {"OUT": IN * np}\n')
    server.load("max_batch_size: 8", function, name="f")
    server.export(tmp_path, carry=["np"])
    with again(tmp_path) as other:
        same(server, other, "f", {"IN": ONE})


def test_custom_batching_is_left_out_with_a_note(server, cells, tmp_path):
    class Anything:
        def model_batcher_initialize(self, model):
            return None

        def model_batcher_finalize(self, batcher):
            pass

        def model_batch_initialize(self, batcher):
            return None

        def model_batch_finalize(self, batch):
            pass

        def model_batch_include_request(self, request, batch):
            return True

    config = "max_batch_size: 8 dynamic_batching {}"
    server.load(config, cells(DOUBLE), name="double", batching=Anything)
    with pytest.warns(UserWarning, match="has custom batching in Python"):
        server.export(tmp_path)
    assert "model_batch" not in text_of(tmp_path, "double")
    with again(tmp_path) as other:
        same(server, other, "double", {"IN": ONE})


# -- configuration and files ---------------------------------------------------------------------


def test_the_configuration_is_what_a_person_would_write(server, cells, tmp_path):
    config = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 100 }"
    server.load(config, cells(DOUBLE), name="double")
    server.export(tmp_path)
    written = parse_pbtxt((tmp_path / "double" / "config.pbtxt").read_text())
    assert {field.name for field, _ in written.ListFields()} == {
        "name", "backend", "max_batch_size", "input", "output", "dynamic_batching",
    }  # fmt: skip
    assert not written.dynamic_batching.preferred_batch_size  # Triton's own default


def test_labels_and_warmup_data(server, cells, tmp_path):
    config = ModelConfig()
    config.max_batch_size = 8
    server.load(config, cells(DOUBLE), name="double")
    config = server.config("double")
    config.output[0].label_filename = "labels.txt"
    server.load(config, name="double")
    with pytest.warns(UserWarning, match="refers to labels.txt, which was not given"):
        server.export(tmp_path)
    labels = {"labels.txt": "cat\ndog\n", "warmup/raw": b"1234"}
    server.export(tmp_path, files={"double": labels})
    assert (tmp_path / "double" / "labels.txt").read_text() == "cat\ndog\n"
    assert (tmp_path / "double" / "warmup" / "raw").read_bytes() == b"1234"


@pytest.mark.parametrize("path", ["../x", "/x", "", "a/../../x"])
def test_files_stay_in_the_models_directory(server, cells, tmp_path, path):
    server.load("max_batch_size: 8", cells(DOUBLE), name="double")
    with pytest.raises(InvalidArgumentError, match="outside the directory"):
        server.export(tmp_path / "out", files={"double": {path: "x"}})
    with pytest.raises(NotFoundError):
        server.export(tmp_path / "out", files={"dubble": {"x": "x"}})


# -- existing directories ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["..", "../mine", "a/b", ".hidden", "m" * 300])
def test_a_model_whose_name_is_no_folders_is_not_written(server, cells, tmp_path, name):
    server.load("max_batch_size: 8", cells(DOUBLE), name=name)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(InvalidArgumentError, match="its name cannot be that of a folder"):
        server.export(tmp_path / "out", overwrite=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "file"]


def test_a_directory_that_cannot_be_made_is_an_error_with_its_reason(server, cells, tmp_path):
    server.load("max_batch_size: 8", cells(DOUBLE), name="double")
    (tmp_path / "file").touch()
    with pytest.raises(InvalidArgumentError, match="file/out': Not a directory"):
        server.export(tmp_path / "file" / "out")


def test_foreign_files_are_not_touched(server, cells, tmp_path):
    server.load("max_batch_size: 8", cells(DOUBLE), name="double")
    (tmp_path / "double").mkdir()
    (tmp_path / "double" / "mine.txt").write_text("mine")
    (tmp_path / "other.txt").write_text("mine")
    (tmp_path / ".gitignore").touch()
    with pytest.raises(AlreadyExistsError, match="holds what no export has written: double, other"):
        server.export(tmp_path)
    assert (tmp_path / "double" / "mine.txt").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".gitignore",
        "double",
        "other.txt",
    ]
    server.export(tmp_path, overwrite=True)
    assert not (tmp_path / "double" / "mine.txt").exists()
    assert (tmp_path / "other.txt").read_text() == "mine"
    with pytest.raises(AlreadyExistsError):
        server.export(tmp_path / "other.txt")


@pytest.mark.medium
def test_an_export_replaces_its_own(server, cells, tmp_path):
    for name in ("a", "b"):
        server.load("max_batch_size: 8", cells(DOUBLE), name=name)
    server.export(tmp_path)
    server.load("max_batch_size: 4", name="a")
    server.export(tmp_path, ["a"])
    with again(tmp_path) as other:
        assert other.config("a").max_batch_size == 4
        assert other.is_ready("b")


def test_a_model_that_cannot_be_written_leaves_the_repository_unchanged(server, cells, tmp_path):
    server.load("max_batch_size: 8", cells(DOUBLE), name="a")
    server.export(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    config = server.config("a")
    config.name = ""
    server.load(config, lambda IN: IN, name="b")  # noqa: N803
    server.load("max_batch_size: 4", name="a")
    with pytest.raises(UnsupportedError):
        server.export(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_interrupt_loses_no_model_of_the_export_before(server, cells, tmp_path, monkeypatch):
    for name in ("a", "b"):
        server.load("max_batch_size: 8", cells(DOUBLE), name=name)
    server.export(tmp_path)
    removed = shutil.rmtree

    def interrupted(path, **options):
        removed(path, **options)
        if path == tmp_path / "a":
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        server.export(tmp_path)
    monkeypatch.undo()
    with again(tmp_path) as other:
        assert other.is_ready("a")
        assert other.is_ready("b")


def test_an_unknown_model(server, cells, tmp_path):
    server.load("max_batch_size: 8", cells(DOUBLE), name="double")
    with pytest.raises(NotFoundError) as caught:
        server.export(tmp_path, ["dubble"])
    assert caught.value.hint == "did you mean 'double'?"
    with pytest.raises(InvalidArgumentError, match="unknown torch '"):
        server.export(tmp_path, torch="onnx")
