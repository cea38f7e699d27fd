"""``runtime``: the names of a backend's library."""

from __future__ import annotations

from pathlib import Path

import pytest

import nbtriton
from nbtriton.backends import check_runtime, find_backend
from nbtriton.common.errors import ConfigError, LoadError
from nbtriton.extensions.doctor.validation import validate_repository
from nbtriton.model.config import ModelConfig
from tests.repository.models import add

TENSORS = """input { name: "IN" data_type: TYPE_FP32 dims: 1 }
output { name: "OUT" data_type: TYPE_FP32 dims: 1 }"""


def check(backend: str, runtime: str, **settings: str) -> None:
    config = ModelConfig(name="m", backend=backend, runtime=runtime)
    check_runtime(config, find_backend(backend, {"": settings}), None, {"": settings})


@pytest.mark.parametrize(
    ("backend", "runtime"),
    [
        ("python", ""),
        ("python", "libtriton_python.so"),
        ("onnxruntime", "./libtriton_onnxruntime.so"),
        ("pytorch", "libtriton_pytorch.so"),
        ("pytorch", "model.py"),
    ],
)
def test_libraries_that_the_backend_has(backend: str, runtime: str) -> None:
    check(backend, runtime)


@pytest.mark.parametrize("backend", ["python", "onnxruntime", "identity"])
def test_libraries_that_the_backend_lacks(backend: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(backend, "x", **{"backend-directory": "/b"})
    assert caught.value.message == (
        f"unable to find backend library 'x' for model 'm', searched: '/b/{backend}' "
    )
    assert f"libtriton_{backend}.so" in caught.value.hint
    assert caught.value.field == "runtime"
    with pytest.raises(ConfigError, match="Python backend based backend library"):
        check(backend, "model.py")


def test_a_python_based_backend_is_model_py(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.py").touch()
    check("mine", "model.py", **{"backend-directory": str(tmp_path)})
    with pytest.raises(ConfigError):
        check("mine", "libtriton_mine.so", **{"backend-directory": str(tmp_path)})


def test_a_library_of_the_model_s_own_is_refused(tmp_path: Path) -> None:
    add(tmp_path, "m", config=TENSORS + ' backend: "python" runtime: "mine.so"')
    (tmp_path / "m" / "mine.so").write_bytes(b"x")
    (found,) = validate_repository(tmp_path)
    assert "Not found: unable to load shared library" in str(found)
    with nbtriton.Server() as server, pytest.raises(LoadError) as caught:
        server.load_repository(tmp_path, control_mode="explicit").load("m")
    assert "unable to load shared library" in caught.value.message
    assert caught.value.message in str(found) + "\n"


def test_a_model_in_memory_may_name_the_library_of_its_backend() -> None:
    class Echo:
        def execute(self, requests: list) -> list:
            return []

    with nbtriton.Server() as server:
        server.load(TENSORS + ' runtime: "libtriton_python.so"', Echo, name="m")
        with pytest.raises(ConfigError, match="unable to find backend library 'x'"):
            server.load(TENSORS + ' runtime: "x"', Echo, name="m")
        assert server.is_ready("m")
