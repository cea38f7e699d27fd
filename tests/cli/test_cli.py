"""``nbtriton perf`` and ``export``: options beside the usual ones, and errors of one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from nbtriton.magics.cli import main

MODEL = """backend: "identity" max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] }
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "same"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(MODEL)
    return folder.parent


def test_a_request_rate_is_no_second_load_beside_the_default(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model-repository", str(repository), "--request-rate", "1000", "--request-count=5"]
    assert main(["perf", "same", *flags]) == 0
    assert "request rate" in capsys.readouterr().out
    assert main(["perf", "same", *flags, "-c", "2"]) == 2
    assert "Cannot specify more then one inference load mode" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_one_sentence(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = repository / "absent" / "report.csv"
    assert main(["perf", "same", "--model-repository", str(repository), "--request-count=5",
                 "--csv", str(table)]) == 2  # fmt: skip
    found = capsys.readouterr().err.splitlines()
    assert found[-1] == f"nbtriton: [Errno 2] No such file or directory: '{table}'"
    (repository / "file").touch()
    assert main(["export", str(repository), str(repository / "file" / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_no_name_of_a_repository_is_not_the_current_directory(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    assert main(["validate", ""]) == 2
    assert main(["perf", "same", "--model-repository", ""]) == 2
    found = capsys.readouterr()
    assert found.err.count("nbtriton: failed to open model repository '': no such directory") == 2
    assert not found.out
    ports = ("--http-port=0", "--grpc-port=0", "--allow-metrics=false")
    assert main(["serve", "--model-repository", "", *ports]) == 1
    assert "error: creating server: Internal - failed to stat file" in capsys.readouterr().err
