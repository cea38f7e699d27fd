"""A package that is missing is one sentence and the command that brings it, never a traceback of ours."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.cli import main
from nbtriton.errors import UnsupportedError
from nbtriton.packages import needed
from tests.children import run_python


def double(IN):  # noqa: N803 - a model function names its tensors
    return {"OUT": IN * 2}


CONFIG = """max_batch_size: 4 input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }"""


@pytest.mark.parametrize(
    ("package", "extra", "said", "hint"),
    [
        ("rapidjson", "serve", "'python-rapidjson'", "pip install 'nbtriton[serve]'"),
        ("re2", "serve", "'google-re2'", "pip install 'nbtriton[serve]'"),
        ("matplotlib", "", "'matplotlib'", "pip install matplotlib"),
    ],
)
def test_the_sentence_names_what_to_install(monkeypatch, package, extra, said, hint):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnsupportedError) as caught, needed("this", extra=extra):
        __import__(package)
    assert caught.value.message == f"this needs the package {said}"
    assert caught.value.hint == hint


def test_a_package_that_does_not_start_is_told_with_the_reason():
    with pytest.raises(UnsupportedError) as caught, needed("this", package="torch"):
        raise ImportError("libcudart.so.12: cannot open shared object file")
    assert caught.value.message == (
        "this needs the package 'torch': libcudart.so.12: cannot open shared object file"
    )


def test_other_errors_stay():
    with pytest.raises(RuntimeError, match="mine"), needed("this"):
        raise RuntimeError("mine")


def test_grpc_clients(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "grpc", None)
    assert main(["perf", "m", "-u", "grpc://127.0.0.1:1"]) != 0
    assert capsys.readouterr().err.splitlines() == [
        "nbtriton: gRPC needs the package 'grpcio'",
        "  hint: pip install 'nbtriton[serve]'",
    ]


def test_frames_and_torch(monkeypatch):
    with nt.Server() as server:
        server.load(CONFIG, double, name="m")
        result = server.infer("m", {"IN": np.ones((1, 4), np.float32)})
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(UnsupportedError, match="needs the package 'pandas'"):
            result.to_frame()


@pytest.mark.parametrize("package", ["httptools", "grpc"])
def test_endpoints(package):
    code = f"""import sys
sys.modules[{package!r}] = None
import nbtriton as nt
from nbtriton.errors import UnsupportedError
with nt.Server() as server:
    try:
        server.serve(http_port=0, grpc_port=0, metrics_port=None)
    except UnsupportedError as error:
        print(error.message, "|", error.hint)
"""
    done = run_python("-c", code)
    (line,) = done.stdout.splitlines()
    assert line.endswith("| pip install 'nbtriton[serve]'")
    assert "needs the package 'grpcio'" in line or "needs the package 'httptools'" in line
