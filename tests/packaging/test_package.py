"""What is installed is what the repository holds, and what the metadata promises exists."""

from __future__ import annotations

import platform
import tomllib
from importlib.metadata import entry_points, requires
from pathlib import Path
from typing import get_args

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]


def constraints() -> dict[str, Version]:
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, version = line.split("==")
            pins[canonicalize_name(name)] = Version(version)
    return pins


def test_nbtritons_own_entries_are_declared_and_each_is_there() -> None:
    from nbtriton.common import entries

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    kinds = get_args(entries.Kind)
    own = {f"nbtriton.{kind}": places for kind in kinds if (places := entries.own_places(kind))}
    assert project["entry-points"] == own
    for places in own.values():
        assert all(entries.load(place) is not None for place in places.values())


def test_the_console_script_is_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    import nbtriton

    (script,) = entry_points(group="console_scripts", name="nbtriton")
    with pytest.raises(SystemExit) as ended:
        script.load()(["--version"])
    assert ended.value.code == 0
    core = "compiled" if nbtriton.compiled else "pure Python"
    found = capsys.readouterr().out
    assert found.startswith(f"nbtriton {nbtriton.__version__} ({core} core, ")
    assert found.endswith(f" {platform.machine()})\n")


def test_the_version_is_one() -> None:
    import nbtriton

    assert nbtriton.__version__ == ProjectMetadata(str(ROOT), PluginManager()).version


def test_every_requirement_is_pinned_and_within_its_range() -> None:
    pins = constraints()
    texts = requires("nbtriton")
    assert texts
    for text in texts:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        # No build machine has a GPU, and torch for GPUs brings the triton that it needs.
        if name in ("nbtriton", "cupy-cuda12x", "triton"):
            continue
        assert name in pins, f"{name} is not in constraints.txt: run `make pin`"
        assert requirement.specifier.contains(pins[name]), f"{requirement} against {pins[name]}"
