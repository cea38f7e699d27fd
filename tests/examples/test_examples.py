"""The short version of `python -m tests.examples`: one server, our own programs, fewer clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.__main__ import Line, main, run_line
from tests.examples.checklist import BACKEND_PROGRAMS, CLIENT_PROGRAMS, Program
from tests.examples.repository import (
    has_onnx,
    write_backend_models,
    write_images,
    write_models,
)
from tests.examples.serving import serve_nbtriton
from tests.examples.site import Site, Skipped
from tests.examples.upstream import examples_of, run_program

# One server with all models: six seconds of a processor.
pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("examples")
    write_models(folder / "models", python=not has_onnx())
    write_backend_models(folder / "models")
    write_images(folder / "images")
    with serve_nbtriton(folder / "models", folder / "images", fresh_clients=100) as running:
        yield running


@pytest.mark.parametrize(
    "program", [*CLIENT_PROGRAMS, *BACKEND_PROGRAMS], ids=lambda program: program.name
)
def test_a_program_finds_nothing_wrong(program: Program, site: Site) -> None:
    try:
        program.run(site)
    except Skipped as skipped:
        pytest.skip(str(skipped))


@pytest.fixture(scope="module")
def site_of_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("processes")
    write_backend_models(folder / "models")
    write_images(folder / "images")
    with serve_nbtriton(
        folder / "models", folder / "images", fresh_clients=1, isolation="process"
    ) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("program", BACKEND_PROGRAMS, ids=lambda program: program.name)
def test_PB12_a_model_in_a_process_does_the_same(program: Program, site_of_processes: Site) -> None:
    try:
        program.run(site_of_processes)
    except Skipped as skipped:
        pytest.skip(str(skipped))


@pytest.mark.slow
def test_the_command_prints_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simple_http_infer_client", "cudashm over gRPC", "custom_repeat"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["PASS", "PASS", "PASS", "3"]
    assert "simple_http_infer_client" in lines[0]
    assert lines[-1].startswith("3 passed, 0 failed, 0 skipped against nbtriton serve in ")
    with pytest.raises(SystemExit):
        main(["no such program"])


def test_a_failed_program_is_reported_with_its_output(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(site: Site) -> None:
        raise AssertionError("two lines\nof story")

    def nothing_raised(site: Site) -> None:
        with pytest.raises(ValueError):
            pass

    assert run_line(Line("9", "wrong", wrong), site) == "FAIL"
    first, *story = capsys.readouterr().out.splitlines()
    assert first.split()[:3] == ["FAIL", "9", "wrong"]
    assert 'raise AssertionError("two lines' in story[0]
    assert [line.strip() for line in story[1:]] == ["AssertionError: two lines", "of story"]
    assert run_line(Line("", "silent", nothing_raised), site) == "FAIL"


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("import sys; print('PASS' if sys.argv[1:] == ['{grpc}', 'a b'] else sys.argv)", ""),
        ("print('inference failed'); raise SystemExit(1)", "exit status 1\ninference failed"),
        ("print('channel creation failed')  # else PASS", "it did not say PASS"),
        ("print('that is all')", ""),
    ],
)
def test_upstream_s_programs_are_run_as_they_are(
    site: Site, tmp_path: Path, program: str, error: str
) -> None:
    folder = tmp_path / "src" / "python" / "examples"
    folder.mkdir(parents=True)
    (folder / "some_client.py").write_text(program.replace("{grpc}", site.grpc))
    examples = examples_of(tmp_path, "src/python/examples")
    assert examples == examples_of(folder, "src/python/examples") == folder
    (folder / "built").write_text(f'#!/bin/sh\n[ "$1" = {site.http} ]\n')
    (folder / "built").chmod(0o755)
    run_program("built {http}", examples, site)
    command = "some_client.py {grpc} 'a b'"
    if not error:
        run_program(command, examples, site)
        return
    with pytest.raises(AssertionError, match=error):
        run_program(command, examples, site)


@pytest.mark.slow
def test_missing_parts_of_upstream_programs_are_reported(site: Site, tmp_path: Path) -> None:
    with pytest.raises(Skipped, match="needs the package 'no_such_package'"):
        run_program("x_client.py", tmp_path, site, package="no_such_package")
    with pytest.raises(Skipped, match="not built"):
        run_program("simple_http_infer_client -u {http}", tmp_path, site)
    with pytest.raises(Skipped, match="needs a GPU"):
        run_program("preprocessing/client.py", tmp_path, site)
    with pytest.raises(FileNotFoundError, match="no examples in"):
        examples_of(tmp_path, "examples")
