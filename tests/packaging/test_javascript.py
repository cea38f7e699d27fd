"""The scripts of the widgets are typed, and in good style: as `make scripts` has it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[2] / "scripts" / "javascript" / "check.py"


@pytest.mark.slow
def test_the_scripts_of_the_widgets_pass_typescript_and_biome():
    spec = importlib.util.spec_from_file_location("javascript_check", CHECK)
    check = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check)
    if reason := check.install():
        pytest.skip(reason)
    assert check.findings() == ""
