"""A package that is missing is one sentence and the command that brings it, never a traceback of ours."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import nbtriton as nt
from nbtriton.common.errors import UnsupportedError
from nbtriton.common.packages import needed
from nbtriton.magics.cli import main
from tests.children import run_python


def double(IN):  # noqa: N803 - a model function names its tensors
    return {"OUT": IN * 2}


CONFIG = """max_batch_size: 4 input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }"""


@pytest.mark.parametrize(
    ("package", "said", "hint"),
    [
        ("rapidjson", "'python-rapidjson'", "pip install python-rapidjson"),
        ("grpc", "'grpcio'", "pip install 'nbtriton[grpc]'"),
        ("matplotlib", "'matplotlib'", "pip install 'nbtriton[plot]'"),
    ],
)
def test_the_sentence_names_what_to_install(monkeypatch, package, said, hint):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnsupportedError) as caught, needed("this"):
        __import__(package)
    assert caught.value.message == f"this needs the package {said}"
    assert caught.value.hint == hint


def test_a_package_that_does_not_start_is_reported_with_the_reason():
    with pytest.raises(UnsupportedError) as caught, needed("this", package="torch"):
        raise ImportError("libcudart.so.12: cannot open shared object file")
    assert caught.value.message == (
        "this needs the package 'torch': libcudart.so.12: cannot open shared object file"
    )


def test_an_error_that_names_no_package_is_that_of_the_package_that_raised(tmp_path, monkeypatch):
    (tmp_path / "half_built.py").write_text("raise ImportError('C extension not built')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnsupportedError) as caught, needed("this"):
        __import__("half_built")
    assert caught.value.message == "this needs the package 'half_built': C extension not built"


def test_other_errors_stay():
    with pytest.raises(RuntimeError, match="mine"), needed("this"):
        raise RuntimeError("mine")
    with pytest.raises(ImportError, match="ours"), needed("this"):
        raise ImportError("ours", name="nbtriton.model.config")


def test_a_client_over_grpc_asks_for_grpcio(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "grpc", None)
    assert main(["perf", "m", "-u", "grpc://127.0.0.1:1"]) != 0
    assert capsys.readouterr().err.splitlines() == [
        "nbtriton: a client over gRPC needs the package 'grpcio'",
        "  hint: pip install 'nbtriton[grpc]'",
    ]


def test_a_frame_asks_for_pandas(monkeypatch):
    with nt.Server() as server:
        server.load(CONFIG, double, name="m")
        result = server.infer("m", {"IN": np.ones((1, 4), np.float32)})
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(UnsupportedError, match="needs the package 'pandas'"):
            result.to_frame()


@pytest.mark.medium
def test_the_endpoints_need_no_grpcio():
    code = """import sys
sys.modules["grpc"] = sys.modules["tritonclient"] = None
import nbtriton as nt
with nt.Server() as server, server.serve(http_port=0, grpc_port=0, metrics_port=0) as endpoints:
    print(endpoints.grpc_port > 0)
"""
    assert run_python("-c", code).stdout == "True\n"
