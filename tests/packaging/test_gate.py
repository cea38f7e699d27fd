"""``scripts/test.sh`` and ``make check``: the last lines name what failed, and an unknown room gets the list of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "test.sh"
PASSES = "echo all is well"
RUFF = 'echo "src/a.py:1:1: F401 unused"; exit 1'
PYTEST = """
echo "FAILED tests/a.py::test_one - AssertionError: 1 == 2"
echo "ERROR tests/b.py - ImportError: no b"
seq 1000
exit 1"""


def run(
    tmp_path: Path,
    *,
    compiled: str = "",
    build: str = "true",
    ready: str = "true",
    **tools: str,
) -> tuple[int, list[str]]:
    for name in ("ruff", "mypy", "lint-imports", "python"):
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\n{tools.get(name, PASSES)}\n")
        tool.chmod(0o755)
    done = subprocess.run(
        ["sh", str(SCRIPT), str(tmp_path), compiled, build, ready],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_the_last_lines_name_the_steps_that_failed_and_their_tests(tmp_path: Path) -> None:
    status, lines = run(tmp_path, ruff=RUFF, python=PYTEST)
    tests = [
        "FAILED tests/a.py::test_one - AssertionError: 1 == 2",
        "ERROR tests/b.py - ImportError: no b",
    ]
    assert status == 1
    assert lines[-8:] == [
        "== failed: style", "src/a.py:1:1: F401 unused",
        "== failed: format", "src/a.py:1:1: F401 unused",
        "== failed: pytest", *tests,
        "FAILED: style format pytest",
    ]  # fmt: skip


def test_a_step_that_was_ended_is_shown_by_its_last_lines(tmp_path: Path) -> None:
    status, lines = run(tmp_path, python="seq 50; kill -9 $$")
    assert status == 1
    shown = lines[lines.index("== failed: pytest") :]
    assert "50" in shown
    assert len(shown) == 22
    assert shown[-1] == "FAILED: pytest"


def test_all_steps_run_and_nothing_is_said_of_failures_where_none_is(tmp_path: Path) -> None:
    status, lines = run(tmp_path, compiled="build/compiled")
    assert status == 0
    steps = [line for line in lines if line.startswith("==")]
    for beside in ("== pytest", "== build"):
        steps.remove(beside)
    assert steps == ["== style", "== format", "== types", "== layers", "== compiled"]


def test_what_cannot_be_built_is_not_tested(tmp_path: Path) -> None:
    status, lines = run(tmp_path, compiled="build/compiled", build="false")
    assert status == 1
    assert lines[-1] == "FAILED: build"
    assert "== pytest" in lines
    assert "== compiled" not in lines


def test_without_what_the_tests_need_none_is_run(tmp_path: Path) -> None:
    status, lines = run(tmp_path, ready="false")
    assert status == 1
    assert lines == []


def test_an_unknown_room_gets_the_list_of_rooms() -> None:
    def room(name: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "--silent", "room", f"ROOM={name}"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    rooms = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    for name in ("engines", ""):
        refused = room(name)
        assert refused.returncode
        assert set(refused.stdout.rpartition(": ")[2].split()) == rooms
    assert room("engine").returncode == 0
