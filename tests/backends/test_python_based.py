"""A folder with a ``model.py`` in the backend directory is a backend, with Triton's rules.

Both servers are compared in ``tests/differential/test_python_based_backends.py``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nbtriton
from nbtriton.backends import find_backend
from nbtriton.backends.python import PythonBackend
from nbtriton.common.errors import InvalidArgumentError

CODE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy() + {})])
            for r in requests
        ]
"""
CONFIG = """
backend: "plus" max_batch_size: 4
input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""


@pytest.fixture
def backends(tmp_path: Path) -> Path:
    (tmp_path / "plus").mkdir()
    (tmp_path / "plus" / "model.py").write_text(CODE.format(1))
    # Those that are built in, and folders without the file, are none.
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "model.py").write_text("raise AssertionError\n")
    (tmp_path / "empty").mkdir()
    return tmp_path


def settings(backends: Path) -> dict[str, dict[str, str]]:
    return {"": {"backend-directory": str(backends)}}


def test_they_are_found_where_they_are_looked_for(backends: Path) -> None:
    found = find_backend("plus", settings(backends))
    assert issubclass(found, PythonBackend)
    assert (found.name, found.runtime, found.needs_source) == ("plus", "model.py", False)
    assert find_backend("python", settings(backends)) is PythonBackend
    for name, given in (("plus", {}), ("empty", settings(backends)), ("", settings(backends))):
        with pytest.raises(InvalidArgumentError, match=f"for backend '{name}', try specifying"):
            find_backend(name, given)


@pytest.mark.medium
def test_a_server_of_the_notebook_runs_their_models_without_code(backends: Path) -> None:
    with nbtriton.Server(gpus=(), backend_config=settings(backends)) as server:
        for name in ("one", "two"):
            server.load(CONFIG, name=name)
        x = np.array([[1], [2]], np.int32)
        assert server.infer("one", {"IN": x})["OUT"].tolist() == [[2], [3]]
        # Also where its configuration is replaced, and where the code has changed since.
        (backends / "plus" / "model.py").write_text(CODE.format(10))
        server.load(CONFIG.replace("4", "8"), name="two")
        assert server.infer("two", {"IN": x})["OUT"].tolist() == [[11], [12]]
        assert server.infer("one", {"IN": x})["OUT"].tolist() == [[2], [3]]
        assert server.config("one").runtime == "model.py"


def test_its_models_are_written_without_its_code_and_that_is_said(
    backends: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "models" / "m" / "1"
    folder.mkdir(parents=True)
    (folder / "model.json").write_text("{}")
    (folder.parent / "config.pbtxt").write_text(CONFIG)
    with nbtriton.Server(gpus=(), backend_config=settings(backends)) as server:
        server.load_repository(tmp_path / "models")
        written = server.export(tmp_path / "out")
    (model,) = written.models
    assert [
        note for note in model.notes if "Python-based backend 'plus', which is not written" in note
    ]
    assert (tmp_path / "out" / "m" / "1" / "model.json").read_text() == "{}"
    assert 'backend: "plus"' in (tmp_path / "out" / "m" / "config.pbtxt").read_text()


@pytest.mark.parametrize("name", [*";|&$`<>()[]{}\\\"'*?~#!"])
def test_a_name_with_a_character_that_triton_refuses_is_refused(
    make, model_file, name: str
) -> None:
    for names in ({"name": f"m{name}x"}, {"instance": f"m{name}_0"}):
        with pytest.raises(InvalidArgumentError) as caught:
            make(model_file(CODE.format(1)), CONFIG.replace("plus", "python"), **names)
        assert caught.value.message == "Invalid stub name: contains invalid characters"
        assert caught.value.hint.endswith(f" has {name}")


@pytest.mark.parametrize("name", ["TestModel123", "with-hyphens", "with_under.scores", "größe 1"])
def test_all_other_names_are_taken(make, run, model_file, name: str) -> None:
    instance = make(
        model_file(CODE.format(1)),
        CONFIG.replace("plus", "python"),
        name=name,
        instance=f"{name}_0",
    )
    (answer,) = run(instance, np.array([[4]], np.int32))
    assert answer.outputs["OUT"].tolist() == [[5]]
