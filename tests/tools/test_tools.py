"""The tools that `python -m tests.tools` has installed on this machine, each run once."""

from __future__ import annotations

import pytest

from tests.tools.environments import TOOLS, environment_of
from tests.tools.runs import RUNS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_works_with_this_server(name: str, tmp_path) -> None:
    environment = environment_of(name)
    if not environment.is_installed:
        pytest.skip(f"not installed here: `python -m tests.tools {name}` does it")
    assert RUNS[name](environment, tmp_path)
