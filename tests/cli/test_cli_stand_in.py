"""``--stand-in`` of ``nbtriton validate``, ``perf`` and ``export``: a repository made for another machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbtriton.magics.cli import main
from nbtriton.model.config import parse_pbtxt
from nbtriton.serving.repository.export.writer import ExportWarning

PLAN = """name: "plan" platform: "tensorrt_plan" max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: 4 }
output { name: "OUT" data_type: TYPE_FP32 dims: 2 }
parameters { key: "STAND_IN_COST_US" value { string_value: "100" } }
"""
NET = PLAN.replace('"plan"', '"net"').replace("tensorrt_plan", "onnxruntime_onnx")
ENSEMBLE = """name: "both" platform: "ensemble" max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: 4 }
output [ { name: "A" data_type: TYPE_FP32 dims: 2 }, { name: "B" data_type: TYPE_FP32 dims: 2 } ]
ensemble_scheduling { step [
  { model_name: "plan" model_version: -1 input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "A" } },
  { model_name: "net" model_version: -1 input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "B" } }
] }
"""
UNKNOWN = "there is no backend 'tensorrt'"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A plan without its backend, a net without its file, and an ensemble of both."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra onnx)")
    root = tmp_path / "models"
    for name, text in (("plan", PLAN), ("net", NET), ("both", ENSEMBLE)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(text)
    (root / "plan" / "1" / "model.plan").write_bytes(b"a plan")
    return root


def test_validate(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(repository)]) == 1
    assert "nbtriton serve, validate, perf and export" in capsys.readouterr().out
    assert main(["validate", str(repository), "--stand-in", "--print"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"plan: OK as a stand-in ({UNKNOWN})" in lines
    assert "net: OK as a stand-in (the file 'model.onnx' does not exist)" in lines
    assert "both: OK" in lines


def test_what_a_stand_in_cannot_mend_is_an_error_all_the_same(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "plan" / "config.pbtxt").write_text(PLAN.replace("IN", "OUT").partition("out")[0])
    (repository / "net" / "config.pbtxt").write_text(NET.replace("4", "0"))
    assert main(["validate", str(repository), "--stand-in"]) == 1
    said = capsys.readouterr().out
    assert "plan: a stand-in for model 'plan' needs the outputs in its configuration" in said
    assert "net: model input" in said


def test_perf_says_of_which_models_no_time_was_measured(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["perf", "both", "--model-repository", str(repository), "--request-count", "5"]
    assert main(line) == 2
    assert main([*line, "--stand-in"]) == 0
    said = capsys.readouterr().out
    for name in ("plan", "net"):
        assert f"'{name}' is a stand-in" in said
    assert main(["perf", "both", "--url", "127.0.0.1:1", "--stand-in"]) == 2
    assert "not of a server at a URL" in capsys.readouterr().err


def test_export_writes_what_is_there_and_names_what_is_not(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.warns(ExportWarning) as caught:
        assert main(["export", str(repository), str(tmp_path / "out"), "--stand-in"]) == 0
    said = [str(one.message) for one in caught]
    assert f"model 'plan' is a stand-in here ({UNKNOWN}): its files are written as they are" in said
    assert (
        "model 'net' is a stand-in here (the file 'model.onnx' does not exist): its file is not "
        "written, put it into 'net/1'"
    ) in said
    assert (tmp_path / "out" / "plan" / "1" / "model.plan").read_bytes() == b"a plan"
    assert [path.name for path in (tmp_path / "out" / "net" / "1").iterdir()] == [".keep"]
    for name, text in (("plan", PLAN), ("net", NET)):
        written = parse_pbtxt((tmp_path / "out" / name / "config.pbtxt").read_text())
        given = parse_pbtxt(text)
        assert written.platform == given.platform
        assert written.parameters == given.parameters  # no mark of a stand-in
        assert (written.input, written.output) == (given.input, given.output)
        # As Triton completes a TensorRT model, and no other.
        assert written.HasField("dynamic_batching") == (name == "plan")
