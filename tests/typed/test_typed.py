"""Types for users: what mypy accepts (its run over this folder is part of the gate) also runs."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

import nbtriton
from nbtriton.common import entries
from nbtriton.common.packages import EXTRAS
from tests.children import run_python

FOLDER = Path(__file__).parent
STUBS = FOLDER.parents[1] / "src" / "triton_python_backend_utils-stubs"


@pytest.mark.slow
def test_the_typed_program_runs() -> None:
    done = run_python(FOLDER / "program.py", check=True)
    assert done.stdout.splitlines() == [
        "double [[2.0, 2.0, 2.0, 2.0]]",
        "triple [[3.0, 3.0, 3.0, 3.0]]",
        "model [[2.0, 2.0, 2.0, 2.0]]",
        "4.0",
        "8.0 4.0",
        "[4.0, 4.0]",
        "[12.0, 12.0]",
        "NOT_FOUND did you mean 'double'?",
        f"2 5 {nbtriton.compiled} True",
    ]


@pytest.mark.slow
def test_the_typed_calls_run() -> None:
    done = run_python(FOLDER / "calls.py", check=True)
    assert done.stdout.splitlines() == [
        "True True 1",
        "Exported",
        "8 True 0",
        "True",
        "4 True 1 True",
        "False True True True 0",
        "1 1",
        "StaticView TimelineView PlotView Figure",
        "True True",
        "True A request waits for others. Exercise",
    ]


@pytest.mark.slow
def test_the_stubs_are_the_module(tmp_path: Path) -> None:
    """By mypy's stubtest: every name, parameter and default."""
    pytest.importorskip("mypy", reason="stubtest is mypy's")
    config = tmp_path / "mypy.ini"
    # What NumPy's own types say takes ten seconds to read and changes nothing.
    config.write_text(
        f"[mypy]\nmypy_path = {STUBS.parent}\n[mypy-numpy.*]\nfollow_imports = skip\n"
    )
    code = (
        "import sys\n"
        "from nbtriton.backends.python import install_pb_utils\n"
        "from mypy import stubtest\n"
        "install_pb_utils()\n"
        f"sys.argv = ['stubtest', 'triton_python_backend_utils', '--mypy-config-file', {str(config)!r}]\n"
        "sys.exit(stubtest.main())\n"
    )
    done = run_python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def exported(module: ModuleType) -> dict[str, str]:
    """Return the names that a module imports for type checkers, with the modules that have them."""
    nodes = ast.walk(ast.parse(Path(str(module.__file__)).read_text()))
    found = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return {one.name: str(node.module) for node in found for one in node.names if one.asname}


@pytest.mark.medium
def test_every_public_name_is_exported_for_type_checkers() -> None:
    views = entries.own_places("views").items()
    places = {name: at.rpartition(":" if ":" in at else ".")[0] for name, at in views}
    modules = dict.fromkeys(("errors", "types"), "nbtriton")
    version = {"__version__": "nbtriton.common"}
    assert exported(nbtriton) == {**nbtriton._PUBLIC, **places, **modules, **version}
    results = {name: f"nbtriton.{module}" for name, module in nbtriton.types._PLACES.items()}
    assert exported(nbtriton.types) == results
    assert all(hasattr(nbtriton, name) for name in exported(nbtriton))
    assert all(hasattr(nbtriton.types, name) for name in results)


@pytest.mark.medium
def test_the_top_has_what_a_person_calls() -> None:
    classes = {name for name in dir(nbtriton) if isinstance(getattr(nbtriton, name), type)}
    assert classes == {"Server", "SharedMemoryPool", "TritonError"}
    assert {"server", "perf", "whatif", "lessons", "types"} <= {*dir(nbtriton)}
    assert len(dir(nbtriton)) <= 32


@pytest.mark.slow
def test_the_typed_program_runs_with_the_core_alone() -> None:
    """As the test of the release's wheels runs it: with no package of an extra."""
    code = (
        "import re, runpy, sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {set(EXTRAS) | {'ml_dtypes', 'sklearn'}!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        f"runpy.run_path({str(FOLDER / 'program.py')!r}, run_name='__main__')\n"
    )
    assert len(run_python("-c", code, check=True).stdout.splitlines()) == 9
